"""A user's own torch module as the encoder."""

import pickle
import threading

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

import skpatchsvdd
from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd._encoding import ProceduralEncoder
from skpatchsvdd._encoding.modules import LENGTH, AxesSum, make_module_encoder
from skpatchsvdd._images import check_images
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.model_selection import SyntheticDefectScorer

SEED = 0
CPU = torch.device("cpu")


class Net(nn.Module):
    """Two maps, at every fourth and eighth pixel."""

    def __init__(self, n_channels=3, seed=SEED, length=6):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Conv2d(n_channels, length, 4, 4)
        self.second = nn.Conv2d(length, 2 * length, 2, 2)
        self.norm = nn.BatchNorm2d(2 * length)
        for p in (*self.first.parameters(), *self.second.parameters()):
            nn.init.uniform_(p, -0.5, 0.5, generator=generator)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return x, self.norm(self.second(x))


@pytest.fixture(scope="module")
def images():
    train = make_textures(4, image_size=50, random_state=SEED, kind="gear").images
    test = make_textures(3, image_size=50, random_state=1, kind="gear").images
    return train, test


@pytest.fixture(scope="module")
def fitted(images):
    return PatchSVDD(encoder=Net(), random_state=SEED, device="cpu").fit(images[0])


def test_maps_become_scales(fitted, images):
    assert fitted.scales_ == ("module0.map0", "module0.map1")
    assert fitted.patch_sizes_ == (12, 24)
    assert fitted.strides_ == (4, 8)
    assert set(fitted.bank_size_) == set(fitted.scales_)
    assert fitted.n_iter_ == 0
    maps = [fitted.anomaly_map(images[1], scale=x) for x in fitted.scales_]
    assert maps[0].shape == images[1].shape[:3]
    assert fitted.embed(images[1], "module0.map1").shape == (3, 4, 4, 12)
    with pytest.raises(ValueError, match=r"scale must be one of \('module0.map0'"):
        fitted.anomaly_map(images[1], scale=12)


def test_a_fit_is_repeatable(fitted, images):
    again = clone(fitted).fit(images[0])
    assert (again.score_samples(images[1]) == fitted.score_samples(images[1])).all()
    assert (fitted.predict(images[0]) == fitted.fit_predict(images[0])).all()


def test_the_module_is_left_as_it_is(images):
    module = Net().train()
    before = {k: x.clone() for k, x in module.state_dict().items()}
    est = PatchSVDD(encoder=module, device="cpu").fit(images[0])
    assert module.training
    assert all(x.requires_grad for x in module.parameters())
    assert all(torch.equal(x, before[k]) for k, x in module.state_dict().items())
    assert est.encoder is module
    score = est.score_samples(images[1])
    with torch.no_grad():
        module.first.weight.zero_()  # what is fitted is a copy
    assert (est.score_samples(images[1]) == score).all()
    assert not any(x.requires_grad for x in est.encoder_.parameters())


@pytest.mark.parametrize(
    "others", [["procedural"], ["hierarchical"], ["hierarchical", "procedural"]]
)
def test_modules_stand_beside_other_encoders(images, others):
    est = PatchSVDD(
        encoder=[Net(), *others],
        max_iter=1,
        training=Training(batch_size=1),
        patch_size=32,
        device="cpu",
    )
    est.fit(images[0])
    assert est.n_iter_ == ("hierarchical" in others)
    names = ("hierarchical" in others) * (32,)
    own, known = ("module0.map0", "module0.map1"), ProceduralEncoder.scales(50)
    if "hierarchical" in others:  # whose patches are of 32 pixels, too
        known = tuple(f"procedural.{k}" for k in known)
    assert est.scales_ == names + own + ("procedural" in others) * known
    assert len(est.patch_sizes_) == len(est.strides_) == len(est.scales_)
    assert np.isfinite(est.score_samples(images[1])).all()


def test_scales_of_equal_size_are_told_apart(images):
    est = PatchSVDD(encoder=[Net(), "procedural", Net(seed=1)], device="cpu")
    est.fit(images[0])
    known = ProceduralEncoder.scales(50)
    assert est.patch_sizes_ == (12, 24, *known, 12, 24)
    n_scales = 4 + len(known)
    assert len(set(est.scales_)) == n_scales
    assert len(est.bank_size_) == len(est.usual_distances_) == n_scales
    named = [x for x in est.scales_ if str(x).endswith("map1")]
    one, other = (est.anomaly_map(images[1], scale=x) for x in named)
    assert not np.allclose(one, other)


