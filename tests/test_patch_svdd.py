import copy
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

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
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skpatchsvdd import Inspection, PatchSVDD, Training
from skpatchsvdd import _patch_svdd as patch_svdd
from skpatchsvdd._images.arrays import check_images
from skpatchsvdd._inspection import fitted as fitted_bank
from skpatchsvdd._inspection.maps import resize_map
from skpatchsvdd._inspection.threshold import threshold_from_scores
from skpatchsvdd._options import resolve_options
from skpatchsvdd._training import lam_search, loop, trainer, training, validation
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc
from skpatchsvdd.model_selection import SyntheticDefectScorer

QUICK = {
    "embedding_dim": 8,
    "max_iter": 2,
    "training": Training(batch_size=4),
    "random_state": SEED,
}


def encoder_input(est, X):
    """What the encoder sees of images, as a tensor (n, c, h, w)."""
    kept = 1.0 if est.encoder == "raw" else 0.3
    x = damp_slow_changes(np.float32(X) / 255 - est.center_, kept)
    return torch.from_numpy(np.float32(x).transpose(0, 3, 1, 2))


def plain_maps(est, X_train, X, aggregation="multiply", is_relative=False):
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
    return (
        np.prod(scales, axis=0) if aggregation == "multiply" else np.sum(scales, axis=0)
    )


def divide_by_usual(scores, features, variation):
    """Divide distances by those that are usual, of patches drawn from all images."""
    rows = variation.sample.rows.reshape(-1, features.shape[3])
    distances = variation.distances.ravel()
    return [
        x / usual_distances(image.reshape(len(x), -1), rows, distances, variation.width)
        for x, image in zip(scores, features, strict=True)
    ]


def geometric_mean(factors):
    """Join distances, twice, and relative distances, once, where there are both."""
    if len(factors) == 1:
        return factors[0]
    return np.cbrt(factors[0] ** 2 * factors[1])


def mean_of_largest(maps, n_pixels):
    return np.sort(maps.reshape(len(maps), -1), axis=1)[:, -n_pixels:].mean(axis=1)


@pytest.mark.parametrize("encoder", ["hierarchical", "flat", "raw"])
@pytest.mark.parametrize("aggregation", ["multiply", "sum"])
def test_maps_equal_the_plain_way(encoder, aggregation):
    X = make_textures(5, image_size=71, anomaly_fraction=0.4, random_state=SEED).images
    X_train, X_new = X[:3, :, :69], X[3:, :, :69]
    est = PatchSVDD(
        encoder=encoder,
        inspection=Inspection(
            aggregation=aggregation,
            position_weight=5.0 if encoder == "hierarchical" else "auto",
        ),
        strides=(16,) if encoder == "flat" else (8, 4),
        **QUICK,
    ).fit(X_train)
    maps = est.anomaly_map(X_new)
    factors = [plain_maps(est, X_train, X_new, aggregation)]
    if encoder != "raw":
        factors.append(plain_maps(est, X_train, X_new, aggregation, is_relative=True))
    expected = geometric_mean(factors)
    assert maps.shape == (2, 71, 69)
    assert maps.dtype == np.float32
    np.testing.assert_allclose(maps, expected, rtol=1e-3)
    scores = est.score_samples(X_new)
    assert scores.dtype == np.float64
    n_pixels = 1 if encoder == "raw" else 400
    largest = [mean_of_largest(x, n_pixels) for x in factors]
    np.testing.assert_allclose(-scores, geometric_mean(largest), rtol=1e-3)


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


