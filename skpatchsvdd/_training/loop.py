"""The loop that trains an encoder, the checks in it, and Adam, on one long vector."""

import copy
import functools
import math
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn

from skpatchsvdd._encoding import reset_parameters
from skpatchsvdd._gpu import GraphedCall, current_device, thread_stream
from skpatchsvdd._utils import (
    TrainingInterrupted,
    exact_convolutions,
    training_autocast,
    warn,
)

# Fraction of the steps over which the learning rate rises: Adam has no estimate of the
# gradients' sizes at first.
_WARM_UP = 0.05
# Batches that a GPU draws at a time, and those that are drawn ahead on a CPU.
_N_AHEAD, _N_DRAWN = 8, 512
# CUDA's priority of steps over draws.
_FIRST = -1
# The constants of the paper of Adam.
_MOMENTUM, _MOMENTUM_OF_SQUARES, _TINY = 0.9, 0.999, 1e-8


class Objective(nn.Module):
    """What `run_training` minimises.

    ``draw(sampler, n)`` gives n batches, as tensors n times as long as those of one,
    ``forward(encoder, batch)`` a dict of loss terms, and `weights` are their weights.
    """

    # How the learning rate runs: a short rise and half a cosine to 0, or "constant".
    schedule = "cosine"
    precision = "mixed"  # with bf16 where the device is faster with it, or "float32"
    # Hundreds of batches at a time, by the CPU, so that all devices have the same.
    is_drawn_ahead = False
    max_gradient = math.inf  # the norm to which the encoder's gradient is clipped
    decay = 0.0  # how fast weights shrink, see `Adam`

    def reset_parameters(self, generator):
        """Draw the weights of its own."""
        reset_parameters(self, generator)

    def _name(self, losses):
        return dict(zip(self.weights, losses, strict=True))


def run_training(encoder, objective, sampler, max_iter, learning_rate, watch, log):
    """Minimise an `Objective` with Adam, in place; return every loss term, by name.

    ``watch.look(encoder, step)`` is called after steps for which
    ``watch.is_due(step)``, and ``log(step, terms)`` after every one; a true answer of
    either ends the training. The log should seldom look at the terms, a tensor, since
    each look waits for the device; it is left, as a context, before anything else is
    said. KeyboardInterrupt ends the training early, with a warning.
    """
    steps = run_steps(encoder, objective, sampler, max_iter, learning_rate)
    curve, is_interrupted = [], False
    device = sampler.device
    with log, exact_convolutions(device), current_device(device):
        try:
            for step, terms in enumerate(steps, start=1):
                curve.append(terms)
                is_over = log(step, terms)
                if (watch.is_due(step) and watch.look(encoder, step)) or is_over:
                    break
        except KeyboardInterrupt:
            is_interrupted = True
    if is_interrupted:
        warn(
            f"training was interrupted after {len(curve)} of {max_iter} steps. "
            "Continuing with the weights so far.",
            TrainingInterrupted,
        )
    n_terms = len(objective.weights)
    curve = torch.stack(curve).cpu().numpy() if curve else np.zeros((0, n_terms))
    check_curve(curve)
    return dict(zip(objective.weights, curve.T, strict=True))


def run_steps(encoder, objective, sampler, max_iter, learning_rate):
    """Take one step after the other and yield the loss terms of each, (n_terms,)."""
    adam = Adam(
        encoder.trained_parameters(),
        list(objective.parameters()),
        objective.max_gradient,
        objective.decay,
    )
    n_ahead = min(max_iter, _N_DRAWN) if objective.is_drawn_ahead else _N_AHEAD
    if sampler.device.type == "cuda":
        take_step = GraphedSteps(encoder, objective, sampler, adam, n_ahead)
    else:
        batches = _draw_batches(objective, sampler, n_ahead)

        def take_step():
            return descend(encoder, objective, next(batches), adam)

    for step in range(max_iter):
        factor = SCHEDULES[objective.schedule](step, max_iter)
        adam.prepare(learning_rate * factor)
        yield take_step().clone()


