"""
In a Pipeline
=============

Steps before the estimator may crop, convert or otherwise change images.
"""

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.plotting import AnomalyMapDisplay

train = make_textures(12, image_size=96, kind="wood", random_state=0)
test = make_textures(
    6, image_size=96, kind="wood", anomaly_fraction=0.5, random_state=1
)

# %%
# The first step cuts a margin off, the second makes images grey. Both pass arrays of
# four dimensions on, which :class:`~sklearn.preprocessing.FunctionTransformer` allows.


def crop(X):
    """Cut 8 pixels off each side."""
    return X[:, 8:-8, 8:-8]


def to_grey(X):
    """Average the channels."""
    return X.mean(axis=3).round().astype(np.uint8)


pipeline = make_pipeline(
    FunctionTransformer(crop),
    FunctionTransformer(to_grey),
    PatchSVDD(patch_size=32, max_iter=0, random_state=0),  # 0: this page is quick
)
pipeline.fit(train.images)
print(pipeline.score_samples(test.images).round(5))
print(pipeline.predict(test.images))

# %%
# Methods that a pipeline does not know are called on its last step, with images as the
# steps before it make them.

images = pipeline[:-1].transform(test.images)
print(pipeline[-1].anomaly_map(images).shape)
AnomalyMapDisplay.from_estimator(pipeline[-1], images[-3:])

# %%
# Steps that know rows only, such as a scaler, give rows, of which a function makes
# images again. The images have to become rows first.


def to_images(X):
    """Make images of rows."""
    return X.reshape(len(X), 96, 96, 3)


rows = train.images.reshape(len(train.images), -1)
scaled = make_pipeline(
    MinMaxScaler(clip=True),
    FunctionTransformer(to_images),
    PatchSVDD(patch_size=32, max_iter=0, random_state=0),
)
scaled.fit(rows)
print(scaled.predict(test.images.reshape(len(test.images), -1)))


# %%
# To save a pipeline, put the functions of its steps into a module that can be imported
# where it is loaded: a pickle holds their names, not their code.