def test_identical_images_have_finite_scores(quick, normal, mixed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        est = quick.fit(normal[:1].repeat(4, axis=0))
    assert np.isfinite(est.score_samples(mixed.images)).all()


def test_a_relative_score_depends_on_its_image_alone(fitted, mixed):
    together = fitted.score_samples(mixed.images)
    alone = [fitted.score_samples(image[None])[0] for image in mixed.images]
    np.testing.assert_array_equal(alone, together)


def test_a_mask_is_empty_if_and_only_if_the_image_is_normal(normal, mixed, fitted):
    images = np.concatenate([normal, mixed.images])
    for alpha in (None, 0.4):
        offset = fitted.offset_
        if alpha is not None:
            offset = threshold_from_scores(fitted.training_scores_, alpha)
        is_abnormal = fitted.score_samples(images) < offset
        masks = fitted.predict_mask(images, alpha)
        np.testing.assert_array_equal(masks.any(axis=(1, 2)), is_abnormal)
    assert is_abnormal.any()
    assert not is_abnormal.all()


def test_map_of_one_scale(normal, mixed):
    X = mixed.images.repeat(2, axis=1).repeat(2, axis=2)
    est = PatchSVDD(encoder="hierarchical", **QUICK).fit(
        normal.repeat(2, axis=1).repeat(2, axis=2)
    )
    maps = [est.anomaly_map(X, scale=scale) for scale in (32, 64)]
    np.testing.assert_allclose(maps[0] * maps[1], est.anomaly_map(X), rtol=1e-6)
    with pytest.raises(ValueError, match=r"scale must be one of \(32, 64\), got 48"):
        est.anomaly_map(X, scale=48)


def test_embed_gives_the_features_of_each_patch(fitted, mixed):
    X = mixed.images[:2]
    features = fitted.embed(X, 32)
    assert features.shape == (2, 5, 5, 8)
    patch = encoder_input(fitted, X)[1:, :, 4:36, 12:44]
    expected = fitted.encoder_(patch).detach().numpy()[0]
    np.testing.assert_allclose(features[1, 1, 3], expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"patch_size must be one of \(32,\), got 64"):
        fitted.embed(X, 64)


def test_learnt_attributes(normal):
    est = PatchSVDD(
        encoder="hierarchical", patch_size=128, strides=(16, 16, 32), **QUICK
    )
    est.set_params(training=Training(batch_size=1))
    est.fit(make_textures(3, image_size=130, random_state=SEED).images)
    assert est.inspected_shape_ == (130, 130, 3)
    assert est.n_features_in_ == 130 * 130 * 3
    assert est.patch_sizes_ == (32, 64, 128)
    assert est.strides_ == (16, 16, 32)
    assert est.bank_size_ == {32: 3 * 49, 64: 3 * 25, 128: 3}
    assert est.n_iter_ == 2
    assert set(est.loss_curve_) == {
        f"{term}_{k}"
        for term in ("position", "svdd", "damage", "scale")
        for k in (32, 64, 128)
    }
    assert est.training_scores_.shape == (3,)
    assert isinstance(est.encoder_, torch.nn.Module)
    assert est.fit(normal.repeat(3, axis=1).repeat(3, axis=2)) is est


def test_damaged_images_score_lower():
    train = make_textures(20, image_size=96, kind="wood", random_state=SEED)
    test = make_textures(
        20, image_size=96, kind="wood", anomaly_fraction=0.5, random_state=SEED + 1
    )
    est = PatchSVDD(encoder="hierarchical", max_iter=0, random_state=SEED).fit(
        train.images
    )
    assert detection_auroc(test.labels, est.score_samples(test.images)) > 0.8
    assert segmentation_auroc(test.masks, est.anomaly_map(test.images)) > 0.8


def test_zero_steps_keep_random_weights(normal, mixed):
    scores = [
        PatchSVDD(encoder="hierarchical", patch_size=32, max_iter=0, random_state=seed)
        .fit(normal)
        .score_samples(mixed.images)
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).any()


@pytest.mark.parametrize("loss", ["patch_svdd", "svdd_prime", "svdd"])
def test_fitting_twice_gives_the_same_scores(quick, normal, mixed, loss):
    quick.set_params(training__loss=loss)
    before = torch.random.get_rng_state()
    first = quick.fit(normal).score_samples(mixed.images)
    second = clone(quick).fit(normal).score_samples(mixed.images)
    np.testing.assert_array_equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())


def test_scores_do_not_depend_on_the_other_images(fitted, normal, mixed):
    X = np.concatenate([mixed.images, normal])
    together = fitted.score_samples(X)
    alone = np.concatenate([fitted.score_samples(x[None]) for x in X])
    np.testing.assert_array_equal(together, alone)
    order = np.random.default_rng(SEED).permutation(len(X))
    np.testing.assert_array_equal(fitted.score_samples(X[order]), together[order])


# The threshold


@pytest.mark.parametrize("training", ["dense", "paper"])
def test_training_images_are_scored_without_themselves(quick, normal, training):
    quick.set_params(training__method=training, inspection__relative_weight=0)
    est = quick.fit(normal)
    for i in range(len(normal)):
        others = np.delete(normal, i, axis=0)
        # The same encoder, but a bank without image i, and for image i, where a mean
        # is subtracted, the mean of the others.
        alone = copy.deepcopy(est)
        indexes = _indexes_of(est, others)
        alone._fitted = replace(
            alone._fitted, indexes=indexes, known=[], owners=None, variations=None
        )
        is_mean = training == "paper"
        shift = est.center_ - others.mean(axis=0) / 255 if is_mean else 0
        expected = alone.score_samples(normal[i : i + 1] / 255 + shift)[0]
        assert est.training_scores_[i] == pytest.approx(expected, rel=1e-3)
    assert (est.training_scores_ < 0).all()
    np.testing.assert_array_equal(est.score_samples(normal), est.training_scores_)


def _indexes_of(est, images):
    from skpatchsvdd._bank.collect import collect_banks
    from skpatchsvdd._bank.exact import ExactIndex

    stack = check_images(images)
    dense = est._inspector().encoder
    banks = collect_banks(dense, stack, est._fitted.units, None, np.random)
    return [ExactIndex(bank) for bank in banks]


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


@pytest.mark.parametrize(
    "make_y",
    [
        lambda data: data.labels,
        lambda data: data.labels.astype(float),
        lambda data: data.masks,
        lambda data: list(data.masks),
    ],
)
def test_images_known_to_be_abnormal_are_not_learnt_from(
    quick, untrained, mixed, make_y
):
    X, y, is_normal = mixed.images, make_y(mixed), mixed.labels == 1
    expected = clone(untrained).fit(X[is_normal])
    untrained.fit(X, y)
    assert untrained.bank_size_ == expected.bank_size_
    assert len(untrained.training_scores_) == is_normal.sum()
    assert len(untrained.defect_kinds_) == (~is_normal).sum()
    # The first step sees the same crops with the same weights.
    first = first_losses(clone(quick).fit(X[is_normal]))
    assert first_losses(quick.fit(X, y)) == pytest.approx(first, rel=1e-4)
    assert first_losses(clone(quick).fit(X)) != pytest.approx(first, rel=1e-4)


def first_losses(est):
    """Loss terms at the first step: no step has blurred what they depend on."""
    return {name: float(curve[0]) for name, curve in est.loss_curve_.items()}


