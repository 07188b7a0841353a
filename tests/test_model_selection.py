import pickle

import numpy as np
import pytest
from PIL import Image
from settings import SEED
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import IsolationForest
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc, pro_score, segmentation_auroc
from skpatchsvdd.model_selection import (
    NormalOnlyKFold,
    NormalOnlyShuffleSplit,
    SyntheticDefectScorer,
    detection_scorer,
    pro_scorer,
    segmentation_scorer,
)

SCORERS = [detection_scorer, segmentation_scorer, pro_scorer]
SPLITTERS = [
    NormalOnlyKFold(3, shuffle=True, random_state=0),
    NormalOnlyShuffleSplit(3, random_state=0),
]


@pytest.fixture(scope="module")
def data():
    """Five normal and three damaged images of 64 x 64."""
    return make_textures(8, image_size=64, anomaly_fraction=0.4, random_state=SEED)


@pytest.fixture
def detector(untrained):
    return untrained.set_params(n_jobs=1)  # on busy cores, too


@pytest.fixture
def forest():
    return IsolationForest(n_estimators=10, random_state=0)


@pytest.fixture(scope="module")
def table():
    """Twenty normal and ten abnormal rows, mixed."""
    rng = np.random.default_rng(SEED)
    y = rng.permutation(np.repeat([1, -1], [20, 10]))
    return rng.normal(size=(30, 3)) + (y == -1)[:, None], y


def masks_of(labels, rng):
    """Make masks of unequal size, of which those of abnormal images have one pixel."""
    masks = [np.zeros(rng.integers(2, 6, size=2), dtype=np.uint8) for _ in labels]
    for mask, label in zip(masks, labels, strict=True):
        mask[-1, -1] = 255 * (label == -1)
    return masks


def splits_of(cv, y):
    return [(train.tolist(), test.tolist()) for train, test in cv.split(y, y)]


@pytest.mark.parametrize("n_splits", [2, 3, 7])
@pytest.mark.parametrize("given", [{}, {"shuffle": True, "random_state": SEED}])
def test_kfold_tests_each_image_once_and_trains_on_other_normal_ones(
    rng, n_splits, given
):
    y = rng.permutation(np.repeat([1, -1], rng.integers(7, 30, size=2)))
    cv = NormalOnlyKFold(n_splits, **given)
    splits = list(cv.split(y, y))
    tests = [test for _, test in splits]
    assert len(splits) == cv.get_n_splits(y, y) == n_splits
    np.testing.assert_array_equal(np.sort(np.concatenate(tests)), np.arange(len(y)))
    for label in (1, -1):
        assert np.ptp([np.sum(y[test] == label) for test in tests]) <= 1
    for train, test in splits:
        others = np.setdiff1d(np.flatnonzero(y == 1), test)
        np.testing.assert_array_equal(train, others)


@pytest.mark.parametrize(("test_size", "n_tested"), [(0.25, 3), (0.3, 4), (2, 2)])
def test_shuffle_split_tests_some_normal_and_all_abnormal_images(
    rng, test_size, n_tested
):
    y = rng.permutation(np.repeat([1, -1], 12))
    cv = NormalOnlyShuffleSplit(4, test_size=test_size, random_state=0)
    splits = list(cv.split(y, y))
    assert len(splits) == cv.get_n_splits() == 4
    for train, test in splits:
        np.testing.assert_array_equal(np.union1d(train, test), np.arange(24))
        assert len(train) + len(test) == 24
        assert (y[train] == 1).all()
        assert (y[test] == 1).sum() == n_tested
    assert len({tuple(train) for train, _ in splits}) > 1


@pytest.mark.parametrize(
    ("cls", "given"),
    [(NormalOnlyKFold, {"shuffle": True}), (NormalOnlyShuffleSplit, {})],
)
def test_random_state_decides(table, cls, given):
    first, again, other = (
        splits_of(cls(3, random_state=seed, **given), table[1]) for seed in (0, 0, 1)
    )
    assert first == again != other
    unlike = cls(3, random_state=np.random.RandomState(0), **given)
    assert splits_of(unlike, table[1]) != splits_of(unlike, table[1])


def test_shuffle_mixes_both_kinds(table):
    y = table[1]

    def folds(cv, label):
        return [test[y[test] == label].tolist() for _, test in cv.split(y, y)]

    for label in (1, -1):
        plain = folds(NormalOnlyKFold(3), label)
        in_order = np.concatenate(plain)
        np.testing.assert_array_equal(in_order, np.flatnonzero(y == label))
        assert folds(NormalOnlyKFold(3, shuffle=True, random_state=0), label) != plain


