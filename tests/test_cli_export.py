"""The command export, and the camera loop of the documentation."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from commands import call
from pages import DOCS, read_block
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

if not hasattr(torch.onnx, "ops"):
    pytest.skip("torch is too old to export", allow_module_level=True)
runtime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
pytest.importorskip("onnxscript", reason="pip install onnx onnxscript")

pytestmark = pytest.mark.usefixtures("quick_exports")


@pytest.fixture(scope="module")
def images():
    return make_textures(6, image_size=40, random_state=SEED).images[..., :1]


@pytest.fixture(scope="module")
def est(images):
    est = PatchSVDD(encoder="hierarchical", max_iter=0, patch_size=32, random_state=0)
    return est.fit(images[:5])


@pytest.fixture
def model(est, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    est.save("part.model")
    return "part.model"


def test_a_file_that_the_camera_loop_of_the_page_runs(est, images, model, capsys):
    assert call("export", model, "-o", "part.onnx") == 0
    out = capsys.readouterr().out
    assert f"scale 32: {est.bank_size_[32]:,} normal patches" in out
    assert "images: bytes, any number x 40 x 40 x 1" in out
    assert "wrote part.onnx, " in out
    if not DOCS.exists():
        return
    loop = read_block("user_guide/onnx.rst", "def watch(")
    assert len([x for x in loop.splitlines() if x.strip()]) <= 30
    begin = "import sys\nimport numpy as np\nframes = np.load('frames.npy')\n"
    end = "\nassert not {'torch', 'skpatchsvdd', 'onnx'} & set(sys.modules)\n"
    noise = np.random.default_rng(SEED).integers(0, 256, (40, 40, 1), np.uint8)
    np.save("frames.npy", np.stack([images[5], noise]))
    done = subprocess.run(
        [sys.executable, "-c", begin + loop + end],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1].startswith("alarm at ")


def test_what_is_said_before_any_work(model, tmp_path, monkeypatch, capsys):
    assert call("export", "none.model", "-o", "part.onnx") == 1
    assert "there is no model none.model" in capsys.readouterr().err
    assert call("export", model, "-o", tmp_path) == 1
    assert "it is a folder" in capsys.readouterr().err
    assert call("export", model, "-o", "part.onnx", "--input-size", "50") == 1
    assert "fit with image_size" in capsys.readouterr().err
    (tmp_path / "notes.onnx").write_bytes(b"notes")
    assert call("export", model, "-o", "notes.onnx") == 1
    assert "exists and was not exported by this command" in capsys.readouterr().err
    assert (tmp_path / "notes.onnx").read_bytes() == b"notes"
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert call("export", model, "-o", "part.onnx") == 1
    assert 'pip install "skpatchsvdd[onnx]"' in capsys.readouterr().err
    assert sorted(x.name for x in tmp_path.iterdir()) == ["notes.onnx", "part.model"]