@pytest.mark.parametrize("wrap", [make_pipeline, lambda *steps: steps[-1]])
def test_fit_predict_does_not_learn_from_abnormal_images(quick, normal, rng, wrap):
    noise = rng.integers(0, 256, (2, 48, 48, 3), dtype=np.uint8)
    X = np.concatenate([noise[:1], normal, noise[1:]])
    y = np.r_[-1, np.ones(len(normal), dtype=int), -1]
    masks = np.broadcast_to((y == -1)[:, None, None], (len(y), 48, 48))
    est = wrap(FunctionTransformer(), quick.set_params(max_iter=0))
    for labels in (y, list(y), masks):
        np.testing.assert_array_equal(est.fit_predict(X, labels), y)
        assert len(quick.training_scores_) == len(normal)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, masks: np.r_[0, y[1:]], "1 for normal and -1 for.*, got 0"),
        (lambda y, masks: y > 0, "got (True|False)"),
        (lambda y, masks: np.where(y > 0, "fine", "bad"), r"0 sample\(s\) to learn"),
        (lambda y, masks: np.arange(len(y)), "got 0.*pass no y"),
        (lambda y, masks: np.r_[np.nan, y[1:]], "1 for normal and -1 for.*, got nan"),
        (lambda y, masks: y.astype(str), "y must hold names.*got '1'"),
        (lambda y, masks: [None, *y[1:]], "or a mask for each image, got None"),
        (lambda y, masks: [Path("a.png")] * len(y), "or a mask for each image, got"),
        (lambda y, masks: [1, *masks[1:]], r"elements of shape \(\) and \(48, 48\)"),
        (lambda y, masks: [None, *masks[1:]], r"elements of shape \(\) and \(48, 48\)"),
        (lambda y, masks: y[:, None], r"elements of shape \(1,\)"),
        (lambda y, masks: masks[..., None], r"elements of shape \(48, 48, 1\)"),
        (lambda y, masks: [0, 1, 0], "inconsistent numbers of samples"),
        (lambda y, masks: "abc", "inconsistent numbers of samples"),
    ],
)
def test_a_y_that_is_not_understood_is_an_error(quick, mixed, change, message):
    with pytest.raises(ValueError, match=message):
        quick.fit(mixed.images, change(mixed.labels, mixed.masks))


def test_a_y_without_normal_images_is_an_error(quick, normal):
    message = r"X has 0 sample\(s\) to learn from, and \d+ that y calls abnormal"
    with pytest.raises(ValueError, match=message):
        quick.fit(normal, [-1] * len(normal))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick.fit(normal, [-1, 1])


def test_p_values_follow_the_training_scores(fitted, normal, mixed):
    p_values = fitted.p_values(mixed.images)
    assert p_values.shape == (len(mixed.images),)
    assert p_values.min() >= 1 / (1 + len(normal))
    order = np.argsort(fitted.score_samples(mixed.images))
    assert (np.diff(p_values[order]) >= 0).all()
    ranks = np.sort(fitted.p_values(normal))
    np.testing.assert_allclose(ranks, (2 + np.arange(len(normal))) / (1 + len(normal)))


@pytest.mark.parametrize("image_size", [33, 48, 100])
def test_an_image_is_abnormal_if_a_pixel_is_at_any_size(
    quick, normal, mixed, image_size
):
    quick.set_params(image_size=image_size, patch_size=32, contamination=0.4)
    quick.fit(normal)
    for images in (mixed.images, normal):
        is_touched = quick.predict_mask(images).any(axis=(1, 2))
        np.testing.assert_array_equal(quick.predict(images) == -1, is_touched)


@pytest.mark.parametrize("contamination", ["auto", 0.25])
def test_an_image_is_abnormal_if_a_pixel_is(quick, normal, mixed, contamination):
    quick.set_params(contamination=contamination).fit(normal)
    for images in (mixed.images, normal):
        masks = quick.predict_mask(images)
        assert masks.dtype == bool
        assert masks.shape == images.shape[:3]
        abnormal = quick.predict(images) == -1
        np.testing.assert_array_equal(masks.any(axis=(1, 2)), abnormal)


def test_a_larger_share_gives_larger_masks(fitted, normal):
    sizes = [fitted.predict_mask(normal, alpha).sum() for alpha in (0.2, 0.3, 0.5)]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    touched = fitted.predict_mask(normal, 0.5).any(axis=(1, 2))
    assert touched.sum() == (len(normal) + 1) // 2
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 0.5\], got 0"):
        fitted.predict_mask(normal, 0)


def give_scores(monkeypatch, scores):
    """Let trials of lam have these scores, one after the other."""
    scores = iter(scores)
    monkeypatch.setattr(
        "skpatchsvdd._training.lam_search.DefectCheck",
        lambda *args: lambda encoder: next(scores),
    )
    monkeypatch.setattr(
        "skpatchsvdd._training.trainer.make_watch",
        lambda *args: validation.Watch(lambda encoder: 1.0, 10),
    )


def test_lam_is_chosen_by_made_up_defects(quick, normal, monkeypatch):
    tried = []
    original = trainer.train_once

    def watch(images, context, *args, **kwargs):
        options = context.options
        tried.append((options.lam, options.max_iter, len(images)))
        return original(images, context, *args, **kwargs)

    for module in (lam_search, training):
        monkeypatch.setattr(module, "train_once", watch)
    give_scores(monkeypatch, [0.6, 0.9, 0.7])
    quick.set_params(lam="auto", max_iter=8).fit(normal)
    n = len(normal)
    n_others = n - round(n / 4)
    trials = [(lam, 2, n_others) for lam in (0.03, 0.3, 3.0)]
    assert tried == [*trials, (0.3, 8, n)]
    assert quick.lam == "auto"
    assert quick.lam_ == 0.3
    assert quick.lam_results_["lam"].tolist() == [0.03, 0.3, 3.0]
    assert quick.lam_results_["score"].tolist() == [0.6, 0.9, 0.7]
    assert (quick.lam_results_["fit_time"] > 0).all()


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([0.6, 0.64, 0.7], 3.0),
        ([0.6, 0.66, 0.7], 0.3),
        ([0.66, 0.6, 0.7], 0.03),
        ([0.7, 0.6, 0.5], 0.03),
        ([0.5, 0.5, 0.5], 0.03),
        ([0.0, 0.5, 0.5], 0.3),
    ],
)
def test_the_smallest_lam_that_is_not_clearly_worse_is_chosen(
    quick, normal, monkeypatch, scores, chosen
):
    give_scores(monkeypatch, scores)
    assert quick.set_params(lam="auto").fit(normal).lam_ == chosen


