import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd import Inspection, PatchSVDD
from skpatchsvdd._scoring.explain import MATCH, resize_boxes
from skpatchsvdd.datasets import make_textures

PLAIN = {
    "encoder": "hierarchical",
    "embedding_dim": 8,
    "max_iter": 0,
    "inspection": Inspection(position_weight=0),
    "random_state": SEED,
}
BOX = ("top", "left", "bottom", "right")


def cut(image, match, prefix=""):
    top, left, bottom, right = (match[prefix + name] for name in BOX)
    return image[top:bottom, left:right]


@pytest.fixture(scope="module")
def train():
    return make_textures(6, image_size=80, random_state=SEED).images


@pytest.fixture(scope="module")
def test():
    made = make_textures(6, image_size=80, anomaly_fraction=0.5, random_state=SEED + 1)
    return made.images


@pytest.mark.parametrize("bank_size", [None, 200])
def test_matches_are_those_of_the_plain_way(train, test, bank_size):
    est = PatchSVDD(patch_size=64, bank_size=bank_size, **PLAIN).fit(train)
    matches = est.explain(test)
    regions, maps = est.predict_regions(test), est.anomaly_map(test)
    for scale, size in enumerate(est.patch_sizes_):
        stride = est.strides_[scale]
        bank, found = est.embed(train, size), est.embed(test, size)
        for i, own in enumerate(matches):
            assert own.shape == (max(len(regions[i]), 1), 2)
            row, col = np.unravel_index(maps[i].argmax(), maps[i].shape)
            if len(regions[i]):
                row, col = regions[i]["row"][0], regions[i]["col"][0]
            match = own[0, scale]
            assert match["top"] <= row < match["bottom"] == match["top"] + size
            assert match["left"] <= col < match["right"] == match["left"] + size
            query = found[i, match["top"] // stride, match["left"] // stride]
            normal = bank[
                match["image"],
                match["image_top"] // stride,
                match["image_left"] // stride,
            ]
            distance = np.linalg.norm(query - normal)
            assert match["distance"] == pytest.approx(distance, rel=1e-4)
            distances = np.linalg.norm(bank - query, axis=-1)
            if bank_size is None:
                assert distance == pytest.approx(distances.min(), rel=1e-4)
            else:
                assert distance >= distances.min() * (1 - 1e-4)


def test_a_training_image_is_not_compared_with_itself(train):
    est = PatchSVDD(patch_size=32, **PLAIN).fit(train)
    for i, match in enumerate(est.explain(train)):
        assert match["image"] != i
    est.fit(train, groups=[0, 0, 0, 1, 1, 1])
    assert (est.explain(train[:1])[0]["image"] >= 3).all()


def test_a_copy_of_a_training_patch_is_found_where_it_is(train):
    given = PLAIN | {"inspection": Inspection(position_weight=0, light=1)}
    est = PatchSVDD(patch_size=32, **given).fit(train)
    image = train[4].copy()
    image[:, 40:] = 0  # another image, whose left is the same
    match = est.explain(image[None])[0][0, 0]
    assert match["right"] > 40  # what differs is explained
    index, cells = est._fitted.indexes[0], est.embed(image[None], 32)[0]
    corner = torch.from_numpy(cells[:2, :2].reshape(4, -1))
    distances, places = index.find_nearest(corner, -1)
    np.testing.assert_allclose(distances, 0, atol=1e-6)
    columns = cells.shape[1]
    assert places.tolist() == [[4, 0], [4, 1], [4, columns], [4, columns + 1]]


def test_boxes_have_the_sizes_that_images_came_in(train, test):
    large = np.repeat(np.repeat(test, 2, axis=1), 3, axis=2)
    est = PatchSVDD(patch_size=32, image_size=80, **PLAIN)
    est.fit([*train[:5], np.repeat(train[5], 2, axis=0)])
    match = est.explain(large)[-1][0, 0]
    assert match["bottom"] - match["top"] == 2 * 32
    assert match["right"] - match["left"] == 3 * 32
    matches = np.zeros((1, 1), dtype=MATCH)
    for name in BOX:
        matches[name], matches[f"image_{name}"] = 8, 16
    matches["image"] = 1
    resize_boxes(matches, (8, 16), (80, 16), [(8, 16), (16, 8)])
    assert [int(matches[name][0, 0]) for name in BOX] == [80, 8, 80, 8]
    assert [int(matches[f"image_{x}"][0, 0]) for x in BOX] == [32, 8, 32, 8]


def test_more_images_are_numbered_on(train, test):
    inspection = Inspection(position_weight=0, relative_weight=0)
    options = PLAIN | {"patch_size": 32, "inspection": inspection}
    est = PatchSVDD(**options).fit(train[:3]).partial_fit(train[3:])
    whole = PatchSVDD(**options).fit(train)
    est.offset_ = whole.offset_  # former scores stay as they were: it differs
    for one, other in zip(est.explain(test), whole.explain(test), strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
        np.testing.assert_array_equal(one["image_top"], other["image_top"])
    assert est.training_files_ == [None] * 6