def test_a_feature_is_the_mean_over_its_patch(images):
    module = nn.AvgPool2d(4)
    stack = check_images(images[0])
    encoder = make_module_encoder(module, 0, stack, CPU)
    assert (encoder.patch_sizes, encoder.strides) == ((12,), (4,))
    pixels = torch.tensor(images[0][:1]).permute(0, 3, 1, 2).float() / 255
    features = encoder.encode_images(pixels, encoder.strides)[0]
    for i, j in ((0, 0), (3, 5), (9, 9)):
        patch = pixels[0, :, 4 * i : 4 * i + 12, 4 * j : 4 * j + 12]
        torch.testing.assert_close(features[0, :, i, j], patch.mean(dim=(1, 2)))
    finest = make_module_encoder(nn.Identity(), 0, stack, CPU)
    assert (finest.patch_sizes, finest.strides) == ((12,), (4,))


def test_cells_need_not_divide_images(images):
    """As of a function that resizes, or of patches of 14 pixels."""
    stack = check_images(images[0])
    encoder = make_module_encoder(nn.AdaptiveAvgPool2d(7), 0, stack, CPU)
    assert encoder.multiple == 1
    pixels = torch.zeros(1, 3, 50, 50)
    pixels[:, :, 20:35, 20:35] = 1
    features = encoder.encode_images(pixels, encoder.strides)[0][0, 0]
    grid = tuple((50 - encoder.patch_sizes[0]) // encoder.strides[0] + 1 for _ in "hw")
    assert tuple(features.shape) == grid
    row, col = np.unravel_index(int(features.argmax()), grid)
    middle = encoder.strides[0] * np.array([row, col]) + encoder.patch_sizes[0] / 2
    assert (abs(middle - 27.5) < encoder.strides[0]).all()


def test_long_features_become_short(images):
    est = PatchSVDD(encoder=Net(length=200), device="cpu").fit(images[0])
    assert est.embed(images[1], "module0.map0").shape[3] == LENGTH


def test_axes_keep_the_order_of_variances():
    rng = np.random.RandomState(SEED)
    x = torch.from_numpy(rng.randn(500, 3) * [1, 16, 0]) + 5
    sums = AxesSum()
    sums.add(x[:200])
    sums.add(x[200:])
    mean, axes = sums.result()
    found = ((x.numpy() - mean) @ axes).std(axis=0)
    assert mean == pytest.approx(x.mean(dim=0).numpy())
    # Deviations 16 and 1 become 4 and 1, about: closer, but not equal.
    assert 3 < found[2] / found[1] < 7
    assert found[0] == pytest.approx(0, abs=1e-6)
    constant = AxesSum()
    constant.add(torch.ones(5, 4))
    assert np.isfinite(constant.result()[1]).all()


def test_fitted_modules_are_pickled_and_joined(fitted, images, tmp_path):
    loaded = pickle.loads(pickle.dumps(fitted))
    expected = fitted.score_samples(images[1])
    assert (loaded.score_samples(images[1]) == expected).all()
    more = pickle.loads(pickle.dumps(fitted)).partial_fit(images[1])
    loaded.join([more])
    assert len(loaded.training_scores_) == 7
    other = PatchSVDD(encoder=Net(seed=5), device="cpu", random_state=SEED)
    with pytest.raises(ValueError, match="another weight in its encoder"):
        fitted.join([other.fit(images[0])])


def test_searches_over_modules(images):
    sequence = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU())
    search = GridSearchCV(
        PatchSVDD(device="cpu"),
        {"encoder": [Net(), sequence, [Net(), "procedural"]]},
        scoring=SyntheticDefectScorer(1, random_state=SEED),
        cv=2,
        error_score="raise",
    )
    search.fit(images[0])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(search.cv_results_["param_encoder"]) == 3


def test_roi_and_groups(images):
    roi = np.zeros((50, 50))
    roi[:30, :30] = 1
    est = PatchSVDD(encoder=Net(), roi=roi, device="cpu")
    est.fit(images[0], groups=[0, 0, 1, 1])
    assert est.calibrates_.all()
    changed = images[1].copy()
    changed[:, 40:] = 0
    maps, other = est.anomaly_map(images[1]), est.anomaly_map(changed)
    assert (maps == other).all()


# What does not fit, and what is said about it.


