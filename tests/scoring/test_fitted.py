"""What a fitted estimator holds beside its public attributes, and who shares it."""

import copy
import pickle

import numpy as np
import pytest
import torch


@pytest.fixture
def est(untrained, normal):
    return untrained.fit(normal)


def test_scoring_changes_no_attribute(est, mixed):
    est.score_samples(mixed.images)
    before, kept = dict(vars(est)), est._on_device()
    state = pickle.dumps(est)
    est.anomaly_map(mixed.images)
    assert vars(est) == before
    assert pickle.dumps(est) == state
    assert est._on_device() is kept


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_score_the_same_and_are_their_own(est, mixed, duplicate):
    scores = est.score_samples(mixed.images)
    other = duplicate(est)
    assert not other._fitted._on_device  # nothing of a device travels
    np.testing.assert_array_equal(other.score_samples(mixed.images), scores)
    with torch.no_grad():
        other.encoder_.small[0].weight *= 2
    assert (other.score_samples(mixed.images) != scores).any()
    np.testing.assert_array_equal(est.score_samples(mixed.images), scores)


def test_a_shallow_copy_shares_the_bank_until_it_is_extended(est, mixed):
    scores = est.score_samples(mixed.images)
    other = copy.copy(est)
    assert other._fitted is est._fitted
    other.partial_fit(mixed.images)
    assert other.bank_size_[32] > est.bank_size_[32]
    np.testing.assert_array_equal(est.score_samples(mixed.images), scores)
