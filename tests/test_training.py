import numpy as np
import pytest
import torch

from skpatchsvdd._encoder import make_encoder
from skpatchsvdd._sampling import PairSampler
from skpatchsvdd._training import (
    check_curve,
    make_objective,
    position_loss,
    schedule,
    svdd_prime_loss,
    train_encoder,
)


def make_parts(loss, lam=0.5, patch_size=64, seed=0):
    """Return an encoder, an objective and a sampler of an image that has positions."""
    size = 96
    rows, cols = np.indices((size, size), dtype=np.float32) / size
    waves = np.stack([rows, cols, np.sin(9 * rows * cols)], axis=2)[None]
    cpu = torch.Generator().manual_seed(seed)
    encoder = make_encoder("hierarchical", 3, 8, patch_size, cpu)
    sampler = PairSampler(torch.from_numpy(waves), torch.zeros(size, size, 3), cpu)
    return encoder, make_objective(loss, lam, encoder, sampler, 8, cpu), sampler


def test_svdd_prime_loss_by_hand():
    features = torch.tensor([[0.0, 0.0], [1.0, 1.0], [3.0, 4.0], [1.0, 1.0]])
    assert svdd_prime_loss(features).item() == pytest.approx(2.5)


def test_svdd_prime_loss_of_equal_features_has_a_finite_gradient():
    features = torch.ones(4, 3, requires_grad=True)
    svdd_prime_loss(features).backward()
    assert torch.isfinite(features.grad).all()


def test_position_loss_by_hand():
    features = torch.tensor([[1.0, 2.0], [1.0, 0.0]])  # one pair, difference (0, 2)
    loss = position_loss(torch.nn.Identity(), features, torch.tensor([1]))
    assert loss.item() == pytest.approx(np.log(1 + np.exp(-2)))


def test_classifiers_last_weight_is_normalised_and_fixed():
    encoder, objective, sampler = make_parts("patch_svdd")
    last = objective.classifiers[0][-1]
    assert last.weight.shape == (8, 128)
    torch.testing.assert_close(last.weight.norm(dim=0), torch.ones(128))
    before = last.weight.clone(), last.bias.detach().clone()
    train_encoder(encoder, objective, sampler, 2, 1e-3, lambda *args: None)
    assert torch.equal(last.weight, before[0])
    assert not torch.equal(last.bias, before[1])


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        ("patch_svdd", ["position_32", "position_64", "svdd_32", "svdd_64"]),
        ("svdd_prime", ["svdd_32", "svdd_64"]),
        ("svdd", ["svdd_32", "svdd_64"]),
    ],
)
def test_loss_curve_has_every_term_at_every_step(loss, names):
    encoder, objective, sampler = make_parts(loss)
    seen = []
    curve = train_encoder(
        encoder, objective, sampler, 3, 1e-3, lambda step, terms: seen.append(step)
    )
    assert list(curve) == names
    assert all(values.shape == (3,) for values in curve.values())
    assert seen == [0, 1, 2]


def test_lam_weighs_the_svdd_terms_alone():
    weights = make_parts("patch_svdd", lam=0.25)[1].weights
    assert weights == {
        "position_32": 1,
        "position_64": 1,
        "svdd_32": 0.25,
        "svdd_64": 0.25,
    }


@pytest.mark.parametrize("loss", ["patch_svdd", "svdd_prime", "svdd"])
def test_training_changes_every_layer(loss):
    encoder, objective, sampler = make_parts(loss)
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    train_encoder(encoder, objective, sampler, 2, 1e-3, lambda *args: None)
    for name, parameter in encoder.named_parameters():
        if name.endswith("weight"):  # the last bias cancels in a difference
            assert not torch.equal(before[name], parameter)


def test_training_learns_positions():
    encoder, objective, sampler = make_parts("patch_svdd", lam=1e-3, patch_size=32)
    curve = train_encoder(encoder, objective, sampler, 200, 1e-3, lambda *args: None)
    assert curve["position_32"][:10].mean() == pytest.approx(np.log(8), abs=0.1)
    assert curve["position_32"][-20:].mean() < 1.7


def test_svdd_draws_features_to_their_initial_mean():
    encoder, objective, sampler = make_parts("svdd")
    patches = sampler.patches(512, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            objective.centers[0], encoder(patches).mean(dim=0), atol=2e-3, rtol=0
        )


def test_schedule_rises_then_falls_to_zero():
    shares = [schedule(step, 1000) for step in range(1000)]
    assert 0 < shares[0] < 0.05
    assert max(shares) == pytest.approx(1, abs=1e-3)
    assert np.argmax(shares) == 50
    assert shares[525] == pytest.approx(0.5, abs=0.01)
    assert 0 < shares[-1] < 1e-4
    assert schedule(0, 1) > 0


def test_diverged_training_is_an_error():
    curve = np.ones((4, 2))
    assert check_curve(curve) is curve
    curve[2, 1] = np.nan
    with pytest.raises(FloatingPointError, match=r"step 2.*smaller learning_rate"):
        check_curve(curve)
