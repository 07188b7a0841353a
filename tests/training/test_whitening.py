"""The embedding that training begins with, against a plain one of numpy."""

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power
from scipy.spatial.distance import cdist
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._encoding import ProceduralEncoder
from skpatchsvdd._training.embedding import shrinkage, whitening_matrix
from skpatchsvdd.datasets import make_textures

N_IMAGES = 6
ROI = np.zeros((64, 64))
ROI[:20, :30] = 1


@pytest.fixture(scope="module")
def images():
    made = make_textures(N_IMAGES, image_size=64, kind="gear", random_state=SEED)
    return made.images


def fit(images, **params):
    params = {"max_iter": 0, "random_state": SEED, "device": "cpu"} | params
    return PatchSVDD(**params).fit(images)


def encode_plainly(images):
    """Features before they are embedded, by scale: (n, n_patches, 64)."""
    encoder = ProceduralEncoder.make_pretrained(3, images.shape[1:3])
    x = torch.from_numpy(images / np.float32(255)).permute(0, 3, 1, 2)
    with torch.no_grad():
        scales = encoder.encode_pretrained(x)
    return [f.flatten(2).mT.double().numpy() for f in scales]


def find_metric(rows, n_images):
    """The matrix of the half whitened squared distance, from rows of features."""
    covariance = np.cov(rows.T, bias=True)
    relative = covariance / np.trace(covariance) * len(covariance)
    added = shrinkage(n_images) * np.eye(len(covariance))
    return fractional_matrix_power(relative + added, -1 / 2).real


def test_distances_are_half_whitened(images):
    est = fit(images)
    for scale, f in zip(est.scales_, encode_plainly(images), strict=True):
        metric = find_metric(f.reshape(-1, 64), N_IMAGES)
        expected = cdist(f[0], f[1], "mahalanobis", VI=metric)
        x = est.embed(images[:2], scale).reshape(2, -1, 64)
        np.testing.assert_allclose(cdist(x[0], x[1]), expected, rtol=2e-3)


def test_what_is_not_looked_at_does_not_count(images):
    hidden = images.copy()
    hidden[:, 20:] = 255 - hidden[:, 20:]
    first, second = (fit(x, roi=ROI).encoder_.embedding for x in (images, hidden))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a.T @ a, b.T @ b, rtol=1e-3, atol=1e-3)


def test_few_numbers_are_the_main_axes(images):
    few, whole = fit(images, embedding_dim=5), fit(images)
    for scale, f in zip(few.scales_, encode_plainly(images), strict=True):
        rows = f.reshape(-1, 64)
        variances = np.linalg.eigvalsh(np.cov(rows.T, bias=True))[::-1]
        scales = variances / variances.mean() + shrinkage(N_IMAGES)
        x, first = (
            est.embed(images, scale)[..., :5].reshape(-1, 5) for est in (few, whole)
        )
        expected = (variances / scales**0.5)[:5]
        np.testing.assert_allclose(x.var(axis=0), expected, rtol=1e-2)
        np.testing.assert_allclose(abs(x), abs(first), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n_images", [1, 2, 1000])
@pytest.mark.parametrize("rank", [0, 1, 3, 8])
def test_no_covariance_gives_what_is_not_finite(n_images, rank):
    rows = np.random.default_rng(SEED).normal(size=(50, 8)) * 10.0 ** -np.arange(8)
    covariance = torch.from_numpy(rows[:, :rank] @ np.eye(rank, 8))
    covariance = covariance.T @ covariance / 50
    matrix = whitening_matrix(covariance, n_images, 8)
    assert matrix.isfinite().all()
    lengths = torch.linalg.svdvals(matrix)
    # What hardly varies does not count without bounds, nor is anything left out.
    assert lengths.max() <= max(shrinkage(n_images) ** -0.25, 1) * 1.001
    assert lengths.min() > 0.5


@pytest.mark.parametrize(
    "images",
    [
        np.full((4, 32, 32, 3), 128, dtype=np.uint8),
        np.arange(2 * 12 * 12 * 3, dtype=np.uint8).reshape(2, 12, 12, 3),
        np.zeros((2, 16, 16), dtype=np.uint8),
    ],
    ids=["constant", "fewer patches than numbers", "black"],
)
@pytest.mark.parametrize("max_iter", [0, 1])
@pytest.mark.filterwarnings("ignore")
def test_little_to_see_is_enough(images, max_iter):
    est = PatchSVDD(max_iter=max_iter, random_state=SEED, device="cpu")
    est.fit(images, groups=None)
    assert all(x.isfinite().all() for x in est.encoder_.embedding)
    assert np.isfinite(est.training_scores_).all()
    noise = np.random.default_rng(SEED).integers(0, 256, images[:1].shape)
    assert est.score_samples(noise.astype(np.uint8)) < est.training_scores_.min()
