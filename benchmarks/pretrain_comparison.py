"""Train the network that compares, on procedural images alone.

Draws scenes, several specimens of each, of which one may be damaged, measures how the
patches of that one compare with those of the others, as the estimator does, and trains
the network to say for every pixel whether it is damaged. The result is the file that
the package ships.

An interrupted training goes on from the file that --restart names. With --begin,
weights of an earlier training are trained on, without batch norm.

Example: python benchmarks/pretrain_comparison.py -o new.safetensors --workers 13
"""

import functools

import torch
import torch.nn.functional as F
from _common import print_json
from _comparing import compare
from _comparisons import draw_comparisons, draw_sets
from _training import Training, make_training_parser
from procedural.draws import choose

from skpatchsvdd._comparison import (
    STEP,
    Comparison,
    fold_comparison,
    read_comparison,
)
from skpatchsvdd._encoding import keep_pictures, show_pictures
from skpatchsvdd._encoding.procedural import ProceduralEncoder
from skpatchsvdd._utils import write_tensors

# Normal images that a query is compared with.
_N_NORMAL = (3, 4, 5)
# What is damaged less than the first is not, and more than the second is; between both
# nobody can tell.
_UNDAMAGED, _DAMAGED = 0.02, 0.5
# How often a scale is not told of.
_LEFT_OUT = 0.1


def main():
    args = parse_arguments()
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    network = make_network(args.begin).to(device, memory_format=torch.channels_last)
    training = Training(network, None, args)
    shown = Shown(args.kept, args.batch * args.again)
    generator = torch.Generator().manual_seed(args.seed)
    measure = functools.partial(measure_losses, network, shown, generator)
    draw = functools.partial(draw_steps, n_each=args.each)
    seconds, losses = training.run(draw, args.each, measure)
    options = {key: vars(args)[key] for key in ("each", "again", "kept")}
    page = training.page("pretrain_comparison.py", **options)
    trained = training.averaged
    if args.begin:
        page["began with"] = read_comparison(args.begin)[1]["command"]
    else:
        trained = fold_comparison(trained)
    write_comparison(trained, args.output, page)
    print_json(steps=args.steps, seconds=seconds, losses=losses, **page)


def parse_arguments():
    parser = make_training_parser(__doc__, steps=15_000, batch=32)
    parser.add_argument(
        "--each",
        type=int,
        default=8,
        help="steps with the same specimens, which take longest to draw",
    )
    parser.add_argument(
        "--again",
        type=int,
        default=7,
        help="comparisons of former steps that are shown again, for each new one",
    )
    parser.add_argument(
        "--kept", type=int, default=65536, help="comparisons that may be shown again"
    )
    parser.add_argument("--begin", help="weights to begin with, a file")
    return parser.parse_args()


def make_network(begin):
    """Return a network with random weights, or with those of a file to train on."""
    if not begin:
        return Comparison(norm=True)
    network, _ = read_comparison(begin)
    return network.requires_grad_(True).train()


class Shown:
    """The last comparisons, of which some are shown again: to draw one takes longest.

    Parameters
    ----------
    n_kept, n_again : int
        How many are kept, and shown again with new ones.
    """

    def __init__(self, n_kept, n_again):
        self._n_kept, self._n_again = n_kept, n_again
        self._kept = None
        self._n = 0

    def join(self, generator, new):
        """Return new comparisons and some former ones, tensors of shape (n, ...).

        The generator is one of the host.
        """
        n, device = len(new[0]), new[0].device
        if self._kept is None:
            self._kept = [x.new_empty(self._n_kept, *x.shape[1:]) for x in new]
        known = min(self._n, self._n_kept)
        joined = new
        if known > 0:
            chosen = torch.randint(known, (self._n_again,), generator=generator)
            chosen = chosen.to(device)
            pairs = zip(new, self._kept, strict=True)
            joined = [torch.cat([x, kept[chosen]]) for x, kept in pairs]
        places = torch.arange(self._n, self._n + n, device=device) % self._n_kept
        for kept, x in zip(self._kept, new, strict=True):
            kept[places] = x
        self._n += n
        return joined


