import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd import _inspection
from skpatchsvdd._bank import collect_banks
from skpatchsvdd._device import halve_without_memory
from skpatchsvdd._encoder import make_encoder
from skpatchsvdd._images import list_digests, stack_images
from skpatchsvdd._inspection import DenseEncoder, Inspector
from skpatchsvdd._neighbors import ExactIndex


def make_dense(kind, size, strides, light=0.3):
    encoder = make_encoder(kind, 3, 8, 64, torch.Generator().manual_seed(SEED))
    center = np.full((1, 1, 1), 0.5, dtype=np.float32)
    return DenseEncoder(encoder, size, center, light, strides, torch.device("cpu"))


@pytest.mark.parametrize(
    ("kind", "strides"),
    [("hierarchical", (4, 16)), ("hierarchical", (3, 5)), ("flat", (16,))],
)
@pytest.mark.parametrize("size", [(200, 150), (97, 264), (64, 300)])
@pytest.mark.parametrize("light", [0.3, 1.0])
def test_tiles_equal_the_whole(rng, monkeypatch, kind, strides, size, light):
    dense = make_dense(kind, size, strides, light)
    images = rng.random((2, *size, 3), dtype=np.float32)
    whole = dense.encode(images)
    monkeypatch.setattr(_inspection, "_WHOLE_PIXELS", 0)
    monkeypatch.setattr(_inspection, "_TILE", 48)
    n_tiles = [len(dense._tiles(axis)) for axis in (0, 1)]
    assert max(n_tiles) > 2
    for x, y in zip(dense.encode(images), whole, strict=True):
        assert x.shape == y.shape
        torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-5)


def test_large_images_are_encoded_in_small_parts(monkeypatch):
    dense = make_dense("hierarchical", (1100, 1000), (4, 16))
    seen = []
    original = dense._encoder.encode_images

    def watch(images, strides):
        seen.append(images.shape[2] * images.shape[3])
        return original(images, strides)

    monkeypatch.setattr(dense._encoder, "encode_images", watch)
    features = dense.encode(np.zeros((1, 1100, 1000, 3), dtype=np.float32))
    assert [x.shape[1:3] for x in features] == dense.grids
    assert len(seen) == 6
    assert max(seen) <= (512 + 63) ** 2


def test_half_the_size_where_memory_runs_out(monkeypatch):
    sizes = []

    def call(size):
        sizes.append(size)
        if size > 3:
            raise torch.cuda.OutOfMemoryError
        return size

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert halve_without_memory(call, 16) == 2
    assert sizes == [16, 8, 4, 2]


def test_memory_that_is_not_enough_for_one_is_an_error(monkeypatch):
    def call(size):
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        halve_without_memory(call, 4)


class LooseIndex:
    """Exact distances, of which it first tells some that are too large."""

    gives_bounds = True

    def __init__(self, index, rng):
        self.index, self.rng = index, rng
        self.n_asked = self.n_decided = 0

    def query(self, features, places):
        exact = self.index.query(features, places)
        self.n_asked += exact.numel()
        loose = self.rng.choice(
            [1, 1.2, 2, 30], p=[0.9, 0.05, 0.04, 0.01], size=exact.shape
        )
        return exact * torch.from_numpy(loose.astype(np.float32))

    def decide(self, features, place):
        self.n_decided += len(features)
        return self.index.query(features[None], [place])[0]


@pytest.mark.parametrize("aggregation", ["multiply", "sum"])
@pytest.mark.parametrize("tolerance", [0.0, 0.5])
@pytest.mark.parametrize("is_loose", [(True, True), (True, False)])
def test_scores_of_loose_distances_are_certain(rng, aggregation, tolerance, is_loose):
    dense = make_dense("hierarchical", (160, 128), (4, 16))
    images = stack_images(rng.random((6, 160, 128, 3), dtype=np.float32))
    banks = collect_banks(dense, images.take([0, 1]), [0, 0], None, np.random)
    exact = [ExactIndex(bank) for bank in banks]
    loose = [
        LooseIndex(index, rng) if flag else index
        for index, flag in zip(exact, is_loose, strict=True)
    ]
    known = list_digests(images.take([0, 1]))
    expected = Inspector(dense, exact, known, 0, aggregation, [0, 0]).scores(images)
    inspector = Inspector(dense, loose, known, 0, aggregation, [0, 0], tolerance)
    scores = inspector.scores(images)
    if tolerance == 0:
        np.testing.assert_allclose(scores, expected, rtol=1e-6)
    else:
        # Too abnormal by up to the tolerance, and with less work.
        assert (scores >= (1 + tolerance) * expected).all()
        assert (scores <= expected * (1 - 1e-6)).any()
    assert loose[0].n_decided < 0.7 * loose[0].n_asked
    maps = np.concatenate(list(inspector.maps(images)))
    top = -maps.max(axis=(1, 2))
    assert (top >= (1 + tolerance + 1e-6) * expected).all()
    assert (top <= (1 - 1e-6) * expected).all()
