"""Models of others as encoders."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from skpatchsvdd import PatchSVDD
from skpatchsvdd.encoders import (
    Function,
    Normalized,
    Stages,
    Tokens,
    from_timm,
    from_torchvision,
)

SEED = 0


def every_fourth(images):
    """Features that no network makes."""
    assert images.ndim == 4
    return [images[:, 2::4, 2::4], images[:, 4::8, 4::8]]


class Classifier(nn.Module):
    """Two stages, and a head that takes images of 32 x 32 alone."""

    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Conv2d(4, 6, 2, 2))
        self.unused = nn.Identity()
        self.head = nn.Linear(6 * 16, 2)

    def forward(self, x):
        return self.head(self.stages(x).flatten(1))


class Transformer(nn.Module):
    """Tokens of patches of 8 pixels, after a class token and a register."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 5, 8, 8)
        self.first = nn.Parameter(torch.zeros(1, 2, 5))
        self.block = nn.Identity()

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.block(torch.cat([self.first.expand(len(x), -1, -1), x], dim=1))


class LikeTimm(Classifier):
    """What timm's models offer."""

    pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}  # noqa: RUF012

    def forward_intermediates(self, x, indices, intermediates_only, output_fmt):
        assert intermediates_only
        assert output_fmt == "NCHW"
        first = self.stages[0](x)
        maps = [first, self.stages[1](first)]
        return maps if indices is None else [maps[i] for i in indices]


@pytest.fixture
def images():
    return np.random.RandomState(SEED).rand(3, 48, 40, 3).astype(np.float32)


def as_tensor(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def fit(encoder, images):
    """Fit, and see that a pickle scores the same."""
    est = PatchSVDD(encoder=encoder, device="cpu", random_state=SEED).fit(images)
    loaded = pickle.loads(pickle.dumps(est))
    assert (loaded.score_samples(images) == est.score_samples(images)).all()
    return est


def test_normalized(images):
    module = Normalized(nn.Identity(), [0.5, 0.4, 0.3], [0.5, 0.25, 1])
    found = module(as_tensor(images)).permute(0, 2, 3, 1).numpy()
    expected = (images - [0.5, 0.4, 0.3]) / [0.5, 0.25, 1]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert module(torch.rand(2, 1, 8, 8)).shape == (2, 3, 8, 8)  # grey images
    assert set(module.state_dict()) == {"mean", "std"}
    with pytest.raises(ValueError, match="std above 0"):
        Normalized(nn.Identity(), 0.5, 0)


def test_stages_end_before_the_head(images):
    model = Classifier()
    found = Stages(model, ["stages.1", "stages.0"])(as_tensor(images))
    assert [tuple(x.shape) for x in found] == [(3, 6, 6, 5), (3, 4, 12, 10)]
    assert not model.stages[0]._forward_hooks
    est = fit(from_torchvision(model, ["stages.0", "stages.1"]), images)
    assert est.patch_sizes_ == (12, 24)


def test_wrong_stages_are_named(images):
    with pytest.raises(ValueError, match=r"names must be layers.*'stages'.*'layer1'"):
        Stages(Classifier(), ["layer1"])
    with pytest.raises(ValueError, match="names must be layers"):
        Stages(Classifier(), [])
    x = as_tensor(images)[:, :, :32, :32]
    model = Classifier()
    with torch.no_grad(), pytest.raises(ValueError, match=r"unused.*not called"):
        Stages(model, ["unused"])(x)


def test_stages_in_threads(images):
    module = Stages(Classifier(), ["stages.0"]).eval()
    x = as_tensor(images)
    with torch.no_grad():
        expected = [module(x[i : i + 1])[0] for i in range(3)]

        def run(i):
            with torch.no_grad():
                return module(x[i % 3 : i % 3 + 1])[0]

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(run, range(30)))
    assert all(torch.equal(x, expected[i % 3]) for i, x in enumerate(found))


def test_tokens(images):
    model = Transformer()
    module = Tokens(model, patch_size=8, skip=2)
    (found,) = module(as_tensor(images))
    torch.testing.assert_close(found, model.embed(as_tensor(images)))
    est = fit(Tokens(Stages(model, "block"), 8, skip=2), images)
    assert est.strides_ == (8,)
    with pytest.raises(ValueError, match=r"should be \(n, 1 \+ 6 x 5, length\)"):
        PatchSVDD(encoder=Tokens(model, 8), device="cpu").fit(images)


def test_function(images):
    est = fit(Function(every_fourth), images)
    assert est.strides_ == (4, 8)
    with pytest.raises(TypeError, match="callable"):
        Function(3)


@pytest.mark.parametrize("indices", [None, [1]])
def test_models_like_those_of_timm(images, indices):
    module = from_timm(LikeTimm(), indices)
    assert module.mean.flatten().tolist() == [0.5] * 3
    est = fit(module, images)
    assert est.strides_ == ((4, 8) if indices is None else (8,))
    with pytest.raises(ValueError, match="Use Stages"):
        from_timm(Classifier())


def test_timm(images):
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", pretrained=False)
    est = fit(from_timm(model, [1, 2]), images)
    assert est.strides_ == (4, 8)
    model = timm.create_model("resnet10t", pretrained=False, features_only=True)
    assert len(from_timm(model)(as_tensor(images))) == 5


def test_torchvision(images):
    models = pytest.importorskip("torchvision.models")
    est = fit(from_torchvision(models.resnet18(), ["layer1", "layer2"]), images)
    assert est.strides_ == (4, 8)
