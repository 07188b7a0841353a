"""Draw the sheet of docs/user_guide/procedural.rst: scenes, their specimens and damage.

One column for each scene: a specimen, another one, that one damaged, and where. It is
drawn on a CPU, in seconds.

    python benchmarks/_procedural_sheet.py
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from procedural import (
    draw_damage,
    draw_pairs,
    draw_shots,
    make_materials,
    photograph,
)

# Pixels of a scene when the network is trained, of the part of it that is shown, and
# between two pictures.
_SCENE, _SHOWN, _GAP = 224, 128, 4
# This one shows every layout twice, and many materials.
_SEED = 26


def main():
    """Draw the sheet and write it."""
    args = parse_arguments()
    with torch.no_grad():
        rows = draw_rows(args.seed, args.scenes)
    sheet = Image.fromarray(arrange(rows))
    sheet.quantize(256).save(args.output, optimize=True)


def parse_arguments():
    """Return where to write how many scenes of which seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Path(__file__).parent / "procedural.png"
    parser.add_argument("-o", "--output", type=Path, default=default)
    parser.add_argument("--scenes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=_SEED)
    return parser.parse_args()


def draw_rows(seed, n):
    """Return four rows of n pictures, tensors of shape (n, 3, _SHOWN, _SHOWN)."""
    g = torch.Generator().manual_seed(seed)
    materials = make_materials("cpu")
    first, second = draw_pairs(g, n, _SCENE, materials)
    views = [cut_middle(x.images) for x in (first, second)]
    damaged, mask = draw_damage(g, views[1])
    is_grey = torch.rand(n, generator=g) < 1 / 3
    shots = [draw_shots(g, n) for _ in range(2)]
    return [
        photograph(g, views[0], shots[0], is_grey),
        photograph(g, views[1], shots[1], is_grey),
        photograph(g, damaged, shots[1], is_grey),
        mask[:, None].expand(n, 3, _SHOWN, _SHOWN),
    ]


def cut_middle(images):
    """Return the middle of images."""
    start = (_SCENE - _SHOWN) // 2
    return images[:, :, start : start + _SHOWN, start : start + _SHOWN]


def arrange(rows):
    """Return rows of pictures on a white sheet, (height, width, 3) of uint8."""
    size = rows[0].shape[-1]
    step = size + _GAP
    height, width = step * len(rows) - _GAP, step * len(rows[0]) - _GAP
    sheet = np.full((height, width, 3), 255, np.uint8)
    for i, row in enumerate(rows):
        pictures = (255 * row).round().byte().permute(0, 2, 3, 1).numpy()
        for j, picture in enumerate(pictures):
            top, left = i * step, j * step
            sheet[top : top + size, left : left + size] = picture
    return sheet


if __name__ == "__main__":
    main()
