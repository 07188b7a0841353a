"""How long a search over lam and embedding_dim takes.

GridSearchCV over two values of each, in three folds that train on normal images alone,
on synthetic images of which a fifth are abnormal, then a refit. Once as it is, and once
without the features that are kept from one fit to the next.

Example: python benchmarks/bench_search.py
Example: python benchmarks/bench_search.py --jobs 2
Example: python benchmarks/bench_search.py --images 30 --image-size 128
"""

import warnings

from _common import machine_name, make_parser, print_json, print_table, stopwatch
from _hooks import check_device
from sklearn.model_selection import GridSearchCV

import skpatchsvdd
from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.model_selection import NormalOnlyKFold

GRID = {"lam": [0.1, 1.0], "embedding_dim": [32, 64]}
N_FOLDS = 3


class Forgetful(PatchSVDD):
    """Keeps no features from one fit to the next."""

    def fit(self, X, y=None, groups="auto", masks=None):
        """Fit."""
        skpatchsvdd.clear_cache()
        return super().fit(X, y, groups, masks)


def main():
    args = parse_arguments()
    device = check_device(args.device)
    data = make_textures(
        args.images,
        image_size=args.image_size,
        kind=args.kind,
        anomaly_fraction=0.2,
        random_state=0,
    )
    max_iter = "auto" if args.max_iter is None else args.max_iter
    rows = []
    for name, kind in (("kept", PatchSVDD), ("encoded anew", Forgetful)):
        skpatchsvdd.clear_cache()
        est = kind(random_state=0, device=args.device, max_iter=max_iter)
        folds = NormalOnlyKFold(N_FOLDS, shuffle=True, random_state=0)
        search = GridSearchCV(
            est,
            GRID,
            scoring="roc_auc",
            cv=folds,
            n_jobs=args.jobs,
            error_score="raise",
        )
        with warnings.catch_warnings(), stopwatch(device) as seconds:
            warnings.simplefilter("ignore")
            search.fit(data.images, data.labels)
        found = search.cv_results_
        row = {"features": name, "seconds": seconds[0]}
        row |= {
            f"lam={x['lam']:g} D={x['embedding_dim']}": float(score)
            for x, score in zip(found["params"], found["mean_test_score"], strict=True)
        }
        rows.append(row)
        print_table([row])
    print(f"\n{machine_name(device)}, {args.images} images of {args.image_size}\n")
    print_table(rows)
    print_json(machine=machine_name(device), rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--kind", default="gear", help="of make_textures")
    parser.add_argument("--max-iter", type=int, help="all steps if not given")
    parser.add_argument("--jobs", type=int, help="processes, one if not given")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
