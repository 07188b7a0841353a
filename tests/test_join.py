"""Estimators that have learnt different images, joined to one."""

import copy

import numpy as np
import pytest
from settings import SEED
from sklearn.base import clone

from skpatchsvdd import Inspection, PatchSVDD, load
from skpatchsvdd.datasets import make_textures

pytestmark = pytest.mark.filterwarnings("ignore:false_alarm_rate")
QUICK = {"encoder": "hierarchical", "patch_size": 32, "embedding_dim": 8}
QUICK |= {"max_iter": 0, "random_state": SEED}


@pytest.fixture(scope="module")
def images():
    return make_textures(12, image_size=44, random_state=SEED).images


@pytest.fixture(scope="module")
def new():
    made = make_textures(4, image_size=44, anomaly_fraction=0.5, random_state=SEED + 1)
    return made.images


def grow(est, *parts, groups=None):
    """Return copies of an estimator, each of which has learnt one part of images."""
    groups = [None] * len(parts) if groups is None else groups
    pairs = zip(parts, groups, strict=True)
    return [copy.deepcopy(est).partial_fit(x, groups=labels) for x, labels in pairs]


def test_joined_copies_score_as_one_that_has_learnt_all(images, new):
    est = PatchSVDD(**QUICK)
    est.set_params(inspection__relative_weight=0).fit(images[:4])
    others = grow(est, images[4:9], images[9:])
    alone = copy.deepcopy(est).partial_fit(images[4:])
    assert est.join(others) is est
    assert est.bank_size_ == alone.bank_size_
    assert len(est.training_scores_) == 12
    for X in (new, images):  # known images are scored without their own patches
        np.testing.assert_allclose(
            est.score_samples(X), alone.score_samples(X), rtol=1e-4
        )
    est.offset_ = alone.offset_  # that of scores against larger banks
    for match, expected in zip(est.explain(new), alone.explain(new), strict=True):
        np.testing.assert_allclose(match["distance"], expected["distance"], rtol=1e-4)


def test_what_is_usual_is_joined_too(images, new, tmp_path):
    est = PatchSVDD(**QUICK).fit(images[:4])
    n_former = est.usual_distances_[32].shape[0]
    est.join(grow(est, images[4:9], images[9:]))
    assert est.usual_distances_[32].shape[0] > n_former
    scores = est.score_samples(images)
    np.testing.assert_allclose(scores, est.training_scores_, rtol=1e-5)
    owners = est._fitted.variations[0].sample.owners
    assert len(np.unique(owners)) == len(owners) <= 12
    est.save(tmp_path / "joined.model")
    loaded = load(tmp_path / "joined.model")
    np.testing.assert_array_equal(loaded.score_samples(new), est.score_samples(new))
    assert est.partial_fit(new[:1]) is est


def test_an_image_that_several_have_joins_once(images):
    est = PatchSVDD(**QUICK).fit(images[:4])
    est.join(grow(est, images[4:8], images[6:10]))
    assert len(est.training_scores_) == len(set(est._fitted.known)) == 10
    patches = est._fitted.indexes[0].places
    assert len(np.unique(patches, axis=0)) == len(patches)
    assert est.join(grow(est, images[:4])) is est
    assert len(est.training_scores_) == 10


def test_a_limited_bank_stays_limited(images, new):
    est = PatchSVDD(**QUICK, bank_size=30).fit(images[:4])
    est.join(grow(est, images[4:8], images[8:]))
    assert set(est.bank_size_.values()) <= {30}
    assert np.isfinite(est.score_samples(new)).all()


def test_groups_go_on(images):
    est = PatchSVDD(**QUICK).fit(images[:4], groups=["a", "a", "b", "b"])
    groups = [["b", "c", "c", "c"], ["c", "d", "d", "d"]]
    others = grow(est, images[4:8], images[8:], groups=groups)
    est.join(others)
    np.testing.assert_array_equal(est.groups_, [*"aabb", *"bccc", *"cddd"])
    owners = np.repeat([0, 1, 2, 3], [2, 3, 4, 3])
    np.testing.assert_array_equal(est._fitted.owners, owners)
    for index in est._fitted.indexes:
        np.testing.assert_array_equal(
            index.owners, est._fitted.owners[index.places[:, 0]]
        )


