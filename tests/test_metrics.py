import numpy as np
import pytest
from reference import overlap_area
from sklearn.metrics import f1_score, roc_auc_score

from skpatchsvdd.metrics import (
    best_f1,
    detection_auroc,
    pro_score,
    segmentation_auroc,
)


@pytest.mark.parametrize("seed", range(5))
def test_detection_auroc_equals_sklearns(seed):
    rng = np.random.default_rng(seed)
    y = rng.choice([-1, 1], 200)
    scores = rng.normal(size=200) + 0.5 * y
    scores[::3] = scores[::3].round(1)  # ties
    expected = roc_auc_score(y == -1, -scores)
    assert detection_auroc(y, scores) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_segmentation_auroc_equals_sklearns(rng, dtype):
    masks = rng.random((5, 40, 30)) < 0.1
    maps = (rng.random(masks.shape) + 0.3 * masks).round(2).astype(dtype)
    expected = roc_auc_score(masks.ravel(), maps.ravel())
    for given in ((masks, maps), (masks * 255, list(maps))):
        assert segmentation_auroc(*given) == pytest.approx(expected, abs=1e-9)


def test_images_of_unequal_size_count_by_pixels():
    masks = [np.array([[1, 0]]), np.array([[0], [0], [1]])]
    maps = [np.array([[0.9, 0.1]]), np.array([[0.2], [0.3], [0.25]])]
    # of 2 x 3 pairs of pixels, only 0.25 against 0.3 is the wrong way round
    assert segmentation_auroc(masks, maps) == pytest.approx(5 / 6)


@pytest.mark.parametrize("max_fpr", [0.05, 0.3, 1])
def test_pro_of_a_perfect_map_is_one_and_of_a_constant_one_chance(max_fpr):
    masks = np.zeros((2, 20, 20), dtype=bool)
    masks[0, 3:9, 4:8] = masks[1, 10, 2:18] = True
    assert pro_score(masks, masks.astype(float), max_fpr) == pytest.approx(1)
    assert pro_score(masks, 0.0 * masks, max_fpr) == pytest.approx(max_fpr / 2)


def test_pro_by_hand():
    # Two regions, of 1 and of 4 pixels; the small one is found at once, the large one
    # after 1 of 10 normal pixels: the curve is 1/2 up to 0.1 and 1 from there on.
    mask = np.zeros((3, 5), dtype=bool)
    mask[0, 0] = True
    mask[1:, 3:] = True
    one_map = np.zeros((3, 5))
    one_map[0, 0], one_map[0, 4], one_map[1:, 3:] = 0.9, 0.8, 0.7
    assert pro_score([mask], [one_map], max_fpr=0.1) == pytest.approx(0.5)
    assert pro_score([mask], [one_map], max_fpr=0.2) == pytest.approx(0.75)
    assert pro_score([mask], [one_map], max_fpr=1) == pytest.approx(0.95)


def test_pro_regions_are_connected_at_corners():
    mask = np.eye(4, dtype=bool)[None]  # one region
    one_map = np.zeros((1, 4, 4))
    one_map[0, 0, 0] = 1
    # A quarter of the one region is found without any false positive.
    assert pro_score(mask, one_map, max_fpr=1) == pytest.approx((0.25 + 1) / 2)


@pytest.mark.parametrize("max_fpr", [0.01, 0.3, 0.77, 1])
@pytest.mark.parametrize("digits", [1, 2, 8])
def test_pro_equals_the_plain_loop(rng, max_fpr, digits):
    masks = rng.random((3, 12, 14)) < 0.15
    maps = (rng.random(masks.shape) + 0.4 * masks).round(digits)
    expected = overlap_area(masks, maps, max_fpr)
    assert pro_score(masks, maps, max_fpr) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_best_f1_equals_trying_every_threshold(seed):
    rng = np.random.default_rng(seed)
    y = rng.choice([-1, 1], 60)
    scores = (rng.normal(size=60) + 0.5 * y).round(1)
    tried = [f1_score(y == -1, scores <= t, zero_division=0) for t in scores]
    assert best_f1(y, scores) == pytest.approx(max(tried))


@pytest.mark.parametrize("dtype", ["bool", "u1", "u4", "u8", "i1", "i8", "f2", "O"])
def test_numbers_of_any_type_are_ordered_as_numbers(dtype):
    low, high = (0, 1) if dtype in "bool O" else (0, 2)
    if dtype[0] == "i":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    elif dtype[0] == "u":
        high = np.iinfo(dtype).max
    one_map = np.array([[low, high], [low, low]], dtype=dtype)
    mask = np.array([[0, 1], [0, 0]], dtype=dtype)
    assert detection_auroc([-1, 1, 1], np.array([low, high, high], dtype)) == 1
    assert best_f1([-1, 1, 1], np.array([low, high, high], dtype)) == 1
    assert segmentation_auroc([mask], [one_map]) == 1
    assert pro_score([mask], [one_map]) == 1


def test_wide_integers_are_told_apart():
    scores = np.array([2**62, 2**62 + 1])  # equal as floats
    assert detection_auroc([-1, 1], scores) == 1
    assert pro_score([[[1, 0]]], [scores[None, ::-1]]) == 1


MASKS, MAPS = np.eye(4)[None], np.zeros((1, 4, 4))


@pytest.mark.parametrize(
    ("metric", "arguments", "message"),
    [
        (detection_auroc, ([0, 1, 1], [1, 2, 3]), "1 for normal and -1 for .*got 0"),
        (best_f1, ([1, 1], [1, 2]), "both normal"),
        (detection_auroc, ([1, -1], [1, 2, 3]), "inconsistent"),
        (detection_auroc, ([1, -1], [1, np.nan]), "NaN"),
        (segmentation_auroc, (MASKS, MAPS[:, 1:]), r"ks\[0\] has shape \(4, 4\) and"),
        (pro_score, (MASKS, MAPS * np.nan), r"maps\[0\] holds NaN"),
        (pro_score, (MASKS * np.nan, MAPS), r"masks\[0\] holds NaN"),
        (segmentation_auroc, ([np.diag([np.inf] * 4)], MAPS), r"masks\[0\] holds NaN"),
        (pro_score, (MASKS, [np.ma.masked_equal(MAPS[0], 0)]), "masked array"),
        (detection_auroc, ([1, -1], ["1", "2"]), "scores"),
        (segmentation_auroc, (MASKS * 0, MAPS), "both normal and abnormal pixels"),
        (pro_score, (MASKS, MAPS, 0), r"max_fpr must be in \(0, 1\]"),
    ],
)
def test_wrong_labels_and_maps_are_explained(metric, arguments, message):
    with pytest.raises(ValueError, match=message):
        metric(*arguments)
