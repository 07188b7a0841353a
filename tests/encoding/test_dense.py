import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd._encoding import dense as dense_encoding
from skpatchsvdd._encoding.dense import DenseEncoder
from skpatchsvdd._encoding.registry import make_encoder


def make_dense(kind, size, strides, light=0.3):
    encoder = make_encoder(kind, 3, 8, 64, torch.Generator().manual_seed(SEED))
    center = np.full((1, 1, 1), 0.5, dtype=np.float32)
    return DenseEncoder(encoder, size, center, light, strides, torch.device("cpu"))


@pytest.mark.parametrize(
    ("kind", "strides", "size", "light"),
    [
        ("hierarchical", (4, 16), (200, 150), 0.3),
        ("hierarchical", (4, 16), (97, 264), 1.0),
        ("hierarchical", (3, 5), (97, 264), 0.3),
        ("hierarchical", (3, 5), (64, 300), 1.0),
        ("flat", (16,), (200, 150), 1.0),
        ("flat", (16,), (64, 300), 0.3),
    ],
)
def test_tiles_equal_the_whole(rng, monkeypatch, kind, strides, size, light):
    dense = make_dense(kind, size, strides, light)
    images = rng.random((2, *size, 3), dtype=np.float32)
    whole = dense.encode(images)
    monkeypatch.setattr(dense_encoding, "_WHOLE_PIXELS", 0)
    monkeypatch.setattr(dense_encoding, "_TILE", 48)
    n_tiles = [len(dense._tiles(slice(None), axis)) for axis in (0, 1)]
    assert max(n_tiles) > 2
    for x, y in zip(dense.encode(images), whole, strict=True):
        assert x.shape == y.shape
        torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-5)


def test_large_images_are_encoded_in_small_parts(monkeypatch):
    dense = make_dense("hierarchical", (1100, 1000), (4, 16))
    seen = []
    [(encoder, _)] = dense._members
    original = encoder.encode_images

    def watch(images, strides):
        seen.append(images.shape[2] * images.shape[3])
        return original(images, strides)

    monkeypatch.setattr(encoder, "encode_images", watch)
    features = dense.encode(np.zeros((1, 1100, 1000, 3), dtype=np.float32))
    assert [x.shape[1:3] for x in features] == dense.grids
    assert len(seen) == 6
    assert max(seen) <= (512 + 63) ** 2
