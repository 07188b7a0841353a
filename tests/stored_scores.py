"""Scores of small fits by every way through the package, to compare code with code.

Prints one line for each way: its scores, as the hexadecimal digits of their bits. Two
versions of the code that should give the same scores print the same lines on the same
machine. ``tests/test_stored_scores.py`` holds those that every processor shares,
in ``stored_scores.json``, which may be written anew where scores are meant to change.

Example: python tests/stored_scores.py > before.txt
Example: python tests/stored_scores.py --write
"""

import argparse
import json
from pathlib import Path

import numpy as np

from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd.datasets import make_textures

STORED = Path(__file__).with_suffix(".json")
SMALL = {
    "embedding_dim": 16,
    "training": Training(batch_size=2),
    "n_jobs": 1,
    "device": "cpu",
}
# What each way is fitted with. Few steps: rounding has no time to grow.
WAYS = {
    "default": {"max_iter": 3},
    "paper": {"training": Training(method="paper", batch_size=2), "max_iter": 3},
    "random": {"max_iter": 0},
    "procedural": {"encoder": "procedural", "max_iter": 0},
    "embedding": {"encoder": "procedural", "max_iter": 20},
    "reduced bank": {"max_iter": 0, "bank_size": 100},
    "pynndescent": {"max_iter": 0, "neighbors": "pynndescent"},
}
# Ways whose scores are, but for rounding, those of every processor. The others carry
# rounding on, by training or by choosing rows.
EVERYWHERE = ("random", "procedural")
LARGE = 1500  # pixels of a side, inspected in tiles


def compute(way):
    """Fit and score by one way; return scores of training and of test images."""
    train = make_textures(6, image_size=112, random_state=0, kind="gear").images
    test = make_textures(4, image_size=112, random_state=1, kind="gear").images
    if way == "tiles":
        est = PatchSVDD(
            encoder="hierarchical", max_iter=0, image_size=None, random_state=0, **SMALL
        )
        train, test = (np.tile(x[:2], (1, 14, 14, 1)) for x in (train, test))
        est.set_params(strides=(64, 64))
        train, test = (x[:, :LARGE, :LARGE] for x in (train, test))
    else:
        given = {"encoder": "hierarchical"} | SMALL | WAYS[way]
        est = PatchSVDD(random_state=0, **given)
    est.fit(train)
    maps = est.anomaly_map(test)
    return np.concatenate(
        [est.training_scores_, est.score_samples(test), maps[:, ::40, ::40].ravel()[:8]]
    ).astype(np.float64)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="store these figures")
    args = parser.parse_args()
    figures = {}
    for way in (*WAYS, "tiles"):
        figures[way] = compute(way)
        print(way, figures[way].tobytes().hex())
    if args.write:
        rounded = {way: [float(f"{x:.6g}") for x in figures[way]] for way in EVERYWHERE}
        STORED.write_text(json.dumps(rounded, indent=1) + "\n")


if __name__ == "__main__":
    main()
