"""What belongs to the whole process is as it was, whatever the estimator does."""

import copy
import os
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sklearn
import torch
from settings import SEED

import skpatchsvdd
from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd._scoring import Inspector
from skpatchsvdd._training import loop
from skpatchsvdd._utils import exact_convolutions
from skpatchsvdd._utils.threads import torch_threads
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.model_selection import SyntheticDefectScorer

QUICK = {
    "encoder": "hierarchical",
    "patch_size": 32,
    "embedding_dim": 4,
    "max_iter": 1,
    "training": Training(batch_size=2),
    "random_state": SEED,
    "image_size": 36,
}
WAIT = 120


def read_state():
    """Return all global state that a fit could change, as text and bytes."""
    cudnn = torch.backends.cudnn
    return {
        "numpy seed": repr(np.random.get_state()),  # noqa: NPY002
        "python seed": repr(random.getstate()),
        "torch seed": torch.get_rng_state().numpy().tobytes(),
        "threads": torch.get_num_threads(),
        "threads of new threads": in_a_thread(torch.get_num_threads),
        "interop threads": torch.get_num_interop_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (cudnn.enabled, cudnn.benchmark),
        "exact cudnn": (cudnn.deterministic, cudnn.allow_tf32),
        "onednn": torch.backends.mkldnn.enabled,
        "matmul": torch.get_float32_matmul_precision(),
        "filters": [*map(repr, warnings.filters)],
        "showwarning": warnings.showwarning,
        "environment": dict(os.environ),
        "numpy errors": np.geterr(),
        "scikit-learn": sklearn.get_config(),
        "folder": os.getcwd(),
    }


def in_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(WAIT)


@pytest.fixture(scope="module")
def images():
    return make_textures(6, image_size=40, random_state=SEED).images


def make(**parameters):
    return PatchSVDD(**QUICK | parameters)


@pytest.fixture
def est(images):
    return make(max_iter=0).fit(images[:4])


def save_and_load(est, X, folder):
    est.save(folder / "part.model")
    skpatchsvdd.load(folder / "part.model", mmap=True).score_samples(X)


ACTIONS = {
    "fit": lambda est, X, _: make().fit(X),
    "fit, paper": lambda est, X, _: make(training="paper").fit(X),
    "fit, n_jobs": lambda est, X, _: est.set_params(n_jobs=1).fit(X),
    "partial_fit": lambda est, X, _: est.set_params(n_jobs=1).partial_fit(X),
    "fit_predict": lambda est, X, _: est.fit_predict(X),
    "score_samples": lambda est, X, _: est.score_samples(X),
    "predict": lambda est, X, _: est.predict(X),
    "anomaly_map": lambda est, X, _: est.anomaly_map(X),
    "inspect": lambda est, X, _: est.set_params(n_jobs=2).inspect(X),
    "explain": lambda est, X, _: est.explain(X),
    "embed": lambda est, X, _: est.embed(X, 32),
    "save": save_and_load,
    "copy": lambda est, X, _: copy.deepcopy(est).score_samples(X),
    "scorer": lambda est, X, _: SyntheticDefectScorer()(est, X),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_global_changes(est, images, tmp_path, action):
    before = read_state()
    ACTIONS[action](est, images, tmp_path)
    assert read_state() == before


@pytest.mark.parametrize("action", sorted(ACTIONS.keys() - {"save", "embed"}))
def test_nothing_global_changes_in_a_call_that_fails(
    est, images, tmp_path, action, monkeypatch
):
    def fail(*args, **kwargs):
        raise MemoryError

    before = read_state()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", fail)
        patch.setattr(Inspector, "_make_maps", fail)
        with pytest.raises(MemoryError):
            ACTIONS[action](est, images, tmp_path)
    assert read_state() == before


@pytest.mark.filterwarnings("ignore:training was interrupted")
def test_a_fit_in_one_thread_changes_nothing_in_another(images, monkeypatch):
    arrived, go_on = threading.Event(), threading.Event()
    original = loop.descend

    def wait(*args):
        arrived.set()
        assert go_on.wait(WAIT)
        return original(*args)

    monkeypatch.setattr(loop, "descend", wait)
    before = read_state()
    n_jobs = 1 if torch.get_num_threads() > 1 else 2
    est = make(n_jobs=n_jobs, device="cpu")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(est.fit, images)
        assert arrived.wait(WAIT)
        during = read_state()
        go_on.set()
        running.result(WAIT)
    assert during == before
    assert read_state() == before


def test_threads_started_meanwhile_keep_their_number():
    n = torch.get_num_threads()
    with torch_threads(n + 1):
        assert torch.get_num_threads() == n + 1
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result(WAIT) == n
            with torch_threads(n + 2):
                assert torch.get_num_threads() == n + 2
            assert torch.get_num_threads() == n + 1
            assert pool.submit(torch.get_num_threads).result(WAIT) == n
    assert torch.get_num_threads() == n
    assert in_a_thread(torch.get_num_threads) == n


def test_the_last_thread_puts_back_what_the_first_has_found():
    cudnn = torch.backends.cudnn
    with cudnn.flags(benchmark=True, deterministic=False, allow_tf32=True):
        first, second = exact_convolutions(), exact_convolutions()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert (cudnn.deterministic, cudnn.allow_tf32) == (True, False)
        second.__exit__(None, None, None)
        assert (cudnn.benchmark, cudnn.deterministic) == (True, False)
        assert cudnn.allow_tf32


def test_threads_leave_the_warning_filters(est, images, tmp_path):
    est.save(tmp_path / "part.model")
    before, barrier = list(warnings.filters), threading.Barrier(4, timeout=WAIT)

    def work(_):
        barrier.wait()
        for _ in range(20):
            one = skpatchsvdd.load(tmp_path / "part.model", mmap=True)
            one.score_samples(images[:1])
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4), timeout=WAIT))
    assert warnings.filters == before