def _draw_batches(objective, sampler, n_ahead):
    """Yield batches for ever, one by one or so many drawn at a time."""
    while not objective.is_drawn_ahead:
        yield objective.draw(sampler)
    while True:
        block = objective.draw(sampler, n_ahead)
        for number in torch.arange(n_ahead):
            yield _take_batch(block, number, n_ahead)


def descend(encoder, objective, batch, adam):
    """Measure the losses on a batch, step downhill; return the loss terms, (n,)."""
    device = next(encoder.parameters()).device
    is_mixed = objective.precision == "mixed"
    with training_autocast(device) if is_mixed else nullcontext():
        terms = objective(encoder, batch)
    loss = sum(objective.weights[name] * term for name, term in terms.items())
    adam.forget()
    loss.backward()
    adam.step()
    return torch.stack(list(terms.values())).detach()


def cosine(step, max_iter):
    """Factor of the learning rate at a step: a short rise, then half a cosine to 0."""
    warm_up = max(_WARM_UP * max_iter, 1)
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / (max_iter - warm_up))


SCHEDULES = {"cosine": cosine, "constant": lambda step, max_iter: 1.0}


class GraphedSteps:
    """Training steps as a CUDA graph, and another one that draws batches for them.

    Half of a step's kernels draw the batch. They are as quick for a few batches at a
    time, and run ahead, on a stream of less priority than the steps.
    """

    def __init__(self, encoder, objective, sampler, adam, n_ahead):
        self._n_ahead = n_ahead
        self._stream = thread_stream("draw", sampler.device)
        self._is_drawn_ahead = objective.is_drawn_ahead
        self._draw = functools.partial(objective.draw, sampler, n_ahead)
        if self._is_drawn_ahead:
            batches = self._batches = self._draw()
        else:
            self._draw = GraphedCall(
                self._draw,
                n_eager=1,
                stream=self._stream,
                generator=sampler.draws.generator,
                name="drawing of batches",
            )
            with torch.cuda.stream(self._stream):
                self._draw()  # libraries set themselves up in a first call
                self._drawn = self._draw()
                batches = self._batches = _apply(torch.empty_like, self._drawn)
        number = self._number = torch.zeros(1, dtype=torch.long, device=sampler.device)
        # Not of `self`: what it holds would stay in memory until cycles are sought.
        self._descend = GraphedCall(
            lambda: descend(
                encoder, objective, _take_batch(batches, number, n_ahead), adam
            ),
            stream=thread_stream("descend", sampler.device, _FIRST),
            name="training step",
        )
        self._n_taken = 0

    def __call__(self):
        number = self._n_taken % self._n_ahead
        self._n_taken += 1
        if number == 0 and not self._is_drawn_ahead:
            self._draw_ahead()
        elif number == 0 and self._n_taken > 1:
            _apply(torch.Tensor.copy_, self._batches, self._draw())
        self._number.fill_(number)
        return self._descend()

    def _draw_ahead(self):
        """Fetch what has been drawn, and draw the next batches beside the steps."""
        main = torch.cuda.current_stream()
        main.wait_stream(self._stream)
        _apply(torch.Tensor.copy_, self._batches, self._drawn)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            self._drawn = self._draw()


def _take_batch(batches, number, n_batches):
    """Take the batch of a number, a tensor, which is another in every replay."""
    return _apply(
        lambda x: x.unflatten(0, (n_batches, -1)).index_select(0, number)[0], batches
    )


def _apply(function, *batches):
    """Call a function for tensors at the same indices of nested lists and tuples."""
    if batches[0] is None:
        return None
    if isinstance(batches[0], torch.Tensor):
        return function(*batches)
    return [_apply(function, *members) for members in zip(*batches, strict=True)]


