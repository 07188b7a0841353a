"""Draw the picture of docs/user_guide/training.rst: what the embedding changes.

Two patches of images that were not learnt from, a normal one and one of a defect, each
beside the normal patch that is nearest to it; how far they are by the features as they
are, by these half whitened, and by the trained embedding, in units of the median of
normal patches; and, by axis, the share of the distance between normal patches.

    python benchmarks/_embedding_sheet.py
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from _hooks import without_whitening
from scipy.spatial.distance import cdist
from sklearn.metrics import roc_auc_score

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

_DOCS = Path(__file__).parent.parent / "docs"
_PATCH, _N_TRAIN, _N_TEST = 16, 24, 16
_FORMS = {
    "features as they are": (without_whitening, 0),
    "half whitened": (nullcontext, 0),
    "and trained": (nullcontext, "auto"),
}


def main():
    """Draw the picture, write it, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=_DOCS / "embedding.png")
    parser.add_argument("--kind", default="fabric", help="of make_textures")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data = make_textures(
        _N_TRAIN + _N_TEST,
        image_size=128,
        anomaly_fraction=0.5 * _N_TEST / (_N_TRAIN + _N_TEST),
        kind=args.kind,
        random_state=args.seed,
    )
    forms = [measure(data, *form, args.seed) for form in _FORMS.values()]
    is_bad = mark(data.masks[_N_TRAIN:], forms[0]["test"].shape[1:3])
    pairs = [choose(forms, is_bad == x, x) for x in (0, 1)]
    for name, form in zip(_FORMS, forms, strict=True):
        area = roc_auc_score(is_bad[is_bad >= 0], form["nearest"][is_bad >= 0])
        far = " and ".join(f"{form['nearest'][i]:.2f}" for i in pairs)
        print(f"{name}: AUROC of patches {area:.4f}; the two patches are {far} away")
    draw(data, forms, pairs).savefig(args.output, dpi=80)


def measure(data, context, max_iter, seed):
    """Return the features of patches, and how far the nearest normal ones are."""
    est = PatchSVDD(max_iter=max_iter, random_state=seed, device="cpu")
    with context():
        est.fit(data.images[:_N_TRAIN], groups=None)
    train, test = (
        est.embed(x, _PATCH) for x in (data.images[:_N_TRAIN], data.images[_N_TRAIN:])
    )
    rows = train.reshape(-1, train.shape[-1])
    distances = cdist(test.reshape(-1, test.shape[-1]), rows)
    nearest = distances.min(axis=1)
    is_normal = np.repeat(data.labels[_N_TRAIN:] == 1, nearest.size // len(test))
    return {
        "train": rows,
        "test": test,
        "nearest": nearest / np.median(nearest[is_normal]),
        "places": distances.argmin(axis=1),
    }


def mark(masks, grid):
    """Return 1 for patches half of which are defective, 0 for normal ones, else -1."""
    starts = [np.linspace(0, masks.shape[1] - _PATCH, n).astype(int) for n in grid]
    shares = [
        mask[i : i + _PATCH, j : j + _PATCH].mean()
        for mask in masks
        for i in starts[0]
        for j in starts[1]
    ]
    return np.select([np.array(shares) >= 0.5, np.array(shares) == 0], [1, 0], -1)


def choose(forms, is_one, is_defective):
    """Return the patch of which the embedding changes the distance most.

    Of a tenth of them: of normal patches those that are farthest, and what it brings
    nearest; of defective ones those that are nearest, and what it takes farthest away.
    """
    before, after = forms[0]["nearest"], forms[-1]["nearest"]
    sign = 1 if is_defective else -1
    candidates = np.flatnonzero(is_one)
    order = candidates[np.argsort(sign * before[candidates])][: len(candidates) // 10]
    return order[np.argmax((sign * after / before)[order])]


def draw(data, forms, pairs):
    """Return the figure."""
    figure = plt.figure(figsize=(10, 4.2), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1, 1.2, 1.2))
    axes = left.subplots(2, 2)
    rows, cols = forms[0]["test"].shape[1:3]
    for line, i, name in zip(axes, pairs, ("normal", "defective"), strict=True):
        known = forms[0]["places"][i]
        for axis, images, k, title in (
            (line[0], data.images[_N_TRAIN:], i, name),
            (line[1], data.images, known, "its nearest"),
        ):
            image, rest = divmod(k, rows * cols)
            top, begin = (
                int(x * (128 - _PATCH) / (n - 1))
                for x, n in zip(divmod(rest, cols), (rows, cols), strict=True)
            )
            axis.imshow(images[image][top : top + _PATCH, begin : begin + _PATCH])
            axis.set_title(title, fontsize=10)
            axis.set_axis_off()
    axis = middle.subplots()
    for i, name, marker in zip(pairs, ("normal", "defective"), "os", strict=True):
        axis.plot([x["nearest"][i] for x in forms], marker=marker, label=name)
    axis.set_xticks(range(len(_FORMS)), [x.replace(" as", "\nas") for x in _FORMS])
    axis.set_ylabel("distance, in medians of normal patches")
    axis.set_ylim(0, 1.1 * max(axis.dataLim.y1, 1))
    axis.legend()
    axis = right.subplots()
    features = forms[0]["train"] - forms[0]["train"].mean(axis=0)
    variances, vectors = np.linalg.eigh(np.cov(features.T))
    for name, form in zip(_FORMS, forms, strict=True):
        weight, *_ = np.linalg.lstsq(features, form["train"] - form["train"].mean(0))
        shares = variances * ((vectors.T @ weight) ** 2).sum(axis=1)
        axis.plot(np.arange(1, 65), 100 * shares[::-1] / shares.sum(), label=name)
    axis.set_yscale("log")
    axis.set_xlabel("axis, by the variance of the features")
    axis.set_ylabel("% of the squared distance of normal patches")
    axis.legend()
    return figure


if __name__ == "__main__":
    main()
