"""What is harmless: means over windows, where it was seen, and how alike it is."""

import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._export.reducing import reduce_bank
from skpatchsvdd._feedback import Harmless
from skpatchsvdd._feedback.corrections import join_harmless
from skpatchsvdd._feedback.harmless import average_far, couple, lower_distances
from skpatchsvdd._utils import Report
from skpatchsvdd.datasets import make_textures

GRID, WIDTH, TYPICAL, N_CHANNELS = (11, 14), 6, 0.5, 3


def make(ratios, cells=None):
    """Return what is known of images with four patches each."""
    rng = np.random.RandomState(SEED)
    n = len(ratios)
    if cells is None:
        cells = rng.randint(0, GRID[0] * GRID[1], 4 * n)
    return Harmless(
        [rng.rand(4 * n, WIDTH).astype(np.float32)],
        [np.repeat(np.arange(n), 4)],
        [np.asarray(cells)],
        [0.2 * rng.rand(4 * n, N_CHANNELS + 1).astype(np.float32)],
        [bytes([i]) for i in range(n)],
        np.array(ratios, dtype=float),
        [TYPICAL],
        [GRID],
    )


@pytest.fixture
def patches():
    """Features, colours and distances of three images, of which few are far."""
    rng = np.random.RandomState(SEED)
    features = rng.rand(3, *GRID, WIDTH).astype(np.float32)
    distances = 0.9 * TYPICAL * rng.rand(3, *GRID).astype(np.float32)
    distances[0, 2:5, 3:6] = 4 * TYPICAL * rng.rand(3, 3)
    distances[1, 10, 13] = 3 * TYPICAL
    colors = 0.2 * rng.rand(3, *GRID, N_CHANNELS).astype(np.float32)
    return tuple(map(torch.from_numpy, (features, colors, distances)))


def measure(harmless, patches):
    (found,) = harmless.measure(*({0: x} for x in patches)).values()
    return found.numpy()


def average_plainly(features, colors, distances):
    """Return what `average_far` does of one image, patch by patch."""
    means, far = np.zeros(features.shape), np.zeros(distances.shape)
    looks = np.zeros((*GRID, N_CHANNELS + 1))
    weights = np.maximum(distances / TYPICAL - 2, 0)
    for row, col in np.ndindex(*GRID):
        window = slice(max(row - 4, 0), row + 5), slice(max(col - 4, 0), col + 5)
        total = weights[window].sum()
        if total > 0:
            own = weights[window] / total
            means[row, col] = (features[window] * own[..., None]).sum(axis=(0, 1))
            colour = (colors[window] * own[..., None]).sum(axis=(0, 1))
            looks[row, col] = [*colour, np.log((weights[window] > 0).sum() / 81)]
            far[row, col] = (distances[window] * own).sum()
    return means, looks, far


def test_means_over_windows(patches):
    around = average_far(*patches, TYPICAL)
    for k, images in enumerate(zip(*patches, strict=True)):
        expected = average_plainly(*(x.double().numpy() for x in images))
        is_around = expected[-1] > 0
        for found, own in zip(around, expected, strict=True):
            np.testing.assert_allclose(
                found[k][is_around], own[is_around], rtol=1e-4, atol=1e-5
            )
    assert not around.far[2].any()


@pytest.mark.parametrize("ratios", [[1.5, 4, 2, 3], [np.nan, 4], [np.nan]])
def test_measured_as_by_a_plain_reference(patches, ratios):
    harmless = make(ratios)
    found = measure(harmless, patches)
    away = harmless.find_away(0).numpy()
    counts = np.full(len(ratios), 5.0)
    if np.isfinite(ratios).sum() >= 3:
        counts[:] = np.sort(ratios)[1] ** (1 - 0.2 * (2 - np.mean(away <= 1)))
    for k in range(3):
        means, looks, far = average_plainly(*(x[k].double().numpy() for x in patches))
        for row, col in np.ndindex(*GRID):
            if far[row, col] == 0:
                assert found[k, row, col] == np.inf
                continue
            apart = np.linalg.norm(harmless.rows[0] - means[row, col], axis=1)
            alike = apart * counts[harmless.images[0]] / far[row, col]
            others = np.abs(harmless.looks[0] - looks[row, col])
            color = np.linalg.norm(others[:, :-1], axis=1) / 0.15
            worst = np.maximum(np.maximum(alike, color), others[:, -1] / np.log(2))
            expected = worst.min() * away[row, col]
            assert found[k, row, col] == pytest.approx(expected, rel=1e-4)


def test_all_patches_at_once_as_image_by_image(patches, monkeypatch):
    harmless = make([1.5, 4, 2])
    expected = measure(harmless, patches)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # as for a GPU
    np.testing.assert_allclose(measure(harmless, patches), expected, rtol=1e-5)