class Watch:
    """Checks an encoder now and then while it is trained, and keeps the best weights.

    ``check(encoder)`` gives a score, high is good, every so many steps; `patience` is
    the number of checks without a better one after which to stop, None never stops.
    `first_encoder` and `best_encoder` are copies on the CPU from the first look and
    from the best one, as ``finish(encoder)`` makes them of what is trained; `kept` is
    the step whose weights were kept in the end.
    """

    def __init__(self, check, every, patience=None):
        self.steps, self.scores = [], []
        self.first_encoder = self.best_encoder = None
        self.kept = 0
        self.finish = copy.deepcopy
        self._check = check
        self._every = every
        self._patience = patience

    @property
    def best(self):
        """Index of the best score among all checks; the later one of equals."""
        return len(self.scores) - 1 - int(np.argmax(self.scores[::-1]))

    def forget_images(self):
        """Let go of the check, and with it of the images it looks at."""
        self._check, self.finish = None, copy.deepcopy

    def is_due(self, step):
        """Whether to look after this many steps."""
        return step % self._every == 0

    def look(self, encoder, step):
        """Check an encoder; return whether training should stop."""
        encoder = self.finish(encoder)
        score = self._check(encoder)  # first: an interrupt leaves nothing half done
        self.steps.append(step)
        self.scores.append(score)
        if self.best == len(self.scores) - 1:
            self.best_encoder = encoder
        if self.first_encoder is None:
            self.first_encoder = self.best_encoder
        if self._patience is None:
            return False
        return len(self.scores) - 1 - self.best >= self._patience


def check_curve(curve):
    """Raise if training diverged."""
    finite = np.isfinite(curve).all(axis=1)
    if not finite.all():
        raise FloatingPointError(
            f"the loss was not finite at step {int(finite.argmin()) + 1}. "
            "Pass a smaller Training(learning_rate=...), and images scaled to about "
            "0..1."
        )


class Adam:
    """Adam (Kingma and Ba, 2015) with few and large operations.

    All parameters become views of one vector, so that a step is a dozen operations,
    however many they are, and a CUDA graph can hold it. The first `torch.optim.AdamW`
    of a process takes seconds, to import what compiles it, and rounds differently.

    The gradients of `clipped`, together, are scaled down to a norm of `max_gradient`;
    those of `others` stay as they are. Weights, but not biases, shrink at every step by
    `decay` times the step size (Loshchilov and Hutter, 2019).
    """

    def __init__(self, clipped, others, max_gradient, decay=0.0):
        clipped, others = ([p for p in x if p.requires_grad] for x in (clipped, others))
        self._parameters = clipped + others
        self._n_clipped = sum(p.numel() for p in clipped)
        self._max_gradient = max_gradient
        self._values = _concatenate(p.detach() for p in self._parameters)
        parts = self._values.split([p.numel() for p in self._parameters])
        for p, part in zip(self._parameters, parts, strict=True):
            # In the same order in memory, channels last or not.
            p.data = part.as_strided(p.shape, p.stride())
        self._means = torch.zeros_like(self._values)
        self._squares = torch.zeros_like(self._values)
        shrink = (torch.full_like(p, decay * (p.ndim > 1)) for p in self._parameters)
        self._decays = _concatenate(shrink) if decay else None
        # A GPU that replays a step reads these anew.
        self._size, self._rate, self._growth = self._values.new_zeros(3)
        self._n_steps = 0

    def prepare(self, rate):
        """Set the step size of the next step."""
        self._n_steps += 1
        self._size.fill_(rate)
        self._rate.fill_(rate / (1 - _MOMENTUM**self._n_steps))
        self._growth.fill_((1 - _MOMENTUM_OF_SQUARES**self._n_steps) ** -0.5)

    def forget(self):
        """Forget all gradients."""
        for p in self._parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        """Move all parameters against their gradients."""
        grads = _concatenate(
            torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters
        )
        clipped = grads[: self._n_clipped]
        norm = torch.linalg.vector_norm(clipped)
        clipped *= (self._max_gradient / (norm + _TINY)).clamp(max=1)
        self._means.lerp_(grads, 1 - _MOMENTUM)
        self._squares.mul_(_MOMENTUM_OF_SQUARES)
        self._squares.addcmul_(grads, grads, value=1 - _MOMENTUM_OF_SQUARES)
        if self._decays is not None:
            self._values.sub_(self._values * self._decays * self._size)
        scale = self._squares.sqrt().mul_(self._growth).add_(_TINY)
        self._values.sub_((self._means * self._rate).div_(scale))


def _concatenate(tensors):
    """Return the numbers of tensors without gaps, in their order in memory."""
    return torch.cat([x.as_strided((x.numel(),), (1,)) for x in tensors])
