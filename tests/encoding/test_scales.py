"""Where the features of "procedural" come from, against plain loops."""

import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd._encoding import ProceduralEncoder, grid_shape
from skpatchsvdd._encoding.procedural import MARGIN, TILE_STEP
from skpatchsvdd._encoding.scales import _WIDTHS as WIDTHS
from skpatchsvdd._encoding.scales import SCALES, STEPS, take_patches, zoom_images


def resize_slowly(row, zoom):
    """Resize an axis: each pixel is a mean of those near, by triangular weights."""
    width, resized = max(1 / zoom, 1), []
    for i in range(max(int(len(row) * zoom), 1)):
        middle = (i + 0.5) / zoom - 0.5
        weights = [max(1 - abs(j - middle) / width, 0) for j in range(len(row))]
        resized.append(np.average(row, axis=0, weights=weights))
    return np.array(resized)


def average_slowly(cells, patch_size, length):
    """For each patch the mean of cells, squares continued by their edges."""
    stage, zoom, stride, _ = SCALES[patch_size]
    sums = np.cumsum([0, *np.pad(cells, 9, mode="edge")])  # cell i ends at i + 1/2
    ends = np.arange(len(sums)) - 9.5
    means = []
    for start in range(0, length - patch_size + 1, stride):
        middle = zoom * (start + patch_size / 2) - 0.5  # in pixels of the zoomed image
        reach = np.array([-0.5, 0.5]) * WIDTHS[stage]
        first, last = np.interp(middle / STEPS[stage] + reach, ends, sums)
        means.append((last - first) / WIDTHS[stage])
    return np.array(means)


@pytest.mark.parametrize("zoom", [1, 2, *sorted({x.zoom for x in SCALES.values()})])
@pytest.mark.parametrize("shape", [(13, 20), (1, 2), (12, 12)])
def test_images_are_zoomed(rng, zoom, shape):
    images = rng.random((2, 3, *shape), dtype=np.float32)
    found = zoom_images(torch.from_numpy(images), zoom)
    by_rows = resize_slowly(images.transpose(2, 0, 1, 3), zoom)
    expected = resize_slowly(by_rows.transpose(3, 1, 2, 0), zoom).transpose(1, 2, 3, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", SCALES)
@pytest.mark.parametrize("more", [0, 5, 77])
def test_features_are_means_over_the_middle_of_a_patch(rng, size, more):
    stage, zoom, stride, _ = SCALES[size]
    shape = size + more, size + 13
    n_cells = [-(-int(zoom * length) // STEPS[stage]) for length in shape]
    down, across = (rng.random(n) for n in n_cells)
    cells = torch.from_numpy(np.outer(down, across).astype(np.float32))
    found = take_patches(cells[None, None], size, shape)[0, 0]
    rows, cols = (
        average_slowly(x, size, length)
        for x, length in zip((down, across), shape, strict=True)
    )
    assert found.shape == grid_shape(shape, size, stride)
    np.testing.assert_allclose(found, np.outer(rows, cols), rtol=1e-4, atol=1e-5)


def test_a_shifted_image_has_shifted_features(rng):
    length = 2 * MARGIN + 2 * TILE_STEP + max(SCALES)
    images = torch.from_numpy(rng.random((1, 3, 70, length), dtype=np.float32))
    encoder = ProceduralEncoder.make_pretrained(3, images.shape[2:])
    whole, part = (
        encoder.encode_pretrained(x) for x in (images, images[..., TILE_STEP:])
    )
    for a, b, stride in zip(whole, part, encoder.strides, strict=True):
        first = MARGIN // stride
        b = b[..., first:]
        a = a[..., first + TILE_STEP // stride :]
        assert b.shape[3] > 0
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-3)


def test_a_feature_does_not_depend_on_what_is_far(rng):
    """Nothing farther than the margin counts; what is in the patch does."""
    length = MARGIN + 2 * max(SCALES)
    images = torch.from_numpy(rng.random((1, 3, 70, length), dtype=np.float32))
    changed = images.clone()
    changed[..., -max(SCALES) :] = 0
    encoder = ProceduralEncoder.make_pretrained(3, images.shape[2:])
    pairs = (encoder.encode_pretrained(x) for x in (images, changed))
    for size, stride, a, b in zip(SCALES, encoder.strides, *pairs, strict=True):
        n_same = (length - max(SCALES) - MARGIN - size) // stride + 1
        torch.testing.assert_close(a[..., :n_same], b[..., :n_same])
        assert (a[..., -1] - b[..., -1]).abs().max() > 0.1


def test_what_inspection_has_computed_can_be_trained_with():
    """What is kept from one call to the next is no matrix of inference mode."""
    size = max(SCALES) + 3  # of no other test
    encoder = ProceduralEncoder.make_pretrained(3, (size, size))
    images = torch.rand(
        (1, 3, size, size), generator=torch.Generator().manual_seed(SEED)
    )
    with torch.inference_mode():
        encoder.encode_pretrained(images)
    images.requires_grad_(True)
    sum(x.square().mean() for x in encoder.encode_pretrained(images)).backward()
    assert images.grad.abs().sum() > 0
