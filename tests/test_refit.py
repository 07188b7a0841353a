"""A fit that fails, the one after it, and one that goes on from learnt weights."""

import pickle
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from skpatchsvdd import _patch_svdd as patch_svdd
from skpatchsvdd._scoring import fitted as fitted_bank
from skpatchsvdd._training import loop


def fail_after_training(est, X, monkeypatch, error=KeyboardInterrupt):
    """Press Ctrl-C, or so, while the bank is indexed."""

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(fitted_bank, "index_banks", fail)
        kept = pytest.warns(UserWarning, match="weights are kept")
        with pytest.raises(error), kept if est.max_iter else nullcontext():
            est.fit(X)


@pytest.mark.parametrize("error", [KeyboardInterrupt, FloatingPointError])
def test_failed_fit_leaves_the_estimator_as_it_was(
    quick, normal, mixed, monkeypatch, error
):
    quick.fit(normal)
    state, scores = dict(vars(quick)), quick.score_samples(mixed.images)
    fail_after_training(quick, mixed.images, monkeypatch, error)
    assert {**vars(quick), "_unfinished": None} == state
    np.testing.assert_array_equal(quick.score_samples(mixed.images), scores)
    assert clone(quick)._unfinished is None
    quick.fit(normal)  # from the start, without warm_start
    np.testing.assert_array_equal(quick.score_samples(mixed.images), scores)
    assert quick._unfinished is None


@pytest.mark.parametrize("step", ["check_scores", "find_twins"])
def test_a_training_is_kept_until_all_is_done(quick, normal, monkeypatch, step):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(patch_svdd, step, interrupted)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="kept"):
        quick.fit(normal)
    assert quick._unfinished is not None


def test_a_fit_goes_on_from_a_training_that_was_not_lost(quick, normal, monkeypatch):
    fail_after_training(quick.set_params(lam=0.1), normal, monkeypatch)
    with pytest.raises(NotFittedError):
        quick.predict(normal)
    kept = quick._unfinished
    est = pickle.loads(pickle.dumps(quick))
    monkeypatch.setattr(loop, "descend", None)  # no step is taken
    est.set_params(warm_start=True, max_iter=0, lam=3.0).fit(normal)
    assert est.n_iter_ == est.best_iter_ == 2
    assert est.lam_ == kept.lam == 0.1  # what it was trained with
    assert list(est.loss_curve_) == list(kept.curve)
    assert est.validation_scores_.tolist() == kept.watch.scores
    pairs = zip(est.encoder_.parameters(), kept.encoder.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    est.fit(normal)  # from encoder_, as ever
    assert est.n_iter_ == 0


def test_nothing_is_kept_where_nothing_was_trained(quick, normal, monkeypatch):
    quick.set_params(max_iter=0)
    fail_after_training(quick, normal, monkeypatch, MemoryError)
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


def test_warm_start_takes_weights_put_in_by_hand(untrained, normal, mixed):
    est = untrained.set_params(warm_start=True)
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
