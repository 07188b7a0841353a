"""Groups of images: what is set aside, what is left out, and what is warned of."""

import pickle

import numpy as np
import pytest
import sklearn
from scipy.ndimage import gaussian_filter
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skpatchsvdd import Inspection, PatchSVDD, Training
from skpatchsvdd._calibration import Calibration, number_owners
from skpatchsvdd._calibration.groups import choose_aside
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.model_selection import (
    NormalOnlyKFold,
    NormalOnlyShuffleSplit,
    detection_scorer,
)

# Lots look grouped, and many tests fit to them without groups to compare.
pytestmark = pytest.mark.filterwarnings("ignore:images look like the ones before")

QUICK = {
    "encoder": "hierarchical",
    "max_iter": 0,
    "embedding_dim": 8,
    "patch_size": 32,
    "training": Training(batch_size=2),
    "n_jobs": 1,
    "strides": (8,),
    "random_state": 0,
}
N_GROUPS, N_EACH = 8, 3
# Like no image that is trained on.
NOISE = np.random.RandomState(0).randint(256, size=(1, 48, 48, 3)).astype(np.uint8)


def make(**given):
    return PatchSVDD(**QUICK | given)


def make_lots(n_groups, n_each, random_state):
    """Make images of lots: a texture and a tint of its own, in pieces."""
    rng = np.random.RandomState(random_state)
    sheets = make_textures(n_groups, image_size=48, random_state=rng).images
    sheets = (sheets * rng.uniform(0.4, 1, size=(n_groups, 1, 1, 3))).astype(np.uint8)
    shifts = rng.randint(48, size=(n_groups * n_each, 2))
    pieces = zip(sheets.repeat(n_each, axis=0), shifts, strict=True)
    return np.stack([np.roll(x, shift, axis=(0, 1)) for x, shift in pieces])


@pytest.fixture(scope="module")
def lots():
    images = make_lots(N_GROUPS, N_EACH, 0)
    return images, [f"lot {i}" for i in range(N_GROUPS) for _ in range(N_EACH)]


@pytest.fixture(scope="module")
def trained(lots):
    """An estimator fitted to lots. Tests must not change it."""
    images, groups = lots
    return make(max_iter=2).fit(images, groups=groups)


def test_whole_groups_are_set_aside_and_calibrate(trained, lots):
    groups = np.array(lots[1])
    assert trained.groups_.tolist() == lots[1]
    aside = np.unique(groups[trained.calibrates_])
    assert len(aside) == N_GROUPS // 2
    np.testing.assert_array_equal(trained.calibrates_, np.isin(groups, aside))
    assert trained.offset_ == trained.training_scores_[trained.calibrates_].min()
    # Each group counts the same.
    assert trained.p_values(NOISE) == 1 / (N_GROUPS // 2 + 1)
    assert trained.predict_mask(NOISE, false_alarm_rate=0.5).any()


def test_the_encoder_sees_no_group_that_calibrates(trained, lots):
    images = lots[0].copy()
    images[trained.calibrates_] = 255 - images[trained.calibrates_]
    other = clone(trained).fit(images, groups=lots[1])
    np.testing.assert_array_equal(other.calibrates_, trained.calibrates_)
    weights = (x.encoder_.parameters() for x in (other, trained))
    assert all((a == b).all() for a, b in zip(*weights, strict=True))
    assert other.validation_scores_.tolist() == trained.validation_scores_.tolist()


@pytest.mark.parametrize(
    "neighbors", ["exact", pytest.param("pynndescent", marks=pytest.mark.slow)]
)
def test_images_are_scored_without_their_group(lots, neighbors):
    images, groups = lots
    # What is usual is measured on all images, and changes if some are missing.
    inspection = Inspection(position_weight=0, relative_weight=0)
    est = make(inspection=inspection, neighbors=neighbors).fit(images, groups=groups)
    assert est.calibrates_.all()  # an encoder that is not trained has seen none
    assert est.bank_size_ == {32: len(images) * 9}
    is_first = np.array(groups) == groups[0]
    np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)
    scores = est.training_scores_[is_first]
    est.set_params(warm_start=True).fit(images[~is_first])  # the bank of the others
    expected = est.score_samples(images[is_first])
    np.testing.assert_allclose(scores, expected, rtol=1e-4)