def test_lam_auto_fits_for_real(quick, normal):
    quick.set_params(lam="auto").fit(normal)
    results = quick.lam_results_
    assert ((results["score"] >= 0) & (results["score"] <= 1)).all()
    assert quick.lam_ in results["lam"]
    # It then trains as if it had been given.
    given = clone(quick).set_params(lam=quick.lam_).fit(normal)
    assert first_losses(given) == pytest.approx(first_losses(quick), rel=1e-4)
    assert given.lam_ == quick.lam_
    assert given.lam_results_ is None


@pytest.mark.parametrize(
    "params",
    [
        {"max_iter": 0},
        {"encoder": "raw"},
        {"training__loss": "svdd"},
        {"training__loss": "svdd_prime", "training__method": "paper"},
    ],
)
def test_lam_auto_tries_nothing_where_it_has_no_effect(quick, normal, params):
    quick.set_params(lam="auto", **params).fit(normal)
    assert quick.lam_ == (1e-3 if "training__method" in params else 0.3)
    assert quick.lam_results_ is None


def test_lam_auto_needs_four_images_to_choose(quick, normal):
    quick.set_params(lam="auto")
    assert quick.fit(normal[:3]).lam_results_ is None
    assert quick.lam_ == 0.3
    assert quick.fit(normal[:4]).lam_results_ is not None


def test_kept_weights_keep_the_lam_they_were_trained_with(quick, normal):
    quick.set_params(lam="auto").fit(normal)
    quick.lam_, results = 3.0, quick.lam_results_
    quick.set_params(warm_start=True, max_iter=0).fit(normal)
    assert quick.lam_ == 3.0
    assert quick.lam_results_ is results


def test_an_interrupt_while_lam_is_chosen_changes_nothing(quick, normal, monkeypatch):
    interrupt(monkeypatch, 3)
    quick.set_params(lam="auto", max_iter=8)  # the second of three trials
    with pytest.raises(KeyboardInterrupt):
        quick.fit(normal)
    assert not hasattr(quick, "encoder_")


def test_what_a_fit_cannot_do_is_said_before_lam_is_chosen(quick, normal, monkeypatch):
    for module in (lam_search, training):
        monkeypatch.setattr(module, "train_once", None)
    quick.set_params(lam="auto", early_stopping=True, training__validation_fraction=0.9)
    with pytest.raises(
        ValueError, match=r"too few.*a smaller Training\(validation_fraction=\.\.\.\)"
    ):
        quick.fit(normal[:4])


def test_p_values_before_fit(quick, normal):
    with pytest.raises(NotFittedError):
        quick.p_values(normal)


def test_a_mask_warns_of_its_own_parameter(fitted, mixed):
    with pytest.warns(
        UserWarning, match="alpha=0.01 needs at least 99 images"
    ) as caught:
        fitted.predict_mask(mixed.images[:1], alpha=0.01)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "call",
    [
        lambda est, X: clone(est).fit(X),
        lambda est, X: est.score_samples(X),
        lambda est, X: est.predict(X),
        lambda est, X: est.p_values(X),
        lambda est, X: est.predict_mask(X),
        lambda est, X: make_pipeline(est).predict(X),
        lambda est, X: GridSearchCV(
            est, {"lam": [0.3]}, scoring=SyntheticDefectScorer(), cv=2
        ).fit(X),
    ],
)
def test_warnings_point_to_the_line_of_the_call(fitted, normal, call):
    with pytest.warns(UserWarning, match="look like 0..255") as caught:
        call(fitted, normal * 1.0)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("y", [5, np.array(5)])
def test_one_label_for_all_is_explained(quick, normal, y):
    with pytest.raises(ValueError, match="y must hold a label or a mask for each"):
        quick.fit(normal, y)


def test_labels_in_a_column_of_objects_count(quick, normal):
    y = np.array([1, 1, 1, 1, 1, 1, -1, -1], dtype=object)
    assert len(quick.fit(normal, y).training_scores_) == 6


def test_known_and_new_images_can_be_mixed(fitted, normal, mixed):
    X = np.stack([mixed.images[0], normal[3], mixed.images[5], normal[0]])
    scores = fitted.score_samples(X)
    assert scores[1] == fitted.training_scores_[3]
    assert scores[3] == fitted.training_scores_[0]
    assert scores[0] == fitted.score_samples(mixed.images[:1])[0]


def test_auto_threshold_is_the_lowest_training_score(quick, normal):
    assert (quick.fit_predict(normal) == 1).all()
    assert quick.offset_ == quick.training_scores_.min()
    assert (quick.predict(normal) == 1).all()


@pytest.mark.parametrize("contamination", [0.125, 0.25, 0.5])
def test_contamination_is_the_share_called_abnormal(quick, normal, contamination):
    quick.set_params(contamination=contamination)
    labels = quick.fit_predict(normal)
    assert labels.dtype.kind == "i"
    assert (labels == -1).sum() == contamination * len(normal)
    np.testing.assert_array_equal(labels, quick.predict(normal))


