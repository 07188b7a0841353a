"""Features of patches in the plane, by t-SNE, and where in the image they lie."""

from typing import NamedTuple

import numpy as np
from sklearn.manifold import TSNE
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits  # comes with scikit-learn

from paper.dimension import draw_evenly, group_by_image, same_distance

# t-SNE weighs about this many neighbours of a point, and no more than a third of all.
PERPLEXITY = 30.0


class Embedding(NamedTuple):
    """Patches in the plane.

    Attributes
    ----------
    points : ndarray of shape (n_samples, 2)
        The features, projected.
    theta : ndarray of shape (n_samples,)
        Angle of the patch's centre around the image's centre, in -pi to pi: 0 is to the
        right, pi / 2 above.
    r : ndarray of shape (n_samples,)
        Distance between these centres, in pixels of the image as it is inspected.
    """

    points: np.ndarray
    theta: np.ndarray
    r: np.ndarray


def embed_patches(est, images, n_samples, random_state):
    """Project patches of the largest size, as many of an image as of any other."""
    patch_size = est.patch_sizes_[-1]
    features = group_by_image(est.embed(images, patch_size))
    rng = check_random_state(random_state)
    drawn = draw_evenly(features.shape[:2], n_samples, rng)
    points = project(features[drawn], rng)
    theta, r = polar_positions(est, patch_size)
    return Embedding(points, theta[drawn[1]], r[drawn[1]])


def project(features, rng):
    """Return t-SNE's points in the plane, of shape (n, 2)."""
    apart = np.linalg.norm(features - features[0], axis=1)
    if apart.max() <= same_distance(features):
        raise ValueError("all patches have the same feature.")
    tsne = TSNE(
        perplexity=min(PERPLEXITY, (len(features) - 1) / 3),
        init="pca" if features.shape[1] > 1 else "random",
        random_state=rng,
    )
    # More threads would add in another order each time.
    with threadpool_limits(limits=1):
        return tsne.fit_transform(features)


def polar_positions(est, patch_size):
    """Return angle and distance of each patch from the image's centre."""
    height, width, _ = est.inspected_shape_
    stride = est.strides_[est.patch_sizes_.index(patch_size)]
    top = np.arange(0, height - patch_size + 1, stride)
    left = np.arange(0, width - patch_size + 1, stride)
    up = (height - patch_size) / 2 - top[:, None]
    right = left[None, :] - (width - patch_size) / 2
    return np.arctan2(up, right).ravel(), np.hypot(up, right).ravel()
