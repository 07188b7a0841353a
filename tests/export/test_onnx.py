"""Files of ONNX, run by onnxruntime: what they say, and what is refused."""

import copy
import json
import re
import sys

import numpy as np
import pytest
import torch
from settings import SEED
from torch import nn

from skpatchsvdd import PatchSVDD
from skpatchsvdd._export import onnx_file
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.encoders import Function

if not hasattr(torch.onnx, "ops"):
    pytest.skip("torch is too old to export", allow_module_level=True)
runtime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
pytest.importorskip("onnxscript", reason="pip install onnx onnxscript")

pytestmark = pytest.mark.usefixtures("quick_exports")
# Convolutions of torch and onnxruntime round differently, and distances between the
# features of untrained networks are small beside these.
CLOSE = {"rtol": 2e-3, "atol": 1e-6}
OUTPUTS = ["score", "p_value", "verdict", "map", "mask"]


def fit(images, **parameters):
    parameters = {"patch_size": 32, "max_iter": 0, "device": "cpu"} | parameters
    given = {x: parameters.pop(x) for x in ("y", "groups") if x in parameters}
    return PatchSVDD(random_state=SEED, **parameters).fit(images, **given)


def open_file(path):
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(path, images):
    images = np.asarray(images)
    if images.ndim == 3:
        images = images[..., None]
    return open_file(path).run(OUTPUTS, {"images": images})


def check_same(est, path, images):
    """Compare all that a file says with what the estimator does."""
    scores, p_values, verdicts, maps, masks = run(path, images)
    np.testing.assert_allclose(scores, est.score_samples(images), **CLOSE)
    np.testing.assert_array_equal(p_values, est.p_values(images))
    np.testing.assert_array_equal(verdicts, est.predict(images))
    expected = est.anomaly_map(images)
    assert maps.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(maps, expected, rtol=5e-3, atol=3e-4 * expected.max())
    # What lies at the threshold may fall to either side.
    assert (masks != est.predict_mask(images)).mean() < 5e-3
    np.testing.assert_array_equal(masks.any(axis=(1, 2)), verdicts < 0)


@pytest.fixture(scope="module")
def grey():
    return make_textures(6, image_size=40, random_state=SEED).images[..., 0]


@pytest.fixture(scope="module")
def small(grey):
    """An estimator that is exported quickly."""
    return fit(grey, encoder="hierarchical")


@pytest.fixture(scope="module")
def small_file(small, tmp_path_factory, quick_exports):
    path = tmp_path_factory.mktemp("files") / "small.onnx"
    small.export_onnx(path)
    return path