class Bad(nn.Module):
    """A module that does something wrong with images."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    def forward(self, x):
        return self.wrong(x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        self.n += 1
        return x


class AlwaysTraining(nn.Module):
    def train(self, mode=True):
        return super().train(True)

    def forward(self, x):
        return x


class Locked(nn.Identity):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


BAD = {
    "no tensor": (Bad(lambda x: None), "it returns a NoneType"),
    "no maps": (Bad(lambda x: []), "it returns a list"),
    "a list of arrays": (Bad(lambda x: [x.numpy()]), "map 0 is a ndarray"),
    "logits": (Bad(lambda x: x.mean(dim=(2, 3))), r"map 0 has shape \(2, 3\)"),
    "tokens": (Bad(lambda x: x.flatten(2)), "encoders.Tokens makes maps"),
    "one cell": (nn.AdaptiveAvgPool2d(1), "1 x 1 cells for images of 50 x 50"),
    "another batch": (Bad(lambda x: x[:1]), "is of 1 images, for 2"),
    "integers": (Bad(lambda x: x.long()), "is of torch.int64"),
    "NaN": (Bad(lambda x: x / 0 - x / 0), "NaN or infinite"),
    "no numbers": (Bad(lambda x: x[:, :0]), "features of 0 numbers"),
    "another device": (Bad(lambda x: x.to("meta")), "is on meta, and the images"),
    "an error": (Bad(lambda x: x.no_such_thing), "fails on images of shape.*Attribute"),
    "channels": (nn.Conv2d(4, 2, 4, 4), r"fails on images of shape \(2, 3, 50, 50\)"),
    "chance": (Bad(torch.rand_like), "when it is called again"),
    "a size by batch": (
        Bad(lambda x: nn.functional.avg_pool2d(x, 3 + len(x))),
        "another one beside it",
    ),
    "batch statistics": (
        nn.BatchNorm2d(3, track_running_stats=False),
        "another one beside it",
    ),
    "own weights": (Counting(), "changes its own weights or buffers"),
    "images": (Bad(lambda x: x.mul_(2)), "changes the images"),
    "training mode": (AlwaysTraining(), "stays in training mode"),
    "meta device": (nn.Conv2d(3, 4, 4, 4, device="meta"), "on the meta device"),
    "lazy weights": (nn.LazyConv2d(4, 4, 4), "not initialised"),
    "a lock": (Locked(), "cannot be copied: TypeError"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_modules_are_refused(images, name):
    module, message = BAD[name]
    with pytest.raises(ValueError, match=f"(?s)encoder .*{message}"):
        PatchSVDD(encoder=module, device="cpu").fit(images[0])


@pytest.mark.parametrize("encoder", [np.mean, [Net(), np.mean], 3.5, Net])
def test_what_is_no_module_is_refused(images, encoder):
    with pytest.raises((ValueError, TypeError), match="encoder"):
        PatchSVDD(encoder=encoder, device="cpu").fit(images[0])


def test_a_module_stands_once_in_a_list(images):
    module = Net()
    with pytest.raises(ValueError, match="each of them once"):
        PatchSVDD(encoder=[module, module], device="cpu").fit(images[0])


def test_a_failed_fit_changes_nothing(fitted, images):
    est = pickle.loads(pickle.dumps(fitted))
    expected = est.score_samples(images[1])
    est.set_params(encoder=BAD["NaN"][0])
    with pytest.raises(ValueError, match="NaN"):
        est.fit(images[0])
    assert (est.score_samples(images[1]) == expected).all()


# Files of models.


class Another(Net):
    """The same weights, used in another way."""

    def forward(self, x):
        return [1 - y for y in super().forward(x)]


@pytest.mark.parametrize("others", [[], ["procedural"]])
def test_files_hold_no_module(images, tmp_path, others):
    path = tmp_path / "part.model"
    est = PatchSVDD(encoder=[Net(), *others], device="cpu", random_state=SEED)
    est.fit(images[0]).save(path)
    loaded = skpatchsvdd.load(path, encoder=Net())
    assert (loaded.score_samples(images[1]) == est.score_samples(images[1])).all()
    assert loaded.scales_ == est.scales_
    assert isinstance(loaded.encoder[0], Net)
    assert loaded.encoder[1:] == others
    loaded.save(path)
    again = skpatchsvdd.load(path, encoder=[Net(), *others])
    assert clone(again).fit(images[0]).offset_ == est.offset_


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"a module of yours, Net, with 618 weights.*encoder=module"),
        (Net(seed=3), "other weights"),
        (Another(), "makes other features"),
        ([Net(), Net(seed=1)], "holds 2 modules, and the model was fitted with 1"),
    ],
)
def test_other_modules_are_refused_with_a_file(fitted, tmp_path, given, message):
    path = tmp_path / "part.model"
    fitted.save(path)
    with pytest.raises(ValueError, match=f"(?s)part.model cannot be loaded.*{message}"):
        skpatchsvdd.load(path, encoder=given)


def test_a_module_is_not_asked_for_in_vain(images, tmp_path):
    path = tmp_path / "part.model"
    PatchSVDD(encoder="procedural", device="cpu").fit(images[0]).save(path)
    with pytest.raises(ValueError, match="holds 1 modules"):
        skpatchsvdd.load(path, encoder=Net())