def test_decision_and_prediction_follow_the_scores(fitted, mixed):
    scores = fitted.score_samples(mixed.images)
    decision = fitted.decision_function(mixed.images)
    np.testing.assert_array_equal(decision, scores - fitted.offset_)
    expected = np.where(decision >= 0, 1, -1)
    np.testing.assert_array_equal(fitted.predict(mixed.images), expected)


def test_tied_scores_are_warned_about(quick):
    with pytest.warns(ConvergenceWarning, match="all training images score the same"):
        quick.fit(np.zeros((4, 40, 40)))


def test_scores_that_are_not_finite_are_an_error(quick, normal):
    quick.set_params(max_iter=1, training__learning_rate=1e30)
    with pytest.raises(FloatingPointError, match=r"not finite.*learning_rate"):
        quick.fit(normal)
    assert not hasattr(quick, "offset_")


def test_copies_among_the_training_images_are_warned_about(quick, normal):
    with pytest.warns(UserWarning, match="X holds 2 copies"):
        quick.fit(np.concatenate([normal, normal[:2]]))


def test_images_of_a_single_patch_are_warned_about(quick, normal):
    with pytest.warns(UserWarning, match="hold a single patch.*max_iter=0"):
        quick.fit(normal[:, :32, :32])


# Training


def test_auto_settings_depend_on_training_and_device():
    def resolve(device, **kwargs):
        parameters = PatchSVDD(**{"encoder": "hierarchical"} | kwargs).get_params()
        options = resolve_options(parameters, torch.device(device))
        return options.max_iter, options.batch_size, options.learning_rate

    assert resolve("cuda") == (1000, 16, 1e-3)
    assert resolve("cpu") == (240, 6, 1.5e-3)
    assert resolve("cpu", training="paper") == (12000, 64, 1e-4)
    given = Training(batch_size=2, learning_rate=0.5)
    assert resolve("cpu", max_iter=7, training=given) == (7, 2, 0.5)


@pytest.mark.parametrize(
    ("training", "given", "used"),
    [
        ("dense", None, 0.3),
        ("paper", None, 1e-3),
        ("dense", 0.0, 0.0),
        ("paper", 0.3, 0.3),
    ],
)
def test_the_default_lam_is_that_of_the_training(
    quick, normal, monkeypatch, training, given, used
):
    weights = []
    descend = loop.descend

    def watched(encoder, objective, batch, adam):
        weights.append(objective.weights["svdd_32"])
        return descend(encoder, objective, batch, adam)

    monkeypatch.setattr(loop, "descend", watched)
    assert PatchSVDD(encoder="hierarchical").lam is None
    quick.set_params(training__method=training, lam=given, max_iter=1).fit(normal[:2])
    assert quick.lam_ == used
    assert weights == [used]


def test_the_paper_s_training_subtracts_the_mean_image(quick, normal):
    quick.set_params(training__method="paper").fit(normal)
    np.testing.assert_allclose(quick.center_, normal.mean(axis=0) / 255, rtol=1e-5)
    assert set(quick.loss_curve_) == {"position_32", "svdd_32"}
    assert quick._inspector().encoder.light == 1


def test_without_slow_changes_an_even_change_of_light_changes_nothing(
    quick, normal, mixed
):
    X = mixed.images / 255
    for light, is_blind in ((0.0, True), (1.0, False)):
        quick.set_params(inspection__light=light).fit(normal)
        change = quick.score_samples(X + 0.05) / quick.score_samples(X) - 1
        assert (np.abs(change).max() < 1e-3) == is_blind


def interrupt(monkeypatch, n_steps):
    """Press Ctrl-C in the step after `n_steps`."""
    descend = loop.descend
    calls = []

    def interrupted(*args):
        calls.append(1)
        if len(calls) > n_steps:
            raise KeyboardInterrupt
        return descend(*args)

    monkeypatch.setattr(loop, "descend", interrupted)


def test_an_interrupted_training_leaves_a_usable_estimator(
    quick, normal, mixed, monkeypatch
):
    interrupt(monkeypatch, 3)
    with pytest.warns(UserWarning, match="interrupted after 3 of 50 steps"):
        quick.set_params(max_iter=50).fit(normal)
    assert quick.n_iter_ == quick.best_iter_ == 3
    assert len(np.unique(quick.score_samples(mixed.images))) == len(mixed.images)


