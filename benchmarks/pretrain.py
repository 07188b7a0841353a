"""Train the network that is pretrained, on procedural images alone.

Draws scenes of shapes and materials, each as two specimens under different light, and
trains the network so that a point of one specimen is nearest to the same point of the
other one: nearer than all other points that look different, and nearer than the same
point damaged. Beside that it has to name the material and the shape at the point, how
far the next edge is, and whether the point is damaged. The result is the file that the
package ships.

An interrupted training goes on from the file that --restart names.

Example: python benchmarks/pretrain.py -o procedural.safetensors --restart training.pt
"""

import torch
import torch.nn.functional as F
from _common import print_json
from _training import Training, make_training_parser
from _views import N_EACH, Views, draw_bytes, draw_views, look_alike, sample
from procedural import FAR, N_MATERIALS, N_SHAPES, make_materials
from torch import nn

from skpatchsvdd._encoding.procedural import (
    LENGTH,
    STAGES,
    PretrainedNetwork,
    ProceduralEncoder,
    fold_norms,
)
from skpatchsvdd._utils import write_tensors

# Cosines are divided by this before they are compared.
_TEMPERATURE = 0.1
# Pixels that a feature of each stage speaks for, about.
_REACH = (8.0, 16.0, 32.0)
# How much the features' main axes are evened out: an axis is divided by the fourth root
# of its variance and of this fraction of their mean.
_SHRINKAGE = 0.02
# Scenes drawn at a time to find these axes.
_MEASURED = 8
# Length of what points are compared by.
_HEAD = 96


class Learner(PretrainedNetwork):
    """The network, with a head on each stage by which points are compared."""

    def __init__(self):
        super().__init__(norm=True)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(n, n, 1), nn.ReLU(), nn.Conv2d(n, _HEAD, 1))
            for n in STAGES
        )


class Tasks(nn.Module):
    """What is asked of the features of a stage besides to be told apart."""

    def __init__(self, n_features):
        super().__init__()
        self.material = nn.Linear(n_features, N_MATERIALS + 1)
        self.shape = nn.Linear(n_features, N_SHAPES + 1)
        self.edge = nn.Linear(n_features, 1)
        self.damage = nn.Linear(n_features, 1)


def main():
    args = parse_arguments()
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    network = Learner().to(device, memory_format=torch.channels_last)
    tasks = nn.ModuleList(Tasks(n) for n in STAGES).to(device)
    training = Training(network, tasks, args)

    def measure(drawn):
        return measure_losses(network, tasks, Views(*drawn), args)

    seconds, losses = training.run(draw_bytes, N_EACH, measure)
    folded, page = fold_norms(training.averaged), training.page("pretrain.py")
    write_pretrained(folded, args.output, page, make_materials(device), args.measured)
    print_json(steps=args.steps, seconds=seconds, losses=losses, **page)


def parse_arguments():
    parser = make_training_parser(__doc__, steps=10100, batch=96)
    parser.add_argument(
        "--measured", type=int, default=96, help="scenes to find main axes on"
    )
    parser.add_argument("--named", type=float, default=0.2, help="weight of tasks")
    parser.add_argument("--damage", type=float, default=2.0, help="weight of damage")
    parser.add_argument("--alike", type=int, default=1, help="spare what looks alike")
    return parser.parse_args()


def measure_losses(network, tasks, views, args):
    """Return all losses by name, and their weighted sum."""
    n = views.images.shape[1]
    images = views.images.flatten(0, 1).float().div_(255)
    images = images.contiguous(memory_format=torch.channels_last)
    device_type = images.device.type
    with torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda"):
        stages = network(images)
        heads = [head(stage) for head, stage in zip(network.heads, stages, strict=True)]
    points = views.points[[0, 1, 1]]
    losses = {}
    for i, (stage, head) in enumerate(zip(stages, heads, strict=True)):
        raw, told = (
            [sample(x.float(), p) for x, p in zip(y.split(n), points, strict=True)]
            for y in (stage, head)
        )
        losses[f"match{i}"], losses[f"damage{i}"] = _compare(told, views, i, args)
        losses[f"named{i}"] = _name(tasks[i], raw, views)
    weights = {"match": 1.0, "damage": args.damage, "named": args.named}
    losses["sum"] = sum(weights[k[:-1]] * v for k, v in losses.items())
    return losses


