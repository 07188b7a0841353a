"""
Scoring on a Dask cluster
=========================

It is not run while the documentation is built: starting the workers takes longer than
all other examples. Run it with ``python run_dask.py`` after ``pip install .[dask]``.
More in :ref:`dask`.
"""

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures


def main():
    """Fit here, score blocks of images on two workers."""
    train = make_textures(12, image_size=64, random_state=0).images
    new = make_textures(32, image_size=64, anomaly_fraction=0.5, random_state=1).images
    est = PatchSVDD(patch_size=32, max_iter=0, n_jobs=1, random_state=0).fit(train)

    with (
        LocalCluster(n_workers=2, threads_per_worker=1) as cluster,
        Client(cluster) as client,
    ):
        shared = client.scatter(est, broadcast=True)
        images = da.from_array(new, chunks=(8, -1, -1, -1))  # 8 whole images a block
        scores = da.map_blocks(
            PatchSVDD.score_samples,
            shared,
            images,
            drop_axis=[1, 2, 3],
            meta=np.empty(0),
        ).compute()
    print("largest difference:", np.abs(scores - est.score_samples(new)).max())


if __name__ == "__main__":  # every worker imports this script
    main()
