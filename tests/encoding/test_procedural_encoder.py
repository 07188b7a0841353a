import hashlib
import pickle

import numpy as np
import pytest
import torch
from settings import SEED

import skpatchsvdd
from skpatchsvdd import Inspection, PatchSVDD, Training
from skpatchsvdd._encoding import JointEncoder, grid_shape
from skpatchsvdd._encoding.procedural import (
    WEIGHTS,
    PretrainedNetwork,
    ProceduralEncoder,
    fold_norms,
)
from skpatchsvdd._encoding.scales import SCALES
from skpatchsvdd._utils import read_tensors
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

SHA256 = "e469a2b2a45b400c531e7bae5052a085d82af8d4d373f771b1e2fd1026373fbf"
# Mean length of the features of a fixed image, by stage.
EXPECTED = (12.349, 12.2633, 13.6474)
SIZES = tuple(SCALES)
STRIDES = tuple(x.stride for x in SCALES.values())


@pytest.fixture(scope="module")
def encoder():
    return ProceduralEncoder.make_pretrained(3, (96, 96))


@pytest.fixture(scope="module")
def parts():
    train = make_textures(12, image_size=96, kind="gear", random_state=SEED)
    test = make_textures(
        12, image_size=96, kind="gear", anomaly_fraction=0.5, random_state=SEED + 1
    )
    return train.images, test


def make_images(n, size=96, channels=3):
    rng = np.random.default_rng(SEED)
    return torch.from_numpy(rng.random((n, channels, size, size), dtype=np.float32))


def test_weights_are_those_the_page_is_about():
    content = WEIGHTS.read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    assert len(content) < 6e6
    arrays, page = read_tensors(WEIGHTS)
    assert page["command"].startswith("benchmarks/pretrain.py --steps")
    own = {x for x in ProceduralEncoder(3).state_dict() if "embedding" not in x}
    assert set(arrays) == own


def test_features_of_a_fixed_image(encoder):
    y, x = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    image = torch.stack([(x / 95), (y / 95), torch.sin(x * y / 300) / 2 + 0.5])[None]
    pairs = zip(encoder.network(image), encoder.project, strict=True)
    norms = [float(project(x).norm(dim=1).mean()) for x, project in pairs]
    np.testing.assert_allclose(norms, EXPECTED, rtol=1e-3)


def test_a_patch_is_where_its_feature_looks(encoder):
    # A dot changes the features of patches around it most.
    plain = torch.full((1, 3, 96, 96), 0.5)
    dotted = plain.clone()
    dotted[:, :, 39:42, 55:58] = 1
    found = (encoder.encode_images(x, STRIDES) for x in (plain, dotted))
    for size, stride, a, b in zip(SIZES, STRIDES, *found, strict=True):
        change = (a - b).norm(dim=1)[0]
        row, col = divmod(int(change.argmax()), change.shape[1])
        assert abs(row * stride + size / 2 - 40) <= stride
        assert abs(col * stride + size / 2 - 56) <= stride


@pytest.mark.parametrize("size", sorted({n + i for n in SIZES for i in (0, 7)} | {97}))
def test_patches_of_any_image_size(size):
    encoder = ProceduralEncoder.make_pretrained(1, (size, size + 5))
    features = encoder.encode_images(torch.rand(1, 1, size, size + 5), STRIDES)
    for k, f in zip(encoder.patch_sizes, features, strict=True):
        grid = grid_shape((size, size + 5), k, SCALES[k].stride)
        assert f.shape == (1, 64, *grid)
        assert f.isfinite().all()