def test_a_bar_ends_its_line_before_an_interrupt_is_warned_about(
    quick, normal, monkeypatch, capsys
):
    interrupt(monkeypatch, 3)
    said = []
    monkeypatch.setattr(
        loop, "warn", lambda *args: said.append(capsys.readouterr().out)
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    quick.set_params(max_iter=50, verbose=1).fit(normal)
    *_, line = said[0].split("\r")
    assert line.endswith("\n")
    assert line.rstrip().endswith("training #............................. 3 of 50")


def test_early_stopping_keeps_the_best_weights(normal, monkeypatch):
    scores = iter([0.5, 0.8, 0.9, 0.7, 0.7, 0.7, 0.7])
    seen = []

    def check(self, encoder):
        seen.append([p.detach().cpu().clone() for p in encoder.parameters()])
        return next(scores)

    monkeypatch.setattr(validation.DefectCheck, "__call__", check)
    monkeypatch.setattr(trainer, "_CHECK_EVERY", 2)
    est = PatchSVDD(encoder="hierarchical", patch_size=32, early_stopping=True, **QUICK)
    est.set_params(max_iter=36, training=Training(batch_size=1)).fit(normal)
    assert est.n_iter_ == 6 * 3
    assert est.validation_steps_.tolist() == [3 * i for i in range(7)]
    assert est.validation_scores_.tolist() == [0.5, 0.8, 0.9, 0.7, 0.7, 0.7, 0.7]
    assert est.best_iter_ == 6
    for kept, best in zip(est.encoder_.parameters(), seen[2], strict=True):
        assert torch.equal(kept, best)


def test_early_stopping_needs_images_to_spare(quick, normal):
    quick.set_params(early_stopping=True)
    with pytest.raises(ValueError, match=r"sets 2 of 3 images aside.*more images"):
        quick.fit(normal[:3])


@pytest.mark.parametrize(
    ("scores", "best"), [([0.5, 0.9, 0.7], 25), ([0.8, 0.7, 0.7], 0)]
)
def test_a_failed_training_falls_back_to_the_best_weights(
    quick, normal, monkeypatch, scores, best
):
    answers = iter(scores)
    monkeypatch.setattr(
        validation.DefectCheck, "__call__", lambda self, encoder: next(answers)
    )
    quick.set_params(max_iter=50, training__batch_size=1)
    with pytest.warns(ConvergenceWarning, match=r"training has failed.*best weights"):
        quick.fit(normal)
    assert quick.best_iter_ == best
    assert quick.n_iter_ == 50


def test_a_drop_within_noise_is_no_failure(quick, normal, monkeypatch):
    scores = iter([0.6, 0.75, 0.7])
    monkeypatch.setattr(
        validation.DefectCheck, "__call__", lambda self, encoder: next(scores)
    )
    quick.set_params(max_iter=50, training__batch_size=1).fit(normal)
    assert quick.best_iter_ == 50


def test_a_collapse_that_ties_all_scores_is_undone(quick, normal, monkeypatch):
    def collapse(encoder, objective, batch, adam):
        with torch.no_grad():
            encoder.small[-1].weight.zero_()
        return torch.ones(len(objective.weights))

    monkeypatch.setattr(loop, "descend", collapse)
    with pytest.warns(ConvergenceWarning, match="collapsed all features to one point"):
        quick.fit(normal)
    assert quick.best_iter_ == 0
    assert len(np.unique(quick.training_scores_)) == len(normal)
    assert quick.encoder_.small[-1].weight.any()


def test_a_copy_of_each_image_is_no_collapse(quick, normal):
    with pytest.warns(UserWarning, match="is there a copy of each") as caught:
        quick.fit(np.concatenate([normal, normal]))
    assert not any("collapsed" in str(warning.message) for warning in caught)
    assert quick.best_iter_ > 0


@pytest.mark.parametrize("lam", [1e-3, 0.1, 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_lambda_ties_scores(normal, mixed, lam, seed):
    est = PatchSVDD(
        encoder="hierarchical",
        lam=lam,
        patch_size=32,
        max_iter=24,
        training=Training(batch_size=2),
        random_state=seed,
    ).fit(normal[:, :, :, :1])
    scores = est.score_samples(mixed.images[:, :, :, :1])
    assert len(np.unique(scores)) == len(scores)


# What comes in


@pytest.mark.parametrize("channels", [None, 1, 2, 4])
def test_any_number_of_channels(quick, rng, channels):
    shape = (4, 40, 36) if channels is None else (4, 40, 36, channels)
    X = rng.random(shape)
    assert quick.fit(X).inspected_shape_ == (40, 36, channels or 1)
    assert quick.anomaly_map(X).shape == (4, 40, 36)


def test_grey_images_with_or_without_a_channel_axis(quick, normal, mixed):
    quick.fit(normal[..., 0])
    np.testing.assert_array_equal(
        quick.score_samples(mixed.images[..., 0]),
        quick.score_samples(mixed.images[..., :1]),
    )


def test_bytes_and_floats_score_alike(fitted, mixed):
    np.testing.assert_allclose(
        fitted.score_samples(mixed.images), fitted.score_samples(mixed.images / 255)
    )


def test_images_are_resized_and_maps_resized_back(normal):
    rng = np.random.default_rng(SEED)
    sizes = [(60, 50), (90, 41), (33, 70)]
    X = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    est = PatchSVDD(
        encoder="hierarchical", patch_size=32, image_size=(40, 44), **QUICK
    ).fit(X)
    assert est.inspected_shape_ == (40, 44, 3)
    maps = est.anomaly_map(X)
    assert [one_map.shape for one_map in maps] == sizes
    assert est.anomaly_map(X[:1] * 2).shape == (2, 60, 50)
    assert est.score_samples(normal).shape == (8,)
    assert est.anomaly_map(normal).shape == (8, 48, 48)


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


def test_read_only_images(quick, normal):
    normal = normal.copy()
    normal.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick.fit(normal).anomaly_map(normal)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 48, 48), "X has 1 sample"),
        ((4, 31, 48), r"image height 31 is smaller than patch_size=32\. Pass larger"),
        ((4, 48, 5), "image width 5 is smaller than patch_size=32"),
    ],
)
def test_images_that_cannot_be_fitted(quick, shape, message):
    with pytest.raises(ValueError, match=message):
        quick.fit(np.zeros(shape))


def test_too_large_a_patch_names_one_that_fits(normal):
    with pytest.raises(ValueError, match=r"height 48 .*patch_size=64.*patch_size=32\."):
        PatchSVDD(encoder="hierarchical").fit(normal)
    with pytest.raises(ValueError, match=r"have them resized\.$"):
        PatchSVDD(encoder="flat").fit(normal)