def write_comparison(network, path, page):
    """Write all weights in half precision, and how they were made."""
    weights = network.state_dict()
    arrays = {k: v.detach().cpu().half().numpy() for k, v in weights.items()}
    write_tensors(path, arrays, page)


def draw_steps(generator, n, materials, n_each):
    """Draw n comparisons for each of several steps, of the same scenes.

    Returns
    -------
    steps : list of (pictures, told, mask)
        What is kept of the queries, what the comparison sees of the distances of all
        scales, and where there is damage, in bytes.
    """
    sets = draw_sets(generator, n, materials)
    encoder = _load_encoder(generator.device)
    steps = []
    for number in choose(generator, n_each, (1,) * len(_N_NORMAL)).tolist():
        drawn = draw_comparisons(generator, sets, _N_NORMAL[number])
        told = torch.stack(compare(encoder, drawn), dim=1)
        mask = (255 * drawn.mask).round().byte()
        steps.append((keep_pictures(drawn.query), told.half(), mask))
    return steps


@functools.lru_cache(maxsize=1)
def _load_encoder(device):
    encoder = ProceduralEncoder.make_pretrained(3, (256, 256)).to(device)
    encoder.prepare()
    return encoder


def measure_losses(network, shown, generator, new):
    """Return the losses of a step by name; the generator is one of the host."""
    pictures, told, mask = _turn(generator, *shown.join(generator, new))
    device, n_scales = told.device.type, told.shape[1]
    is_told = torch.rand(n_scales, generator=generator) >= _LEFT_OUT
    is_told[torch.randint(n_scales, (), generator=generator)] = True
    told = told.float()
    scales = [told[:, i] for i in is_told.nonzero()[:, 0].tolist()]
    pictures = show_pictures(pictures).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = network(pictures, scales)
    logits = F.interpolate(
        logits.float(), mask.shape[1:], mode="bilinear", align_corners=False
    )
    return _judge(logits[:, 0], mask.float() / 255)


def _turn(generator, pictures, told, mask):
    """Mirror pictures and all that is known of them, one way for a step.

    Cells are centred on every fourth cell of a picture from the first on: what lies
    behind the last of them is cut off, so that they are after it as well.
    """
    step = STEP // 2
    height, width = (step * (k - 1) + 1 for k in told.shape[-2:])
    parts = [
        pictures[..., :height, :width],
        told,
        mask[..., : 2 * height, : 2 * width],
    ]
    is_down, is_across, is_turned = torch.rand(3, generator=generator) < 0.5
    if is_down:
        parts = [x.flip(-2) for x in parts]
    if is_across:
        parts = [x.flip(-1) for x in parts]
    if is_turned:
        parts = [x.transpose(-1, -2) for x in parts]
    return parts


def _judge(logits, mask):
    """Return cross-entropy, and Dice's loss of all pixels and of damaged images.

    The last counts small damage as much as large.
    """
    target = (mask > _DAMAGED).float()
    is_sure = ((mask < _UNDAMAGED) | (mask > _DAMAGED)).float()
    each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    entropy = (each * is_sure).sum() / is_sure.sum()
    share = logits.sigmoid() * is_sure
    sums = [x.sum(dim=(1, 2)) for x in (share * target, share + target, target)]
    dice = _lose(*(x.sum() for x in sums[:2]), 1.0)
    is_damaged = (sums[2] > 0).float()
    of_images = (_lose(*sums[:2], 10.0) * is_damaged).sum()
    of_images = of_images / is_damaged.sum().clamp(min=1)
    losses = {"entropy": entropy, "dice": dice, "of images": of_images}
    return losses | {"sum": entropy + (dice + of_images) / 2}


def _lose(overlap, areas, pixels):
    """Return Dice's loss, of areas much smaller than some pixels almost none."""
    return 1 - (2 * overlap + pixels) / (areas + pixels)


if __name__ == "__main__":
    main()
