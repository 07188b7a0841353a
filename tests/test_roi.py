import numpy as np
import pytest
from settings import SEED

from skpatchsvdd import Inspection, PatchSVDD, Training
from skpatchsvdd._encoding.dense import find_cells
from skpatchsvdd.datasets import make_textures

QUICK = {"encoder": "hierarchical", "max_iter": 0, "embedding_dim": 8}
QUICK |= {"training": Training(batch_size=4), "random_state": SEED}
PAPER = Training(method="paper", batch_size=4)


@pytest.fixture(scope="module")
def images():
    return make_textures(8, image_size=96, random_state=SEED).images


@pytest.fixture(scope="module")
def roi():
    mask = np.zeros((96, 96), dtype=bool)
    mask[10:50, 4:44] = True
    mask[10:20, 4:14] = False
    return mask


def change_outside(images, roi):
    changed = make_textures(len(images), image_size=96, random_state=SEED + 7).images
    changed[:, roi] = images[:, roi]
    assert (changed != images).any()
    return changed


@pytest.mark.parametrize(
    "options",
    [
        {"max_iter": 3},
        {"max_iter": 2, "training": Training(damage_weight=0, batch_size=4)},
        {"max_iter": 2, "training": PAPER, "patch_size": 32},
        {"max_iter": 0, "patch_size": 32},
        {"encoder": "procedural", "max_iter": "auto"},
    ],
)
def test_what_is_outside_is_never_seen(images, roi, options):
    options = QUICK | options
    est = PatchSVDD(roi=roi, **options).fit(images)
    outside = change_outside(images, roi)
    other = PatchSVDD(roi=roi, **options).fit(outside)
    for name, values in est.loss_curve_.items():
        np.testing.assert_array_equal(values, other.loss_curve_[name])
    np.testing.assert_array_equal(est.training_scores_, other.training_scores_)
    new = make_textures(2, image_size=96, random_state=SEED + 3).images
    np.testing.assert_array_equal(
        est.score_samples(new), est.score_samples(change_outside(new, roi))
    )
    maps = est.anomaly_map(new)
    assert (maps[:, ~roi] == 0).all()
    assert (maps[:, roi] > 0).all()


def test_only_patches_that_hold_a_pixel_enter_the_bank(images, roi):
    est = PatchSVDD(roi=roi, **QUICK).fit(images)
    for size, stride in zip(est.patch_sizes_, est.strides_, strict=True):
        starts = range(0, 96 - size + 1, stride)
        inside = [roi[i : i + size, j : j + size].any() for i in starts for j in starts]
        assert est.bank_size_[size] == len(images) * sum(inside)
        cells = find_cells(roi, (len(starts),) * 2, size, stride)
        np.testing.assert_array_equal(cells, np.flatnonzero(inside))
    assert est.bank_size_[32] < len(images) * 17 * 17
    assert est.usual_distances_[32].shape[0] == len(images)
    for match in est.explain(images):
        assert roi[match["image_top"][0, 0] :, match["image_left"][0, 0] :].any()


def test_defects_outside_raise_no_alarm_and_inside_do(images, roi):
    est = PatchSVDD(roi=roi, **QUICK).fit(images)
    new = make_textures(3, image_size=96, random_state=SEED + 5).images
    new[0, 60:90, 60:90] = 0
    new[1, 25:45, 15:40] = 0
    scores = est.score_samples(new)
    others = min(scores[0], scores[2])
    assert scores[1] < others
    est.offset_ = (scores[1] + others) / 2
    assert est.predict(new).tolist() == [1, -1, 1]
    regions = est.predict_regions(new)[1]
    assert roi[regions["row"], regions["col"]].all()
    assert not est.predict_mask(new)[:, ~roi].any()


@pytest.mark.slow
def test_pynndescent_keeps_to_the_mask(images, roi):
    options = QUICK | {"roi": roi}
    options["inspection"] = Inspection(score_pixels=20)
    exact = PatchSVDD(**options).fit(images[:4])
    found = PatchSVDD(neighbors="pynndescent", **options).fit(images[:4])
    np.testing.assert_allclose(
        found.score_samples(images[4:]), exact.score_samples(images[4:]), rtol=1e-4
    )


@pytest.mark.parametrize("size", [48, 64, 96, 130])
def test_resizing_mixes_nothing_in(images, roi, size):
    options = QUICK | {"image_size": size, "patch_size": 32}
    est = PatchSVDD(roi=255 * roi.astype(np.uint8), **options).fit(images)
    white = images.copy()
    white[:, ~roi] = 255
    new = make_textures(2, image_size=96, random_state=SEED + 3).images
    hidden = new.copy()
    hidden[:, ~roi] = 255
    np.testing.assert_allclose(
        est.score_samples(hidden), est.score_samples(new), rtol=1e-5
    )
    maps = est.anomaly_map(new)
    assert (maps[:, ~roi] == 0).all()
    assert maps[:, roi].max() > 0


def test_masks_of_the_size_of_inspection(images, roi):
    large = np.repeat(np.repeat(images, 2, axis=1), 2, axis=2)
    est = PatchSVDD(roi=roi, image_size=96, **QUICK).fit(large)
    np.testing.assert_array_equal(est.roi_, roi)
    outside = np.repeat(np.repeat(~roi, 2, axis=0), 2, axis=1)
    assert (est.anomaly_map(large)[:, outside] == 0).all()


def test_pixels_that_no_patch_covers_belong_to_the_nearest(images):
    """The grid of 110 pixels ends at 108 for the small patches, at 96 for the large."""
    wide = np.pad(images, ((0, 0), (0, 14), (0, 14), (0, 0)), mode="wrap")
    roi = np.zeros((110, 110), dtype=bool)
    roi[:, -4:] = True
    est = PatchSVDD(roi=roi, **QUICK).fit(wide)
    assert est.bank_size_ == {32: 8 * 20, 64: 8 * 3}
    assert np.isfinite(est.anomaly_map(wide)).all()
    assert find_cells(roi, (2, 3), 64, 16).tolist() == [2, 5]
    corner = np.zeros((78, 78), dtype=bool)
    corner[-1, -1] = True
    assert find_cells(corner, (1, 1), 64, 16).tolist() == [0]


def test_an_explanation_is_never_of_what_is_outside(images, roi):
    est = PatchSVDD(roi=roi, **QUICK).fit(images)
    known = change_outside(images[:1], roi)  # inside it is that of the bank
    match = est.explain(known)[0][0, 0]
    assert roi[match["top"] : match["bottom"], match["left"] : match["right"]].any()


def test_more_images_are_masked_too(images, roi):
    est = PatchSVDD(roi=roi, **QUICK).fit(images[:4])
    est.partial_fit(images[4:])
    whole = PatchSVDD(roi=roi, **QUICK).fit(images)
    assert est.bank_size_ == whole.bank_size_
