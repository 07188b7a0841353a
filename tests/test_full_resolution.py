"""image_size="full": coarse scales see a reduced image, the finest one all pixels."""

import pickle

import numpy as np
import pytest

import skpatchsvdd
from skpatchsvdd import PatchSVDD
from skpatchsvdd._encoding.detail import DetailEncoder
from skpatchsvdd.datasets import make_textures

SIZE, REDUCED = (144, 192), (48, 64)


@pytest.fixture(autouse=True)
def small_images_are_large(monkeypatch):
    """Images of three times the size are what photographs are to 576 x 768."""
    monkeypatch.setattr("skpatchsvdd._images.arrays.COARSE_PIXELS", np.prod(REDUCED))
    monkeypatch.setattr(DetailEncoder, "most_rows", 300)


def make_images(n, seed):
    images = make_textures(n, image_size=SIZE[1], random_state=seed).images
    return images[:, : SIZE[0]]


@pytest.fixture
def est():
    return PatchSVDD(image_size="full", random_state=0).fit(make_images(5, 0))


def test_seams_of_tiles_do_not_show(est, monkeypatch):
    X = make_images(2, 1)
    maps, scores = est.anomaly_map(X), est.score_samples(X)
    features = est.embed(X, "detail")
    for tile in (15, 45, 60):  # one patch, and some that do not divide an image
        monkeypatch.setattr(DetailEncoder, "tile", tile)
        np.testing.assert_allclose(est.embed(X, "detail"), features, atol=1e-5)
        np.testing.assert_allclose(est.anomaly_map(X), maps, rtol=1e-3)
        np.testing.assert_allclose(est.score_samples(X), scores, rtol=1e-3)


def test_coarse_scales_see_the_reduced_image(est):
    X = make_images(2, 1)
    reduced = PatchSVDD(image_size=REDUCED, random_state=0).fit(make_images(5, 0))
    assert est.scales_ == (*reduced.scales_, "detail")
    assert est.inspected_shape_ == reduced.inspected_shape_ == (*REDUCED, 3)
    for scale in reduced.scales_:
        found, expected = est.embed(X, scale), reduced.embed(X, scale)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_reducing_hides_is_found(est):
    X = make_images(1, 1)
    fine = X.copy()
    fine[:, 60:90:2, 60:90] = X[:, 60:90:2, 60:90] // 2
    fine[:, 61:90:2, 60:90] = np.minimum(1.5 * X[:, 61:90:2, 60:90], 255)
    assert est.score_samples(fine) < est.score_samples(X) - 0.1 * abs(est.offset_)
    one_map = est.anomaly_map(fine)[0]
    assert one_map.shape == SIZE
    row, col = np.unravel_index(one_map.argmax(), SIZE)
    assert 54 <= row <= 96
    assert 54 <= col <= 96


def test_number_of_patches_is_bounded(est):
    rows, cols = est.embed(make_images(1, 1), "detail").shape[1:3]
    assert rows * cols <= np.prod(REDUCED) / 4
    assert est.bank_size_["detail"] == 300
    larger = est.set_params(bank_size=400).fit(make_images(5, 0))
    assert larger.bank_size_["detail"] == 400


@pytest.mark.parametrize("reduction", [2, 3, 5, 8, 20])
def test_patches_are_no_smaller_than_two_reduced_pixels(reduction):
    (patch_size,) = DetailEncoder(3, reduction=reduction).patch_sizes
    assert patch_size >= 2
    assert patch_size == 2 or 12 <= patch_size * reduction <= 20


def test_scores_are_the_same_after_saving(est, tmp_path):
    X = make_images(2, 1)
    est.save(tmp_path / "full.model")
    loaded = skpatchsvdd.load(tmp_path / "full.model")
    pickled = pickle.loads(pickle.dumps(est))
    for other in (loaded, pickled):
        assert (other.score_samples(X) == est.score_samples(X)).all()


def test_training_images_are_recognised(est):
    X = make_images(5, 0)
    np.testing.assert_allclose(est.score_samples(X), est.training_scores_, rtol=1e-6)


def test_images_of_another_size_are_brought_to_that_of_fit(est):
    X = make_textures(1, image_size=300, random_state=1).images
    assert est.anomaly_map(X).shape == (1, 300, 300)


def test_roi_hides_pixels_at_full_resolution():
    X, roi = make_images(5, 0), np.ones(SIZE, dtype=bool)
    roi[60:] = False
    est = PatchSVDD(image_size="full", roi=roi, random_state=0).fit(X)
    new = make_images(1, 1)
    changed = new.copy()
    changed[:, 60:] = 255 - changed[:, 60:]
    assert (est.score_samples(changed) != est.score_samples(new)).sum() == 0


def test_explain_and_feedback_work(est):
    X = make_images(4, 1)
    X[0, 60:72, 60:72] = 0
    matches = est.inspect(X[:1], explain=True)["matches"][0]
    assert matches.shape[1] == len(est.scales_) == 4
    est.partial_fit(X[2:])
    assert len(est.training_scores_) == 7
    before = est.score_samples(X[:1])
    masks = np.zeros((1, *SIZE), dtype=bool)
    masks[0, 60:72, 60:72] = True
    other = X[:1].copy()
    other[0, 0, 0] ^= 1
    est.partial_fit(other, y=[-1], masks=masks)
    assert est.score_samples(X[:1]) <= before


def test_small_images_are_inspected_as_they_are():
    X = make_textures(3, image_size=64, random_state=0).images
    full, plain = (
        PatchSVDD(image_size=x, random_state=0).fit(X) for x in ("full", None)
    )
    assert (full.training_scores_ == plain.training_scores_).all()


def test_wrong_uses_say_what_to_do(est, tmp_path):
    with pytest.raises(ValueError, match="image_size='full' needs encoder="):
        PatchSVDD(image_size="full", encoder="hierarchical").fit(make_images(3, 0))
    with pytest.raises(ValueError, match="Fit with image_size="):
        est.export_onnx(tmp_path / "model.onnx")
    X = [*make_images(2, 0), make_images(1, 1)[0, :100]]
    with pytest.raises(ValueError, match="Pass images of one size"):
        PatchSVDD(image_size="full").fit(X)
    with pytest.raises(ValueError, match="forget needs a bank of all patches"):
        est.forget([0])