def test_images_of_another_shape_cannot_be_scored(fitted):
    for shape in ((2, 48, 49, 3), (2, 48, 48, 1), (2, 48, 48)):
        with pytest.raises(
            ValueError, match=r"fitted on images of shape \(48, 48, 3\)"
        ):
            fitted.score_samples(np.zeros(shape))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lam": -1}, "'lam' parameter"),
        ({"embedding_dim": 0}, "'embedding_dim' parameter"),
        ({"patch_size": 48}, "'patch_size' parameter .* must be .*Got 48"),
        ({"strides": (4, 16)}, r"strides must be positive integers.*\(32,\)"),
        ({"strides": (0,)}, "strides must be positive integers"),
        ({"encoder": "resnet"}, "encoder must be 'auto'"),
        (
            {"encoder": "flat"},
            r"encoder='flat' is for patches of 64, got patch_size=32",
        ),
        ({"training__loss": "mse"}, r"Training\(loss=\.\.\.\) must be"),
        ({"contamination": 0.6}, "'contamination' parameter"),
        ({"device": "tpu"}, "device must be 'auto', 'cpu', 'cuda'"),
        ({"device": "cuda:99"}, "device='cuda:99' is not available"),
        ({"image_size": (0, 4)}, "image_size must be"),
        ({"max_iter": -1}, "'max_iter' parameter"),
        ({"inspection__light": 1.5}, r"Inspection\(light=\.\.\.\) must be"),
        ({"training": "fast"}, r"training must be .*Training\(\.\.\.\), got 'fast'"),
        ({"training__validation_fraction": 0.0}, "'validation_fraction' parameter"),
    ],
)
def test_wrong_parameters_are_named(quick, normal, parameters, message):
    with pytest.raises(ValueError, match=message):
        quick.set_params(**parameters).fit(normal)


def test_unfitted_estimator_says_so(quick, normal):
    for method in ("score_samples", "predict", "anomaly_map", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(quick, method)(normal)


# Life of an estimator


@pytest.mark.parametrize("error", [KeyboardInterrupt, FloatingPointError])
def test_failed_fit_leaves_the_estimator_as_it_was(
    quick, normal, mixed, monkeypatch, error
):
    quick.fit(normal)
    state, scores = dict(vars(quick)), quick.score_samples(mixed.images)

    def fail(*args):
        raise error

    monkeypatch.setattr(fitted_bank, "index_banks", fail)
    with pytest.raises(error), pytest.warns(UserWarning, match="weights are kept"):
        quick.fit(mixed.images)
    monkeypatch.undo()
    assert {**vars(quick), "_unfinished": None} == state
    np.testing.assert_array_equal(quick.score_samples(mixed.images), scores)


def fail_after_training(est, X, monkeypatch):
    """Press Ctrl-C while the bank is indexed."""

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fitted_bank, "index_banks", interrupted)
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="kept"):
            est.fit(X)


@pytest.mark.parametrize("step", ["check_scores", "warn_if_grouped"])
def test_a_training_is_kept_until_all_is_done(quick, normal, monkeypatch, step):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(patch_svdd, step, interrupted)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="kept"):
        quick.fit(normal)
    assert quick._unfinished is not None


@pytest.mark.parametrize("lam", [0.1, "auto"])
def test_a_fit_goes_on_from_a_training_that_was_not_lost(
    quick, normal, monkeypatch, lam
):
    fail_after_training(quick.set_params(lam=lam), normal, monkeypatch)
    with pytest.raises(NotFittedError):
        quick.predict(normal)
    kept = quick._unfinished
    est = pickle.loads(pickle.dumps(quick))
    monkeypatch.setattr(loop, "descend", None)  # no step is taken
    est.set_params(warm_start=True, max_iter=0).fit(normal)
    assert est.n_iter_ == est.best_iter_ == 2
    assert est.lam_ == kept.lam
    assert (est.lam_results_ is None) == (lam != "auto")
    assert list(est.loss_curve_) == list(kept.curve)
    assert est.validation_scores_.tolist() == kept.watch.scores
    pairs = zip(est.encoder_.parameters(), kept.encoder.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    est.fit(normal)  # from encoder_, as ever
    assert est.n_iter_ == 0


def test_kept_weights_are_not_part_of_a_fitted_estimator(
    quick, normal, mixed, monkeypatch
):
    scores = quick.fit(normal).score_samples(mixed.images)
    weights = quick.encoder_
    fail_after_training(quick, mixed.images, monkeypatch)
    np.testing.assert_array_equal(quick.score_samples(mixed.images), scores)
    assert quick.encoder_ is weights
    assert clone(quick)._unfinished is None
    quick.fit(normal)  # from the start, without warm_start
    np.testing.assert_array_equal(quick.score_samples(mixed.images), scores)
    assert quick._unfinished is None


def test_nothing_is_kept_where_nothing_was_trained(quick, normal, monkeypatch):
    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(fitted_bank, "index_banks", fail)
    with pytest.raises(MemoryError):
        quick.set_params(max_iter=0).fit(normal)
    assert quick._unfinished is None


def test_kept_weights_hold_no_images(quick, normal, monkeypatch):
    fail_after_training(quick.set_params(max_iter=1), normal, monkeypatch)
    n_weights = sum(p.numel() for p in quick._unfinished.encoder.parameters())
    assert len(pickle.dumps(quick)) < 3 * 4 * n_weights + normal.nbytes // 2


def test_training_goes_on_from_kept_weights(quick, normal, monkeypatch):
    fail_after_training(quick, normal, monkeypatch)
    kept = quick._unfinished.encoder
    quick.set_params(warm_start=True, max_iter=1, training__learning_rate=1e-9)
    quick.fit(normal)
    assert quick.n_iter_ == 1
    torch.testing.assert_close(quick.encoder_.small[0].weight, kept.small[0].weight)


def test_warm_start_goes_on_from_the_weights(quick, normal, mixed):
    quick.set_params(warm_start=True).fit(normal)
    weights = [p.detach().clone() for p in quick.encoder_.parameters()]
    first = quick.encoder_
    quick.set_params(max_iter=0).fit(mixed.images)
    for old, new in zip(weights, quick.encoder_.parameters(), strict=True):
        assert torch.equal(old, new)
    assert quick.n_iter_ == 0
    quick.set_params(max_iter=1).fit(normal)
    assert quick.n_iter_ == 1
    assert not torch.equal(weights[0], quick.encoder_.small[0].weight)
    assert torch.equal(weights[0], first.small[0].weight)


def test_warm_start_takes_weights_put_in_by_hand(normal, mixed):
    est = PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        max_iter=0,
        warm_start=True,
        random_state=SEED,
    )
    before = est.fit(normal).score_samples(mixed.images)
    with torch.no_grad():
        for parameter in est.encoder_.parameters():
            parameter *= 2
    after = est.fit(normal).score_samples(mixed.images)
    assert (after < 1.5 * before).all()


