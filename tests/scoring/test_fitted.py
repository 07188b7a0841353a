"""What a fitted estimator holds beside its public attributes, and who shares it."""

import copy
import pickle
import threading
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from settings import SEED
from sklearn.base import clone

from skpatchsvdd import PatchSVDD


@pytest.fixture
def est(normal):
    return PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        embedding_dim=8,
        max_iter=0,
        random_state=SEED,
    ).fit(normal)


def test_the_inspector_is_kept_while_nothing_changes(est, mixed):
    kept = est._inspector()
    est.score_samples(mixed.images)
    assert est._inspector() is kept
    with torch.no_grad():
        next(est.encoder_.parameters()).mul_(2)
    assert est._inspector() is not kept


def test_scoring_changes_no_attribute(est, mixed):
    est.score_samples(mixed.images)
    before = dict(vars(est))
    state = pickle.dumps(est)
    est.anomaly_map(mixed.images)
    assert vars(est) == before
    assert pickle.dumps(est) == state


def test_a_clone_is_not_fitted(est):
    assert not hasattr(clone(est), "_fitted")


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_score_the_same_and_are_their_own(est, mixed, duplicate):
    scores = est.score_samples(mixed.images)
    other = duplicate(est)
    memory = other._fitted._memory  # nothing of a device travels
    assert memory.inspector is memory.encoder is None
    np.testing.assert_array_equal(other.score_samples(mixed.images), scores)
    with torch.no_grad():
        other.encoder_.small[0].weight *= 2
    assert (other.score_samples(mixed.images) != scores).any()
    np.testing.assert_array_equal(est.score_samples(mixed.images), scores)


def test_a_bank_cannot_be_changed(est, mixed):
    former = est._fitted
    with pytest.raises(FrozenInstanceError):
        former.seen = {b"another"}
    known = list(former.known)
    copy.copy(est).partial_fit(mixed.images)
    assert former.known == known
    assert former.setting.device is None


def test_a_bank_remembers_what_the_encoder_was_trained_on(est, normal):
    assert est._fitted.seen == set()
    groups = np.arange(len(normal)) % 4
    est.set_params(max_iter=1, training__batch_size=2).fit(normal, groups=groups)
    known = np.array(est._fitted.known, dtype=object)
    assert est._fitted.seen == set(known[~est.calibrates_])


def test_a_shallow_copy_shares_the_bank_until_it_is_extended(est, mixed):
    scores = est.score_samples(mixed.images)
    other = copy.copy(est)
    assert other._fitted is est._fitted
    other.partial_fit(mixed.images)
    assert other.bank_size_[32] > est.bank_size_[32]
    np.testing.assert_array_equal(est.score_samples(mixed.images), scores)


def test_threads_share_an_estimator(est, mixed):
    expected = est.score_samples(mixed.images)
    est = copy.deepcopy(est)  # all threads begin without an inspector
    found, barrier = [], threading.Barrier(4)

    def score():
        barrier.wait()
        found.append(est.score_samples(mixed.images))

    threads = [threading.Thread(target=score) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for scores in found:
        np.testing.assert_array_equal(scores, expected)
