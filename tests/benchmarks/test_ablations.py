"""The paper's ablations, which benchmarks alone can run."""

import numpy as np
import pytest
import torch
from reference import encode_patchwise
from settings import SEED

from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd._encoding import ENCODERS
from skpatchsvdd._training import training
from skpatchsvdd.datasets import make_textures


@pytest.fixture
def ablations(benchmarks):
    from paper import ablations

    return ablations


@pytest.fixture(scope="module")
def images():
    return make_textures(5, image_size=72, random_state=SEED).images


@pytest.mark.parametrize("method", ["dense", "paper"])
@pytest.mark.parametrize(
    ("loss", "terms"), [("svdd", {"svdd"}), ("svdd_prime", {"svdd", "scale"})]
)
def test_losses_train_and_score(ablations, images, method, loss, terms):
    way = Training(method=method, batch_size=2)
    est = PatchSVDD(encoder="hierarchical", training=way, max_iter=2)
    with ablations.ablate(loss):
        est.set_params(embedding_dim=8, random_state=SEED).fit(images[:4])
    found = {name.rpartition("_")[0] for name in est.loss_curve_}
    assert found == (terms if method == "dense" else {"svdd"})
    assert np.isfinite(est.score_samples(images[4:])).all()
    assert training.make_objective.__name__ == "make_objective"


@pytest.mark.parametrize(("encoder", "lengths"), [("flat", 8), ("raw", 3 * 64**2)])
def test_encoders_fit_and_score(ablations, images, encoder, lengths):
    est = PatchSVDD(encoder=encoder, max_iter=1, training=Training(batch_size=2))
    with ablations.ablate():
        est.set_params(embedding_dim=8, random_state=SEED).fit(images[:4])
    assert encoder not in ENCODERS
    assert est.encoder_.lengths[-1] == lengths
    assert np.isfinite(est.score_samples(images[4:])).all()
    with pytest.raises(ValueError, match="encoder must be 'auto'"):
        est.fit(images)


@pytest.mark.parametrize("stride", [2, 3, 8, 24])
def test_flat_and_raw_features_of_images_are_those_of_patches(ablations, stride):
    generator = torch.Generator().manual_seed(SEED)
    images = torch.rand(2, 3, 89, 75, generator=generator)
    for cls in (ablations.FlatEncoder, ablations.RawEncoder):
        encoder = cls(3, 8, 64)
        for parameter in encoder.parameters():
            torch.nn.init.normal_(parameter, std=0.05, generator=generator)
        strides = (stride,) * len(encoder.patch_sizes)
        with torch.no_grad():
            maps = encoder.encode_images(images, strides)
            for x, size in zip(maps, encoder.patch_sizes, strict=True):
                expected = encode_patchwise(encoder, images, size, stride)
                torch.testing.assert_close(
                    x.permute(0, 2, 3, 1), expected, atol=5e-5, rtol=0
                )


def test_the_centre_of_svdd_is_the_initial_mean(ablations):
    rows, cols = np.indices((96, 96), dtype=np.float32) / 96
    waves = np.stack([rows, cols, np.sin(9 * rows * cols)], axis=2)[None]
    generator = torch.Generator().manual_seed(SEED)
    encoder = ENCODERS["hierarchical"](3, 8, 32)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    images = torch.from_numpy(waves)
    sampler = training.PairSampler(images, torch.zeros_like(images[0]), generator)
    objective = ablations.SVDDLoss(encoder, sampler, 8)
    with torch.no_grad():
        expected = encoder(ablations._draw_patches(sampler, 512, 32)).mean(dim=0)
    torch.testing.assert_close(objective.centers[0], expected, atol=2e-3, rtol=0)
