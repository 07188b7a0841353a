"""The loop that trains an encoder."""

import math
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn

from skpatchsvdd._utils import as_current, exact_convolutions, training_autocast, warn

# Fraction of the steps over which the learning rate rises: Adam has no estimate of the
# gradients' sizes at first.
_WARM_UP = 0.05


def run_training(
    encoder,
    objective,
    sampler,
    max_iter,
    learning_rate,
    watch,
    log,
    ends_at_interrupt=True,
):
    """Minimise an objective with Adam, in place.

    Parameters
    ----------
    encoder : PatchEncoder
        On the sampler's device; trained in place.
    objective : nn.Module
        ``objective.draw(sampler)`` gives a batch, ``objective(encoder, batch)`` a dict
        of loss terms, ``objective.weights`` their weights and
        ``objective.max_gradient`` the norm to which the encoder's gradient is clipped.
        ``objective.schedule`` is how the learning rate runs: "cosine", a short rise and
        half a cosine to 0, or "constant". ``objective.precision`` is "mixed", with bf16
        where the device is faster with it, or "float32".
    sampler : PairSampler or CropSampler
        Where the batches come from.
    max_iter : int
        Steps.
    learning_rate : float
        Adam's largest step size.
    watch : Watch
        ``watch.look(encoder, step)`` after steps for which ``watch.is_due(step)``; a
        true answer ends the training.
    log : TrainingLog
        ``log(step, terms)`` is given the loss terms of every step as a tensor; it
        should seldom look, since each look waits for the device. A true answer ends the
        training. It is left, as a context, before anything else is said.
    ends_at_interrupt : bool
        Whether KeyboardInterrupt ends it early, with a warning, or is raised.

    Returns
    -------
    loss_curve : dict of str to ndarray of shape (n_steps,)
        Every loss term at every step.
    """
    steps = run_steps(encoder, objective, sampler, max_iter, learning_rate)
    curve, is_interrupted = [], False
    device = sampler.device
    with log, exact_convolutions(device), as_current(device):
        try:
            for step, terms in enumerate(steps, start=1):
                curve.append(terms)
                is_over = log(step, terms)
                if (watch.is_due(step) and watch.look(encoder, step)) or is_over:
                    break
        except KeyboardInterrupt:
            if not ends_at_interrupt:
                raise
            is_interrupted = True
    if is_interrupted:
        warn(
            f"training was interrupted after {len(curve)} of {max_iter} steps. "
            "Continuing with the weights so far.",
        )
    n_terms = len(objective.weights)
    curve = torch.stack(curve).cpu().numpy() if curve else np.zeros((0, n_terms))
    return dict(zip(objective.weights, check_curve(curve).T, strict=True))


def run_steps(encoder, objective, sampler, max_iter, learning_rate):
    """Take one step after the other and yield the loss terms of each, (n_terms,)."""
    parameters = [*encoder.parameters(), *objective.parameters()]
    optimizer = make_optimizer(parameters, sampler.device)

    def take_step():
        return descend(encoder, objective, sampler, optimizer)

    if sampler.device.type == "cuda":
        take_step = GraphedStep(take_step, sampler.generator)
    for step in range(max_iter):
        factor = SCHEDULES[objective.schedule](step, max_iter)
        set_rate(optimizer, learning_rate * factor)
        yield take_step().clone()


def descend(encoder, objective, sampler, optimizer):
    """Draw a batch, measure the losses, step downhill; return the loss terms, (n,)."""
    batch = objective.draw(sampler)
    with number_format(objective.precision, sampler.device):
        terms = objective(encoder, batch)
    loss = sum(objective.weights[name] * term for name, term in terms.items())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), objective.max_gradient)
    optimizer.step()
    return torch.stack(list(terms.values())).detach()


def number_format(precision, device):
    """Context of the numbers that an objective is computed in."""
    return training_autocast(device) if precision == "mixed" else nullcontext()


def cosine(step, max_iter):
    """Factor of the learning rate at a step: a short rise, then half a cosine to 0."""
    warm_up = max(_WARM_UP * max_iter, 1)
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / (max_iter - warm_up))


def constant(step, max_iter):
    """Factor of the learning rate at a step: 1."""
    return 1.0


SCHEDULES = {"cosine": cosine, "constant": constant}


def make_optimizer(parameters, device):
    """Make Adam; on a GPU in one kernel, with a rate that a recorded step can read."""
    if device.type != "cuda":
        return torch.optim.Adam(parameters)
    rate = torch.zeros((), device=device)
    return torch.optim.Adam(parameters, lr=rate, fused=True, capturable=True)


def set_rate(optimizer, rate):
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class GraphedStep:
    """A training step that is recorded once and then replayed by the GPU alone.

    A step is many small kernels, and starting them one by one takes several times as
    long as running them.

    Parameters
    ----------
    step : callable
        Takes one step and returns a tensor.
    generator : torch.Generator
        The generator the step draws from.
    """

    def __init__(self, step, generator):
        self._step = step
        self._generator = generator
        self._n_eager = 3  # libraries set themselves up in the first calls
        self._graph = None

    def __call__(self):
        if self._n_eager > 0:
            self._n_eager -= 1
            return self._run_aside()
        if self._graph is None:
            self._record()
        self._graph.replay()
        return self._result

    def _run_aside(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._step()
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _record(self):
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(self._generator)
        with torch.cuda.graph(self._graph):
            self._result = self._step()


def check_curve(curve):
    """Return the loss curve, or raise if training diverged."""
    finite = (abs(curve) < float("inf")).all(axis=1)
    if not finite.all():
        raise FloatingPointError(
            f"the loss was not finite at step {int(finite.argmin()) + 1}. "
            "Pass a smaller learning_rate, and images scaled to about 0..1."
        )
    return curve
