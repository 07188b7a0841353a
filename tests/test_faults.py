"""What goes wrong on a production line, and what it leaves behind."""

import errno
import os
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from commands import save_images
from PIL import Image
from settings import SEED
from sklearn.exceptions import NotFittedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV

import skpatchsvdd
from skpatchsvdd import PatchSVDD, Training, _patch_svdd
from skpatchsvdd._bank import approximate
from skpatchsvdd._encoding.dense import DenseEncoder
from skpatchsvdd._images import stack
from skpatchsvdd._training import loop
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.model_selection import NormalOnlyKFold, detection_scorer

QUICK = {"encoder": "hierarchical", "patch_size": 32, "embedding_dim": 4}
QUICK |= {"max_iter": 0, "random_state": SEED}


@pytest.fixture(scope="module")
def images():
    return make_textures(6, image_size=40, random_state=SEED).images


@pytest.fixture
def est(images):
    return PatchSVDD(**QUICK).fit(images[:4])


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def run_out_of_memory(*args, **kwargs):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")


def is_same(state, other):
    """Whether attributes are the same objects."""
    return state.keys() == other.keys() and all(state[x] is other[x] for x in state)


def list_learnt(state):
    return {x: state[x] for x in state if x.endswith("_") or x == "_fitted"}


def calls_of(function, interrupted_at=None):
    """Count the package's calls while a function runs; interrupt it at one of them."""
    n_calls = 0

    def count(frame, event, _):
        nonlocal n_calls
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("skpatchsvdd"):
            n_calls += 1
            if n_calls == interrupted_at:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return n_calls


@pytest.mark.filterwarnings("ignore:fit has ended with", "ignore:training was inter")
@pytest.mark.parametrize(
    ("method", "max_iter"), [("fit", 0), ("fit", 1), ("partial_fit", 0)]
)
@pytest.mark.parametrize("is_fitted", [True, False])
def test_wherever_it_is_interrupted_the_state_is_the_former_or_the_new(
    images, method, max_iter, is_fitted
):
    def make():
        est = PatchSVDD(**QUICK, training=Training(batch_size=2))
        return (est.fit(images[:4]) if is_fitted else est).set_params(max_iter=max_iter)

    def update(est):
        return getattr(est, method)(images[4:])

    new, est, n_former = update(make()).training_scores_, make(), 0
    n_calls = calls_of(lambda: update(est))
    for number in {*np.linspace(1, n_calls, 12, dtype=int), n_calls - 1, n_calls - 2}:
        est = make()
        before = dict(vars(est))
        # One that interrupts the training alone ends it early, and fit goes on.
        with suppress(KeyboardInterrupt):
            calls_of(lambda est=est: update(est), interrupted_at=number)
        if is_same(list_learnt(vars(est)), list_learnt(before)):
            n_former += 1
        else:
            assert est.offset_ == est.training_scores_.min()
            if max_iter == 0:
                np.testing.assert_array_equal(est.training_scores_, new)
    assert n_former > 8


def list_files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def full_disk(monkeypatch):
    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


def small_limit(monkeypatch):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("fault", "number"), [(full_disk, errno.ENOSPC), (small_limit, errno.EFBIG)]
)
def test_a_disk_that_holds_no_more_leaves_the_former_file(
    est, images, tmp_path, monkeypatch, fault, number
):
    est.save(tmp_path / "part.model")
    before = list_files(tmp_path)
    undo = fault(monkeypatch)
    try:
        for name in ("part.model", "other.model"):
            with pytest.raises(OSError, match=f"before is unchanged.*{name}") as caught:
                est.partial_fit(images[4:]).save(tmp_path / name)
            assert caught.value.errno == number
    finally:
        if undo is not None:
            undo()
    assert list_files(tmp_path) == before


def test_without_memory_of_a_gpu_fit_says_what_to_do(images, monkeypatch):
    est = PatchSVDD(**QUICK | {"max_iter": 1})
    monkeypatch.setattr(loop, "descend", run_out_of_memory)
    expected = r"ran out in fit.*batch_size.*bank_size.*device='cpu'.*Tried to allocate"
    for method in (est.fit, est.partial_fit, est.fit_predict):
        with pytest.raises(torch.cuda.OutOfMemoryError, match=expected):
            method(images)
    with pytest.raises(NotFittedError):
        est.score_samples(images)


