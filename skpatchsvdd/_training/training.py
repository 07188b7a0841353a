"""Training an encoder: from options and images to the weights."""

import copy
import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from skpatchsvdd._encoding import join_encoders, make_encoder
from skpatchsvdd._images import pixels_to_float
from skpatchsvdd._training.crops import CropSampler, Fillings, draw_places, take_masked
from skpatchsvdd._training.embedding import EmbeddingLoss, FeaturePool, whiten
from skpatchsvdd._training.loop import Watch, run_training
from skpatchsvdd._training.losses import DenseLoss
from skpatchsvdd._training.paper import PairSampler, PatchSVDDLoss
from skpatchsvdd._training.validation import DefectCheck, make_copies
from skpatchsvdd._utils import draw_seed, training_layout, warn

# Number of checks during training: as few as still catch a collapse, since one takes as
# long as many steps. With early stopping there are more, and so many checks without a
# better score end it.
_N_CHECKS, _N_EARLY_CHECKS, _PATIENCE = 2, 12, 4
_CHECK_EVERY = 25  # steps, at least
# Images that are looked at, and how many at most of those held out: all stay in memory.
_N_CHECKED, _MAX_CHECKED = 12, 100
# Drops in AUROC that count as failure: from the best check to the last, a collapse, and
# from before training to the last, trained in vain. Smaller ones are chance: a check
# looks at few images.
_COLLAPSE, _IN_VAIN = 0.15, 0.05
# Bytes of the images that are trained on, at most: they stay on the device.
_TRAINING_BYTES = 2**30
_N_LOADED = 64  # images that are loaded at a time
# Crops on which the first weights are rescaled: enough for means and deviations.
_N_STANDARD = 16


class TrainedEncoder(NamedTuple):
    """A finished training: the encoder, on the CPU, and how it came about."""

    encoder: torch.nn.Module
    curve: dict  # every loss term at every step; empty without training
    watch: Watch
    lam: float


def train_encoder(images, context, former=None, pretrained=(), defective=None):
    """Train an encoder on a stack of images; return a `TrainedEncoder`.

    `former` is a training to go on from. Encoders of `pretrained` join the trained one;
    if "procedural" is alone, its embedding is trained, see `Options`. Defective images
    with a mask fill some of the synthetic defects that dense training draws. An
    interrupt ends the training early.
    """
    options, setting = context.options, context.setting
    roi, images, full = setting.roi, images.reduce(), images
    if roi is not None:  # defects, too, are made of what is seen
        images = images.hide_outside(roi)
    masked, embedded = take_masked(defective, roi), None
    if options.embeds:
        embedded, *pretrained = pretrained
        coarse = setting._replace(strides=embedded.strides, reduction=1)
        context = replace(context, setting=coarse)
    training = _train(images, context, former, embedded, masked)
    pretrained = [
        whiten(x, full, setting._replace(strides=x.strides))
        if x.sees_detail
        else x.adapt(images, setting)
        for x in pretrained
    ]
    return training._replace(encoder=join_encoders([training.encoder, *pretrained]))


