"""The comparison in the estimator: it changes maps, and nothing else goes wrong."""

import copy
import hashlib
import pickle
from importlib.resources import files

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from settings import SEED
from torch import nn

from skpatchsvdd import Inspection, PatchSVDD, load
from skpatchsvdd._comparison import arrange, read_comparison
from skpatchsvdd._encoding import procedural
from skpatchsvdd._scoring.inspect import encode_each, search
from skpatchsvdd.datasets import make_textures

SHA256 = "0dc4f5be0006549114d54f857057c223c860da0dbfa26b7e7a02e27055f3f628"
# Logits of a fixed picture, at its middle, told that all is usual and then not.
EXPECTED = (-6.040, -0.948)
WEIGHT = 0.07


@pytest.fixture(scope="module")
def images():
    return make_textures(9, image_size=64, kind="gear", random_state=SEED).images


@pytest.fixture(scope="module")
def damaged():
    return make_textures(
        6, image_size=64, kind="gear", anomaly_fraction=0.5, random_state=SEED + 1
    )


def make(weight=WEIGHT, **params):
    inspection = Inspection(comparison_weight=weight)
    base = {"encoder": "procedural", "random_state": SEED, "device": "cpu"}
    return PatchSVDD(inspection=inspection, **base | params)


@pytest.fixture(scope="module")
def fitted(images):
    return make().fit(images)


@pytest.fixture
def est(fitted):
    return copy.deepcopy(fitted)


def test_weights_are_those_the_page_is_about():
    file = files("skpatchsvdd._comparison").joinpath("comparison.safetensors")
    content = file.read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    _, page = read_comparison()
    assert page["command"].startswith("benchmarks/pretrain_comparison.py --")
    assert len(content) + len(procedural.WEIGHTS.read_bytes()) < 8.5e6


def test_answers_about_a_fixed_picture():
    network, _ = read_comparison()
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    picture = torch.stack([(x / 63), (y / 63), torch.sin(x * y / 300) / 2 + 0.5])[None]
    even = torch.tensor([0.0, 0.7, -0.7, 0.0]).view(1, 4, 1, 1).repeat(1, 1, 16, 16)
    odd = even.clone()
    odd[:, [0, 2], 6:10, 6:10] += 1.5
    for scale, expected in zip((even, odd), EXPECTED, strict=True):
        logits = network(picture, [scale] * 4)
        assert float(logits[0, 0, 32, 32]) == pytest.approx(expected, abs=0.02)


def test_a_map_is_multiplied_by_a_power_of_the_odds_of_damage(est, images, damaged):
    plain = make(0).fit(images)
    bank, image = est._on_device(), damaged.images[-1:]
    encoded = next(encode_each(est._check_scored_images(image), bank))
    compared = search(encoded, bank, bank.scales)
    scales = []
    cuts = zip(est.patch_sizes_, est.strides_, strict=True)
    for k, (size, stride) in enumerate(cuts):
        measures = compared.distances[k], compared.variation[k], bank.typical[k]
        scales.append(arrange(*measures, size, stride, (64, 64)))
    pixels = torch.from_numpy(image).permute(0, 3, 1, 2) / 255
    picture = (255 * F.avg_pool2d(pixels, 2) + 0.01).round() / 255
    with torch.inference_mode():
        logits = read_comparison()[0](picture, scales).clamp(-8, 8)
    logits = F.interpolate(logits, (64, 64), mode="bilinear", align_corners=False)
    power = WEIGHT * len(est.patch_sizes_)
    expected = plain.anomaly_map(image) * np.exp(power * logits[:, 0].numpy())
    found = est.anomaly_map(image)
    np.testing.assert_allclose(found, expected, rtol=0.01)
    # The score comes from relative distances alone.
    plain.set_params(inspection__relative_weight=1.0).fit(images)
    relative = plain.anomaly_map(image) * np.exp(power * logits[:, 0].numpy())
    largest = np.sort(relative, axis=None)[-400:].mean()
    score = np.sqrt(largest * -plain.score_samples(image)[0])
    assert -est.score_samples(image)[0] == pytest.approx(score, rel=1e-5)
    (mask,) = est.predict_mask(image)
    expected = (logits[0, 0].numpy() > 0) & (found[0] > -est.offset_ / 2)
    assert expected.any()
    assert (mask == expected).mean() > 0.998


def test_training_images_are_compared_as_new_ones(est, images):
    np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)
    others = make().fit(np.delete(images, 3, axis=0))
    # What is typical of all differs by one image.
    ratio = others.score_samples(images[3:4])[0] / est.training_scores_[3]
    assert 0.5 < ratio < 2


def find_f1(est, damaged):
    maps, masks = est.anomaly_map(damaged.images), damaged.masks
    order = np.argsort(-maps, axis=None)
    hits = masks.ravel()[order].cumsum()
    return (2 * hits / (np.arange(1, masks.size + 1) + masks.sum())).max()