def test_without_memory_of_a_gpu_scores_say_what_to_do(est, images, monkeypatch):
    scores, before = est.score_samples(images), dict(vars(est))
    with monkeypatch.context() as patch:
        patch.setattr(DenseEncoder, "_encode_maps", run_out_of_memory)
        for method in ("score_samples", "predict", "anomaly_map", "inspect"):
            expected = r"set_params\(device='cpu'\).*bank_size"
            with pytest.raises(torch.cuda.OutOfMemoryError, match=expected):
                getattr(est, method)(images)
        with pytest.raises(torch.cuda.OutOfMemoryError, match="in partial_fit"):
            est.partial_fit(images)
    assert is_same(vars(est), before)
    np.testing.assert_array_equal(est.score_samples(images), scores)


def die(estimator, X, y):
    os._exit(1)


@pytest.mark.slow
def test_a_worker_that_dies_ends_a_search_and_nothing_else(images):
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    est = PatchSVDD(**QUICK)
    X, y = images.copy(), [1, 1, 1, 1, -1, -1]
    X[4:, 10:30, 10:30] = 0
    options = {"cv": NormalOnlyKFold(2), "scoring": detection_scorer}
    grid = {"inspection__light": [0.3, 1.0]}
    with pytest.raises(TerminatedWorkerError, match="unexpectedly terminated"):
        GridSearchCV(est, grid, **options | {"scoring": die}, n_jobs=2).fit(X, y)
    alone = GridSearchCV(est, grid, **options).fit(X, y)
    after = GridSearchCV(est, grid, **options, n_jobs=2).fit(X, y)
    for name in ("mean_test_score", "params"):
        np.testing.assert_array_equal(after.cv_results_[name], alone.cv_results_[name])


@pytest.fixture(scope="module")
def labelled():
    return make_textures(20, image_size=40, anomaly_fraction=0.2, random_state=SEED)


HALVING = {
    "param_grid": {"inspection__light": [0.3, 1.0]},
    "cv": NormalOnlyKFold(2),
    "scoring": detection_scorer,
}


def test_halving_by_steps_rates_all_images(labelled):
    search = HalvingGridSearchCV(
        PatchSVDD(**QUICK | {"training": Training(batch_size=2)}),
        **HALVING,
        **{"resource": "max_iter", "max_resources": 2, "factor": 2},
        return_train_score=False,
    ).fit(labelled.images[-8:], labelled.labels[-8:])
    assert search.n_resources_ == [1, 2]
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.n_iter_ == 2


def test_halving_by_images_says_why_there_is_no_score(labelled):
    """Parts of the test images may hold no abnormal one; training images hold none."""
    search = HalvingGridSearchCV(PatchSVDD(**QUICK), **HALVING, random_state=SEED)
    with pytest.warns(UserWarning, match=r"calls all \d+\snormal.*resource='max_iter'"):
        search.fit(labelled.images, labelled.labels)


