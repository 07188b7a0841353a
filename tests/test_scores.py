"""What maps and scores are: as the plain way has them, and of each image alone."""

import copy

import joblib
import numpy as np
import pytest
import torch
from reference import (
    append_positions,
    damp_slow_changes,
    encode_patchwise,
    nearest_distances,
    spread,
    usual_distances,
)
from settings import SEED
from sklearn.base import clone

from skpatchsvdd import Inspection, PatchSVDD, Training
from skpatchsvdd._images.arrays import check_images
from skpatchsvdd._scoring.maps import resize_map
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

QUICK = {
    "embedding_dim": 8,
    "max_iter": 2,
    "training": Training(batch_size=4),
    "random_state": SEED,
}


def encoder_input(est, X):
    """What the encoder sees of images, as a tensor (n, c, h, w)."""
    x = damp_slow_changes(np.float32(X) / 255 - est.center_, 0.3)
    return torch.from_numpy(np.float32(x).transpose(0, 3, 1, 2))


def plain_maps(est, X_train, X, is_relative=False):
    """Anomaly maps the slow way: patch by patch, row by row, pixel by pixel."""
    train, new = (encoder_input(est, x) for x in (X_train, X))
    scales = []
    variations = iter(est._fitted.variations or [])
    for scale in zip(est.patch_sizes_, est.strides_, est._fitted.units, strict=True):
        size, stride, unit = scale
        bank, features = (
            append_positions(
                encode_patchwise(est.encoder_, x, size, stride).numpy(),
                stride,
                max(X.shape[1:3]),
                unit,
            )
            for x in (train, new)
        )
        bank = bank.reshape(-1, bank.shape[3])
        scores = [
            nearest_distances(image.reshape(-1, image.shape[2]), bank)
            for image in features
        ]
        if is_relative:
            scores = divide_by_usual(scores, features, next(variations))
        grid = features.shape[1:3]
        scales.append(
            [spread(s.reshape(grid), size, stride, X.shape[1:3]) for s in scores]
        )
    return np.prod(scales, axis=0)


def divide_by_usual(scores, features, variation):
    """Divide distances by those that are usual, of patches drawn from all images.

    In units of these where they are large.
    """
    rows = variation.sample.rows.reshape(-1, features.shape[3])
    distances = variation.distances.ravel()
    large = np.quantile(distances, 0.85) + np.median(distances)
    return [
        large
        * x
        / usual_distances(image.reshape(len(x), -1), rows, distances, variation.width)
        for x, image in zip(scores, features, strict=True)
    ]


def geometric_mean(factors):
    """Join distances, twice, and relative distances, once, where there are both."""
    if len(factors) == 1:
        return factors[0]
    return np.cbrt(factors[0] ** 2 * factors[1])


def mean_of_largest(maps, n_pixels):
    return np.sort(maps.reshape(len(maps), -1), axis=1)[:, -n_pixels:].mean(axis=1)


def test_maps_equal_the_plain_way():
    X = make_textures(5, image_size=71, anomaly_fraction=0.4, random_state=SEED).images
    X_train, X_new = X[:3, :, :69], X[3:, :, :69]
    est = PatchSVDD(encoder="hierarchical", strides=(8, 4), **QUICK)
    est.set_params(inspection__position_weight=5.0).fit(X_train)
    maps = est.anomaly_map(X_new)
    factors = [plain_maps(est, X_train, X_new, x) for x in (False, True)]
    expected = geometric_mean(factors)
    assert maps.shape == (2, 71, 69)
    assert maps.dtype == np.float32
    np.testing.assert_allclose(maps, expected, rtol=1e-3)
    scores = est.score_samples(X_new)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(-scores, mean_of_largest(factors[1], 400), rtol=1e-3)


