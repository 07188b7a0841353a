"""What thresholds and p-values come from, as one value."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._calibration import Calibration
from skpatchsvdd.datasets import make_textures


def calibration_of(scores, groups=None, calibrates=None):
    calibrates = np.ones(len(scores)) if calibrates is None else calibrates
    groups = None if groups is None else np.array(groups)
    return Calibration(np.array(scores), groups, np.array(calibrates, dtype=bool))


def test_only_images_that_calibrate_count():
    known = calibration_of([-9.0, -2.0, -1.0], ["a", "b", "c"], [0, 1, 1])
    assert known.offset("auto") == -2
    np.testing.assert_allclose(known.p_values([-9.0, -2.0, 0.0]), [1 / 3, 2 / 3, 1])


def test_it_cannot_be_changed():
    known = calibration_of([-1.0, -2.0])
    with pytest.raises(FrozenInstanceError):
        known.scores = np.zeros(2)


def test_lengths_must_be_equal():
    with pytest.raises(ValueError, match=r"one length, got \[2, 3\]"):
        Calibration(np.zeros(2), None, np.ones(3, dtype=bool))


def test_more_images_without_groups_calibrate():
    former = calibration_of([-1.0, -2.0])
    known = former.extend(np.array([-3.0]))
    assert known.offset("auto") == -3
    assert former.offset("auto") == -2
    assert known.owners.tolist() == [0, 1, 2]
    assert known.groups is None


def test_more_images_of_a_group_that_was_trained_on_do_not_calibrate():
    former = calibration_of([-1.0, -2.0], ["x", "b"], [0, 1])
    more = np.array(["new", "x", "b"])
    is_seen = np.array([False, True, False])
    known = former.extend(np.array([-3.0, -9.0, -4.0]), more, is_seen)
    assert known.calibrates.tolist() == [False, True, True, False, True]
    assert known.offset("auto") == -4
    # In the order in which they come in: former ones keep their numbers.
    assert known.owners.tolist() == [0, 1, 2, 0, 1]


def test_joining_copies_is_extending_by_their_images():
    former = calibration_of([-1.0, -2.0], ["a", "b"], [0, 1])
    scores, groups = np.array([-3.0, -4.0, -5.0]), np.array(["c", "a", "b"])
    whole = former.extend(scores, groups)
    copies = [former.extend(scores[i], groups[i]) for i in ([0, 1], [1, 2])]
    joined = former.join(copies, [np.array([2, 3]), np.array([3])])
    for name in ("scores", "groups", "calibrates", "owners"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))


def test_the_attributes_of_an_estimator_are_its_calibration():
    images = make_textures(6, image_size=40, random_state=SEED).images
    options = {"patch_size": 32, "max_iter": 0, "false_alarm_rate": 0.25}
    est = PatchSVDD(encoder="hierarchical", **options, random_state=SEED)
    est.fit(images[:4], groups=[1, 1, 2, 3]).partial_fit(images[4:], groups=[4, 1])
    known = Calibration(est.training_scores_, est.groups_, est.calibrates_)
    assert est.offset_ == known.offset(0.25)
    scores = est.score_samples(images)
    np.testing.assert_array_equal(est.p_values(images), known.p_values(scores))
    assert est.groups_.tolist() == [1, 1, 2, 3, 4, 1]
