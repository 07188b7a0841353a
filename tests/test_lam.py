"""The weight lam of the SVDD loss: its default, and how it is chosen."""

import numpy as np
import pytest
from sklearn.base import clone
from trainings import first_losses, interrupt

from skpatchsvdd import PatchSVDD
from skpatchsvdd._training import lam_search, loop, trainer, training, validation


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


@pytest.mark.parametrize(
    ("method", "lams"), [("dense", [0.03, 0.3, 3.0]), ("paper", [1e-4, 1e-3, 1e-2])]
)
def test_lam_is_chosen_by_made_up_defects(quick, normal, monkeypatch, method, lams):
    tried = []
    original = trainer.train_once

    def watch(images, context, *args, **kwargs):
        options = context.options
        tried.append((options.lam, options.max_iter, len(images)))
        return original(images, context, *args, **kwargs)

    for module in (lam_search, training):
        monkeypatch.setattr(module, "train_once", watch)
    give_scores(monkeypatch, [0.6, 0.9, 0.7])
    quick.set_params(lam="auto", max_iter=8, training__method=method).fit(normal)
    n = len(normal)
    trials = [(lam, 2, n - round(n / 4)) for lam in lams]
    assert tried == [*trials, (lams[1], 8, n)]
    assert quick.lam == "auto"
    assert quick.lam_ == lams[1]
    assert quick.lam_results_["lam"].tolist() == lams
    assert quick.lam_results_["score"].tolist() == [0.6, 0.9, 0.7]
    assert (quick.lam_results_["fit_time"] > 0).all()


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([0.6, 0.64, 0.7], 3.0),
        ([0.6, 0.66, 0.7], 0.3),
        ([0.66, 0.6, 0.7], 0.03),
        ([0.5, 0.5, 0.5], 0.03),
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


@pytest.mark.parametrize("lam", [1e-3, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_lambda_ties_scores(quick, normal, mixed, lam, seed):
    quick.set_params(lam=lam, max_iter=24, random_state=seed)
    scores = quick.fit(normal[..., :1]).score_samples(mixed.images[..., :1])
    assert len(np.unique(scores)) == len(scores)
