"""Train the network that compares, on formulas alone.

Draws scenes, several specimens of each, of which one may be damaged, measures how the
patches of that one compare with those of the others, as the estimator does, and trains
the network to say for every pixel whether it is damaged. The result is the file that
the package ships.

An interrupted training goes on from the file that --restart names.

Example: python benchmarks/pretrain_comparison.py -o new.safetensors --workers 13
"""

import functools

import torch
import torch.nn.functional as F
from _common import print_json
from _comparing import compare
from _comparisons import draw_comparisons, draw_sets
from _training import Training, make_training_parser

from skpatchsvdd._comparison import STEP, Comparison, fold_comparison
from skpatchsvdd._encoding import keep_pictures, show_pictures
from skpatchsvdd._encoding.formulas import FormulaEncoder
from skpatchsvdd._storage.tensors import write_tensors

# Normal images that a query is compared with, at least and at most.
_FEWEST, _MOST = 3, 5
# What is damaged less than the first is not, and more than the second is; between both
# nobody can tell.
_UNDAMAGED, _DAMAGED = 0.02, 0.5
# How often a scale is not told of.
_LEFT_OUT = 0.1


def main():
    args = parse_arguments()
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    network = Comparison(norm=True).to(device, memory_format=torch.channels_last)
    encoder = FormulaEncoder.make_frozen(3, (256, 256)).to(device)
    encoder.prepare()
    training = Training(network, None, args)
    shown = Shown(args.kept, args.batch * args.again)

    def measure(drawn):
        sets, seed = drawn
        return measure_losses(network, encoder, shown, sets, int(seed))

    draw = functools.partial(draw_steps, n_each=args.each)
    seconds, losses = training.run(draw, args.each, measure)
    page = training.page("pretrain_comparison.py", each=args.each, again=args.again)
    write_comparison(fold_comparison(training.averaged), args.output, page)
    print_json(steps=args.steps, seconds=seconds, losses=losses, **page)


def parse_arguments():
    parser = make_training_parser(__doc__, steps=9000, batch=32)
    parser.add_argument(
        "--each",
        type=int,
        default=4,
        help="steps with the same specimens, which take longest to draw",
    )
    parser.add_argument(
        "--again",
        type=int,
        default=1,
        help="comparisons of former steps that are shown again, for each new one",
    )
    parser.add_argument(
        "--kept", type=int, default=4096, help="comparisons that may be shown again"
    )
    return parser.parse_args()


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
        """Return new comparisons and some former ones, tensors of shape (n, ...)."""
        n, device = len(new[0]), new[0].device
        if self._kept is None:
            self._kept = [x.new_empty(self._n_kept, *x.shape[1:]) for x in new]
        known = min(self._n, self._n_kept)
        joined = new
        if known > 0:
            chosen = torch.randint(
                known, (self._n_again,), generator=generator, device=device
            )
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
    """Return specimens of n scenes for several steps, and a seed for each step."""
    sets = draw_sets(generator, n, materials)
    seeds = torch.randint(2**31, (n_each,), generator=generator, device=sets.device)
    return [(sets, seed) for seed in seeds]


def measure_losses(network, encoder, shown, sets, seed):
    """Return the losses of a step by name."""
    generator = torch.Generator(sets.device).manual_seed(seed)
    n_normal = _FEWEST + seed % (_MOST - _FEWEST + 1)
    drawn = draw_comparisons(generator, sets, n_normal)
    told = torch.stack(compare(encoder, drawn), dim=1)
    images, mask = ((255 * x).round().byte() for x in (drawn.query, drawn.mask))
    images, told, mask = shown.join(generator, [images, told.half(), mask])
    images, told, mask = _turn(images, told.float(), mask, seed)
    kept = torch.rand(told.shape[1], generator=generator, device=sets.device)
    kept[seed % len(kept)] = 1.0
    scales = [told[:, i] for i, k in enumerate(kept.tolist()) if k >= _LEFT_OUT]
    pictures = show_pictures(keep_pictures(images.float() / 255))
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    device = sets.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = network(pictures, scales)
    logits = F.interpolate(
        logits.float(), mask.shape[1:], mode="bilinear", align_corners=False
    )
    return _judge(logits[:, 0], mask.float() / 255)


def _turn(images, told, mask, seed):
    """Mirror images and all that is known of them, one way for a step.

    Cells are centred on every fourth pair of pixels from the first on: what lies behind
    the last of them is cut off, so that they are after it as well.
    """
    *_, rows, cols = told.shape
    height, width = STEP * (rows - 1) + 2, STEP * (cols - 1) + 2
    parts = [images[..., :height, :width], told, mask[..., :height, :width]]
    if seed & 4:
        parts = [x.flip(-1) for x in parts]
    if seed & 8:
        parts = [x.flip(-2) for x in parts]
    if seed & 16:
        parts = [x.transpose(-1, -2) for x in parts]
    return parts


def _judge(logits, mask):
    """Return cross-entropy and Dice's loss."""
    target = (mask > _DAMAGED).float()
    is_sure = ((mask < _UNDAMAGED) | (mask > _DAMAGED)).float()
    each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    entropy = (each * is_sure).sum() / is_sure.sum()
    share = logits.sigmoid() * is_sure
    overlap = 2 * (share * target).sum() + 1
    dice = 1 - overlap / (share.sum() + target.sum() + 1)
    return {"entropy": entropy, "dice": dice, "sum": entropy + dice}


if __name__ == "__main__":
    main()
