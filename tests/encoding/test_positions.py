import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from settings import SEED

from skpatchsvdd import Inspection, PatchSVDD
from skpatchsvdd._encoding import dense, positions
from skpatchsvdd._encoding.base import PatchEncoder, grid_shape
from skpatchsvdd._encoding.dense import add_positions
from skpatchsvdd._encoding.positions import compare_images, find_unit
from skpatchsvdd._images import check_images
from skpatchsvdd.metrics import detection_auroc


def test_places_are_shares_of_the_longer_side():
    features = torch.zeros(2, 3, 5, 4)
    result = add_positions(features, 8, (40, 80), unit=10.0)
    assert result.shape == (2, 3, 5, 6)
    assert torch.equal(result[..., :4], features)
    # Row 2 and column 3 begin at the pixels 16 and 24.
    torch.testing.assert_close(result[1, 2, 3, 4:], torch.tensor([2.0, 3.0]))
    assert add_positions(features, 8, (40, 80), unit=0.0) is features


def compare(features, stride=4):
    cells = np.arange(features.shape[1] * features.shape[2])
    rng = np.random.RandomState(SEED)
    return compare_images(torch.from_numpy(features), cells, stride, rng)


def test_images_are_compared_as_the_plain_way_does(rng):
    features = rng.normal(size=(5, 12, 9, 3)).astype(np.float32)
    rows = features.reshape(-1, 3)
    image, cell = np.divmod(np.arange(len(rows)), 12 * 9)
    distances = cdist(rows, rows)
    distances[image[:, None] == image] = np.inf
    nearest = distances.argmin(axis=1)
    place = np.stack(np.divmod(cell, 9), axis=1)  # (n_rows, 2)
    same = (abs(place - place[nearest]) <= 4).all(axis=1).mean()
    grid = place[: 12 * 9]
    chance = (abs(grid[:, None] - grid) <= 4).all(axis=2).mean()
    distance, alignment = compare(features)
    smallest = np.sort(distances.min(axis=1))  # torch takes the lower middle one
    assert distance == pytest.approx(smallest[(len(rows) - 1) // 2], rel=1e-5)
    assert alignment == pytest.approx((same - chance) / (1 - chance), abs=1e-6)


def make_features(rng, n_images, aligned):
    """Features of images with the same cells, shuffled if they are not aligned."""
    cells = rng.normal(size=(20 * 20, 3))
    images = [cells if aligned else rng.permutation(cells) for _ in range(n_images)]
    features = np.stack(images) + rng.normal(scale=1e-3, size=(n_images, 400, 3))
    return features.reshape(n_images, 20, 20, 3).astype(np.float32)


@pytest.mark.parametrize("sample", [2**23, 3 * 600])
def test_alignment_tells_parts_from_textures(rng, monkeypatch, sample):
    monkeypatch.setattr(positions, "_SAMPLE", sample)
    assert abs(compare(make_features(rng, 6, aligned=False))[1]) < 0.1
    assert compare(make_features(rng, 6, aligned=True))[1] > 0.5


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (1, 4)])
def test_places_tell_nothing_where_all_are_the_same(rng, grid):
    features = rng.normal(size=(5, *grid, 3)).astype(np.float32)
    assert compare(features)[1] == 0


@pytest.mark.parametrize(
    ("alignment", "weight", "expected"),
    [
        (1.0, "auto", 20),
        (0.75, "auto", 20),
        (0.5, "auto", 10),
        (0.2, "auto", 0),
        (-0.1, "auto", 0),
        (0.0, 3.0, 6),
        (1.0, 0.0, 0),
    ],
)
def test_units_by_hand(monkeypatch, alignment, weight, expected):
    monkeypatch.setattr(positions, "compare_images", lambda *args: (2.0, alignment))
    assert find_unit(None, None, 4, weight, None) == expected


def make_parts(rng, n_images, row):
    """Images of a bright square at this row, on a dark ground."""
    images = rng.normal(0.2, 0.01, size=(n_images, 96, 96)).astype(np.float32)
    images[:, row : row + 24, 36:60] += 0.6
    return images


def fit(images, weight):
    inspection = Inspection(position_weight=weight)
    est = PatchSVDD(encoder="hierarchical", patch_size=32, max_iter=0)
    return est.set_params(inspection=inspection, random_state=SEED).fit(images)


def test_a_misplaced_part_stands_out_only_where_places_count(rng):
    train, good = make_parts(rng, 12, 36), make_parts(rng, 6, 36)
    images = np.concatenate([good, np.roll(good, 24, axis=2)])
    scores = {x: fit(train, x).score_samples(images) for x in (0, "auto")}
    gaps = {k: (x[:6].mean() - x[6:].mean()) / x[:6].std() for k, x in scores.items()}
    assert gaps["auto"] > 3 * abs(gaps[0])
    assert detection_auroc(np.repeat([1, -1], 6), scores["auto"]) == 1


def test_places_do_not_change_features(rng):
    images = make_parts(rng, 4, 36)
    features = [fit(images, weight).embed(images, 32) for weight in (0, 20)]
    np.testing.assert_array_equal(*features)


@pytest.mark.parametrize("scene", ["aligned", "random"])
def test_of_large_images_few_tiles_decide(monkeypatch, scene):
    rng = np.random.default_rng(SEED)
    one = rng.integers(0, 256, (250, 300, 3), np.uint8)
    many = rng.integers(0, 256, (10, 250, 300, 3), np.uint8)
    images = (one + many // 8) // 2 if scene == "aligned" else many
    whole = find_units(images)
    monkeypatch.setattr(dense, "_WHOLE_PIXELS", 2**14)
    monkeypatch.setattr(dense, "_TILE", 32)
    monkeypatch.setattr(positions, "_WHOLE_PIXELS", 2**14)
    seen = []
    encode = dense.DenseEncoder._encode_tile
    monkeypatch.setattr(
        dense.DenseEncoder,
        "_encode_tile",
        lambda self, *args: seen.append(args[-1]) or encode(self, *args),
    )
    sampled = find_units(images)
    assert len(seen) == 4 * positions._N_SAMPLED
    np.testing.assert_allclose(sampled, whole, rtol=0.2)
    assert (sampled[0] > 0) == (scene == "aligned")


class Pixels(PatchEncoder):
    """An encoder whose features are the pixels of patches."""

    def encode_images(self, images, strides):
        (stride,) = strides
        rows, cols = grid_shape(images.shape[2:], 32, stride)
        x = torch.nn.functional.unfold(images, 32, stride=stride)
        return [x.reshape(len(images), -1, rows, cols)]


def find_units(images):
    setting = dense.DenseSetting(
        images.shape[1:3],
        np.full((1, 1, 1), 0.5, dtype=np.float32),
        1.0,
        (16,),
        torch.device("cpu"),
    )
    encoder = setting.make(Pixels(3, 1, 32))
    rng = np.random.RandomState(SEED)
    return positions.find_units(encoder, check_images(images), "auto", rng)
