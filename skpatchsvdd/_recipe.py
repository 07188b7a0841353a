"""How the estimator trains: what "auto" means, on which images, which weights stay."""

import copy
import functools
import time
import warnings
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from skpatchsvdd._crops import CropSampler
from skpatchsvdd._device import training_layout
from skpatchsvdd._encoder import make_encoder
from skpatchsvdd._losses import make_dense_objective, make_patch_objective
from skpatchsvdd._probes import make_probes
from skpatchsvdd._progress import TrainingLog
from skpatchsvdd._sampling import PairSampler
from skpatchsvdd._training import train_encoder
from skpatchsvdd._warnings import warn
from skpatchsvdd._watch import DefectCheck, Watch, make_copies

# What "auto" means, by `training` and, for dense training, by device.
_AUTO = {
    ("dense", "gpu"): {"max_iter": 1000, "batch_size": 16, "learning_rate": 1e-3},
    ("dense", "cpu"): {"max_iter": 240, "batch_size": 6, "learning_rate": 1.5e-3},
    ("paper", "gpu"): {"max_iter": 12000, "batch_size": 64, "learning_rate": 1e-4},
    ("paper", "cpu"): {"max_iter": 12000, "batch_size": 64, "learning_rate": 1e-4},
}
# How often a training is checked, and after how many checks without a better score
# early stopping ends it.
_N_CHECKS, _N_EARLY_CHECKS, _PATIENCE = 2, 12, 4
_N_CHECKED = 12
_CHECK_EVERY = 25
# A loss of score by this much, from the best check to the last, is a collapse; by that
# much, from the weights before training to the last, a training in vain.
_COLLAPSE, _NO_BETTER = 0.15, 0.05
# Bytes of the images that are trained on, at most.
_TRAINING_BYTES = 2**30
# What lam="auto" chooses from, by `training`, the middle one being what lam=None means;
# it does so in trainings of this share of the steps;
# the share of the images that are set aside, how many at most, and the copies of each
# that get a defect. The smallest is taken that no other one beats by more than
# `_CLEARLY`: less is chance, with other seeds the differences vary by 0.02 to 0.05.
# With fewer images than `_MIN_TRIED` the middle one is taken.
_LAMS = {"dense": (0.03, 0.3, 3.0), "paper": (1e-4, 1e-3, 1e-2)}
_MIN_TRIED = 4
_TRIAL = 1 / 4
_SET_ASIDE, _MAX_SET_ASIDE = 1 / 4, 24
_N_PROBES = 8
_CLEARLY = 0.05
# Crops on which the first weights are rescaled.
_N_STANDARD = 16
_MAX_SEED = np.iinfo(np.int32).max


class Training(NamedTuple):
    """A finished training: the encoder, on the CPU, and how it came about."""

    encoder: torch.nn.Module
    curve: dict
    watch: Watch
    lam: float
    lam_results: dict | None