class TwoMaps(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Conv2d(3, 4, 4, 4)
            self.second = nn.Conv2d(4, 6, 2, 2)

    def forward(self, images):
        x = self.first(images).relu()
        return x, self.second(x)


@pytest.mark.slow
def test_the_default_features_with_groups(normal, mixed, tmp_path):
    groups = [0, 0, 0, 1, 1, 2, 3, 3]
    est = fit(normal, encoder="procedural", groups=groups, false_alarm_rate=0.4)
    facts = est.export_onnx(tmp_path / "part.onnx")
    check_same(est, tmp_path / "part.onnx", mixed.images)
    assert len(set(est.predict(mixed.images))) == 2
    assert facts["threshold"] == est.offset_
    assert facts["bank_size"] == {str(k): n for k, n in est.bank_size_.items()}


def test_several_maps_and_known_defects(normal, mixed, tmp_path):
    y = ["ok"] * len(normal) + ["scratch"] * 2
    defects = mixed.images[mixed.labels == -1]
    images = np.concatenate([normal, defects[:2]])
    est = fit(images, encoder=TwoMaps(), y=y)
    est.export_onnx(tmp_path / "part.onnx")
    check_same(est, tmp_path / "part.onnx", defects[2:])


@pytest.mark.slow
def test_the_paper_s_training(tmp_path):
    textures = make_textures(8, image_size=72, random_state=SEED).images
    options = {"encoder": "hierarchical", "training": "paper", "max_iter": 1}
    est = fit(textures[:5], patch_size=64, **options)
    assert est.center_.shape == (72, 72, 3)
    est.export_onnx(tmp_path / "part.onnx")
    check_same(est, tmp_path / "part.onnx", textures[5:])


def test_a_part_of_images_that_are_resized(tmp_path):
    grey = make_textures(8, image_size=56, random_state=SEED).images[..., 0]
    roi = np.ones((56, 56), dtype=bool)
    roi[:24, 30:] = False
    est = fit(grey[:5], encoder="hierarchical", image_size=(40, 44), roi=roi)
    facts = est.export_onnx(tmp_path / "part.onnx")
    assert facts["image_shape"] == [56, 56, 1]
    assert facts["inspected_shape"] == [40, 44, 1]
    check_same(est, tmp_path / "part.onnx", grey[5:])
    maps = run(tmp_path / "part.onnx", grey[5:])[3]
    assert maps.shape == (3, 56, 56)
    assert not maps[:, ~roi].any()


def test_a_threshold_that_a_person_fixed(small, grey, tmp_path):
    new = np.stack([grey[0] // 2, 255 - grey[0]])
    scores = small.score_samples(new)
    est = copy.deepcopy(small).fix_threshold(scores.mean())
    facts = est.export_onnx(tmp_path / "part.onnx")
    assert facts["threshold"] == est.fixed_threshold_
    verdicts = run(tmp_path / "part.onnx", new)[2]
    assert set(verdicts) == {-1, 1}
    np.testing.assert_array_equal(verdicts, est.predict(new))


def test_images_of_a_batch_are_as_if_alone(small, small_file, grey):
    new = 255 - grey[:4]
    check_same(small, small_file, new)
    together = run(small_file, new)
    single = [run(small_file, new[i : i + 1]) for i in range(len(new))]
    for batch, parts in zip(together, zip(*single, strict=True), strict=True):
        np.testing.assert_array_equal(batch, np.concatenate(parts))


def test_a_training_image_is_not_recognised(small, small_file, grey):
    scores = run(small_file, grey[:1])[0]
    assert scores[0] > small.score_samples(grey[:1])[0]
    assert scores[0] == pytest.approx(0, abs=1e-4)


def test_a_file_says_what_it_is(small, small_file):
    session = open_file(small_file)
    found = session.get_modelmeta().custom_metadata_map
    facts = {name: json.loads(text) for name, text in found.items()}
    assert facts["version"] == sys.modules["skpatchsvdd"].__version__
    assert facts["threshold"] == small.offset_
    assert facts["bank_size"] == {"32": small.bank_size_[32]}
    [images] = session.get_inputs()
    assert (images.name, images.type) == ("images", "tensor(uint8)")
    assert images.shape == ["n", *facts["image_shape"]]
    assert [x.name for x in session.get_outputs()] == OUTPUTS


def refuse(est, folder, message, error=ValueError, **given):
    """Check that nothing is written of what cannot be exported."""
    with pytest.raises(error, match=message):
        est.export_onnx(folder / "part.onnx", **given)
    assert not any(folder.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_size": (40, 41)}, "fit with image_size"),
        ({"input_size": (1, 2, 3)}, "height, width"),
        ({"input_size": 0}, "in pixels"),
    ],
)
def test_bad_sizes(small, given, message, tmp_path):
    refuse(small, tmp_path, message, **given)


def test_what_cannot_be_exported(grey, tmp_path):
    refuse(PatchSVDD(), tmp_path, "is not fitted")
    est = fit([*grey[:3], grey[3][:38]], encoder="hierarchical", image_size=36)
    refuse(est, tmp_path, "such as one of 38 x 40, 40 x 40")


def test_a_function_is_no_graph(normal, tmp_path):
    encoder = Function(lambda images: images[:, :, ::4, ::4] ** 2)
    est = fit(normal[:3], encoder=encoder)
    refuse(est, tmp_path, r"cannot be exported.*Nothing was written")
    assert np.isfinite(est.score_samples(normal[3:4])).all()  # it still works


def test_a_bank_beyond_what_a_file_holds(small, grey, tmp_path, monkeypatch):
    file_size = sum(4 * x.numel() for x in small.encoder_.parameters())
    file_size += sum(x.sample.rows.nbytes for x in small._fitted.variations or [])
    file_size += small._fitted.indexes[0].bank().rows.nbytes // 2
    monkeypatch.setattr(onnx_file, "_REST", 0)
    monkeypatch.setattr(onnx_file, "_MOST_BYTES", file_size)
    with pytest.raises(ValueError, match="Fit again with bank_size=") as caught:
        small.export_onnx(tmp_path / "part.onnx")
    advised = int(re.search(r"bank_size=(\d+)", str(caught.value))[1])
    assert advised == small.bank_size_[32] // 2
    est = fit(grey, encoder="hierarchical", bank_size=advised)
    assert est.export_onnx(tmp_path / "part.onnx")["bank_size"] == {"32": advised}


def test_without_the_packages(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refuse(small, tmp_path, r'pip install "skpatchsvdd\[onnx\]"', ImportError)


@pytest.mark.parametrize("moment", ["_trace", "_repeat"])
def test_an_interrupt_leaves_what_was_there(small, moment, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    path = tmp_path / "part.onnx"
    path.write_bytes(b"former")
    if moment == "_repeat":
        monkeypatch.setattr(onnx_file, "_trace", lambda *_: None)
    monkeypatch.setattr(onnx_file, moment, interrupt)
    with pytest.raises(KeyboardInterrupt):
        small.export_onnx(path)
    assert path.read_bytes() == b"former"
    assert [x.name for x in tmp_path.iterdir()] == ["part.onnx"]
