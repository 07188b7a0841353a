import itertools
import pickle

import numpy as np
import pytest
import torch
from reference import encode_patchwise
from settings import SEED

from skpatchsvdd._encoding.registry import make_encoder

pytestmark = pytest.mark.wide


def make(kind, patch_size=64, n_channels=3, embedding_dim=8, seed=0):
    generator = torch.Generator().manual_seed(SEED + seed)
    return make_encoder(kind, n_channels, embedding_dim, patch_size, generator)


def make_lively(*args, **kwargs):
    """Make an encoder whose features, unlike those of random weights, differ much."""
    encoder = make(*args, **kwargs)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter *= 2.5
    return encoder


def random_images(n, channels, height, width, seed=0):
    return torch.rand(
        n, channels, height, width, generator=torch.manual_seed(SEED + seed)
    )


def check_dense_equals_patchwise(encoder, images, strides):
    with torch.no_grad():
        dense = encoder.encode_images(images, strides)
    assert len(dense) == len(encoder.patch_sizes)
    for features, size, stride in zip(dense, encoder.patch_sizes, strides, strict=True):
        expected = encode_patchwise(encoder, images, size, stride)
        torch.testing.assert_close(
            features.permute(0, 2, 3, 1), expected, atol=5e-5, rtol=0
        )
        assert expected.std(dim=(0, 1, 2)).max() > 0.02


def test_hierarchical_encoder_has_the_papers_weights():
    encoder = make("hierarchical", embedding_dim=64)
    shapes = [tuple(p.shape) for p in encoder.parameters()]
    channels = [3, 32, 64, 128, 128, 64, 32, 32, 64]
    expected = []
    for n_in, n_out in itertools.pairwise(channels):
        expected += [(n_out, n_in, 3, 3), (n_out,)]
    expected += [(128, 64, 2, 2), (128,), (64, 128, 1, 1), (64,)]
    assert shapes == expected
    assert sum(p.numel() for p in encoder.parameters()) == 401_984


@pytest.mark.parametrize(
    ("patch_size", "strides", "size"),
    [
        (32, (4,), (41, 32)),
        (32, (2,), (33, 47)),
        (32, (3,), (40, 51)),
        (64, (4, 16), (64, 64)),
        (64, (4, 16), (75, 101)),
        (64, (2, 2), (69, 66)),
        (64, (6, 10), (97, 80)),
        (64, (32, 64), (75, 101)),
        (64, (8, 4), (97, 80)),
        (64, (5, 7), (70, 83)),
        (128, (8, 16, 16), (145, 131)),
        (128, (12, 6, 10), (150, 139)),
    ],
)
def test_hierarchical_dense_equals_patchwise(patch_size, strides, size):
    encoder = make_lively("hierarchical", patch_size, n_channels=1)
    check_dense_equals_patchwise(encoder, random_images(2, 1, *size), strides)


def test_last_row_and_column_of_a_patch_are_not_seen():
    patches = random_images(1, 3, 32, 32)
    changed = patches.clone()
    changed[:, :, -1], changed[:, :, :, -1] = 0, 0
    encoder = make("hierarchical", 32)
    assert torch.equal(encoder(patches), encoder(changed))
    changed[:, :, -2] = 0
    assert not torch.equal(encoder(patches), encoder(changed))


def test_several_batches_are_encoded_as_each_alone():
    encoder = make("hierarchical", 128)
    batches = [random_images(3, 3, k, k, seed=k) for k in (64, 32, 128, 32)]
    with torch.no_grad():
        together = encoder.encode_patches(batches)
        for features, batch in zip(together, batches, strict=True):
            torch.testing.assert_close(features, encoder(batch), atol=1e-6, rtol=0)


def test_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    weights = [make("hierarchical", seed=seed).small[0].weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(before, torch.random.get_rng_state())


def test_initial_weights_are_distributed_as_torchs_own():
    ours = make("hierarchical", embedding_dim=64).small[3]
    torchs = torch.nn.Conv2d(128, 128, 3)
    for name in ("weight", "bias"):
        a, b = (getattr(layer, name).detach() for layer in (ours, torchs))
        assert a.abs().max().item() == pytest.approx(b.abs().max().item(), rel=0.05)
        assert a.std().item() == pytest.approx(b.std().item(), rel=0.2)


def test_pickled_encoder_holds_arrays_and_the_same_weights():
    encoder = make("hierarchical", 128)
    _, (_, _, arrays) = encoder.__reduce__()
    assert all(type(array) is np.ndarray for array in arrays)
    copy = pickle.loads(pickle.dumps(encoder))
    patches = random_images(2, 3, 128, 128)
    assert torch.equal(encoder(patches), copy(patches))
