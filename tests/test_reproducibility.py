"""What a seed fixes: everything on one machine, the start of a fit on all of them."""

import numpy as np
import pytest
import torch

from skpatchsvdd import PatchSVDD, Training

pytestmark = pytest.mark.wide

# As an ARM processor computed them (Neoverse-N1, torch 2.13).
FIRST_LOSSES = {
    "position_32": 2.08194,
    "svdd_32": 0.57643,
    "damage_32": 1.04574,
    "scale_32": 0.10613,
    "position_64": 2.07691,
    "svdd_64": 0.61341,
    "damage_64": 1.06313,
    "scale_64": 0.06173,
}
INITIAL_WEIGHTS = [86.0625863, 3.5889251, 544.2000351, 1.9242351]
UNTRAINED_SCORES = [-3.74658e-08, -2.15997e-08, -2.66060e-08]


def make_images(n, size, seed):
    """Blots on noise: the same on every machine and with every version of numpy."""
    rng = np.random.RandomState(seed)
    images = rng.randint(0, 60, (n, size, size, 3))
    for image in images:
        top, left = rng.randint(0, size - 20, 2)
        image[top : top + 20, left : left + 20] += rng.randint(0, 190, 3)
    return images.astype(np.uint8)


def make_estimator(max_iter, **params):
    given = {"encoder": "hierarchical", "device": "cpu", "random_state": 0}
    return PatchSVDD(max_iter=max_iter, **given | params)


def test_training_repeats_to_the_last_bit_on_two_threads():
    images, training = make_images(4, 70, seed=0), Training(batch_size=2)
    first, again = (
        make_estimator(2, training=training, n_jobs=2).fit(images) for _ in range(2)
    )
    pairs = zip(first.encoder_.parameters(), again.encoder_.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert np.array_equal(first.training_scores_, again.training_scores_)


def test_first_losses_are_those_of_every_machine():
    est = make_estimator(1, embedding_dim=16, training=Training(batch_size=6))
    curves = est.fit(make_images(4, 100, 0)).loss_curve_
    losses = {name: curve[0] for name, curve in curves.items()}
    assert losses == pytest.approx(FIRST_LOSSES, rel=0.03, abs=0.01)


def test_scores_without_training_are_those_of_every_machine():
    est = make_estimator(0, embedding_dim=16)
    scores = est.fit(make_images(4, 96, 0)).score_samples(make_images(3, 96, 1))
    weights = [p.double().abs().sum().item() for p in est.encoder_.parameters()]
    assert weights[:4] == pytest.approx(INITIAL_WEIGHTS, rel=1e-6)
    assert scores.tolist() == pytest.approx(UNTRAINED_SCORES, rel=0.01)