class TrainingMixin:
    """The part of the estimator that trains an encoder by its parameters."""

    # The training of a fit that came no further. No underscore at the end: such an
    # estimator is not fitted by it.
    _unfinished = None

    @contextmanager
    def _kept_if_unfinished(self, training):
        """Keep a training if what follows it is interrupted or fails."""
        try:
            yield
        except BaseException as error:
            if training.curve:
                training.watch.forget_images()
                self._unfinished = training
                warn(
                    f"fit has ended with {type(error).__name__} after its training. "
                    "The trained weights are kept: set_params(warm_start=True, "
                    "max_iter=0).fit(X) goes on from them, without training again."
                )
            raise

    def _former_encoder(self):
        """Return the encoder whose weights a warm start goes on from, or None."""
        if not self.warm_start:
            return None
        if self._unfinished is not None:
            return self._unfinished.encoder
        return getattr(self, "encoder_", None)

    def _train_encoder(
        self, images, center, light, make_dense, device, rng, ends_at_interrupt=True
    ):
        """Return a trained encoder on the CPU, its loss curve and its watch."""
        cpu = torch.Generator().manual_seed(int(rng.randint(_MAX_SEED)))
        generator = torch.Generator(device).manual_seed(int(rng.randint(_MAX_SEED)))
        encoder = self._initial_encoder(images.image_shape[2], cpu)
        max_iter = self._resolve("max_iter", device)
        if max_iter == 0 and self.warm_start and self._unfinished is not None:
            return encoder, self._unfinished.curve, self._unfinished.watch
        if max_iter == 0 or self.encoder == "raw":
            return encoder, {}, Watch(None, 1)
        _warn_if_one_place(images.image_shape, self.patch_size)
        checked, trained = self._split_images(len(images), rng)
        watch = self._make_watch(images, checked, make_dense, max_iter, cpu)
        watch.look(encoder, 0)
        encoder.to(device, memory_format=training_layout(device)).requires_grad_(True)
        trained = _choose_images(images, trained, rng)
        pixels = torch.tensor(images.take(trained).pixels, device=device)
        sampler, objective = self._make_objective(
            encoder, pixels, torch.tensor(center, device=device), light, cpu, generator
        )
        curve = train_encoder(
            encoder,
            objective,
            sampler,
            max_iter,
            self._resolve("learning_rate", device),
            watch,
            self._training_log(list(objective.weights), max_iter),
            ends_at_interrupt,
        )
        n_steps = len(next(iter(curve.values())))
        return self._choose_weights(encoder, watch, n_steps).cpu(), curve, watch

    def _choose_lam(self, images, center, light, make_dense, device, rng):
        """Return `lam`, and, if it had to be chosen, what by: a table of trials."""
        if self.lam != "auto":
            return self._given_lam(), None
        if self.warm_start and self.max_iter == 0:
            if self._unfinished is not None:
                return self._unfinished.lam, self._unfinished.lam_results
            if hasattr(self, "lam_"):
                return self.lam_, self.lam_results_
        matters = self.loss == "patch_svdd" and self.encoder != "raw"
        if not matters or self.max_iter == 0 or len(images) < _MIN_TRIED:
            return _LAMS[self.training][1], None
        self._split_images(len(images), copy.deepcopy(rng))  # it may raise
        n_aside = min(max(round(_SET_ASIDE * len(images)), 1), _MAX_SET_ASIDE)
        order = rng.permutation(len(images))
        aside, others = np.sort(order[:n_aside]), np.sort(order[n_aside:])
        check = DefectCheck(
            images,
            aside,
            make_dense,
            self.aggregation,
            self._resolve_inspection("place_weight"),
            functools.partial(make_probes, n_damaged=_N_PROBES, rng=rng),
        )
        n_steps = max(round(_TRIAL * self._resolve("max_iter", device)), 1)
        seed = int(rng.randint(_MAX_SEED))
        table = {"lam": [], "score": [], "fit_time": []}
        for lam in _LAMS[self.training]:
            trial = copy.copy(self)
            trial.lam, trial.max_iter = lam, n_steps
            trial.early_stopping = trial.warm_start = False
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                encoder, _, _ = trial._train_encoder(
                    images.take(others),
                    center,
                    light,
                    make_dense,
                    device,
                    np.random.RandomState(seed),
                    False,  # an interrupt ends fit
                )
            table["lam"].append(lam)
            table["score"].append(check(encoder))
            table["fit_time"].append(time.perf_counter() - start)
            self._log(f"lam={lam:g} tells defects with {table['score'][-1]:.3f}")
        table = {name: np.array(column) for name, column in table.items()}
        is_good = table["score"] >= table["score"].max() - _CLEARLY
        return float(table["lam"][is_good.argmax()]), table

    def _given_lam(self):
        """Return `lam`, or what None means."""
        return _LAMS[self.training][1] if self.lam is None else self.lam

    def _resolve(self, name, device):
        """Return a parameter, or what its "auto" means on this device."""
        value = getattr(self, name)
        kind = "cpu" if device.type == "cpu" else "gpu"
        return _AUTO[self.training, kind][name] if value == "auto" else value

    def _split_images(self, n_images, rng):
        """Return the places of images to check by, and those to train on."""
        order = rng.permutation(n_images)
        if not self.early_stopping:
            n_checked = min(_N_CHECKED, n_images // 2)
            return np.sort(order[:n_checked]), np.arange(n_images)
        n_checked = max(round(self.validation_fraction * n_images), 2)
        if n_images - n_checked < 2:
            raise ValueError(
                f"early_stopping=True sets {n_checked} of {n_images} images aside and "
                "leaves too few to train on. Pass more images, a smaller "
                "validation_fraction, or early_stopping=False."
            )
        return np.sort(order[:n_checked]), np.sort(order[n_checked:])

    def _make_watch(self, images, checked, make_dense, max_iter, generator):
        check = DefectCheck(
            images,
            checked,
            make_dense,
            self.aggregation,
            self._resolve_inspection("place_weight"),
            functools.partial(make_copies, generator=generator),
        )
        n_checks = _N_EARLY_CHECKS if self.early_stopping else _N_CHECKS
        every = max(max_iter // n_checks, _CHECK_EVERY)
        return Watch(check, every, _PATIENCE if self.early_stopping else None)

    def _make_objective(self, encoder, pixels, center, light, cpu, generator):
        batch_size = self._resolve("batch_size", pixels.device)
        if self.training == "paper":
            sampler = PairSampler(pixels, center, generator)
            objective = make_patch_objective(
                self.loss, self._given_lam(), encoder, sampler, batch_size, cpu
            )
            return sampler, objective
        sampler = CropSampler(pixels, center, generator, self.patch_size, light)
        if self._former_encoder() is None:
            encoder.standardize(sampler.plain(_N_STANDARD))
        objective = make_dense_objective(
            self.loss,
            self._given_lam(),
            self.damage_weight,
            encoder,
            sampler,
            batch_size,
            cpu,
        )
        return sampler, objective

    def _choose_weights(self, encoder, watch, n_steps):
        """Return the trained encoder, or the best one seen."""
        first, best, last = (watch.scores[i] for i in (0, watch.best, -1))
        failed = best - last > _COLLAPSE or first - last > _NO_BETTER
        if failed and not (self.early_stopping and watch.best > 0):
            _warn_of_failure(watch)
        if failed or self.early_stopping:
            watch.kept = watch.steps[watch.best]
            return watch.best_encoder
        watch.kept = n_steps
        return encoder

    def _initial_encoder(self, n_channels, generator):
        encoder = make_encoder(
            self.encoder, n_channels, self.embedding_dim, self.patch_size, generator
        )
        former = self._former_encoder()
        if former is None:
            return encoder
        if (type(encoder), encoder.config) != (type(former), former.config):
            raise ValueError(
                "warm_start=True cannot go on from the weights of the last training, a "
                f"{type(former).__name__} with (channels, embedding_dim, patch_size) = "
                f"{former.config}: this fit needs a {type(encoder).__name__} with "
                f"{encoder.config}. Keep these, or pass warm_start=False."
            )
        return copy.deepcopy(former)

    def _training_log(self, names, max_iter):
        """Return what draws a bar, or reports the losses twenty times."""
        report = self._log if self.verbose >= 2 else None
        return TrainingLog(
            self._progress("training", max_iter), report, names, max_iter
        )


def _choose_images(images, places, rng):
    """Choose as many of the images at some places as there is memory to train on."""
    n_bytes = images.take(places[:1]).pixels.nbytes
    n_images = max(_TRAINING_BYTES // n_bytes, 2)
    if len(places) <= n_images:
        return places
    return np.sort(rng.choice(places, n_images, replace=False))


def _warn_if_one_place(image_shape, patch_size):
    if image_shape[:2] == (patch_size, patch_size):
        warn(
            f"images of {patch_size} x {patch_size} hold a single patch of "
            f"patch_size={patch_size}, from whose place nothing can be learnt. Pass "
            "larger images, a smaller patch_size, or max_iter=0.",
        )


def _warn_of_failure(watch):
    best = watch.best
    warn(
        "training has failed: made-up defects were told with an AUROC of "
        f"{watch.scores[0]:.2f} before it, {watch.scores[best]:.2f} after "
        f"{watch.steps[best]} steps and {watch.scores[-1]:.2f} after "
        f"{watch.steps[-1]}. Going on with the best weights. Pass a larger batch_size "
        "or max_iter, another random_state, or early_stopping=True.",
        ConvergenceWarning,
    )
