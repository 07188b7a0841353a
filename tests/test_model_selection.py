import pickle

import numpy as np
import pytest
from PIL import Image
from settings import SEED
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import IsolationForest
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skpatchsvdd import PatchSVDD
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
def detector():
    """An estimator that fits in a tenth of a second, on busy cores too."""
    return PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        embedding_dim=8,
        max_iter=0,
        n_jobs=1,
        random_state=SEED,
    )


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


def test_kfold_by_hand():
    y = [-1, 1, 1, -1, 1, 1]
    assert splits_of(NormalOnlyKFold(2), y) == [
        ([4, 5], [0, 1, 2]),
        ([1, 2], [3, 4, 5]),
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_splits", [2, 3, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_kfold_tests_each_image_once_and_trains_on_other_normal_ones(
    seed, n_splits, shuffle
):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat([1, -1], rng.integers(7, 30, size=2)))
    random_state = seed if shuffle else None
    cv = NormalOnlyKFold(n_splits, shuffle=shuffle, random_state=random_state)
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
    "make",
    [
        lambda seed: NormalOnlyKFold(3, shuffle=True, random_state=seed),
        lambda seed: NormalOnlyShuffleSplit(3, random_state=seed),
    ],
)
def test_random_state_decides(table, make):
    y = table[1]
    assert splits_of(make(0), y) == splits_of(make(0), y)
    assert splits_of(make(0), y) != splits_of(make(1), y)
    unlike = make(np.random.RandomState(0))
    assert splits_of(unlike, y) != splits_of(unlike, y)


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
        ([1, None], "got None"),
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


def test_wrong_parameters_are_explained():
    with pytest.raises(ValueError, match="n_splits=2 or more, got n_splits=1"):
        NormalOnlyKFold(1)
    with pytest.raises(ValueError, match="Integral"):
        NormalOnlyKFold(2.5)
    with pytest.raises(ValueError, match="shuffle"):
        NormalOnlyKFold(random_state=0)
    for n_splits in (0, 2.5, "3"):
        with pytest.raises(ValueError, match="n_splits must be a positive integer"):
            NormalOnlyShuffleSplit(n_splits)


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


def test_cross_val_predict_predicts_each_image_once(forest, table):
    X, y = table
    cv = NormalOnlyKFold(3)
    labels = cross_val_predict(forest, X, y, cv=cv)
    # With y, scikit-learn takes decisions for those of a classifier.
    splits = list(cv.split(X, y))
    decision = cross_val_predict(forest, X, cv=splits, method="decision_function")
    for train, test in splits:
        expected = clone(forest).fit(X[train]).decision_function(X[test])
        np.testing.assert_allclose(decision[test], expected)
        np.testing.assert_array_equal(labels[test], np.where(expected < 0, -1, 1))


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


def test_search_over_patch_svdd(data, detector):
    grid = [{"lam": [0.1, 1], "max_iter": [2]}, {"embedding_dim": [4, 8]}]
    search = GridSearchCV(
        detector,
        grid,
        cv=NormalOnlyKFold(2),
        scoring={"det": detection_scorer, "seg": segmentation_scorer},
        refit=False,
        error_score="raise",
    ).fit(data.images, data.masks)
    found = search.cv_results_["mean_test_seg"]
    assert len(set(found)) == 4
    detector.set_params(embedding_dim=4)
    alone = cross_val_score(
        detector,
        data.images,
        data.masks,
        cv=NormalOnlyKFold(2),
        scoring=segmentation_scorer,
    )
    assert found[2] == pytest.approx(alone.mean())


@pytest.mark.wide
def test_search_over_a_pipeline_in_two_processes(data, detector):
    pipe = make_pipeline(FunctionTransformer(np.invert), detector)
    search = GridSearchCV(
        pipe,
        {"patchsvdd__embedding_dim": [4, 8]},
        cv=NormalOnlyShuffleSplit(1, test_size=2, random_state=0),
        scoring=segmentation_scorer,
        refit=False,
        error_score="raise",
    )
    one = clone(search).fit(data.images, data.masks)
    two = search.set_params(n_jobs=2).fit(data.images, data.masks)
    expected = one.cv_results_["mean_test_score"]
    # Another process may have other kernels, which swap pixels of like scores.
    np.testing.assert_allclose(two.cv_results_["mean_test_score"], expected, atol=1e-3)


@pytest.mark.parametrize("scorer", [segmentation_scorer, pro_scorer])
def test_pixels_that_cannot_be_rated_are_explained(forest, table, scorer):
    X, y = table
    forest.fit(X)
    with pytest.raises(ValueError, match=r"y holds labels.*detection_scorer"):
        scorer(forest, X, y)
    with pytest.raises(ValueError, match="y is None"):
        scorer(forest, X, None)
    for est in (forest, make_pipeline("passthrough", forest)):
        with pytest.raises(AttributeError, match="IsolationForest has no anomaly_map"):
            scorer(est, X, np.ones((30, 2, 2)))