def _train(images, context, former, embedded, masked):
    """Train; `embedded` is the encoder whose embedding is trained, or None."""
    options, rng, device = context.options, context.rng, context.device
    cpu = torch.Generator().manual_seed(draw_seed(rng))
    # Embeddings are trained on the same draws on all devices.
    source = torch.device("cpu") if options.embeds else device
    generator = torch.Generator(source).manual_seed(draw_seed(rng))
    if embedded is not None and former is None:
        embedded = whiten(embedded, images, context.setting)
    encoder = _initial_encoder(options, images.image_shape[2], former, embedded, cpu)
    if options.max_iter == 0 and former is not None:
        return former._replace(encoder=encoder)
    if not options.trains:
        return TrainedEncoder(encoder, {}, Watch(None, 1), options.lam)
    if embedded is None:
        _warn_of_one_patch(images.image_shape[:2], options.patch_size)
    checked, trained = split_images(len(images), options, rng)
    trained = images.take(_choose_images(images, trained, rng))
    sampler = _make_sampler(trained, masked, context, generator, embedded)
    encoder.to(device, memory_format=training_layout(device))
    if embedded is not None:
        n_pairs = options.max_iter * options.batch_size
        sampler = FeaturePool(encoder, sampler, options.damages, n_pairs)
    watch = make_watch(images, checked, context, cpu, sampler)
    watch.look(encoder, 0)  # as it begins
    for parameter in encoder.trained_parameters():
        parameter.requires_grad_(True)
    if embedded is not None:
        watch.finish = sampler.join_features
    elif options.training == "dense" and former is None:
        encoder.standardize(sampler.plain(_N_STANDARD))
    objective = make_objective(encoder, sampler, options, cpu)
    log = context.report.training_log(list(objective.weights), options.max_iter)
    steps = (options.max_iter, options.learning_rate)
    curve = run_training(encoder, objective, sampler, *steps, watch, log)
    n_steps = len(next(iter(curve.values())))
    chosen = _choose_weights(encoder, watch, n_steps, options.early_stopping)
    return TrainedEncoder(chosen.cpu(), curve, watch, options.lam)


def _warn_of_one_patch(image_size, size):
    """Warn if images are no larger than a patch."""
    if image_size == (size, size):
        warn(
            f"images of {size} x {size} hold a single patch of patch_size={size}, so "
            "that there are no neighbouring patches to learn directions from. Pass "
            "larger images, a smaller patch_size, or max_iter=0."
        )


def make_objective(encoder, sampler, options, generator):
    """Make what a training minimises, with weights drawn from a generator."""
    given = (encoder, options.lam, options.damage_weight, options.batch_size)
    if options.training == "paper":
        objective = PatchSVDDLoss(encoder, options.lam, options.batch_size)
    elif options.embeds:
        objective = EmbeddingLoss(*given, sampler.tables)
    else:
        objective = DenseLoss(*given)
    objective.reset_parameters(generator)
    return objective.to(sampler.device)


def undo_training(training):
    """Return a training with the weights it began with."""
    training.watch.kept = 0
    first, (_, *others) = training.watch.first_encoder, training.encoder.members
    return training._replace(encoder=join_encoders([first, *others]))


def resume_from(encoder, lam):
    """Return the training that a fitted encoder stands for, to go on from."""
    return TrainedEncoder(encoder, {}, Watch(None, 1), lam)


def describe_training(training):
    """Return what there is to say of a training, by attribute of the estimator."""
    watch = training.watch
    return {
        "patch_sizes_": training.encoder.patch_sizes,
        "lam_": training.lam,
        "loss_curve_": training.curve,
        "n_iter_": len(next(iter(training.curve.values()), ())),
        "best_iter_": watch.kept,
        "validation_steps_": np.array(watch.steps, dtype=int),
        "validation_scores_": np.array(watch.scores),
        "_unfinished": None,
    }


