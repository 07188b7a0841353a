"""Writes the model file that later releases must be able to load.

PYTHONPATH=tests python tests/stored_model.py

writes data/part-VERSION.model, and beside it images, their scores and maps. Files of
former releases stay. The encoder has an eighth of its channels, to keep them small.
"""

from pathlib import Path

import numpy as np

import skpatchsvdd
from skpatchsvdd._encoding import networks
from skpatchsvdd.datasets import make_textures

DATA = Path(__file__).parent / "data"


def main():
    networks._SMALL_CHANNELS = tuple(n // 8 for n in networks._SMALL_CHANNELS)
    X = make_textures(4, image_size=44, random_state=0).images
    new = make_textures(4, image_size=44, anomaly_fraction=0.5, random_state=1).images
    est = skpatchsvdd.PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        embedding_dim=8,
        max_iter=3,
        training=skpatchsvdd.Training(batch_size=4),
        roi=np.arange(44) < np.full((44, 1), 42),
        bank_size=60,
        random_state=0,
    ).fit(X, groups=["a", "a", "b", "c"])
    name = f"part-{skpatchsvdd.__version__}"
    est.save(DATA / f"{name}.model")
    np.savez_compressed(
        DATA / f"{name}.npz",
        images=new,
        scores=est.score_samples(new),
        maps=est.anomaly_map(new).astype(np.float16),
        p_values=est.p_values(new),
    )


if __name__ == "__main__":
    main()
