import gc
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from settings import SEED
from trainings import interrupt

from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._training import loop
from skpatchsvdd._training.crops import CropSampler
from skpatchsvdd._training.loop import Adam, Watch, check_curve, cosine, run_training
from skpatchsvdd._training.losses import DenseLoss
from skpatchsvdd._training.paper import PairSampler, PatchSVDDLoss
from skpatchsvdd.datasets import make_textures

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def make_waves(size=96):
    """One image that has positions, (1, size, size, 3)."""
    rows, cols = np.indices((size, size), dtype=np.float32) / size
    waves = np.stack([rows, cols, np.sin(9 * rows * cols)], axis=2)[None]
    return torch.from_numpy(waves)


def make_paper_parts(lam=0.5, patch_size=64):
    images = make_waves()
    cpu = torch.Generator().manual_seed(SEED)
    encoder = make_encoder("hierarchical", 3, 8, patch_size, cpu)
    sampler = PairSampler(images, torch.zeros_like(images[0]), cpu)
    objective = PatchSVDDLoss(encoder, lam, 8)
    objective.reset_parameters(cpu)
    return encoder, objective, sampler


def make_dense_parts(images=None, patch_size=64, device="cpu"):
    images = (make_waves() if images is None else images).to(device)
    cpu = torch.Generator().manual_seed(SEED)
    generator = cpu if device == "cpu" else torch.Generator(device).manual_seed(SEED)
    encoder = make_encoder("hierarchical", 3, 8, patch_size, cpu).to(device)
    sampler = CropSampler(images, images.mean(dim=0), generator, patch_size, 0.3)
    encoder.standardize(sampler.plain(4))
    objective = DenseLoss(encoder, 0.3, 1.0, 2)
    objective.reset_parameters(cpu)
    return encoder, objective.to(device), sampler


class Log(nullcontext):
    """Notes the steps it is told of."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def __call__(self, step, terms):
        self.steps.append(step)


def train(parts, max_iter, learning_rate=1e-3, watch=None, log=None):
    watch = Watch(None, max_iter + 1) if watch is None else watch
    log = Log() if log is None else log
    return run_training(*parts, max_iter, learning_rate, watch, log)


@pytest.mark.parametrize("make_parts", [make_paper_parts, make_dense_parts])
def test_training_changes_every_layer_and_notes_every_term(make_parts):
    parts = make_parts()
    before = {name: p.detach().clone() for name, p in parts[0].named_parameters()}
    log = Log()
    curve = train(parts, 2, log=log)
    assert list(curve) == list(parts[1].weights)
    assert all(values.shape == (2,) for values in curve.values())
    assert log.steps == [1, 2]
    for name, parameter in parts[0].named_parameters():
        if name.endswith("weight"):  # the last bias cancels in a difference
            assert not torch.equal(before[name], parameter)


@pytest.mark.slow
@pytest.mark.wide
def test_the_paper_s_training_learns_positions():
    curve = train(make_paper_parts(lam=1e-3, patch_size=32), 120)
    assert curve["position_32"][:10].mean() == pytest.approx(np.log(8), abs=0.1)
    assert curve["position_32"][-20:].mean() < 1.7


def test_dense_training_learns_positions_and_invariance():
    images = make_textures(6, kind="gear", image_size=96, random_state=SEED).images
    images = torch.from_numpy(images[:, 8:88, 8:88]).float() / 255
    parts = make_dense_parts(images=images, patch_size=32)
    curve = train(parts, 60, learning_rate=5e-3)
    for name in ("position_32", "svdd_32"):
        assert curve[name][-10:].mean() < 0.97 * curve[name][:10].mean()
    assert curve["scale_32"][-10:].mean() < 0.2


def test_standardised_layers_give_features_of_one_scale():
    encoder, _, sampler = make_dense_parts()
    maps = encoder.encode_images(sampler.plain(8), (2, 2))
    for x in maps:
        spread = torch.atanh(x).std(dim=(0, 2, 3))
        assert spread.min() > 0.2
        assert spread.max() < 1.2


def test_an_interrupt_before_the_first_step(monkeypatch):
    interrupt(monkeypatch, 0)
    with pytest.warns(UserWarning, match="interrupted after 0 of 10 steps"):
        curve = train(make_dense_parts(), 10)
    assert curve["svdd_32"].shape == (0,)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_of_a_training_stays_until_cycles_are_sought(device):
    gc.disable()
    try:
        parts = make_dense_parts(device=device)
        train(parts, 6)
        sampler = weakref.ref(parts[2])
        del parts
        assert sampler() is None
    finally:
        gc.enable()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_steps_and_draws_become_graphs_that_train():
    encoder, objective, sampler = make_dense_parts(device="cuda")
    adam = Adam(list(encoder.parameters()), [], objective.max_gradient)
    take_step = loop.GraphedSteps(encoder, objective, sampler, adam, n_ahead=8)
    before = [p.detach().clone() for p in encoder.parameters()]
    for _ in range(20):
        adam.prepare(1e-3)
        terms = take_step().clone()
        assert torch.isfinite(terms).all()
    assert take_step._descend.is_recorded
    assert take_step._draw.is_recorded
    changed = zip(before, encoder.parameters(), strict=True)
    assert any(not torch.equal(x, y) for x, y in changed)


def test_schedule_rises_then_falls_to_zero():
    shares = [cosine(step, 1000) for step in range(1000)]
    assert 0 < shares[0] < 0.05
    assert max(shares) == pytest.approx(1, abs=1e-3)
    assert np.argmax(shares) == 50
    assert shares[525] == pytest.approx(0.5, abs=0.01)
    assert 0 < shares[-1] < 1e-4
    assert cosine(0, 1) > 0


@pytest.mark.parametrize("make_parts", [make_paper_parts, make_dense_parts])
def test_the_paper_s_training_has_constant_steps_in_float32(monkeypatch, make_parts):
    told, entered = [], []
    monkeypatch.setattr(Adam, "prepare", lambda self, rate: told.append(rate))
    monkeypatch.setattr(
        loop,
        "training_autocast",
        lambda device: entered.append(device) or nullcontext(),
    )
    train(make_parts(patch_size=32), 4, 1e-3)
    if make_parts is make_paper_parts:
        assert told == [1e-3] * 4
        assert not entered
    else:
        assert told == [1e-3 * cosine(step, 4) for step in range(4)]
        assert entered


def test_diverged_training_is_an_error():
    curve = np.ones((4, 2))
    curve[2, 1] = np.nan
    with pytest.raises(FloatingPointError, match=r"step 3.*smaller Training"):
        check_curve(curve)