def test_channels_are_brought_to_three(encoder):
    grey, six = make_images(1, channels=1), make_images(1, channels=6)
    for images, rgb in (
        (grey, grey.repeat(1, 3, 1, 1)),
        (six, six.view(1, 3, 2, 96, 96).mean(dim=2)),
    ):
        pairs = (encoder.encode_images(x, STRIDES) for x in (images, rgb))
        for a, b in zip(*pairs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_batch_norm_is_folded_into_the_layers():
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        network = PretrainedNetwork(norm=True)
    network(make_images(4, 32))  # running means are no longer 0
    network.eval()
    images = make_images(2, 64)
    pairs = zip(network(images), fold_norms(network)(images), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_procedural_features_find_defects_without_training(parts):
    train, test = parts
    est = PatchSVDD(max_iter=0, random_state=SEED).fit(train)
    assert est.patch_sizes_ == SIZES
    assert est.strides_ == STRIDES
    assert est.n_iter_ == 0
    assert detection_auroc(test.labels, est.score_samples(test.images)) > 0.9
    assert segmentation_auroc(test.masks, est.anomaly_map(test.images)) > 0.9


def test_both_encoders_make_one_map(parts):
    train, test = parts
    both = ["hierarchical", "procedural"]
    est = PatchSVDD(
        encoder=both,
        max_iter=1,
        training=Training(batch_size=1),
        inspection=Inspection(relative_weight=0, comparison_weight=0),
        random_state=SEED,
    )
    est.fit(train[:3])
    assert isinstance(est.encoder_, JointEncoder)
    assert est.patch_sizes_ == (32, 64, *SIZES)
    assert est.scales_[:2] == (32, 64)
    assert est.scales_[2:] == tuple(f"procedural.{k}" for k in SIZES)
    assert len(est.bank_size_) == len(est.scales_)
    maps = [est.anomaly_map(test.images[:2], scale=k) for k in est.scales_]
    # Smaller patches count more, and all of them 1 in the mean.
    shares = np.array([1.5, 1.1, 0.8, 0.6])[: len(maps) - 2]
    powers = zip(maps[2:], shares / shares.mean(), strict=True)
    expected = np.prod([x**share for x, share in powers], axis=0)
    expected *= (maps[0] * maps[1]) ** 0.125
    np.testing.assert_allclose(est.anomaly_map(test.images[:2]), expected, rtol=1e-3)
    explained = est.explain(test.images[:2])
    assert explained[0].shape[1] == len(est.scales_)
    grid = grid_shape((96, 96), SIZES[-1], STRIDES[-1])
    assert est.embed(test.images[:1], est.scales_[-1]).shape == (1, *grid, 64)


@pytest.mark.parametrize("encoder", ["procedural", ["hierarchical", "procedural"]])
def test_models_survive(parts, tmp_path, encoder):
    train, test = parts
    est = PatchSVDD(encoder=encoder, max_iter=0, random_state=SEED).fit(train[:4])
    expected = est.score_samples(test.images[:3])
    est.save(tmp_path / "part.model")
    for other in (
        skpatchsvdd.load(tmp_path / "part.model"),
        pickle.loads(pickle.dumps(est)),
    ):
        np.testing.assert_array_equal(other.score_samples(test.images[:3]), expected)
    est.partial_fit(train[4:6])
    assert len(est.training_scores_) == 6


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, SIZES),
        ({"max_iter": 1, "encoder": "hierarchical"}, (32, 64)),
        ({"max_iter": 1, "training": Training(method="paper", batch_size=1)}, (32, 64)),
        (
            {
                "encoder": ["procedural", "hierarchical"],
                "max_iter": 0,
                "patch_size": 32,
            },
            (32, *SIZES),
        ),
        ({"encoder": ("procedural",)}, SIZES),
    ],
)
def test_what_auto_means(parts, given, sizes):
    given = {"training": Training(batch_size=1)} | given
    est = PatchSVDD(device="cpu", random_state=SEED, **given)
    assert est.fit(parts[0][:3]).patch_sizes_ == sizes


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("resnet", r"encoder must be 'auto', one of 'hierarchical'.*got 'resnet'"),
        ([], r"encoder must be 'auto'"),
        ([1], r"encoder must be 'auto'"),
        (["hierarchical", "hierarchical"], r"modules, each of them once"),
        (["procedural", "procedural"], r"modules, each of them once"),
        (["auto", "procedural"], r"encoder must be 'auto'"),
    ],
)
def test_other_encoders_are_refused(parts, encoder, message):
    with pytest.raises(ValueError, match=message):
        PatchSVDD(encoder=encoder).fit(parts[0])


def test_strides_are_those_of_an_encoder_of_patches(parts):
    with pytest.raises(ValueError, match="others have their own"):
        PatchSVDD(encoder="procedural", strides=(4, 16)).fit(parts[0])


def test_images_without_room_for_a_patch_are_refused():
    size = min(SIZES)
    images = np.zeros((3, size - 1, 40, 3), dtype=np.uint8)
    message = f"{size - 1} x 40 are smaller than .* {size} x {size}"
    with pytest.raises(ValueError, match=message):
        PatchSVDD(encoder="procedural").fit(images)


@pytest.mark.parametrize("shape", [(20, 200), (13, 13), (200, 12)])
def test_thin_and_small_images_have_the_scales_that_fit(shape):
    images = make_textures(4, image_size=200, random_state=SEED).images
    images = images[:, : shape[0], : shape[1]]
    est = PatchSVDD(max_iter=1, random_state=SEED, device="cpu").fit(images)
    assert est.patch_sizes_ == tuple(k for k in SIZES if k <= min(shape))
    maps = est.anomaly_map(255 - images)
    assert maps.shape == images.shape[:3]
    assert np.isfinite(maps).all()


def test_a_warm_start_keeps_what_was_trained(parts):
    est = PatchSVDD(max_iter=1, warm_start=True, random_state=SEED)
    est.set_params(training__batch_size=1, encoder=["hierarchical", "procedural"])
    first = est.fit(parts[0][:3]).encoder_.members[0]
    est.set_params(max_iter=0).fit(parts[0][:4])
    assert est.patch_sizes_ == (32, 64, *SIZES)
    pairs = zip(first.parameters(), est.encoder_.parameters(), strict=False)
    assert all(torch.equal(*pair) for pair in pairs)


def test_models_in_use_share_the_network_and_score_as_they_did(parts, tmp_path):
    est = PatchSVDD(max_iter=0, random_state=SEED, device="cpu").fit(parts[0])
    expected = est.score_samples(parts[0][:2])
    est.save(tmp_path / "part.model")
    loaded = [skpatchsvdd.load(tmp_path / "part.model", mmap=True) for _ in range(2)]
    scores = [x.score_samples(parts[0][:2]) for x in loaded]
    np.testing.assert_array_equal(scores, [expected, expected])
    places = [{p.data_ptr() for p in x.encoder_.network.parameters()} for x in loaded]
    assert places[0] == places[1]
    with torch.no_grad():  # each has an embedding of its own
        loaded[0].encoder_.embedding[0].zero_()
    assert loaded[1].encoder_.embedding[0].any()
    loaded[0].encoder_.to(torch.float64)  # as to another device
    np.testing.assert_array_equal(loaded[1].score_samples(parts[0][:2]), expected)
