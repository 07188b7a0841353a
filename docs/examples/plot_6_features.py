"""
What the features look like
===========================

The features of patches, on how many coordinates they depend, and a picture of them.
"""

import matplotlib.pyplot as plt

from skpatchsvdd import PatchSVDD
from skpatchsvdd.analysis import PatchEmbeddingDisplay, intrinsic_dimension
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

for kind, (est, X) in models.items():
    features = est.embed(X, patch_size=32)
    dimension = intrinsic_dimension(features, n_samples=500, random_state=0)
    print(f"{kind}: features {features.shape}, intrinsic dimension {dimension:.1f}")

# %%
# Each point is a patch, coloured by the angle and by the distance of its position from
# the centre of the image. Patches of aligned parts form clusters by position; those of
# a material mix.

for kind, (est, X) in models.items():
    display = PatchEmbeddingDisplay.from_estimator(
        est, X, n_samples=500, random_state=0, s=10
    )
    display.figure_.suptitle(kind)
plt.show()