def test_images_without_labels_are_explained(forest, table):
    X, y = table
    forest.fit(X)
    with pytest.raises(ValueError, match="y is None"):
        detection_scorer(forest, X, None)
    with pytest.raises(ValueError, match="got 2"):
        detection_scorer(forest, X, np.abs(2 * y))


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


class Difference:
    """Scores images by their largest change from the first one."""

    def score_samples(self, X):
        self.seen = X
        return -np.abs(np.asarray(X, dtype=float) - X[0]).max(axis=(1, 2, 3))


def test_made_up_defects_are_told_from_light(data):
    X = np.stack([data.images[0]] * 6)
    difference = Difference()
    # Defects change some pixel by more than light does.
    assert SyntheticDefectScorer(n_copies=5)(difference, X) > 0.9
    assert difference.seen.shape == (42, 64, 64, 3)
    assert difference.seen.dtype == np.uint8
    np.testing.assert_array_equal(difference.seen[:6], X)

    class Blind:
        def score_samples(self, X):
            return np.zeros(len(X))

    assert SyntheticDefectScorer()(Blind(), X) == 0.5


def test_made_up_defects_repeat_and_leave_abnormal_images_out(data):
    first, second, other, labelled = Watcher(), Watcher(), Watcher(), Watcher()
    SyntheticDefectScorer()(first, data.images)
    SyntheticDefectScorer()(second, data.images)
    SyntheticDefectScorer(random_state=1)(other, data.images)
    SyntheticDefectScorer()(labelled, data.images, data.labels)
    np.testing.assert_array_equal(first.seen, second.seen)
    assert (first.seen != other.seen).any()
    assert len(labelled.seen) == 4 * (data.labels == 1).sum()
    grey = Watcher()
    SyntheticDefectScorer()(grey, data.images[..., 0] / 255)
    assert grey.seen.shape == (32, 64, 64)
    assert grey.seen.dtype == np.float32


def test_a_search_without_labels(data, detector):
    X = data.images[data.labels == 1]
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(), detector),
        {"patchsvdd__embedding_dim": [2, 8]},
        scoring=SyntheticDefectScorer(),
        cv=KFold(2),
        error_score="raise",
        n_jobs=2,
    ).fit(X)
    scores = search.cv_results_["mean_test_score"]
    assert ((scores > 0) & (scores <= 1)).all()
    assert len(search.best_estimator_[-1].training_scores_) == len(X)


class Watcher:
    """Keeps the images that it is to score."""

    def __init__(self, **params):
        self.__dict__.update(params)

    def score_samples(self, X):
        self.seen = X
        return np.arange(len(X), dtype=float)


def test_copies_come_as_the_images_did(data, tmp_path):
    scorer, bytes_ = SyntheticDefectScorer(), data.images
    watcher = Watcher()
    scorer(watcher, bytes_.astype(np.uint16) * 257)
    assert watcher.seen.dtype == np.uint16
    np.testing.assert_array_equal(watcher.seen[:8], bytes_.astype(np.uint16) * 257)
    for kind in (list, tuple):
        scorer(watcher, kind(bytes_[..., 0]))
        np.testing.assert_array_equal(watcher.seen[:8], bytes_[..., 0])
    unequal = Watcher(image_size=48)
    scorer(unequal, [x[: 64 - i] for i, x in enumerate(bytes_)])
    assert unequal.seen.shape == (32, 48, 48, 3)
    files = [tmp_path / f"{i}.png" for i in range(8)]
    for file, image in zip(files, bytes_, strict=True):
        Image.fromarray(image).save(file)
    scorer(watcher, files)
    np.testing.assert_array_equal(watcher.seen[:8], bytes_)


def test_a_search_within_a_search_rates_pixels(data, detector):
    search = GridSearchCV(
        detector,
        {"embedding_dim": [4, 8]},
        scoring=SyntheticDefectScorer(),
        cv=KFold(2),
        error_score="raise",
    ).fit(data.images[data.labels == 1])
    found = segmentation_scorer(search, data.images, data.masks)
    expected = segmentation_scorer(search.best_estimator_, data.images, data.masks)
    assert found == expected


@pytest.mark.parametrize(
    "params",
    [{"n_copies": 0}, {"n_copies": "2"}, {"random_state": np.random.RandomState(0)}],
)
def test_bad_parameters_of_the_scorer_are_named(params):
    with pytest.raises(ValueError, match=f"{next(iter(params))} must be an integer"):
        SyntheticDefectScorer(**params)


def test_nothing_to_put_defects_on_is_explained(data):
    with pytest.raises(ValueError, match="y calls all images abnormal"):
        SyntheticDefectScorer()(Watcher(), data.images, [-1] * 8)


def test_fewer_splits_are_advised_that_will_do(table):
    X, _ = table
    y = np.repeat([1, -1], [8, 6])
    with pytest.raises(ValueError, match="or n_splits=6"):
        next(NormalOnlyKFold(10).split(X[:14], y))
