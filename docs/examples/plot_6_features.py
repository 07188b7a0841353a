"""
What the features look like
===========================

The features of patches, and a picture of them.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.manifold import TSNE

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

# %%
# A gear lies in about the same position in every image; wood looks the same everywhere.
# The encoders are the paper's, and keep their random weights here (``max_iter=0``),
# which already tell apart what looks different.

models = {}
for kind in ("gear", "wood"):
    X = make_textures(24, image_size=64, kind=kind, random_state=0).images
    est = PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        strides=(8,),
        max_iter=0,
        embedding_dim=32,
        random_state=0,
    )
    models[kind] = est.fit(X), X

# %%
# ``embed`` gives one feature for each patch. Patches of 32 pixels begin every 8 pixels
# here, so that an image of 64 has 5 x 5 of them.

features = {kind: est.embed(X, patch_size=32) for kind, (est, X) in models.items()}
for kind, x in features.items():
    print(f"{kind}: features {x.shape}")

# %%
# Each point is a patch, coloured by the row and by the column that it lies in. Patches
# of aligned parts form clusters by position; those of a material mix.

figure, axes = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
for kind, (by_row, by_column) in zip(features, axes, strict=True):
    n_images, rows, cols, n_features = features[kind].shape
    points = TSNE(random_state=0).fit_transform(features[kind].reshape(-1, n_features))
    row, column = np.indices((rows, cols)).reshape(2, -1)
    by_row.scatter(*points.T, c=np.tile(row, n_images), s=10)
    by_row.set_title(f"{kind}, by row")
    by_column.scatter(*points.T, c=np.tile(column, n_images), s=10)
    by_column.set_title(f"{kind}, by column")
plt.show()