def test_nothing_is_known():
    harmless = make([])
    widths = (WIDTH,), (N_CHANNELS,), ()
    patches = [torch.full((2, *GRID, *width), 4 * TYPICAL) for width in widths]
    assert np.isinf(measure(harmless, patches)).all()


def test_what_is_harmless_is_so_at_every_scale():
    small = torch.tensor([[[0.5, 3.0], [torch.inf, 0.7]]])
    large, far = torch.tensor([[[0.9]]]), torch.ones(1, 2, 2, dtype=torch.bool)
    far[0, 1, 1] = False  # nothing around is far: this scale does not object
    coupled = couple({0: small, 1: large}, {0: far, 1: far[:, :1, :1]})
    inf = np.inf
    np.testing.assert_allclose(coupled[0], [[[0.9, 3.0], [inf, inf]]])
    np.testing.assert_allclose(coupled[1], [[[0.9]]])


def test_where_it_was_seen():
    """Three images about one place are harmless there, and nowhere far from it."""
    about = [17, 18, 31, 32]  # rows 1 and 2, columns 3 and 4
    cells = [*about, *(x + 1 for x in about), *(x + 14 for x in about)]
    away = make([2, 2, 2], cells).find_away(0)
    assert (away[1:4, 3:6] == 1).all()
    assert away[10, 13] > 3
    assert away[1, 13] > 2
    # One more, far away, that no other is like, changes little.
    corner = [150, 151, 136, 137]
    both = make([2, 2, 2, np.nan], [*cells, *corner]).find_away(0)
    assert both[10, 13] == 1
    assert both[1, 13] > 2
    # Of what comes anywhere, all of the image is near.
    spread = [*about, *corner, 0, 1, 14, 15, 140, 141, 126, 127]
    assert (make([2, 2, 2, 2], spread).find_away(0) <= 1.2).all()


def test_lowered_to_what_is_typical():
    distances = torch.tensor([4.0, 4.0, 4.0, 0.3])
    quotients = torch.tensor([0.1, 1.2, torch.inf, 0.1])
    lowered = lower_distances(distances, quotients, TYPICAL)
    np.testing.assert_allclose(lowered, [0.5, 0.5 * 1.2**6, 4.0, 0.3], rtol=1e-6)


def test_joining_knows_each_image_once():
    first, second = make([2, 3]), make([2, np.nan, 4])
    joined = join_harmless([None, first, second])
    assert joined.known == [b"\x00", b"\x01", b"\x02"]
    np.testing.assert_array_equal(joined.ratios, [2, 3, 4])
    np.testing.assert_array_equal(joined.images[0], np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(joined.rows[0][8:], second.rows[0][8:])
    assert join_harmless([None, None]) is None


@pytest.fixture(scope="module")
def normal():
    return make_textures(14, image_size=64, random_state=SEED).images


@pytest.fixture
def marked(normal):
    marked = normal[10:].copy()
    for i, image in enumerate(marked):
        image[20 + i : 32 + i, 20:32] = 255
    return marked


@pytest.fixture
def est(normal):
    params = {"encoder": "formulas", "random_state": SEED, "device": "cpu"}
    return PatchSVDD(**params).fit(normal[:10])


def test_corrections_at_once_or_one_by_one(est, marked):
    """The ratios that images are silenced by others at grow with those known."""
    est.partial_fit(marked[:1], corrections=True)
    assert np.isnan(est._fitted.feedback.harmless.ratios).all()
    for i in range(1, 4):
        est.partial_fit(marked[i : i + 1], corrections=True)
    ratios = est._fitted.feedback.harmless.ratios
    assert len(ratios) == 4
    assert (ratios[1:] > 1.2).all()
    assert (est.predict(marked) == 1).all()
    known = est._fitted
    est.partial_fit(marked, corrections=True)
    assert est._fitted is known


def test_no_more_patches_are_kept_than_there_is_room_for(est, marked, monkeypatch):
    monkeypatch.setattr("skpatchsvdd._feedback.corrections._MAX_ROWS", 5)
    est.partial_fit(marked[:2], corrections=True)
    assert all(len(x) <= 5 for x in est._fitted.feedback.harmless.rows)
    assert np.isfinite(est.score_samples(marked)).all()


def test_a_bank_with_corrections_can_be_reduced(est, marked):
    est.partial_fit(marked[:3], corrections=True)
    context = est._make_context(torch.device("cpu"), Report("PatchSVDD", 0))
    fitted, calibration = reduce_bank(
        est._fitted, est._calibration, 100, est.encoder_, context
    )
    assert all(len(index) == 100 for index in fitted.indexes[:1])
    before, after = (x.feedback.harmless for x in (est._fitted, fitted))
    assert after.typical[0] > before.typical[0]
    # Farther from fewer patches.
    assert np.median(calibration.scores / est.training_scores_) > 1