def test_the_order_of_images_does_not_matter(lots):
    images, groups = lots[0], np.array(lots[1])
    est = make()
    est.set_params(inspection__position_weight=0)
    scores = est.fit(images, groups=groups).training_scores_
    order = np.roll(np.random.RandomState(0).permutation(len(images)), 1)
    order = np.append(order[order != 1], 1)  # the first and the last of one group
    order = np.append(0, order[order != 0])
    again = est.fit(images[order], groups=groups[order]).training_scores_
    np.testing.assert_allclose(again, scores[order], rtol=1e-4)


def test_a_small_bank_leaves_groups_out_too(lots):
    images, groups = lots
    est = make(bank_size=60).set_params(inspection__relative_weight=0)
    est.fit(images, groups=groups)
    assert est.bank_size_ == {32: 60}
    owners = est._fitted.owners.reshape(N_GROUPS, N_EACH)
    assert (owners == owners[:, :1]).all()
    np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)


def test_groups_of_one_image_are_no_groups(lots):
    images, _ = lots
    est = make(false_alarm_rate=0.1)
    plain = clone(est).fit(images)
    single = clone(est).fit(images, groups=np.arange(len(images)))
    np.testing.assert_array_equal(single.training_scores_, plain.training_scores_)
    assert single.offset_ == plain.offset_
    new = make_lots(2, 2, 1)
    np.testing.assert_array_equal(single.p_values(new), plain.p_values(new))
    assert plain.groups_ is None
    assert plain.calibrates_.all()


@pytest.mark.wide
def test_new_groups_raise_fewer_alarms_with_groups(lots):
    images, groups = lots
    new = make_lots(16, 2, 7)
    est = make(false_alarm_rate=0.12).set_params(inspection__light=1)
    without = (clone(est).fit(images).predict(new) == -1).mean()
    with_groups = (clone(est).fit(images, groups=groups).predict(new) == -1).mean()
    assert without > 0.15
    assert with_groups < 0.7 * without


def test_abnormal_images_go_with_their_groups(lots):
    images, groups = lots
    y = np.ones(len(images), dtype=int)
    y[[0, 1, 2, 5]] = -1
    est = make().fit(images, y, groups=groups)
    assert est.groups_.tolist() == [groups[i] for i in np.flatnonzero(y == 1)]


def test_few_groups_for_the_false_alarm_rate_are_told(lots):
    images, groups = lots
    est = make(false_alarm_rate=0.05)
    with pytest.warns(UserWarning, match="needs at least 19 groups .* got 8"):
        est.fit(images, groups=groups)
    assert est.offset_ == est.training_scores_.min()


@pytest.mark.parametrize(
    ("groups", "kept"),
    [([1, 1, 2, 3], [1, 1, 2, 3, 4, 1]), (["a", "a", 1, 3], [*"aa1341"])],
)
def test_the_attributes_of_an_estimator_are_its_calibration(lots, groups, kept):
    images = lots[0][::3][:6]
    est = make(false_alarm_rate=0.25).fit(images[:4], groups=groups)
    more = [4, 1] if groups[0] == 1 else ["4", "1"]
    est.partial_fit(images[4:], groups=more)
    known = Calibration(
        plain=est.training_scores_,
        calibrates=est.calibrates_,
        owners=number_owners(est.groups_),
    )
    assert est.offset_ == known.offset(0.25)
    scores = est.score_samples(images)
    np.testing.assert_array_equal(est.p_values(images), known.p_values(scores))
    assert est.groups_.tolist() == kept


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (1, 1, 1), (5, 1), (1, 1, 1, 1)])
def test_enough_images_are_left_to_train_on(sizes):
    owners = np.arange(len(sizes)).repeat(sizes)
    for seed in range(5):
        rng = np.random.RandomState(seed)
        aside = choose_aside(owners, np.arange(len(sizes)), rng)
        assert len(aside) >= 1
        assert (~np.isin(owners, aside)).sum() >= 2
    with pytest.raises(ValueError, match="fewer than 2 images to train on"):
        choose_aside(np.arange(2), np.arange(2), rng)