def split_images(n_images, options, rng):
    """Return the indices of images to check by, and those to train on."""
    order = rng.permutation(n_images)
    if not options.early_stopping:
        n_checked = min(_N_CHECKED, n_images // 2)
        return np.sort(order[:n_checked]), np.arange(n_images)
    n_checked = max(round(options.validation_fraction * n_images), 2)
    if n_images - n_checked < 2:
        raise ValueError(
            f"early_stopping=True sets {n_checked} of {n_images} images aside and "
            "leaves too few to train on. Pass more images, a smaller "
            "Training(validation_fraction=...), or early_stopping=False."
        )
    checked = order[: min(n_checked, _MAX_CHECKED)]
    return np.sort(checked), np.sort(order[n_checked:])


def make_watch(images, checked, context, generator, sampler):
    """Return what checks the encoder while it is trained.

    A pool of damaged crops has what it takes, but no images that were held out.
    """
    options = context.options
    if options.embeds and options.damages and not options.early_stopping:
        check = sampler.check
    else:
        draw_copies = functools.partial(make_copies, generator=generator)
        check = DefectCheck(images, checked, context.setting, options, draw_copies)
    n_checks = _N_EARLY_CHECKS if options.early_stopping else _N_CHECKS
    every = max(options.max_iter // n_checks, _CHECK_EVERY)
    return Watch(check, every, _PATIENCE if options.early_stopping else None)


def _initial_encoder(options, n_channels, former, embedded, generator):
    if embedded is None and options.encoder is None:
        return None
    sizes = (options.embedding_dim, options.patch_size)
    encoder = embedded or make_encoder(options.encoder, n_channels, *sizes, generator)
    first = encoder if former is None else former.encoder.members[0]
    if (type(encoder), encoder.config) != (type(first), first.config):
        raise ValueError(
            "warm_start=True cannot go on from the weights of the last training, a "
            f"{type(first).__name__} with (channels, embedding_dim, patch_size) = "
            f"{first.config}: this fit needs a {type(encoder).__name__} with "
            f"{encoder.config}. Keep these, or pass warm_start=False."
        )
    return copy.deepcopy(first)


def _make_sampler(images, masked, context, generator, embedded):
    setting, options = context.setting, context.options
    pixels = _load_pixels(images, setting.device)
    center, roi = (
        None if x is None else torch.tensor(x, device=setting.device)
        for x in (setting.center, setting.roi)
    )
    if options.training == "paper":
        return PairSampler(pixels, center, generator, roi)
    size, light = options.patch_size, options.light
    if embedded is not None:  # it sees images as they are
        size, light = max(embedded.patch_sizes), 1.0
    fillings = _make_fillings(masked, context)
    return CropSampler(pixels, center, generator, size, light, roi, fillings)


def _make_fillings(masked, context):
    """Bring known defects to the device; None if nothing would be filled with them."""
    if masked is None or not context.options.damages:
        return None
    chosen = _choose_images(masked.stack, np.arange(len(masked)), context.rng)
    masked = masked.take(chosen)
    places = torch.from_numpy(draw_places(masked.masks, context.rng))
    pixels = _load_pixels(masked.stack, context.device)
    return Fillings(pixels, places.to(context.device))


def _choose_images(images, indices, rng):
    """Choose as many images as there is memory to train on."""
    n_bytes = images.take(indices[:1]).pixels.nbytes
    n_images = max(_TRAINING_BYTES // n_bytes, 2)
    if len(indices) <= n_images:
        return indices
    return np.sort(rng.choice(indices, n_images, replace=False))


def _load_pixels(images, device):
    """Load a stack onto a device, batch by batch: it is in memory only once."""
    pixels = None
    for start, batch in images.batches(_N_LOADED):
        batch = torch.tensor(batch, device=device)
        if pixels is None:
            pixels = batch.new_empty((len(images), *images.image_shape))
        if pixels.dtype != batch.dtype:  # bytes among floats
            pixels, batch = pixels_to_float(pixels), pixels_to_float(batch)
        pixels[start : start + len(batch)] = batch
    return pixels


def _choose_weights(encoder, watch, n_steps, early_stopping):
    """Return the trained encoder or the best one seen; warn if training has failed."""
    first, best, last = (watch.scores[i] for i in (0, watch.best, -1))
    failed = best - last > _COLLAPSE or first - last > _IN_VAIN
    if failed and not (early_stopping and watch.best > 0):
        _warn_of_failure(watch)
    if failed or early_stopping:
        watch.kept = watch.steps[watch.best]
        return watch.best_encoder
    watch.kept = n_steps
    return watch.finish(encoder)


def _warn_of_failure(watch):
    best, scores = watch.best, watch.scores
    between = f", {scores[best]:.2f} after {watch.steps[best]} steps" if best else ""
    warn(
        "training has failed: synthetic defects were found with an AUROC of "
        f"{scores[0]:.2f} before it{between} and {scores[-1]:.2f} after "
        f"{watch.steps[-1]} steps. Continuing with the best weights. Pass a larger "
        "max_iter or Training(batch_size=...), another random_state, or "
        "early_stopping=True.",
        ConvergenceWarning,
    )
