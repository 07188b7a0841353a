import functools
import logging
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from settings import SEED, apply_settings, describe

from skpatchsvdd import PatchSVDD, Training, _parameters
from skpatchsvdd._bank import exact_gpu
from skpatchsvdd._encoding import networks
from skpatchsvdd.datasets import make_textures

# Before numba is imported, which would give torch, too, a thread for each core.
if "OMP_NUM_THREADS" in os.environ:
    os.environ.setdefault("NUMBA_NUM_THREADS", os.environ["OMP_NUM_THREADS"])


def pytest_report_header():
    return describe()


def pytest_collection_modifyitems(items):
    # One after the other, so that one process alone compiles pynndescent.
    items.sort(key=lambda item: not _compiles(item))


def _compiles(item):
    return "pynndescent" in item.name or "approximate" in item.name


@pytest.fixture(scope="session", autouse=True)
def _settings():
    with pytest.MonkeyPatch.context() as monkeypatch:
        apply_settings(monkeypatch)
        yield


# Encoders that are trained have an eighth of the paper's channels, and embeddings are
# trained for a few steps, since most tests are of what is around them. On a GPU, whose
# kernels are for more, encoders have all channels.
WIDE = networks._SMALL_CHANNELS
NARROW = WIDE if torch.cuda.is_available() else tuple(n // 8 for n in WIDE)
LONG, SHORT = _parameters._EMBEDDING["max_iter"], 4


@pytest.fixture(scope="module", autouse=True)
def _narrow(request):
    """Make encoders narrow and trainings short in a module not marked as wide."""
    is_wide = request.node.get_closest_marker("wide")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(networks, "_SMALL_CHANNELS", WIDE if is_wide else NARROW)
        n_steps = LONG if is_wide else SHORT
        monkeypatch.setitem(_parameters._EMBEDDING, "max_iter", n_steps)
        yield


@pytest.fixture(autouse=True)
def _wide(request, monkeypatch):
    """Make encoders as wide as the paper's in a test that is marked so."""
    if request.node.get_closest_marker("wide"):
        monkeypatch.setattr(networks, "_SMALL_CHANNELS", WIDE)
        monkeypatch.setitem(_parameters._EMBEDDING, "max_iter", LONG)


@pytest.fixture(scope="session")
def quick_exports():
    """Let torch read its table of operations once, and not log how it traces.

    Each takes seconds for every file of ONNX.
    """
    from torch.onnx._internal.exporter import _registration

    table = _registration.ONNXRegistry
    with pytest.MonkeyPatch.context() as monkeypatch:
        read = staticmethod(functools.lru_cache(table.from_torchlib))
        monkeypatch.setattr(table, "from_torchlib", read)
        monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
        yield


@pytest.fixture(scope="session")
def normal():
    """Eight normal images of 48 x 48."""
    return make_textures(8, image_size=48, random_state=SEED).images


@pytest.fixture(scope="session")
def photos():
    """What comes to a line: normal images of 48 x 48, and a damaged one."""
    from live import make_photos  # which needs the extra serve

    return make_photos()


@pytest.fixture(scope="session")
def mixed():
    """Four normal and four damaged images of 48 x 48."""
    return make_textures(8, image_size=48, anomaly_fraction=0.5, random_state=SEED + 1)


@pytest.fixture
def quick():
    """An estimator that fits in a fraction of a second."""
    return make_quick()


@pytest.fixture
def untrained():
    """An estimator with random weights: a fit of it repeats on any machine."""
    return make_untrained()


def make_quick():
    return make_untrained().set_params(max_iter=2, training=Training(batch_size=4))


def make_untrained():
    options = {"patch_size": 32, "embedding_dim": 8, "max_iter": 0}
    return PatchSVDD(encoder="hierarchical", random_state=SEED, **options)


@pytest.fixture(scope="module")
def fitted(normal):
    """A fitted estimator. Tests must not change it."""
    return make_quick().fit(normal)


@pytest.fixture(scope="module")
def model(tmp_path_factory, normal):
    """A model file of grey images of 48 x 48. Tests must not change it."""
    path = tmp_path_factory.mktemp("models") / "part.model"
    make_untrained().fit(normal[..., 0]).save(path)
    return path


@pytest.fixture(scope="session")
def tiny():
    """Four images of 34 x 34: of noise, for tests of what comes in."""
    rng = np.random.default_rng(SEED)
    return rng.integers(0, 256, (4, 34, 34, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def tiny_fitted(tiny):
    """A fitted estimator that scores in no time. Tests must not change it."""
    return make_untrained().set_params(embedding_dim=4, device="cpu").fit(tiny)


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


@pytest.fixture
def ctrl_c():
    """Let SIGINT interrupt this process and those it starts.

    Shells let what they run in the background ignore it, and what that starts, too.
    """
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture
def benchmarks(monkeypatch):
    """Make what is in benchmarks/ modules that can be imported."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A data set of one class, whose name the paper knows, in MVTec AD's layout."""
    root = tmp_path_factory.mktemp("data")
    train = make_textures(20, image_size=72, random_state=SEED)
    test = make_textures(6, image_size=72, anomaly_fraction=0.5, random_state=SEED + 1)
    for i, image in enumerate(train.images):
        save(root / f"bottle/train/good/{i:02}.png", image)
    for i, (image, label) in enumerate(zip(test.images, test.labels, strict=True)):
        kind = "good" if label == 1 else "hole"
        save(root / f"bottle/test/{kind}/{i}.png", image)
        if label == -1:
            mask = 255 * np.asarray(test.masks[i], dtype=np.uint8)
            save(root / f"bottle/ground_truth/hole/{i}_mask.png", mask)
    return root


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.fixture
def kernel_device(monkeypatch):
    """Where kernels run: on a GPU, or with Triton's interpreter, if it is asked for."""
    if torch.cuda.is_available():
        pytest.importorskip("triton")
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1")
    monkeypatch.setattr(exact_gpu, "_suits_kernels", lambda rows: True)
    return torch.device("cpu")
