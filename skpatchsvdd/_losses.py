"""What is minimised: the paper's losses, on pairs of patches or densely on crops."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._draws import Draws
from skpatchsvdd._encoder import reset_parameters
from skpatchsvdd._sampling import DIRECTIONS

_HIDDEN = 128
_SLOPE = 0.1
# Batches of patches whose mean initial feature is the centre of the "svdd" loss.
_N_CENTER_BATCHES = 8
_CENTER_BATCH = 128
# Pairs of a step for each scale, about, and those of a crop, at least and at most. More
# of them, from features that are there anyway, help where crops are few.
_N_PAIRS, _MIN_PAIRS, _MAX_PAIRS = 4096, 256, 512
# Deviation of a feature to which the mean distance of random patches is held, and how
# firmly. The other dense terms do not change when all features grow or shrink.
_FEATURE_STD = 0.5
_SCALE_WEIGHT = 0.1
# A patch counts as damaged from the first share of its pixels on, and fully from the
# second.
_DAMAGED, _FULLY_DAMAGED = 0.01, 0.03
# Plain patches of a batch that a damaged one is compared with, besides its own.
_N_COMPARED = 4096
_TINY = 1e-6
# Largest norm of the encoder's gradient. A ratio of distances has a steep slope where
# the lower one is close to 0.
_DENSE_GRADIENT = 1.0


def make_patch_objective(loss, lam, encoder, sampler, batch_size, generator):
    """Make the objective, patch by patch, that a `loss` parameter names."""
    if loss == "patch_svdd":
        objective = PatchSVDDLoss(encoder, lam, batch_size)
        reset_parameters(objective, generator)
        objective.fix_last_layers()
    elif loss == "svdd_prime":
        objective = SVDDPrimeLoss(encoder, batch_size)
    else:
        objective = SVDDLoss(encoder, sampler, batch_size)
    return objective.to(sampler.device)


def make_dense_objective(
    loss, lam, damage_weight, encoder, sampler, batch_size, generator
):
    """Make the objective on crops that a `loss` parameter names."""
    if loss == "patch_svdd":
        objective = DenseLoss(encoder, 1.0, lam, damage_weight, batch_size)
    elif loss == "svdd_prime":
        objective = DenseLoss(encoder, 0.0, 1.0, 0.0, batch_size)
    else:
        objective = DenseSVDDLoss(encoder, sampler, batch_size)
    reset_parameters(objective, generator)
    return objective.to(sampler.device)


class PaperLoss(nn.Module):
    """How the paper's losses are minimised: Adam as it is, in float32."""

    schedule = "constant"
    precision = "float32"
    max_gradient = math.inf


class PatchSVDDLoss(PaperLoss):
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
        self.classifiers = _make_classifiers(encoder)

    def fix_last_layers(self):
        """Scale each classifier's last weight to columns of norm 1, for good."""
        for classifier in self.classifiers:
            last = classifier[-1]
            last.weight.requires_grad_(False)
            last.weight /= last.weight.norm(dim=0, keepdim=True)

    def draw(self, sampler):
        """Draw one batch of pairs for each scale and loss."""
        positions = [sampler.position_pairs(self.batch_size, k) for k in self.sizes]
        jitters = [sampler.jitter_pairs(self.batch_size, k) for k in self.sizes]
        batches = [torch.cat(pair[:2]) for pair in (*positions, *jitters)]
        return batches, [pair[2] for pair in positions]

    def forward(self, encoder, batch):
        """Return the loss terms."""
        batches, directions = batch
        features = encoder.encode_patches(batches)
        n = len(self.sizes)
        trios = zip(self.classifiers, features[:n], directions, strict=True)
        losses = [position_loss(*trio) for trio in trios]
        losses += [svdd_prime_loss(x) for x in features[n:]]
        return dict(zip(self.weights, losses, strict=True))


