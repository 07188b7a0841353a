"""The private parts of the package that benchmarks look at, all in one place.

Scripts use the public interface and what is here, nothing else: what changes inside of
the package changes this file alone.

- `training_seconds`: the seconds of each training inside of a context.
- `without_whitening`: an embedding that begins with the features as they are.
- `train`: a training alone, without bank and threshold, watched step by step.
- `resolve`: what the parameters of an estimator mean on a device.
- `score_with`: scores by an encoder, without an estimator.
- `rebuild_bank`: the same estimator with another bank or search.
- `score_distances`: scores from distances found in another way.
- `encoder_of`: the first encoder that a dense one runs.
- `share_patches`: where the nearest patches of images are from.
- `parts_of`: what a fitted estimator encodes and searches with.
- Names imported for plain loops that do the package's work step by step.
"""

import copy
from contextlib import contextmanager

import numpy as np
import torch
from _common import stopwatch

from skpatchsvdd._bank.collect import collect_banks, make_index
from skpatchsvdd._bank.exact import Bank
from skpatchsvdd._bank.variation import Sampler, Variation
from skpatchsvdd._encoding.base import PatchEncoder, grid_shape
from skpatchsvdd._encoding.dense import DenseSetting, damp_light
from skpatchsvdd._encoding.networks import conv_stack, run_stack, standardize_stack
from skpatchsvdd._encoding.positions import find_units
from skpatchsvdd._encoding.registry import ENCODERS, make_encoder
from skpatchsvdd._images.arrays import check_images
from skpatchsvdd._learnt import describe_learnt, set_learnt
from skpatchsvdd._parameters import resolve_options
from skpatchsvdd._scoring.fitted import FitContext, FittedBank
from skpatchsvdd._scoring.inspect import DeviceBank, encode_each, score_images
from skpatchsvdd._scoring.maps import Found, read_distances
from skpatchsvdd._synthetic import make_probes, rank_pixels, rate_ranks, rate_scores
from skpatchsvdd._training import embedding, training
from skpatchsvdd._training.crops import crop_size
from skpatchsvdd._training.loop import Objective, Watch
from skpatchsvdd._training.losses import (
    DIRECTIONS,
    DenseLoss,
    distance,
    pairs_of_a_crop,
)
from skpatchsvdd._training.paper import PatchSVDDLoss, svdd_prime_loss
from skpatchsvdd._utils import check_device
from skpatchsvdd._utils.computing import exact_convolutions, training_autocast
from skpatchsvdd._utils.messages import Report

__all__ = [
    "DIRECTIONS",
    "ENCODERS",
    "Bank",
    "DenseLoss",
    "Objective",
    "PatchEncoder",
    "PatchSVDDLoss",
    "Watch",
    "check_device",
    "check_images",
    "conv_stack",
    "crop_size",
    "damp_light",
    "distance",
    "encoder_of",
    "exact_convolutions",
    "grid_shape",
    "make_encoder",
    "make_index",
    "make_probes",
    "pairs_of_a_crop",
    "parts_of",
    "rank_pixels",
    "rate_ranks",
    "rate_scores",
    "rebuild_bank",
    "resolve",
    "run_stack",
    "score_distances",
    "score_with",
    "standardize_stack",
    "svdd_prime_loss",
    "train",
    "training",
    "training_autocast",
    "training_seconds",
    "without_whitening",
]


@contextmanager
def without_whitening():
    """Let embeddings begin with the features as they are."""
    power, embedding._POWER = embedding._POWER, 0
    try:
        yield
    finally:
        embedding._POWER = power


@contextmanager
def training_seconds(device):
    """Yield a list that gets the seconds of every training inside of the context."""
    original, times = training._train, []

    def timed(*args, **kwargs):
        with stopwatch(device) as seconds:
            result = original(*args, **kwargs)
        times.append(seconds[0])
        return result

    training._train = timed
    try:
        yield times
    finally:
        training._train = original


def resolve(est, device):
    """Return the options that the parameters of an estimator mean on a device."""
    return resolve_options(est.get_params(), device)


def train(est, images, watch, device, seed):
    """Train as `fit` does on a stack of images, with a watch of one's own."""
    options = resolve(est, device)
    center = np.full((1, 1, 1), 0.5, dtype=np.float32)
    size = images.image_shape[:2]
    setting = DenseSetting(size, center, options.light, None, device)
    original, training.make_watch = training.make_watch, lambda *args: watch
    try:
        rng = np.random.RandomState(seed)
        context = FitContext(setting, options, rng, Report("", 0))
        training.train_encoder(images, context)
    finally:
        training.make_watch = original


def score_with(encoder, train, test, center, options, strides, device):
    """Score a stack of images by an encoder, with all patches of another one."""
    size = train.image_shape[:2]
    dense = DenseSetting(size, center, options.light, strides, device).make(encoder)
    rng = np.random.RandomState(0)
    units = find_units(dense, train, options.position_weight, rng)
    banks = collect_banks(dense, train, units, None, rng)
    indexes = [make_index(bank, "exact", device, None, 0) for bank in banks]
    bank = FittedBank(setting=None, indexes=indexes, units=units)
    return score_images(test, DeviceBank(dense, bank))


def parts_of(est):
    """Return the dense encoder of a fitted estimator, its units and its indexes."""
    return est._on_device().encoder, est._fitted.units, est._fitted.indexes


def encoder_of(dense):
    """Return the first of the encoders that a dense encoder runs, on its device."""
    return dense._members[0][0]


def rebuild_bank(est, images, bank_size, method, device):
    """Return a copy of a fitted estimator with the bank of some images.

    Known images are forgotten: they are scored with their own patches in the bank.
    """
    dense, units, _ = parts_of(est)
    rng = np.random.RandomState(0)
    samplers = [Sampler(len(images), rng) for _ in units]
    banks = collect_banks(dense, images, units, bank_size, rng, samplers=samplers)
    indexes = [make_index(bank, method, device, est.n_jobs, 0) for bank in banks]
    variations = None
    if est._fitted.variations is not None:
        pairs = zip(samplers, indexes, strict=True)
        variations = [Variation(x.result(), index, device) for x, index in pairs]
    model = copy.copy(est)
    fitted = est._fitted.change(
        indexes=indexes, known=[], owners=None, variations=variations
    )
    set_learnt(model, describe_learnt(est.encoder_, fitted, est._calibration))
    return model


def score_distances(est, features, distances):
    """Score images by the distances of their patches, by scale, found in any way."""
    bank, variation = est._on_device(), None
    if bank.variations is not None:
        owners, variation = [-1] * len(features[0]), {}
        for i, x in enumerate(features):
            local = bank.variations[i].measure(x.flatten(1, 2), owners)
            variation[i] = local.view(x.shape[:3])
    found = Found(dict(enumerate(distances)), variation, None)
    return -read_distances(found, None, bank)[0].abnormality.cpu().numpy()


def share_patches(est, images, originals):
    """Return the fraction of images' patches whose nearest one is in their original."""
    bank, shares = est._on_device(), []
    middle = len(bank.indexes) // 2
    index, each = bank.indexes[middle], encode_each(check_images(images), bank)
    for encoded, original in zip(each, originals, strict=True):
        (features,) = encoded.features[middle]
        (number,) = encoded.numbers
        own = index.view_bank()
        others = torch.tensor(own.rows[own.places[:, 0] != number]).to(features.device)
        images_of = own.places[own.places[:, 0] != number, 0]
        nearest = torch.cdist(features.flatten(0, 1)[::7], others).argmin(dim=1)
        shares.append(np.mean(images_of[nearest.cpu().numpy()] == original))
    return np.array(shares)