def test_partial_fit_lets_new_groups_calibrate(trained, lots):
    est = pickle.loads(pickle.dumps(trained))
    new = make_lots(2, 2, 5)
    est.partial_fit(new, groups=["new", "new", "lot 100", "lot 100"])
    assert est.calibrates_[-4:].all()
    assert est.groups_[-4:].tolist() == ["new", "new", "lot 100", "lot 100"]
    everyone = np.concatenate([lots[0], new])
    np.testing.assert_array_equal(est.score_samples(everyone), est.training_scores_)
    assert est.p_values(NOISE) == 1 / (N_GROUPS // 2 + 2 + 1)


def test_partial_fit_continues_groups(trained):
    est = pickle.loads(pickle.dumps(trained))
    seen = est.groups_[~est.calibrates_][0]
    aside = est.groups_[est.calibrates_][0]
    new = make_lots(2, 1, 6)
    est.partial_fit(new, groups=[seen, aside])
    assert est.calibrates_[-2:].tolist() == [False, True]
    for i, group in ((-2, seen), (-1, aside)):
        assert est._fitted.owners[i] == est._fitted.owners[est.groups_ == group][0]


def test_partial_fit_and_fit_must_agree_about_groups(trained, lots):
    images, groups = lots
    with pytest.raises(ValueError, match="fit was given groups, and partial_fit was"):
        trained.partial_fit(images)
    plain = make().fit(images[:4])
    with pytest.raises(ValueError, match="partial_fit was given groups, and fit was"):
        plain.partial_fit(images, groups=groups)
    first = make().partial_fit(images, groups=groups)
    assert first.groups_.tolist() == groups


def test_warm_start_calibrates_on_what_the_encoder_has_not_seen(trained, lots):
    images, groups = lots
    est = pickle.loads(pickle.dumps(trained)).set_params(warm_start=True, max_iter=0)
    est.fit(images, groups=groups)
    np.testing.assert_array_equal(est.calibrates_, trained.calibrates_)
    est.set_params(max_iter=1).fit(images, groups=groups)
    assert est.calibrates_.any()
    assert not (est.calibrates_ & ~trained.calibrates_).any()
    seen = ~trained.calibrates_
    with pytest.raises(ValueError, match="none is left to calibrate on"):
        est.fit(images[seen], groups=np.array(groups)[seen])


def test_paper_training_takes_groups(lots):
    images, groups = lots
    est = make(max_iter=2, training=Training(method="paper", batch_size=2))
    est.fit(images, groups=groups)
    seen = images[~est.calibrates_] / 255
    np.testing.assert_allclose(est.center_, seen.mean(axis=0), atol=1e-5)
    np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)


@pytest.mark.parametrize("n_pieces", [2, 3])
def test_pictures_of_one_piece_are_found_among_few(n_pieces):
    noise = np.random.default_rng(0).normal(size=(n_pieces, 57, 57, 3))
    noise = gaussian_filter(noise, (0, 2, 2, 0))
    pieces = np.clip(128 + 50 * noise / noise.std(), 0, 255).astype(np.uint8)
    images = np.concatenate([pieces[:, 4:52, 4:52], pieces[:, 1:49, 2:50]])
    est = PatchSVDD(encoder="procedural", max_iter=0, random_state=0)
    with pytest.warns(UserWarning, match="several pictures of one piece"):
        est.fit(images)
    twins = est.twins_[:n_pieces] == est.twins_[n_pieces:]
    assert twins.mean() > 0.5
    np.testing.assert_array_equal(est._fitted.owners, est.twins_)
    np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)