@pytest.mark.parametrize("cv", SPLITTERS)
def test_masks_split_like_labels(cv, table, rng):
    y = table[1]
    expected = splits_of(cv, y)
    assert splits_of(cv, masks_of(y, rng)) == expected
    masks = np.zeros((len(y), 4, 5))
    masks[y == -1, 3, 2] = 0.5
    assert splits_of(cv, masks) == expected
    assert splits_of(cv, masks > 0) == expected


@pytest.mark.parametrize("cv", SPLITTERS)
@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "y is None. Pass 1 for each normal and -1 for each"),
        ([1, 1, 1, 0], "1 for normal and -1 for abnormal images, or a mask.*got 0"),
        (["good", "bad"], "got 'good'"),
        (np.ones((4, 1)), r"masks of shape.*got elements of shape \(1,\)"),
        ([np.ones((2, 2)), np.ones((2, 2, 3))], r"of shape \(2, 2\)"),
        ([1] * 5, r"y holds 5 normal images and no abnormal one \(-1\).*KFold"),
        (np.zeros((5, 4, 4)), "y holds 5 normal images and no abnormal one"),
    ],
)
def test_wrong_y_is_explained(cv, y, message):
    X = np.zeros((5 if y is None else len(y), 2))
    with pytest.raises(ValueError, match=message):
        next(iter(cv.split(X, y)))


@pytest.mark.parametrize(
    ("n_splits", "n_normal", "n_abnormal", "message"),
    [
        (5, 4, 9, "n_splits=5 needs at least 5 normal.*holds 4.*or n_splits=4"),
        (5, 2, 9, r"n_splits=5 needs.*holds 2\. Pass more normal images\.$"),
        (2, 3, 9, "n_splits=2 needs at least 4 normal.*2 others.*or n_splits=3"),
        (5, 9, 3, "5 abnormal.*holds 3.*n_splits=3 or NormalOnlyShuffleSplit"),
        (10, 8, 6, "or n_splits=6"),
        (2, 9, 1, r"2 abnormal.*holds 1\. Pass NormalOnlyShuffleSplit, whose test"),
    ],
)
def test_too_few_images_for_the_folds_are_explained(
    n_splits, n_normal, n_abnormal, message
):
    y = np.repeat([1, -1], [n_normal, n_abnormal])
    with pytest.raises(ValueError, match=message):
        splits_of(NormalOnlyKFold(n_splits), y)


@pytest.mark.parametrize(("n_splits", "n_normal"), [(2, 4), (3, 3), (5, 5)])
def test_just_enough_images_for_the_folds(n_splits, n_normal):
    y = np.repeat([1, -1], [n_normal, n_splits])
    for train, test in NormalOnlyKFold(n_splits).split(y, y):
        assert len(train) >= 2
        assert set(y[test]) == {1, -1}


@pytest.mark.parametrize(
    ("test_size", "message"),
    [
        (0, "test_size must be a fraction .* or their number, at least 1, got 0"),
        (1.0, r"in \(0, 1\).*got 1\.0"),
        ("half", "got 'half'"),
        (None, "got None"),
        (5, "test_size=5 tests 5 of the 6 normal.*at least 2 .*smaller test_size"),
        (0.7, r"test_size=0\.7 tests 5 of the 6 normal"),
    ],
)
def test_wrong_test_size_is_explained(test_size, message):
    cv = NormalOnlyShuffleSplit(test_size=test_size)
    with pytest.raises(ValueError, match=message):
        splits_of(cv, [1] * 6 + [-1])
    assert len(splits_of(NormalOnlyShuffleSplit(test_size=4), [1] * 6 + [-1])) == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NormalOnlyKFold(1), "n_splits=2 or more, got n_splits=1"),
        (lambda: NormalOnlyKFold(2.5), "Integral"),
        (lambda: NormalOnlyKFold(random_state=0), "shuffle"),
        (lambda: NormalOnlyShuffleSplit(0), "n_splits must be a positive integer"),
        (lambda: NormalOnlyShuffleSplit("3"), "n_splits must be a positive integer"),
        (lambda: SyntheticDefectScorer(0), "n_copies must be an integer"),
        (lambda: SyntheticDefectScorer("2"), "n_copies must be an integer"),
        (
            lambda: SyntheticDefectScorer(random_state=np.random.RandomState(0)),
            "random_state must be an integer",
        ),
    ],
)
def test_wrong_parameters_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("cv", SPLITTERS)
def test_splitters_keep_to_sklearns_habits(cv, table):
    X, y = table
    assert eval(repr(cv)).__dict__ == cv.__dict__
    assert pickle.loads(pickle.dumps(cv)).__dict__ == cv.__dict__
    with pytest.raises(ValueError, match="inconsistent"):
        next(iter(cv.split(X[:-1], y)))


