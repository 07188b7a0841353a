import functools

import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._encoding.dense import DenseSetting
from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._images.arrays import check_images
from skpatchsvdd._parameters import resolve_options
from skpatchsvdd._training import validation
from skpatchsvdd._training.loop import Watch
from skpatchsvdd._training.validation import DefectCheck, make_copies
from skpatchsvdd.datasets import make_textures


def make_check():
    images = make_textures(10, image_size=64, random_state=SEED).images
    images = check_images(images)
    center, device = np.full((1, 1, 1), 0.5, dtype=np.float32), torch.device("cpu")
    setting = DenseSetting((64, 64), center, 0.3, None, device)
    options = resolve_options(PatchSVDD(encoder="hierarchical").get_params(), device)
    generator = torch.Generator().manual_seed(0)
    copies = functools.partial(make_copies, generator=generator)
    return DefectCheck(images, np.array([1, 5, 8]), setting, options, copies)


def make_small_encoder():
    return make_encoder("hierarchical", 3, 8, 32, torch.Generator().manual_seed(SEED))


@pytest.mark.parametrize(("weight", "score"), [(0.0, 0.5), (torch.nan, 0.0)])
def test_an_encoder_that_tells_nothing_scores_little(weight, score):
    assert make_check()(make_small_encoder()) > 0.5
    encoder = make_small_encoder().requires_grad_(False)
    assert make_check()(encoder) == make_check()(encoder)
    encoder.small[-1].weight.fill_(weight)
    assert make_check()(encoder) == score


def test_the_middle_of_large_images_is_looked_at(monkeypatch):
    monkeypatch.setattr(validation, "_LARGEST", 40)
    check = make_check()
    assert check._window == (slice(12, 52), slice(12, 52))
    assert check._images.image_shape == check._bank.image_shape == (40, 40, 3)
    assert 0 < check(make_small_encoder()) <= 1


@pytest.mark.parametrize(
    ("scores", "best"),
    [([0.5, 0.9, 0.7], 1), ([0.5, 0.8, 0.8], 2), ([0.6, 0.5, 0.4], 0)],
)
def test_the_best_weights_are_kept(scores, best):
    """The last bias of an encoder is the number of the look."""
    encoder = make_small_encoder().requires_grad_(False)
    answers = iter(scores)
    watch = Watch(lambda encoder: next(answers), 10)
    for i in range(3):
        encoder.small[-1].bias.fill_(i)
        assert not watch.look(encoder, 10 * i)
    assert watch.best == best
    assert watch.best_encoder.small[-1].bias[0] == best
    assert watch.first_encoder.small[-1].bias[0] == 0