@pytest.mark.parametrize("n_pixels", [1, 40, 10**6])
def test_score_without_what_is_usual(quick, normal, mixed, n_pixels):
    quick.set_params(inspection=Inspection(relative_weight=0, score_pixels=n_pixels))
    est = quick.fit(normal)
    maps, scores = est.anomaly_map(mixed.images), est.score_samples(mixed.images)
    largest = mean_of_largest(maps, min(n_pixels, 48 * 48 // 4))
    np.testing.assert_allclose(-scores, largest, rtol=1e-5)
    assert est.usual_distances_ is None


def test_usual_distances_are_those_to_other_images(quick, normal):
    est = quick.set_params(inspection__position_weight=0).fit(normal)
    (distances,) = est.usual_distances_.values()
    assert distances.shape == (8, 25)  # fewer than there is room for: all patches
    features = est.embed(normal, 32).reshape(8, 25, -1)
    for i in range(8):
        bank = np.delete(features, i, axis=0).reshape(-1, features.shape[2])
        expected = nearest_distances(features[i], bank)
        np.testing.assert_allclose(np.sort(distances[i]), np.sort(expected), rtol=1e-3)


def test_scores_do_not_depend_on_the_other_images(fitted, normal, mixed):
    X = np.concatenate([mixed.images, normal])
    together = fitted.score_samples(X)
    alone = np.concatenate([fitted.score_samples(x[None]) for x in X])
    np.testing.assert_array_equal(together, alone)
    # Those that are known among others, too.
    np.testing.assert_array_equal(together[-len(normal) :], fitted.training_scores_)
    order = np.random.default_rng(SEED).permutation(len(X))
    np.testing.assert_array_equal(fitted.score_samples(X[order]), together[order])


def test_map_of_one_scale(normal, mixed):
    X = mixed.images.repeat(2, axis=1).repeat(2, axis=2)
    est = PatchSVDD(encoder="hierarchical", **QUICK)
    est.fit(normal.repeat(2, axis=1).repeat(2, axis=2))
    maps = [est.anomaly_map(X, scale=scale) for scale in (32, 64)]
    np.testing.assert_allclose(maps[0] * maps[1], est.anomaly_map(X), rtol=1e-6)


def test_embed_gives_the_features_of_each_patch(fitted, mixed):
    X = mixed.images[:2]
    features = fitted.embed(X, 32)
    assert features.shape == (2, 5, 5, 8)
    patch = encoder_input(fitted, X)[1:, :, 4:36, 12:44]
    expected = fitted.encoder_(patch).detach().numpy()[0]
    np.testing.assert_allclose(features[1, 1, 3], expected, atol=1e-5)


def test_damaged_images_score_lower():
    train = make_textures(20, image_size=96, kind="wood", random_state=SEED)
    test = make_textures(
        20, image_size=96, kind="wood", anomaly_fraction=0.5, random_state=SEED + 1
    )
    est = PatchSVDD(encoder="hierarchical", max_iter=0, random_state=SEED)
    est.fit(train.images)
    assert detection_auroc(test.labels, est.score_samples(test.images)) > 0.8
    assert segmentation_auroc(test.masks, est.anomaly_map(test.images)) > 0.8


def test_fitting_twice_gives_the_same_scores(quick, normal, mixed):
    before = torch.random.get_rng_state()
    first = quick.fit(normal).score_samples(mixed.images)
    second = clone(quick).fit(normal).score_samples(mixed.images)
    np.testing.assert_array_equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())


def test_changed_weights_and_banks_are_noticed(fitted, mixed):
    est = copy.deepcopy(fitted)
    scores = est.score_samples(mixed.images)
    with torch.no_grad():
        est.encoder_.small[0].weight *= 2
    changed = est.score_samples(mixed.images)
    assert (changed != scores).all()
    est.encoder_ = fitted.encoder_
    np.testing.assert_array_equal(est.score_samples(mixed.images), scores)
    est.partial_fit(mixed.images[::2])
    assert (est.score_samples(mixed.images) != scores).any()


def test_parameters_set_after_fit_do_not_change_the_scores(fitted, mixed):
    changed = copy.deepcopy(fitted).set_params(strides=(16,), lam=1)
    changed.set_params(inspection__score_pixels=1, training__method="paper")
    np.testing.assert_array_equal(
        changed.score_samples(mixed.images), fitted.score_samples(mixed.images)
    )


def test_score_is_the_maximum_before_resizing_back(untrained, normal, mixed):
    X = mixed.images[:, ::2, ::2]
    inspection = Inspection(relative_weight=0, score_pixels=1)
    untrained.set_params(image_size=96, inspection=inspection)
    untrained.fit(normal[:, ::2, ::2])
    scores, maps = untrained.score_samples(X), untrained.anomaly_map(X)
    # Images that come in this size have maps of it, which are not resized.
    whole = untrained.anomaly_map(check_images(X, image_size=96).pixels)
    np.testing.assert_allclose(-scores, whole.max(axis=(1, 2)), rtol=1e-5)
    for one_map, one in zip(maps, whole, strict=True):
        np.testing.assert_allclose(one_map, resize_map(one, (24, 24)), rtol=1e-5)
    # A pixel of 24 x 24 is a mean over more than any patch alone covers.
    assert (maps.max(axis=(1, 2)) < -scores).all()


def test_without_slow_changes_an_even_change_of_light_changes_nothing(
    quick, normal, mixed
):
    X = mixed.images / 255
    for light, is_blind in ((0.0, True), (1.0, False)):
        quick.set_params(inspection__light=light).fit(normal)
        change = quick.score_samples(X + 0.05) / quick.score_samples(X) - 1
        assert (np.abs(change).max() < 1e-3) == is_blind


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_and_cpu_score_alike(quick, normal, mixed, tmp_path):
    quick.set_params(device="cuda").fit(normal)
    scores = quick.score_samples(mixed.images)
    again = clone(quick).fit(normal).score_samples(mixed.images)
    np.testing.assert_array_equal(again, scores)
    joblib.dump(quick, tmp_path / "model.joblib")
    on_cpu = joblib.load(tmp_path / "model.joblib").set_params(device="cpu")
    np.testing.assert_allclose(on_cpu.score_samples(mixed.images), scores, rtol=1e-3)