@pytest.mark.parametrize("cv", SPLITTERS)
def test_search_of_any_detector(cv, forest, table, rng):
    X, y = table
    est = make_pipeline(StandardScaler(), forest)
    grid = {"isolationforest__max_samples": [2, 8]}

    def search(y, scoring, n_jobs=None):
        found = GridSearchCV(
            est,
            grid,
            cv=cv,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=False,
            error_score="raise",
        ).fit(X, y)
        return found.cv_results_["mean_test_score"]

    expected = search(y, "roc_auc")
    assert len(set(expected)) == 2
    np.testing.assert_allclose(search(y, detection_scorer, n_jobs=2), expected)
    np.testing.assert_allclose(search(masks_of(y, rng), detection_scorer), expected)


@pytest.mark.parametrize("cv", SPLITTERS)
def test_metadata_routing_changes_nothing(cv, forest, table):
    X, y = table
    options = {"cv": cv, "error_score": "raise"}
    expected = cross_val_score(forest, X, y, scoring=detection_scorer, **options)
    options["params"] = {}  # None is an error in scikit-learn 1.6.0
    with config_context(enable_metadata_routing=True):
        scores = cross_val_score(forest, X, y, scoring=detection_scorer, **options)
        both = cross_validate(forest, X, y, scoring={"a": detection_scorer}, **options)
        del options["params"]
        options |= {"scoring": detection_scorer, "refit": False}
        search = GridSearchCV(forest, {"n_estimators": [10]}, **options).fit(X, y)
    np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(both["test_a"], expected)
    assert search.cv_results_["mean_test_score"][0] == pytest.approx(expected.mean())


def test_scores_by_hand(data, detector):
    cv = NormalOnlyKFold(2)
    scoring = {"det": detection_scorer, "seg": segmentation_scorer, "pro": pro_scorer}
    scores = cross_validate(
        detector, data.images, data.masks, cv=cv, scoring=scoring, error_score="raise"
    )
    for i, (train, test) in enumerate(cv.split(data.images, data.labels)):
        detector.fit(data.images[train])
        image_scores = detector.score_samples(data.images[test])
        maps, masks = detector.anomaly_map(data.images[test]), data.masks[test]
        expected = detection_auroc(data.labels[test], image_scores)
        assert scores["test_det"][i] == pytest.approx(expected)
        assert scores["test_seg"][i] == pytest.approx(segmentation_auroc(masks, maps))
        assert scores["test_pro"][i] == pytest.approx(pro_score(masks, maps))


@pytest.mark.parametrize("scorer", SCORERS)
def test_lists_of_images_and_masks(data, detector, scorer):
    images, masks = data.images, data.masks
    detector.fit(images[:3])
    expected = scorer(detector, images[3:], masks[3:])
    assert scorer(detector, list(images[3:]), list(masks[3:] * 255)) == expected
    assert pickle.loads(pickle.dumps(scorer)) is scorer


@pytest.mark.parametrize("scorer", SCORERS)
def test_pipeline_scores_as_its_detector_does(data, detector, scorer):
    images, masks = data.images, data.masks
    negative = FunctionTransformer(np.invert)
    pipe = make_pipeline("passthrough", negative, make_pipeline(detector))
    pipe.fit(images[:3])
    alone = clone(detector).fit(~images[:3])
    expected = scorer(alone, ~images[3:], masks[3:])
    assert scorer(pipe, images[3:], masks[3:]) == pytest.approx(expected)
    assert scorer(alone, images[3:], masks[3:]) != pytest.approx(expected)


@pytest.mark.parametrize("scorer", [segmentation_scorer, pro_scorer])
def test_what_cannot_be_rated_is_explained(forest, table, scorer):
    X, y = table
    forest.fit(X)
    with pytest.raises(ValueError, match=r"y holds labels.*detection_scorer"):
        scorer(forest, X, y)
    with pytest.raises(ValueError, match="y is None"):
        scorer(forest, X, None)
    with pytest.raises(ValueError, match="y is None"):
        detection_scorer(forest, X, None)
    with pytest.raises(ValueError, match="got 2"):
        detection_scorer(forest, X, np.abs(2 * y))
    for est in (forest, make_pipeline("passthrough", forest)):
        with pytest.raises(AttributeError, match="IsolationForest has no anomaly_map"):
            scorer(est, X, np.ones((30, 2, 2)))


