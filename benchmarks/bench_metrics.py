"""Time of the pixel metrics on one core, and their agreement with scikit-learn.

Example: python benchmarks/bench_metrics.py --maps 100 --size 256
"""

import numpy as np
import torch
from _common import machine_name, make_parser, print_json, print_table, stopwatch
from sklearn.metrics import roc_auc_score

from skpatchsvdd.metrics import pro_score, segmentation_auroc


def main():
    args = parse_arguments()
    torch.set_num_threads(1)
    masks, maps = make_maps(args.maps, args.size)
    with stopwatch() as sklearn_s:
        expected = roc_auc_score(masks.ravel(), maps.ravel())
    with stopwatch() as auroc_s:
        auroc = segmentation_auroc(masks, maps)
    with stopwatch() as pro_s:
        pro_score(masks, maps)
    rows = [
        {"metric": "scikit-learn's AUROC", "s": sklearn_s[0]},
        {"metric": "segmentation_auroc", "s": auroc_s[0]},
        {"metric": "pro_score", "s": pro_s[0]},
    ]
    print(f"{machine_name('cpu')}\n{args.maps} maps of {args.size} x {args.size}\n")
    print_table(rows)
    print(f"\ndifference from scikit-learn's AUROC: {abs(auroc - expected):.1e}")
    print_json(
        machine=machine_name("cpu"),
        sklearn_s=sklearn_s[0],
        auroc_s=auroc_s[0],
        pro_s=pro_s[0],
        difference=abs(auroc - expected),
    )


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--maps", type=int, default=100)
    parser.add_argument("--size", type=int, default=256)
    return parser.parse_args()


def make_maps(n_maps, size):
    """Make maps that are somewhat higher inside a few rectangles."""
    rng = np.random.default_rng(0)
    masks = np.zeros((n_maps, size, size), dtype=bool)
    for mask in masks[: n_maps // 2]:
        for _ in range(3):
            top, left = rng.integers(0, size - 8, 2)
            height, width = rng.integers(4, size // 4, 2)
            mask[top : top + height, left : left + width] = True
    return masks, rng.random(masks.shape, dtype=np.float32) + 0.3 * masks


if __name__ == "__main__":
    main()
