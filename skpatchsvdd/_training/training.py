"""Training an encoder: with a `lam` that is chosen first, and with what is known."""

import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._encoding import join_encoders
from skpatchsvdd._training.fillings import take_masked
from skpatchsvdd._training.lam_search import choose_lam, count_trials
from skpatchsvdd._training.trainer import split_images, train_once
from skpatchsvdd._training.validation import Watch


class TrainedEncoder(NamedTuple):
    """A finished training: the encoder, on the CPU, and how it came about."""

    encoder: torch.nn.Module
    curve: dict  # every loss term at every step; empty without training
    watch: Watch
    lam: float
    lam_results: dict | None  # the trials it was chosen by


def train_encoder(images, context, former=None, frozen=(), defective=None):
    """Train an encoder, with a `lam` that is chosen first if it is "auto".

    `former` is a training to go on from. Encoders that are known beforehand, `frozen`,
    join the trained one; of formulas alone, an embedding is trained, see `Options`.
    Defective images with a mask fill some of the synthetic defects that dense training
    draws.
    """
    options, rng, roi = context.options, context.rng, context.setting.roi
    if roi is not None:  # defects, too, are made of what is seen
        images = images.hide_outside(roi)
    masked = take_masked(defective, roi)
    if options.trains:
        split_images(len(images), options, copy.deepcopy(rng))  # it may raise
    # A copy, so that what follows is as if this lam had been given.
    trial_context = replace(context, rng=copy.deepcopy(rng))
    known = None
    if options.embeds:
        known, *frozen = frozen
    lam, results = choose_lam(images, trial_context, former, known, masked)
    context = replace(context, options=replace(options, lam=lam))
    encoder, *rest = train_once(images, context, former, known, masked)
    frozen = [x.adapt(images, context.setting) for x in frozen]
    return TrainedEncoder(join_encoders([encoder, *frozen]), *rest, lam, results)


def undo_training(training):
    """Return a training with the weights it began with."""
    training.watch.kept = 0
    first, (_, *others) = training.watch.first_encoder, training.encoder.members
    return training._replace(encoder=join_encoders([first, *others]))


def count_trainings(n_images, options):
    """Return how often `train_encoder` trains, trials of `lam` included."""
    return count_trials(n_images, options) + int(options.trains)


def resume_from(encoder, lam, lam_results):
    """Return the training that a fitted encoder stands for, to go on from."""
    return TrainedEncoder(encoder, {}, Watch(None, 1), lam, lam_results)


def describe_training(training):
    """Return what there is to say of a training, by attribute of the estimator."""
    watch = training.watch
    return {
        "patch_sizes_": training.encoder.patch_sizes,
        "lam_": training.lam,
        "lam_results_": training.lam_results,
        "loss_curve_": training.curve,
        "n_iter_": len(next(iter(training.curve.values()), ())),
        "best_iter_": watch.kept,
        "validation_steps_": np.array(watch.steps, dtype=int),
        "validation_scores_": np.array(watch.scores),
        "_unfinished": None,
    }