def test_only_copies_are_joined(images):
    est = PatchSVDD(**QUICK).fit(images[:4])
    with pytest.raises(ValueError, match="another image at the beginning of its bank"):
        est.join([PatchSVDD(**QUICK).fit(images[:6][::-1])])
    other = PatchSVDD(**QUICK | {"random_state": SEED + 1}).fit(images[:4])
    with pytest.raises(ValueError, match="estimator 1 of others has another weight"):
        est.join([*grow(est, images[4:6]), other])
    with pytest.raises(TypeError, match="must be a list of estimators"):
        est.join(est)


MASK = np.pad(np.ones((40, 40)), 2)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"inspection__light": 1.0}, "light"),
        ({"strides": (8,)}, "strides"),
        ({"encoder": "procedural"}, "encoder"),
        ({"image_size": 40}, "image_size"),
        ({"roi": MASK}, "roi"),
        ({"training": "paper"}, "training"),
        ({"inspection__score_pixels": 9}, "score_pixels"),
        ({"inspection__position_weight": 5.0}, "position_weight"),
    ],
)
def test_copies_fitted_differently_are_refused_by_name(images, params, name):
    inspection = Inspection(light=0.0, position_weight=0.0)
    inspection.set_params(relative_weight=0.5, score_pixels=100)
    est = PatchSVDD(**QUICK, inspection=inspection).fit(images[:4])
    before = est.score_samples(images[4:6])
    other = clone(est).set_params(**params).fit(images[:4]).partial_fit(images[4:])
    with pytest.raises(ValueError, match=f"0 of others has another {name} than"):
        est.join([other])
    np.testing.assert_array_equal(est.score_samples(images[4:6]), before)


@pytest.mark.parametrize("groups", [None, [*"abab"]])
def test_copies_with_other_groups_are_refused(images, groups):
    est = PatchSVDD(**QUICK).fit(images[:4], groups=[*"aabb"])
    other = PatchSVDD(**QUICK).fit(images[:4], groups=groups)
    for first, others in ((est, [other]), (other, [est])):
        with pytest.raises(ValueError, match="has another groups than this one"):
            first.join(others)


def test_parameters_that_change_no_score_may_differ(images):
    est = PatchSVDD(**QUICK, inspection=Inspection(light=0.3))
    est.fit(images[:4])
    [other] = grow(est, images[4:6])
    other.set_params(device="cpu", verbose=0, n_jobs=1, false_alarm_rate=0.5)
    other.set_params(inspection__light=1.0)
    assert len(est.join([other]).training_scores_) == 6  # light as it was fitted


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 0, 254, 255], dtype=np.uint8),
        np.array([1, 1, 2, 2**63 - 1]),
        np.array([0.5, 0.5, 2.0, 3.0]),
        np.array(["a", "a", "image b", "b"]),
    ],
)
def test_no_label_that_a_user_may_choose_is_taken(images, labels):
    est = PatchSVDD(**QUICK).fit(images[:4], groups=labels)
    est.partial_fit(images[4:8], corrections="similar")  # four false alarms
    assert est.groups_.tolist() == [*labels.tolist(), *[None] * 4]
    mine = ["4", "image 4", labels[0].item(), "5"]
    est.partial_fit(images[8:], groups=mine)
    owners = est._calibration.owners
    assert len(np.unique(owners)) == 3 + 4 + 3
    assert owners[10] == owners[0]
    assert len(est.calibration_groups_) == 8
    assert np.isin(owners[4:8], np.delete(owners, range(4, 8))).sum() == 0


@pytest.mark.parametrize("more", [[1, 4], [1.0, 4.0], ["1", "4"], [True, False]])
def test_labels_are_the_same_whatever_their_type(images, more):
    est = PatchSVDD(**QUICK).fit(images[:4], groups=np.array([1, 1, 2, 3], np.uint8))
    est.partial_fit(images[4:6], groups=more)
    assert est._calibration.owners.tolist() == [0, 0, 1, 2, 0, 3]