def _compare(told, views, i, args):
    """Return the losses of telling points apart, and from their damaged selves."""
    first, second, damaged = (F.normalize(x.flatten(0, 1), dim=1) for x in told)
    valid = views.is_valid.flatten()
    is_damaged = views.is_damaged.flatten() & valid
    logits = (first @ second.T) / _TEMPERATURE
    same = logits.diagonal()
    left_out = _find_alike(views, _REACH[i]) if args.alike else False
    left_out = left_out | ~valid | ~valid[:, None]
    left_out.fill_diagonal_(False)
    logits = logits.masked_fill(left_out, -torch.inf)
    foreign = (first @ damaged.T) / _TEMPERATURE
    foreign = foreign.masked_fill(~is_damaged, -torch.inf)
    target = torch.arange(len(first), device=valid.device)
    match = F.cross_entropy(
        torch.cat([logits, foreign], dim=1), target, reduction="none"
    ) + F.cross_entropy(logits.T, target, reduction="none")
    own = (first * damaged).sum(1) / _TEMPERATURE
    beside = (second * damaged).sum(1) / _TEMPERATURE
    margin = F.softplus(own - same) + F.softplus(beside - same)
    return 0.5 * _mean(match, valid), _mean(margin, is_damaged)


def _find_alike(views, reach):
    """Return which points of a scene cannot be told from others, for all points."""
    n, p = views.is_valid.shape
    alike = torch.zeros(n, p, n, p, dtype=torch.bool, device=views.is_valid.device)
    rows = torch.arange(n, device=alike.device)
    alike[rows, :, rows] = look_alike(views, reach)
    return alike.view(n * p, n * p)


def _mean(x, chosen):
    return torch.where(chosen, x, 0.0).sum() / chosen.sum().clamp(min=1)


def _name(task, raw, views):
    """Return the losses of what is known of points."""
    *both, damaged = (x.flatten(0, 1) for x in raw)
    valid = views.is_valid.flatten().repeat(2)
    points = torch.cat(both)
    material, shape, boundary = (
        x.flatten().repeat(2) for x in (views.material, views.shape, views.boundary)
    )
    named = 0.5 * F.cross_entropy(task.material(points), material, reduction="none")
    named += 0.5 * F.cross_entropy(task.shape(points), shape, reduction="none")
    edge = task.edge(points)[:, 0]
    named += F.smooth_l1_loss(edge, boundary / FAR * 4, reduction="none")
    is_damaged = views.is_damaged.flatten().float()
    answers = task.damage(damaged)[:, 0]
    damage = F.binary_cross_entropy_with_logits(answers, is_damaged)
    return _mean(named, valid) + damage


@torch.no_grad()
def write_pretrained(network, path, page, materials, n_scenes):
    """Find the main axes of the features, and write all weights in half precision."""
    encoder = ProceduralEncoder(3).to(materials.color.device)
    encoder.network.load_state_dict(network.state_dict())
    moments = measure_moments(encoder.network, materials, n_scenes)
    for project, (n, first, second) in zip(encoder.project, moments, strict=True):
        mean = first / n
        variances, axes = torch.linalg.eigh(second / n - mean[:, None] * mean)
        variances, axes = variances[-LENGTH:], axes[:, -LENGTH:]
        axes = axes / (variances + _SHRINKAGE * variances.mean()) ** 0.25
        project.weight.copy_(axes.T[:, :, None, None])
        project.bias.copy_(-(axes.T @ mean))
    arrays = {k: v.cpu().half().numpy() for k, v in encoder.state_dict().items()}
    write_tensors(path, arrays, page)


def measure_moments(network, materials, n_scenes):
    """Return number, sum and sum of products of the features of each stage."""
    generator = torch.Generator(materials.color.device).manual_seed(0)
    moments = [(0, 0.0, 0.0)] * len(STAGES)
    for start in range(0, n_scenes, _MEASURED):
        n = min(_MEASURED, n_scenes - start)
        views = next(draw_views(generator, n, materials))
        for i, x in enumerate(network(views.images[0])):
            x = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
            x = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).double()
            count, first, second = moments[i]
            moments[i] = (count + len(x), first + x.sum(0), second + x.T @ x)
    return moments


if __name__ == "__main__":
    main()
