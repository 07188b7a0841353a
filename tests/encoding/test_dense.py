import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd._encoding import ProceduralEncoder, dense
from skpatchsvdd._encoding.dense import DenseEncoder
from skpatchsvdd._encoding.modules import make_module_encoder
from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._images import check_images

CPU = torch.device("cpu")


def make_dense(kind, size, strides=None, light=0.3):
    if kind == "procedural":
        encoder = ProceduralEncoder.make_pretrained(3, size)
    elif kind == "module":
        layers = torch.nn.AvgPool2d(4), torch.nn.MaxPool2d(3, 1, 1)
        images = check_images(np.random.default_rng(SEED).random((2, *size, 3)))
        encoder = make_module_encoder(torch.nn.Sequential(*layers), 0, images, CPU)
    else:
        encoder = make_encoder(kind, 3, 8, 64, torch.Generator().manual_seed(SEED))
    center = np.full((1, 1, 1), 0.5, dtype=np.float32)
    return DenseEncoder(encoder, size, center, light, strides or encoder.strides, CPU)


@pytest.mark.parametrize(
    ("kind", "strides", "size", "light"),
    [
        ("hierarchical", (4, 16), (200, 150), 0.3),
        ("hierarchical", (4, 16), (97, 264), 1.0),
        ("hierarchical", (3, 5), (97, 264), 0.3),
        ("hierarchical", (3, 5), (64, 300), 1.0),
        ("procedural", None, (75, 900), 0.3),
        ("module", None, (420, 435), 0.3),
    ],
)
def test_tiles_equal_the_whole(rng, monkeypatch, kind, strides, size, light):
    encoder = make_dense(kind, size, strides, light)
    images = rng.random((2, *size, 3), dtype=np.float32)
    whole = encoder.encode(images)
    monkeypatch.setattr(dense, "_WHOLE_PIXELS", 0)
    monkeypatch.setattr(dense, "_TILE", 48)
    n_tiles = [len(encoder._tiles(slice(None), axis)) for axis in (0, 1)]
    assert max(n_tiles) > 2
    error = 1e-6 if strides else 1e-3  # of longer sums
    for x, y in zip(encoder.encode(images), whole, strict=True):
        torch.testing.assert_close(x, y, atol=error, rtol=10 * error)


def test_large_images_are_encoded_in_small_parts(monkeypatch):
    encoder = make_dense("hierarchical", (1100, 1000), (4, 16))
    seen = []
    [(member, _)] = encoder._members
    original = member.encode_images

    def watch(images, strides):
        seen.append(images.shape[2] * images.shape[3])
        return original(images, strides)

    monkeypatch.setattr(member, "encode_images", watch)
    features = encoder.encode(np.zeros((1, 1100, 1000, 3), dtype=np.float32))
    assert [x.shape[1:3] for x in features] == encoder.grids
    assert len(seen) == 6
    assert max(seen) <= (512 + 63) ** 2