class SVDDPrimeLoss(PaperLoss):
    """The SVDD' loss alone, without the position task (the paper's ablation)."""

    def __init__(self, encoder, batch_size):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.batch_size = batch_size
        self.weights = {f"svdd_{k}": 1.0 for k in self.sizes}

    def draw(self, sampler):
        """Draw one batch of pairs for each scale."""
        pairs = [sampler.jitter_pairs(self.batch_size, k) for k in self.sizes]
        return [torch.cat(pair) for pair in pairs]

    def forward(self, encoder, batch):
        """Return the loss terms."""
        losses = [svdd_prime_loss(x) for x in encoder.encode_patches(batch)]
        return dict(zip(self.weights, losses, strict=True))


class SVDDLoss(PaperLoss):
    r"""Deep SVDD on patches: :math:`\| f(p) - c \|_2` with one centre a scale.

    The centre is the mean of the initial features and does not move.
    """

    def __init__(self, encoder, sampler, batch_size):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.batch_size = batch_size
        self.weights = {f"svdd_{k}": 1.0 for k in self.sizes}
        self.centers = [_mean_feature(encoder, sampler, k) for k in self.sizes]

    def draw(self, sampler):
        """Draw one batch of patches for each scale."""
        return [sampler.patches(self.batch_size, k) for k in self.sizes]

    def forward(self, encoder, batch):
        """Return the loss terms."""
        features = encoder.encode_patches(batch)
        losses = [
            distance(x.float(), center, dim=1).mean()
            for x, center in zip(features, self.centers, strict=True)
        ]
        return dict(zip(self.weights, losses, strict=True))


