import numpy as np
import pytest

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures


@pytest.fixture(scope="session")
def normal():
    """Eight normal images of 48 x 48."""
    return make_textures(8, image_size=48, random_state=0).images


@pytest.fixture(scope="session")
def mixed():
    """Four normal and four damaged images of 48 x 48."""
    return make_textures(8, image_size=48, anomaly_fraction=0.5, random_state=1)


@pytest.fixture
def quick():
    """An estimator that fits in a fraction of a second."""
    return PatchSVDD(
        patch_size=32, embedding_dim=8, max_iter=2, batch_size=4, random_state=0
    )


@pytest.fixture(scope="session")
def fitted(normal):
    """A fitted estimator. Tests must not change it."""
    return PatchSVDD(
        patch_size=32, embedding_dim=8, max_iter=2, batch_size=4, random_state=0
    ).fit(normal)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
