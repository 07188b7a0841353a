"""A fit: what it learns, says and keeps, and how its training may end."""

import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from settings import SEED
from sklearn.exceptions import ConvergenceWarning
from trainings import interrupt

from skpatchsvdd import PatchSVDD, Training, _patch_svdd
from skpatchsvdd._parameters import resolve_options
from skpatchsvdd._training import loop, training, validation
from skpatchsvdd.datasets import make_textures

QUICK = {
    "embedding_dim": 8,
    "max_iter": 2,
    "training": Training(batch_size=4),
    "random_state": SEED,
}


def test_learnt_attributes(normal):
    est = PatchSVDD(encoder="hierarchical", patch_size=128, **QUICK)
    est.set_params(strides=(16, 16, 32), training=Training(batch_size=1))
    est.fit(make_textures(3, image_size=130, random_state=SEED).images)
    assert est.n_features_in_ == 130 * 130 * 3
    assert est.bank_size_ == {32: 3 * 49, 64: 3 * 25, 128: 3}
    assert est.n_iter_ == 2
    assert set(est.loss_curve_) == {
        f"{term}_{k}"
        for term in ("position", "svdd", "damage", "scale")
        for k in (32, 64, 128)
    }
    assert est.fit(normal.repeat(3, axis=1).repeat(3, axis=2)) is est


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


def test_the_paper_s_training_subtracts_the_mean_image(quick, normal):
    quick.set_params(training__method="paper").fit(normal)
    np.testing.assert_allclose(quick.center_, normal.mean(axis=0) / 255, rtol=1e-5)
    assert set(quick.loss_curve_) == {"position_32", "svdd_32"}
    assert quick._on_device().encoder.light == 1


@pytest.mark.parametrize("n_steps", [0, 3])
def test_an_interrupted_training_leaves_a_usable_estimator(
    quick, normal, mixed, monkeypatch, n_steps
):
    interrupt(monkeypatch, n_steps)
    with pytest.warns(UserWarning, match=f"interrupted after {n_steps} of 50 steps"):
        quick.set_params(max_iter=50).fit(normal)
    assert quick.n_iter_ == quick.best_iter_ == n_steps
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
    monkeypatch.setattr(training, "_CHECK_EVERY", 2)
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
    ("scores", "best"),
    [([0.5, 0.9, 0.7], 25), ([0.8, 0.7, 0.7], 0), ([0.6, 0.75, 0.7], 50)],
)
def test_a_failed_training_falls_back_to_the_best_weights(
    quick, normal, monkeypatch, scores, best
):
    answer = iter(scores).__next__
    monkeypatch.setattr(validation.DefectCheck, "__call__", lambda *args: answer())
    quick.set_params(max_iter=50, training__batch_size=1)
    failed = pytest.warns(ConvergenceWarning, match=r"has failed.*best weights")
    with nullcontext() if best == 50 else failed:  # a drop within noise is none
        quick.fit(normal)
    assert quick.best_iter_ == best
    assert quick.n_iter_ == 50


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
        quick.fit(np.concatenate([normal, normal]), groups=None)
    assert not any("collapsed" in str(warning.message) for warning in caught)
    assert quick.best_iter_ > 0


def test_verbose_reports_progress(quick, normal, capsys):
    quick.set_params(verbose=2).fit(normal)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[PatchSVDD] ") for line in lines)
    assert any("step 2" in line and "position_32" in line for line in lines)
    quick.set_params(verbose=0).fit(normal)
    assert capsys.readouterr().out == ""


def test_n_jobs_sets_threads_for_the_call_alone(quick, normal, monkeypatch):
    seen = []
    original = training.train_encoder

    def watch(*args):
        seen.append(torch.get_num_threads())
        return original(*args)

    monkeypatch.setattr(_patch_svdd, "train_encoder", watch)
    before = torch.get_num_threads()
    quick.set_params(n_jobs=1).fit(normal)
    assert seen == [1]
    assert torch.get_num_threads() == before


def test_pictures_of_one_piece_of_which_the_bank_holds_nothing():
    X = make_textures(10, image_size=48, random_state=0).images
    X = np.concatenate([X, np.clip(X.astype(int) + 4, 0, 255).astype(np.uint8)])
    est = PatchSVDD(max_iter=0, bank_size=9, random_state=12)
    with pytest.warns(UserWarning, match="several pictures of one piece"):
        est.fit(X)
    assert len(est.training_scores_) == len(X)