def test_maps_follow_defects(est, images, damaged):
    assert find_f1(est, damaged) > find_f1(make(0).fit(images), damaged) + 0.03


def test_it_is_saved_and_copied(est, damaged, tmp_path):
    expected = est.score_samples(damaged.images)
    est.save(tmp_path / "part.model")
    for other in (load(tmp_path / "part.model"), pickle.loads(pickle.dumps(est))):
        np.testing.assert_array_equal(other.score_samples(damaged.images), expected)


def test_more_images_and_copies_of_it_join(images, damaged):
    normal = damaged.images[damaged.labels == 1]
    est = make().fit(images)
    copies = [copy.deepcopy(est).partial_fit(x[None]) for x in normal[:2]]
    joined = copy.deepcopy(est).join(copies)
    grown = est.partial_fit(normal[:2])
    assert len(grown._fitted.pictures) == len(images) + 2
    np.testing.assert_array_equal(joined._fitted.pictures, grown._fitted.pictures)
    for x in (joined, grown):
        found = x.score_samples(np.concatenate([images, normal[:2]]))
        np.testing.assert_allclose(x.training_scores_, found, rtol=1e-5)


@pytest.mark.parametrize("bank_size", [None, 0.4])
def test_known_defects_count(images, damaged, bank_size):
    est = make(bank_size=bank_size).fit(images)
    defects = damaged.images[damaged.labels == -1]
    before = est.training_scores_
    est.partial_fit(defects[:2], y=[-1, -1])
    assert (est.training_scores_ <= before).all()
    if bank_size is None:  # all of their patches are there
        np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)
        # Up to the threshold that there would be without the highest of these.
        assert (est.score_samples(defects[:2]) < np.sort(before)[1]).all()


def test_what_lies_outside_of_a_region_of_interest_does_not_count(images):
    roi = np.zeros((64, 64), dtype=bool)
    roi[8:56, 8:56] = True
    est = make(roi=roi).fit(images)
    changed = images[:2].copy()
    changed[:, ~roi] = 255 - changed[:, ~roi]
    maps = est.anomaly_map(changed)
    assert (maps[:, ~roi] == 0).all()
    others = images[:2].copy()
    others[:, ~roi] = 7
    np.testing.assert_array_equal(est.anomaly_map(others), maps)


@pytest.mark.parametrize("n_channels", [1, 2, 4])
def test_images_of_any_number_of_channels(images, n_channels):
    X = np.concatenate([images, images[..., ::-1]], axis=3)[..., :n_channels]
    est = make().fit(X)
    np.testing.assert_array_equal(est.score_samples(X), est.training_scores_)


class Gradients(nn.Module):
    def forward(self, x):
        x = x.mean(dim=1, keepdim=True)
        across, down = x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]
        x = torch.cat([x[..., 1:, 1:], across[..., 1:, :], down[..., 1:]], dim=1)
        return F.avg_pool2d(x.abs(), 4, ceil_mode=True)


@pytest.mark.parametrize(
    "params",
    [
        {"encoder": Gradients()},
        {"encoder": ["procedural", Gradients()]},
        {"encoder": "hierarchical", "max_iter": 0, "patch_size": 32},
    ],
)
def test_any_encoder_can_be_compared(images, damaged, params):
    est = make(**params).fit(images)
    plain = make(0, **params).fit(images)
    maps = est.anomaly_map(damaged.images)
    assert np.isfinite(maps).all()
    assert (maps != plain.anomaly_map(damaged.images)).any()
    np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)


def test_one_scale_alone_is_not_compared(est, images):
    plain = make(0).fit(images)
    for size in est.patch_sizes_:
        np.testing.assert_array_equal(
            est.anomaly_map(images[:1], scale=size),
            plain.anomaly_map(images[:1], scale=size),
        )


def test_the_paper_compares_nothing_else(images):
    with pytest.raises(ValueError, match="comparison_weight"):
        make(training="paper", encoder="hierarchical", max_iter=0).fit(images)


@pytest.mark.parametrize(
    "pictures",
    [None, np.zeros((9, 3, 32, 31), np.uint8), np.zeros((9, 3, 32, 32), np.float32)],
)
def test_files_without_the_right_pictures_are_refused(est, tmp_path, pictures):
    est._fitted = est._fitted.change(pictures=pictures)
    est.save(tmp_path / "part.model")
    with pytest.raises(ValueError, match="section 'bank' is invalid"):
        load(tmp_path / "part.model")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_and_cpu_compare_alike(est, damaged):
    expected = est.anomaly_map(damaged.images)
    est.set_params(device="cuda")
    found = est.anomaly_map(damaged.images)
    np.testing.assert_allclose(found, expected, rtol=0.05)
    for _ in range(5):  # the last ones are replayed
        one = est.anomaly_map(damaged.images[:1])
    np.testing.assert_allclose(one, found[:1], rtol=0.01)