def test_fit_predict_takes_groups(lots):
    images, groups = lots
    est = make(false_alarm_rate=0.3)
    labels = est.fit_predict(images, groups=groups)
    np.testing.assert_array_equal(labels, est.predict(images))


def test_check_drift(lots):
    images, groups = lots
    est = make()
    est.set_params(inspection__light=1).fit(images)
    changed = np.zeros_like(images)
    result = est.check_drift(changed)
    assert result.drifted
    assert "skpatchsvdd update" in result.verdict
    est.fit(images, groups=groups)
    result = est.check_drift(changed)
    assert result.p_value == pytest.approx(1 / (N_GROUPS + 1))
    assert "any of the 8 groups that set" in result.verdict


@pytest.fixture
def _routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("_routing")
def test_groups_are_routed(lots):
    images, groups = lots
    est = make().set_fit_request(groups=True)
    pipe = make_pipeline(FunctionTransformer(), est).fit(images, groups=groups)
    assert pipe[-1].groups_.tolist() == groups
    y = np.tile([1, 1, -1], N_GROUPS)
    search = GridSearchCV(
        est,
        {"embedding_dim": [4, 8]},
        cv=NormalOnlyKFold(2),
        scoring=detection_scorer,
        error_score="raise",
    ).fit(images, y, groups=groups)
    best = search.best_estimator_
    assert best.groups_.tolist() == [
        g for g, label in zip(groups, y, strict=True) if label == 1
    ]


def test_groups_reach_a_step_of_a_pipeline(lots):
    images, groups = lots
    pipe = make_pipeline(FunctionTransformer(), make())
    pipe.fit(images, patchsvdd__groups=groups)
    assert pipe[-1].groups_.tolist() == groups


def test_groups_serve_a_search_with_group_folds(lots):
    images, groups = lots
    search = GridSearchCV(
        make(),
        {"embedding_dim": [4, 8]},
        cv=GroupKFold(2),
        scoring=lambda est, X: est.score_samples(X).mean(),
        error_score="raise",
    ).fit(images, groups=groups)
    assert search.best_estimator_.groups_ is None  # scikit-learn keeps them for folds


GROUPED = np.arange(8).repeat(3)
LABELS = np.tile([1, 1, -1], 8)


@pytest.mark.parametrize(
    "cv",
    [
        NormalOnlyKFold(3),
        NormalOnlyKFold(4, shuffle=True, random_state=0),
        NormalOnlyShuffleSplit(5, random_state=0),
        NormalOnlyShuffleSplit(5, test_size=3, random_state=0),
    ],
)
def test_no_group_of_normal_images_is_on_both_sides(cv):
    tested = []
    for train, test in cv.split(GROUPED, LABELS, GROUPED):
        assert (LABELS[train] == 1).all()
        assert (LABELS[test] == -1).any()
        normal = test[LABELS[test] == 1]
        assert len(normal) > 0
        assert not set(GROUPED[train]) & set(GROUPED[normal])
        assert len(train) + len(normal) == 16
        tested.extend(test)
    if isinstance(cv, NormalOnlyKFold):
        assert sorted(tested) == list(range(24))


def test_folds_say_when_groups_are_too_few():
    groups = np.array(["a", "b", "a", "b"] * 6)
    with pytest.raises(ValueError, match="needs at least 3 groups of normal images"):
        next(NormalOnlyKFold(3).split(groups, LABELS, groups))
    with pytest.raises(ValueError, match="of the 2 groups of normal images"):
        next(NormalOnlyShuffleSplit(3).split(groups, LABELS, groups))
    with pytest.raises(ValueError, match="got 3 labels for 24 images"):
        next(NormalOnlyKFold(3).split(groups, LABELS, groups[:3]))