@pytest.mark.parametrize("splitter", SPLITTERS)
def test_a_search_refits_on_all_images_and_what_they_are(data, detector, splitter):
    pipeline = make_pipeline(FunctionTransformer(), detector)
    for y in (data.labels, data.masks):
        search = GridSearchCV(
            pipeline,
            {"patchsvdd__embedding_dim": [4, 8]},
            scoring=detection_scorer,
            cv=splitter,
            error_score="raise",
        ).fit(data.images, y)
        best = search.best_estimator_[-1]
        normal = data.images[data.labels == 1]
        assert len(best.training_scores_) == len(normal)
        assert len(best.defect_kinds_) == len(data.images) - len(normal)
        expected = clone(best).fit(data.images, y).score_samples(data.images)
        np.testing.assert_array_equal(search.score_samples(data.images), expected)


def test_made_up_defects_in_a_pipeline_of_unequal_images(data, detector):
    images = [*data.images[:3], data.images[3][:-5]]
    detector = clone(detector).set_params(image_size=64)
    scorer = SyntheticDefectScorer()
    pipeline = make_pipeline(FunctionTransformer(), detector).fit(images)
    assert scorer(pipeline, images) == scorer(pipeline[-1], images)


class Watcher:
    """Keeps the images that it is to score, by their change from the first one."""

    def __init__(self, **params):
        self.__dict__.update(params)

    def score_samples(self, X):
        self.seen = X
        change = np.abs(np.asarray(X, dtype=float) - X[0])
        return -change.max(axis=tuple(range(1, X.ndim)))


def probe(X, y=None, **params):
    """Return the copies that an estimator is given."""
    watcher = Watcher()
    SyntheticDefectScorer(**params)(watcher, X, y)
    return watcher.seen


def test_made_up_defects_are_told_from_light(data):
    X = np.stack([data.images[0]] * 6)
    # Defects change some pixel by more than light does.
    assert SyntheticDefectScorer(n_copies=5)(Watcher(), X) > 0.7
    assert len(probe(X, n_copies=5)) == 42


class Mapper(Watcher):
    """Maps the change of images from the first one, or its opposite."""

    def anomaly_map(self, X):
        change = np.abs(np.asarray(X, dtype=float) - X[0]).max(axis=3)
        return self.sign * change


def test_made_up_defects_are_looked_for_in_maps_too(data):
    X = np.stack([data.images[0]] * 6)
    scorer = SyntheticDefectScorer()
    right, wrong = (scorer(Mapper(sign=sign), X) for sign in (1, -1))
    image = scorer(Watcher(), X)
    assert right > image / 2 + 0.35
    assert wrong < image / 2 + 0.1
    halve = FunctionTransformer(lambda X: X[:, ::2, ::2])
    assert wrong + 0.1 < scorer(make_pipeline(halve, Mapper(sign=1)), X) < right


def test_made_up_defects_repeat_and_leave_abnormal_images_out(data):
    first, again = (probe(data.images) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != probe(data.images, random_state=1)).any()
    n_normal = (data.labels == 1).sum()
    assert len(probe(data.images, data.labels)) == 6 * n_normal
    with pytest.raises(ValueError, match="y calls all images abnormal"):
        probe(data.images, [-1] * 8)


def test_a_search_without_labels(data, detector):
    X = data.images[data.labels == 1]
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(), detector),
        {"patchsvdd__embedding_dim": [2, 8]},
        scoring=SyntheticDefectScorer(n_copies=1),
        cv=KFold(2),
        error_score="raise",
        n_jobs=2,
    ).fit(X)
    scores = search.cv_results_["mean_test_score"]
    assert ((scores > 0) & (scores <= 1)).all()
    best = search.best_estimator_
    assert len(best[-1].training_scores_) == len(X)
    found = segmentation_scorer(search, data.images, data.masks)
    assert found == segmentation_scorer(best, data.images, data.masks)


def test_copies_come_as_the_images_did(data, tmp_path):
    images = data.images
    files = [tmp_path / f"{i}.png" for i in range(8)]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    grey = images[..., 0]
    for given, expected in (
        (images, images),
        (images.astype(np.uint16) * 257, images.astype(np.uint16) * 257),
        (list(grey), grey),
        (tuple(grey), grey),
        (grey / 255, np.float32(grey / 255)),
        (files, images),
    ):
        seen = probe(given)
        np.testing.assert_array_equal(seen[:8], expected)
        assert seen.dtype == expected.dtype
    unequal = Watcher(image_size=48)
    SyntheticDefectScorer()(unequal, [x[: 64 - i] for i, x in enumerate(images)])
    assert unequal.seen.shape == (48, 48, 48, 3)
