import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from skpatchsvdd._bank import collect
from skpatchsvdd._bank.collect import Coreset, choose_centers

CPU = torch.device("cpu")


def plain_centers(points, n_centers):
    """Greedy k-centre, one point after the other."""
    points = np.float64(points) - points.mean(axis=0, dtype=np.float64)
    chosen = [int((points**2).sum(axis=1).argmax())]
    while len(chosen) < n_centers:
        nearest = cdist(points, points[chosen]).min(axis=1)
        chosen.append(int(nearest.argmax()))
    return sorted(chosen)


@pytest.mark.parametrize("n_candidates", [1, 7, 512])
def test_centers_equal_the_plain_way(rng, monkeypatch, n_candidates):
    monkeypatch.setattr(collect, "_N_CANDIDATES", n_candidates)
    points = rng.normal(size=(300, 4)).astype(np.float32)
    chosen = choose_centers(torch.from_numpy(points), 60)
    assert chosen.tolist() == plain_centers(points, 60)


def test_copies_are_chosen_once(rng):
    points = rng.normal(size=(20, 3)).astype(np.float32).repeat(5, axis=0)
    chosen = choose_centers(torch.from_numpy(points), 50)
    assert sorted(chosen // 5) == list(range(20))


def fill(size, rows, n_parts, seed=0):
    rng = np.random.RandomState(seed)
    coreset = Coreset(size, *rows.shape, rng, CPU)
    owners = np.arange(len(rows)) // 100
    for part in np.array_split(np.arange(len(rows)), n_parts):
        coreset.add(torch.from_numpy(rows[part]), owners[part])
    return coreset.result()


def test_a_small_stream_is_kept_whole(rng):
    rows = rng.normal(size=(500, 8)).astype(np.float32)
    kept, owners = fill(500, rows, 3)
    np.testing.assert_array_equal(kept, rows)
    np.testing.assert_array_equal(owners, np.arange(500) // 100)


def test_a_stream_is_covered(rng, monkeypatch):
    monkeypatch.setattr(collect, "_CPU_WAITING", (300, 2**26))
    rows = rng.normal(size=(5000, 8)).astype(np.float32)
    kept, owners = fill(200, rows, 50)
    assert len(kept) == 200
    assert (np.diff(owners) >= 0).all()
    at = cdist(kept, rows).argmin(axis=1)
    np.testing.assert_array_equal(kept, rows[at])
    np.testing.assert_array_equal(owners, at // 100)
    random = rows[rng.permutation(5000)[:200]]
    assert cdist(rows, kept).min(axis=1).max() < cdist(rows, random).min(axis=1).max()


def capacity(size, n_expected, n_features=8):
    rng = np.random.RandomState(0)
    return Coreset(size, n_expected, n_features, rng, CPU).capacity


def test_memory_is_bounded_in_rows_and_bytes():
    assert capacity(200, 400) == 400
    assert capacity(10_000, 10**6, n_features=64) == 10_000 + 2**17
    assert capacity(2**19, 10**6) == 2**19 + 2**18
    n_pixels = 64 * 64 * 3  # of a raw patch, 49 kB
    for size in (100, 10_000):
        n_others = capacity(size, 10**6, n_pixels) - size
        assert n_others * 4 * n_pixels <= max(2**26, size * 2 * n_pixels)


def test_the_same_seed_chooses_the_same_rows(rng):
    rows = rng.normal(size=(3000, 40)).astype(np.float32)
    results = [fill(100, rows, 4, seed)[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])
