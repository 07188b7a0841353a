"""The losses and the loop that trains an encoder on pairs of patches."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._device import as_current, exact_convolutions, training_autocast
from skpatchsvdd._encoder import reset_parameters
from skpatchsvdd._sampling import DIRECTIONS

_HIDDEN = 128
_SLOPE = 0.1
# Share of the steps over which the learning rate rises.
_WARM_UP = 0.05
# Batches of patches whose mean initial feature is the centre of the "svdd" loss.
_N_CENTER_BATCHES = 8
_CENTER_BATCH = 128


def train_encoder(encoder, objective, sampler, max_iter, learning_rate, log):
    """Minimise an objective with Adam, in place.

    Parameters
    ----------
    encoder : PatchEncoder
        On the sampler's device; trained in place.
    objective : nn.Module
        ``objective(encoder, sampler)`` gives a dict of loss terms and
        ``objective.weights`` their weights.
    sampler : PairSampler
        Where the patches come from.
    max_iter : int
        Steps.
    learning_rate : float
        Adam's largest step size.
    log : callable
        ``log(step, terms)`` is given the loss terms of every step as a tensor; it
        should seldom look, since each look waits for the device.

    Returns
    -------
    loss_curve : dict of str to ndarray of shape (max_iter,)
        Every loss term at every step.
    """
    parameters = [*encoder.parameters(), *objective.parameters()]
    optimizer = make_optimizer(parameters, sampler.device)
    curve = torch.zeros(max_iter, len(objective.weights), device=sampler.device)

    def take_step():
        return descend(encoder, objective, sampler, optimizer)

    if sampler.device.type == "cuda":
        take_step = GraphedStep(take_step, sampler.generator)
    with exact_convolutions(), as_current(sampler.device):
        for step in range(max_iter):
            set_rate(optimizer, learning_rate * schedule(step, max_iter))
            curve[step] = take_step()
            log(step, curve[step])
    curve = check_curve(curve.cpu().numpy())
    return dict(zip(objective.weights, curve.T, strict=True))


def descend(encoder, objective, sampler, optimizer):
    """Draw pairs, measure the losses, step downhill; return the loss terms, (n,)."""
    with training_autocast(sampler.device):
        terms = objective(encoder, sampler)
    loss = sum(objective.weights[name] * term for name, term in terms.items())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return torch.stack(list(terms.values())).detach()


def schedule(step, max_iter):
    """Share of the learning rate at a step: a short rise, then half a cosine to 0."""
    warm_up = max(_WARM_UP * max_iter, 1)
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / (max_iter - warm_up))


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
            f"the loss was not finite at step {int(finite.argmin())}. "
            "Pass a smaller learning_rate, and images of about 0..1."
        )
    return curve


def make_objective(loss, lam, encoder, sampler, batch_size, generator):
    """Make the objective that a `loss` parameter names."""
    if loss == "patch_svdd":
        objective = PatchSVDDLoss(encoder, lam, batch_size)
        reset_parameters(objective, generator)
        objective.fix_last_layers()
    elif loss == "svdd_prime":
        objective = SVDDPrimeLoss(encoder, batch_size)
    else:
        objective = SVDDLoss(encoder, sampler, batch_size)
    return objective.to(sampler.device)


class PatchSVDDLoss(nn.Module):
    r"""The paper's loss, summed over the scales.

    .. math:: L = L_{SSL} + \lambda L_{SVDD'}

    :math:`L_{SSL}` is the cross-entropy of telling, from the difference of their
    features, in which of eight directions one patch lies from another;
    :math:`L_{SVDD'} = \| f(p) - f(p') \|_2` with :math:`p'` close to :math:`p`.
    """

    def __init__(self, encoder, lam, batch_size):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.batch_size = batch_size
        self.weights = {f"position_{k}": 1.0 for k in self.sizes}
        self.weights |= {f"svdd_{k}": lam for k in self.sizes}
        n_features = encoder.config[1]
        self.classifiers = nn.ModuleList(
            _make_classifier(n_features) for _ in self.sizes
        )

    def fix_last_layers(self):
        """Scale each classifier's last weight to columns of norm 1, for good."""
        for classifier in self.classifiers:
            last = classifier[-1]
            last.weight.requires_grad_(False)
            last.weight /= last.weight.norm(dim=0, keepdim=True)

    def forward(self, encoder, sampler):
        """Return the loss terms of one batch of pairs for each scale and loss."""
        positions = [sampler.position_pairs(self.batch_size, k) for k in self.sizes]
        jitters = [sampler.jitter_pairs(self.batch_size, k) for k in self.sizes]
        batches = [torch.cat(pair[:2]) for pair in (*positions, *jitters)]
        features = encoder.encode_patches(batches)
        n = len(self.sizes)
        losses = [
            position_loss(classifier, x, direction)
            for classifier, x, (_, _, direction) in zip(
                self.classifiers, features[:n], positions, strict=True
            )
        ]
        losses += [svdd_prime_loss(x) for x in features[n:]]
        return dict(zip(self.weights, losses, strict=True))


class SVDDPrimeLoss(nn.Module):
    """The SVDD' loss alone, without the position task (the paper's ablation)."""

    def __init__(self, encoder, batch_size):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.batch_size = batch_size
        self.weights = {f"svdd_{k}": 1.0 for k in self.sizes}

    def forward(self, encoder, sampler):
        """Return the loss terms of one batch of pairs for each scale."""
        pairs = [sampler.jitter_pairs(self.batch_size, k) for k in self.sizes]
        features = encoder.encode_patches([torch.cat(pair) for pair in pairs])
        losses = [svdd_prime_loss(x) for x in features]
        return dict(zip(self.weights, losses, strict=True))


class SVDDLoss(nn.Module):
    r"""Deep SVDD on patches: :math:`\| f(p) - c \|_2` with one centre a scale.

    The centre is the mean of the initial features and does not move.
    """

    def __init__(self, encoder, sampler, batch_size):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.batch_size = batch_size
        self.weights = {f"svdd_{k}": 1.0 for k in self.sizes}
        self.centers = [_mean_feature(encoder, sampler, k) for k in self.sizes]

    def forward(self, encoder, sampler):
        """Return the loss terms of one batch of patches for each scale."""
        patches = [sampler.patches(self.batch_size, k) for k in self.sizes]
        features = encoder.encode_patches(patches)
        losses = [
            (x.float() - center).norm(dim=1).mean()
            for x, center in zip(features, self.centers, strict=True)
        ]
        return dict(zip(self.weights, losses, strict=True))


def position_loss(classifier, features, direction):
    """Cross-entropy of the direction between pairs stacked as (2 * n, D)."""
    first, second = features.chunk(2)
    return F.cross_entropy(classifier(first - second).float(), direction)


def svdd_prime_loss(features):
    """Mean distance between pairs stacked as (2 * n, D)."""
    first, second = features.float().chunk(2)
    return (first - second).norm(dim=1).mean()


@torch.no_grad()
def _mean_feature(encoder, sampler, patch_size):
    means = [
        encoder(sampler.patches(_CENTER_BATCH, patch_size)).mean(dim=0)
        for _ in range(_N_CENTER_BATCHES)
    ]
    return torch.stack(means).mean(dim=0)


def _make_classifier(n_features):
    widths = (n_features, _HIDDEN, _HIDDEN, len(DIRECTIONS))
    layers = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.utils.skip_init(nn.Linear, n_in, n_out), nn.LeakyReLU(_SLOPE)]
    return nn.Sequential(*layers[:-1])
