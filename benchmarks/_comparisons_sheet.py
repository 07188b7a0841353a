"""Draw the sheet of docs/user_guide/procedural.rst about comparisons.

One column for each scene: the image that is compared, two of the normal ones it is
compared with, and where it is damaged. It is drawn on a CPU, in seconds.

    python benchmarks/_comparisons_sheet.py
"""

import argparse
from pathlib import Path

import torch
from _comparisons import draw_comparisons, draw_sets
from _procedural_sheet import arrange
from PIL import Image
from procedural import make_materials

_DOCS = Path(__file__).parent.parent / "docs"
# This one shows blots, scratches, altered shapes, and images without damage.
_SEED = 5


def main():
    """Draw the sheet and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=_DOCS / "comparisons.png")
    parser.add_argument("--scenes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=_SEED)
    args = parser.parse_args()
    sheet = arrange(draw_rows(args.seed, args.scenes))
    Image.fromarray(sheet).quantize(256).save(args.output, optimize=True)


def draw_rows(seed, n):
    """Return four rows of n pictures."""
    generator = torch.Generator().manual_seed(seed)
    sets = draw_sets(generator, n, make_materials("cpu"))
    drawn = draw_comparisons(generator, sets, 2)
    mask = drawn.mask[:, None].expand_as(drawn.query)
    return [drawn.query, *drawn.normal, mask]


if __name__ == "__main__":
    main()