FORKED = """
import multiprocessing, sys
import numpy as np
from joblib import Parallel, delayed
from skpatchsvdd import PatchSVDD
from skpatchsvdd._images import check_images
from skpatchsvdd.datasets import make_textures

X = make_textures(3, image_size=40, random_state=0).images
est = PatchSVDD(
    encoder="hierarchical", patch_size=32, embedding_dim=8, max_iter=1
).fit(X)
maps = est.anomaly_map(X)

def read():
    return check_images(list(X), image_size=300).pixels.shape

def look(est):
    return est.anomaly_map(X)

def fit(est):
    return est.fit(X).predict(X)

with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.apply(read) == (3, 300, 300, 3)
    np.testing.assert_array_equal(pool.apply(look, (est,)), maps)
    np.testing.assert_array_equal(pool.apply(fit, (est,)), 1)
for found in Parallel(2, backend="multiprocessing")(delayed(look)(est) for _ in "ab"):
    np.testing.assert_array_equal(found, maps)
try:
    Parallel(2, backend="multiprocessing")(delayed(look)(5) for _ in "ab")
except AttributeError as error:
    print("error", error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="where processes are forked")
def test_a_forked_process_computes_as_its_parent():
    env = os.environ | {"OMP_NUM_THREADS": "2", "JOBLIB_START_METHOD": "fork"}
    options = {"capture_output": True, "text": True, "timeout": 200, "env": env}
    result = subprocess.run([sys.executable, "-c", FORKED], **options)
    assert result.returncode == 0, result.stderr
    assert "'int' object has no attribute 'anomaly_map'" in result.stdout


def test_an_index_of_pynndescent_is_not_built_after_a_fork(images, monkeypatch):
    monkeypatch.setattr(approximate, "_built_in", os.getpid() + 1)
    with pytest.raises(RuntimeError, match=r"forked.*spawn.*neighbors='exact'"):
        PatchSVDD(**QUICK | {"neighbors": "pynndescent"}).fit(images)


def test_cuda_after_a_fork_is_an_error(est, images, monkeypatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    expected = est.score_samples(images)  # as on a machine without a GPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match=r"device='auto'.*forked.*spawn"):
        est.score_samples(images)
    with pytest.raises(RuntimeError, match=r"device='cuda:0'.*forked"):
        est.set_params(device="cuda:0").score_samples(images)
    scores = est.set_params(device="cpu").score_samples(images)
    np.testing.assert_array_equal(scores, expected)


def after_digests(monkeypatch, action):
    """Have something happen between the first and the second reading of images."""
    original = _patch_svdd.digest_images

    def digest(images, *args):
        digests = original(images)
        action()
        return digests

    monkeypatch.setattr(_patch_svdd, "digest_images", digest)


@pytest.fixture
def files(images, tmp_path):
    return save_images(tmp_path, images)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (os.remove, FileNotFoundError, r"there is no file .*3\.png"),
        (
            lambda file: Image.new("RGB", (40, 40)).save(file),
            RuntimeError,
            r"3\.png has changed while it was learnt from",
        ),
        (
            lambda file: Image.new("RGB", (40, 48)).save(file),
            RuntimeError,
            r"3\.png has changed while it was read: its shape was \(40, 40, 3\)",
        ),
        (lambda file: os.truncate(file, 60), ValueError, r"3\.png cannot be read"),
    ],
)
def test_a_file_that_changes_during_fit(
    files, images, monkeypatch, change, error, message
):
    monkeypatch.setattr(stack, "_HELD_BYTES", 0)  # so that files are read again
    est = PatchSVDD(**QUICK).fit(images)
    before = dict(vars(est))
    after_digests(monkeypatch, lambda: change(files[3]))
    with pytest.raises(error, match=message):
        est.fit(files)
    assert is_same(vars(est), before)


def test_a_few_files_are_read_once(files, images, monkeypatch):
    expected = PatchSVDD(**QUICK).fit(images).training_scores_
    after_digests(monkeypatch, lambda: [os.remove(file) for file in files])
    est = PatchSVDD(**QUICK).fit(files)
    np.testing.assert_array_equal(est.training_scores_, expected)


def test_an_array_that_changes_during_fit(images, monkeypatch):
    X = images.copy()
    after_digests(monkeypatch, lambda: X[2].fill(7))
    with pytest.raises(RuntimeError, match="image 2 has changed"):
        PatchSVDD(**QUICK).fit(X)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_mapped_array_that_is_cut_off(est, images, tmp_path, dtype):
    X = (images / 255 if dtype == np.float32 else images).astype(dtype)
    (tmp_path / "X").write_bytes(b"head" + X.tobytes())
    mapped = np.memmap(tmp_path / "X", dtype, "r", offset=4, shape=X.shape)
    scores = est.score_samples(mapped)
    os.truncate(tmp_path / "X", X.nbytes // 2)
    for view in (mapped, mapped[::2], np.asarray(mapped)[:, ::-1]):
        for method in (est.score_samples, est.fit, est.partial_fit):
            with pytest.raises(OSError, match=r"X is mapped from .*X.* cut off"):
                method(view)
    np.testing.assert_array_equal(est.score_samples(X), scores)


@pytest.fixture
def mapped(images, tmp_path):
    """An estimator whose bank is mapped: it takes more than a page of memory."""
    est = PatchSVDD(**QUICK | {"embedding_dim": 64}).fit(images)
    est.save(tmp_path / "part.model")
    return skpatchsvdd.load(tmp_path / "part.model", mmap=True)


@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_a_mapped_model_that_is_cut_off(mapped, images, tmp_path, part):
    path = tmp_path / "part.model"
    mapped.score_samples(images)
    os.truncate(path, int(part * path.stat().st_size))
    with pytest.raises(OSError, match=r"the bank is mapped from .*cut off"):
        mapped.score_samples(images)
    with pytest.raises(OSError, match="cut off"):
        mapped.save(tmp_path / "other.model")
    assert np.isfinite(mapped.training_scores_).all()


def test_a_mapped_model_outlives_its_file_unless_it_is_written_to(
    est, mapped, images, tmp_path
):
    path = tmp_path / "part.model"
    content, scores = path.read_bytes(), mapped.score_samples(images)
    path.write_bytes(content[:-1] + b"x")
    os.utime(path, (0, 0))
    with pytest.raises(OSError, match=r"part\.model, which was written to since"):
        mapped.score_samples(images)
    est.save(path)  # by renaming
    np.testing.assert_array_equal(mapped.score_samples(images), scores)
    os.remove(path)
    np.testing.assert_array_equal(mapped.score_samples(images), scores)