class DenseLoss(nn.Module):
    r"""The paper's two tasks and a third, on all patches of crops, summed over scales.

    .. math:: L = L_{SSL} + \lambda L_{SVDD'} + \mu L_{damage} + 0.1 L_{scale}

    :math:`L_{SSL}` is the paper's. The other terms compare distances and do not change
    when all features shrink. Each patch :math:`p` is seen twice. The second view
    :math:`p'` has another light, half of the times it is shifted by a pixel or two, and
    some of its patches have a synthetic defect: :math:`D` is the set of these,
    :math:`I` of the others. With a random patch :math:`q` and all first views :math:`B`
    of the batch,

    .. math::

        L_{SVDD'} = \underset{I}{\operatorname{mean}} \log \left(
            1 + \frac{\| f(p) - f(p') \|}{\| f(p) - f(q) \|} \right), \quad
        L_{damage} = \underset{D}{\operatorname{mean}} \log \left(
            1 + \frac{r}{\min_{b \in B} \| f(p') - f(b) \|} \right), \quad
        r = \underset{I}{\operatorname{mean}} \| f(p) - f(p') \|.

    The denominator of the second is what inspection measures, the distance to the
    nearest normal patch.

    :math:`L_{scale}` is the squared difference between the mean of
    :math:`\log \| f(p) - f(q) \|` and what it is for features of deviation 0.5: the
    tanh at the end neither saturates nor fades.
    """

    schedule = "cosine"
    precision = "mixed"
    max_gradient = _DENSE_GRADIENT

    def __init__(self, encoder, position_weight, lam, damage_weight, n_crops):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.strides = (encoder.dense_stride,) * len(self.sizes)
        self.n_crops = n_crops
        terms = {
            "position": position_weight,
            "svdd": lam,
            "damage": damage_weight,
            "scale": _SCALE_WEIGHT,
        }
        self.weights = {
            f"{name}_{k}": weight for k in self.sizes for name, weight in terms.items()
        }
        self.has_damage = damage_weight > 0
        self.classifiers = _make_classifiers(encoder)
        n_features = encoder.config[1]
        self.log_distance = math.log(_FEATURE_STD * math.sqrt(2 * n_features))

    def draw(self, sampler):
        """Draw crops, and pairs of cells of the feature maps that they will give."""
        pairs = [
            draw_pairs(
                self.n_crops, sampler.crop_size, size, stride, Draws(sampler.generator)
            )
            for size, stride in zip(self.sizes, self.strides, strict=True)
        ]
        draw_crops = sampler.crops if self.has_damage else sampler.intact_crops
        return draw_crops(self.n_crops), pairs

    def forward(self, encoder, batch):
        """Return the loss terms."""
        crops, pairs = batch
        maps = encoder.encode_images(crops.views, self.strides)
        losses = []
        for i, parts in enumerate(zip(maps, pairs, self.classifiers, strict=True)):
            features, (first, second, direction), classifier = parts
            plain, other = features.permute(0, 2, 3, 1).float().chunk(2)
            share = damaged_share(crops.is_damaged, self.sizes[i], self.strides[i])
            x, seen_again = pick_cells(plain, first), pick_cells(other, first)
            logits = classifier(x - pick_cells(other, second))
            position = F.cross_entropy(logits.float(), direction)
            share = pick_cells(share[..., None], first)[:, 0]
            svdd, scale = self._contrast(x, seen_again, share)
            damage = damage_loss(x, seen_again, share)
            losses += [position, svdd, damage, scale]
        return dict(zip(self.weights, losses, strict=True))

    def _contrast(self, x, seen_again, share):
        """Return the SVDD' and the scale term."""
        # Far enough in the batch to be another crop, where there are several.
        apart = distance(x, x.roll(len(x) // 2, dims=0), dim=1) + _TINY
        svdd = torch.log1p(distance(x, seen_again, dim=1) / apart)
        scale = (apart.log().mean() - self.log_distance).square()
        return weighted_mean(svdd, share == 0), scale


class DenseSVDDLoss(nn.Module):
    """Deep SVDD on all patches of crops; see `SVDDLoss`."""

    schedule = "cosine"
    precision = "mixed"
    max_gradient = math.inf

    def __init__(self, encoder, sampler, n_crops):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.strides = (encoder.dense_stride,) * len(self.sizes)
        self.n_crops = n_crops
        self.weights = {f"svdd_{k}": 1.0 for k in self.sizes}
        with torch.no_grad():
            maps = encoder.encode_images(sampler.plain(n_crops), self.strides)
        self.centers = [x.mean(dim=(0, 2, 3)) for x in maps]

    def draw(self, sampler):
        """Draw crops."""
        return sampler.plain(self.n_crops)

    def forward(self, encoder, batch):
        """Return the loss terms."""
        maps = encoder.encode_images(batch, self.strides)
        losses = [
            distance(x.float(), center[:, None, None], dim=1).mean()
            for x, center in zip(maps, self.centers, strict=True)
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


def damage_loss(plain, seen_again, share):
    """How far damaged patches lie from the nearest plain one, compared with others.

    Parameters
    ----------
    plain, seen_again : tensors of shape (n, D)
        Features of the same patches in both views.
    share : tensor of shape (n,)
        Fraction of the pixels of each patch that is damaged in the second view.
    """
    weight = (share / _FULLY_DAMAGED).clamp(max=1) * (share > _DAMAGED)
    others = plain[:: math.ceil(len(plain) / _N_COMPARED)]
    between = distance(plain, seen_again, dim=1)
    nearest = look_up(others, find_nearest(seen_again, others))
    nearest = torch.minimum(between, distance(seen_again, nearest, dim=1))
    usual = weighted_mean(between, share == 0)
    return weighted_mean(torch.log1p(usual / nearest), weight)


def weighted_mean(values, weights):
    """Mean of values by weights of up to 1, drawn to 0 where these are few."""
    return (values * weights).sum() / (weights.sum() + 1)


@torch.no_grad()
def find_nearest(x, others):
    """Return the index of the nearest of some others for each row, (n,)."""
    with torch.autocast(x.device.type, enabled=False):
        half_squares = others.square().sum(dim=1) / 2
        # On CPUs, `argmin` takes four times as long as `min`, and on ARM a product with
        # a transposed view twice as long as with a copy.
        columns = others.T.contiguous()
        return torch.addmm(half_squares, x, columns, alpha=-1).min(dim=1).indices


def distance(x, y, dim):
    """Euclidean distance with a finite gradient at 0."""
    return ((x - y).square().sum(dim=dim) + _TINY**2).sqrt()


def draw_pairs(n_crops, crop_size, patch_size, stride, draws):
    """Draw pairs of cells in the feature maps of crops, both inside the crop.

    Parameters
    ----------
    n_crops, crop_size : int
        Number and size of the crops.
    patch_size, stride : int
        A cell is a patch of this size; the next one begins `stride` pixels further.
    draws : Draws
        Where the random numbers come from.

    Returns
    -------
    first, second : tensors of shape (n_pairs, 3)
        Crop, row and column of both ends. Along each axis its direction moves on, the
        second lies from 3K/4 to less than K pixels away, or as far as the crop allows.
    direction : tensor of shape (n_pairs,)
        Index into the eight directions.
    """
    n_each = pairs_of_a_crop(n_crops)
    n_pairs = n_crops * n_each
    n_cells = (crop_size - patch_size) // stride + 1
    high = min(patch_size // stride, n_cells)
    low = 3 * patch_size // 4 // stride
    if low >= high:
        low = high // 2
    direction = draws.integers(0, len(DIRECTIONS), (n_pairs,))
    sign = direction_signs(direction)
    step = sign * draws.integers(low, max(high, low + 1), (n_pairs, 2))
    room = n_cells - step.abs()
    cell = (draws.uniform(0, 1, (n_pairs, 2)) * room).long() - step.clamp(max=0)
    crop = torch.arange(n_crops, device=draws.device).repeat_interleave(n_each)
    first = torch.cat([crop[:, None], cell], dim=1)
    second = torch.cat([crop[:, None], cell + step], dim=1)
    return first, second, direction


def pairs_of_a_crop(n_crops):
    """Return how many pairs are drawn for a scale from each of so many crops."""
    return min(max(_N_PAIRS // n_crops, _MIN_PAIRS), _MAX_PAIRS)


def direction_signs(direction):
    """Return the rows of `DIRECTIONS` that an index tensor names, (n, 2).

    By arithmetic, since a recorded step cannot copy a table to the device.
    """
    cell = direction + (direction >= len(DIRECTIONS) // 2).long()
    rows = torch.div(cell, 3, rounding_mode="floor")
    return torch.stack([rows, cell % 3], dim=1) - 1


def pick_cells(maps, cells):
    """Features (n, D) of cells (n, 3) of maps (n_crops, rows, cols, D)."""
    _, rows, cols, _ = maps.shape
    crop, row, col = cells.unbind(dim=1)
    return look_up(maps.flatten(0, 2), (crop * rows + row) * cols + col)


def look_up(table, index):
    """Rows of a table, (n, D), with a gradient that repeats to the last bit.

    On a CPU the gradient of an indexed read is summed by all threads in any order.
    """
    if table.device.type == "cpu":
        return F.embedding(index, table)
    return table[index]


def damaged_share(is_damaged, patch_size, stride):
    """Share of damaged pixels of each patch, (n, rows, cols)."""
    # Sums over squares as differences of sums from the corner: exact for whole numbers.
    sums = F.pad(is_damaged[:, 0], (1, 0, 1, 0)).cumsum(1).cumsum(2)
    strips = sums[:, patch_size::stride] - sums[:, :-patch_size:stride]
    boxes = strips[:, :, patch_size::stride] - strips[:, :, :-patch_size:stride]
    return boxes / patch_size**2


@torch.no_grad()
def _mean_feature(encoder, sampler, patch_size):
    means = [
        encoder(sampler.patches(_CENTER_BATCH, patch_size)).mean(dim=0)
        for _ in range(_N_CENTER_BATCHES)
    ]
    return torch.stack(means).mean(dim=0)


def _make_classifiers(encoder):
    n_features = encoder.config[1]
    return nn.ModuleList(_make_classifier(n_features) for _ in encoder.patch_sizes)


def _make_classifier(n_features):
    widths = (n_features, _HIDDEN, _HIDDEN, len(DIRECTIONS))
    layers = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.utils.skip_init(nn.Linear, n_in, n_out), nn.LeakyReLU(_SLOPE)]
    return nn.Sequential(*layers[:-1])