def test_warm_start_refuses_another_network(quick, normal):
    quick.set_params(warm_start=True).fit(normal)
    with pytest.raises(ValueError, match=r"warm_start=True cannot go on.*\(3, 8, 32\)"):
        quick.set_params(embedding_dim=4).fit(normal)


def test_verbose_reports_progress(quick, normal, capsys):
    quick.set_params(verbose=2).fit(normal)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[PatchSVDD] ") for line in lines)
    assert any("step 2" in line and "position_32" in line for line in lines)
    quick.set_params(verbose=0).fit(normal)
    assert capsys.readouterr().out == ""


def test_n_jobs_sets_threads_for_the_call_alone(quick, normal, monkeypatch):
    seen = []
    original = trainer.train_once

    def watch(*args):
        seen.append(torch.get_num_threads())
        return original(*args)

    monkeypatch.setattr(training, "train_once", watch)
    before = torch.get_num_threads()
    quick.set_params(n_jobs=1).fit(normal)
    assert seen == [1]
    assert torch.get_num_threads() == before


def test_parameters_set_after_fit_do_not_change_the_scores(fitted, mixed):
    changed = copy.deepcopy(fitted).set_params(strides=(16,), lam=1)
    changed.set_params(inspection__aggregation="sum", training__method="paper")
    np.testing.assert_array_equal(
        changed.score_samples(mixed.images), fitted.score_samples(mixed.images)
    )


@pytest.mark.parametrize("mmap_mode", [None, "r"])
@pytest.mark.parametrize("neighbors", ["exact", "pynndescent"])
def test_joblib_keeps_the_scores(quick, normal, mixed, tmp_path, neighbors, mmap_mode):
    quick.set_params(neighbors=neighbors).fit(normal)
    scores = quick.score_samples(mixed.images)
    joblib.dump(quick, tmp_path / "model.joblib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = joblib.load(tmp_path / "model.joblib", mmap_mode=mmap_mode)
        np.testing.assert_array_equal(loaded.score_samples(mixed.images), scores)
        np.testing.assert_array_equal(
            loaded.score_samples(normal), quick.training_scores_
        )
    assert repr(loaded) == repr(quick)


def test_deepcopy_keeps_the_scores(fitted, mixed):
    np.testing.assert_array_equal(
        copy.deepcopy(fitted).score_samples(mixed.images),
        fitted.score_samples(mixed.images),
    )


def test_model_file_loads_in_a_process_that_has_no_cuda(fitted, mixed, tmp_path):
    joblib.dump((fitted, mixed.images), tmp_path / "model.joblib")
    code = (
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "import joblib\n"
        f"est, X = joblib.load({str(tmp_path / 'model.joblib')!r})\n"
        "print(*est.score_samples(X))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    scores = np.array(result.stdout.split(), dtype=float)
    np.testing.assert_allclose(scores, fitted.score_samples(mixed.images), rtol=1e-4)


def test_model_for_an_absent_device_scores_on_the_cpu(fitted, mixed):
    moved = copy.deepcopy(fitted).set_params(device="cuda:99")
    with pytest.warns(UserWarning, match=r"'cuda:99' is not available.*on the CPU"):
        scores = moved.score_samples(mixed.images)
    np.testing.assert_array_equal(scores, fitted.score_samples(mixed.images))


def test_pynndescent_agrees_with_exact_search(untrained, normal, mixed):
    exact = clone(untrained).set_params(neighbors="exact").fit(normal)
    approximate = clone(untrained).set_params(neighbors="pynndescent").fit(normal)
    np.testing.assert_allclose(
        approximate.score_samples(mixed.images),
        exact.score_samples(mixed.images),
        rtol=0.02,
    )
    assert approximate.offset_ == pytest.approx(exact.offset_, rel=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_and_cpu_score_alike(quick, normal, mixed, tmp_path):
    quick.set_params(device="cuda").fit(normal)
    scores = quick.score_samples(mixed.images)
    again = clone(quick).fit(normal).score_samples(mixed.images)
    np.testing.assert_array_equal(again, scores)
    joblib.dump(quick, tmp_path / "model.joblib")
    on_cpu = joblib.load(tmp_path / "model.joblib").set_params(device="cpu")
    np.testing.assert_allclose(on_cpu.score_samples(mixed.images), scores, rtol=1e-3)
