"""One estimator, many threads and processes: the same bits, or a clear rule."""

import copy
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from settings import SEED

import skpatchsvdd
from skpatchsvdd import PatchSVDD, Training, _patch_svdd
from skpatchsvdd._bank import ExactIndex
from skpatchsvdd._bank.exact import Bank
from skpatchsvdd.datasets import make_textures

QUICK = {"patch_size": 32, "embedding_dim": 4, "max_iter": 0, "random_state": SEED}
WAIT = 120  # seconds, after which something has gone wrong


@pytest.fixture(scope="module")
def images():
    return make_textures(8, image_size=40, random_state=SEED).images


@pytest.fixture
def est(images):
    est = PatchSVDD(encoder="hierarchical", false_alarm_rate=0.3, **QUICK)
    return est.fit(images[:4])


def all_at_once(calls):
    """Run calls in as many threads, which begin together; return what they return."""
    barrier = threading.Barrier(len(calls), timeout=WAIT)

    def run(call):
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [f.result(WAIT) for f in [pool.submit(run, call) for call in calls]]


def test_threads_score_as_one(est, images):
    scores, maps = est.score_samples(images), est.anomaly_map(images)
    est = copy.deepcopy(est)  # all threads begin without a bank on a device
    calls = [lambda: est.score_samples(images), lambda: est.anomaly_map(images)]
    found = all_at_once(3 * calls)
    for i in range(0, 6, 2):
        np.testing.assert_array_equal(found[i], scores)
        np.testing.assert_array_equal(found[i + 1], maps)


def test_threads_may_differ_in_n_jobs(est, images):
    scores = est.score_samples(images)
    others = [copy.copy(est).set_params(n_jobs=n) for n in (None, 1, 2, 1)]
    found = all_at_once([lambda x=x: x.score_samples(images) for x in others])
    for x in found:
        np.testing.assert_allclose(x, scores, rtol=1e-4)


def test_threads_that_fit_do_not_meet(images):
    def fit(seed):
        options = QUICK | {"max_iter": 1, "random_state": seed}
        options |= {"encoder": "hierarchical", "training": Training(batch_size=2)}
        return PatchSVDD(**options).fit(images).training_scores_

    alone = [fit(seed) for seed in range(2)]
    found = all_at_once([lambda seed=seed: fit(seed) for seed in range(2)])
    np.testing.assert_array_equal(found, alone)


SCORES = """
import sys
import numpy as np
import skpatchsvdd
est = skpatchsvdd.load(sys.argv[1], mmap=True)
assert isinstance(est._fitted.indexes[0].rows, np.memmap)
print("ready", flush=True)
sys.stdin.readline()
print(est.score_samples(np.load(sys.argv[2])).tobytes().hex())
"""


@pytest.mark.wide
@pytest.mark.slow
def test_processes_share_a_mapped_bank(images, tmp_path):
    est = PatchSVDD(encoder="hierarchical", **QUICK | {"embedding_dim": 64})
    est.fit(images[:4])
    est.save(tmp_path / "part.model")
    np.save(tmp_path / "X.npy", images)
    command = [sys.executable, "-c", SCORES, "part.model", "X.npy"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=tmp_path, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    mapped = skpatchsvdd.load(tmp_path / "part.model", mmap=True)
    found = [process.communicate("go\n", timeout=WAIT)[0] for process in processes]
    # Other processes may have other numbers of threads.
    assert found[0] == found[1]
    scores = np.frombuffer(bytes.fromhex(found[0].strip()))
    np.testing.assert_allclose(scores, mapped.score_samples(images), rtol=1e-4)
    np.testing.assert_array_equal(
        est.score_samples(images), mapped.score_samples(images)
    )


@pytest.fixture
def halted(monkeypatch):
    """Halt a function where a test wants it: (has arrived, may go on)."""

    def halt(where, name):
        arrived, go_on = threading.Event(), threading.Event()
        original = getattr(where, name)

        def wait(*args, **kwargs):
            arrived.set()
            assert go_on.wait(WAIT)
            return original(*args, **kwargs)

        monkeypatch.setattr(where, name, wait)
        return arrived, go_on

    return halt


def assert_same_results(results, others):
    for name in ("scores", "p_values", "labels", "maps", "masks"):
        np.testing.assert_array_equal(results[name], others[name])


def test_scores_during_partial_fit_are_the_former_ones(est, images, halted):
    former = est.inspect(images)
    new = copy.deepcopy(est).partial_fit(images[4:]).inspect(images)
    arrived, go_on = halted(_patch_svdd, "set_learnt")  # all but set
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(est.partial_fit, images[4:])
        assert arrived.wait(WAIT)
        during = est.inspect(images)
        go_on.set()
        running.result(WAIT)
    assert_same_results(during, former)
    assert_same_results(est.inspect(images), new)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_an_inspection_that_partial_fit_overtakes_is_of_the_former_state(
    est, images, halted, method
):
    former = est.inspect(images)
    arrived, go_on = halted(_patch_svdd, "inspect_images")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(est.inspect, images)
        assert arrived.wait(WAIT)
        getattr(est, method)(images[4:])
        go_on.set()
        during = running.result(WAIT)
    assert_same_results(during, former)
    assert len(est.training_scores_) == (4 if method == "fit" else 8)


@pytest.mark.parametrize(("other", "n_learnt"), [("partial_fit", 7), ("calibrate", 4)])
def test_partial_fit_that_another_call_overtakes_is_refused(
    est, images, monkeypatch, other, n_learnt
):
    original = _patch_svdd.apply_update

    def overtake(*args):
        monkeypatch.setattr(_patch_svdd, "apply_update", original)
        getattr(est, other)(images[4:7])
        return original(*args)

    monkeypatch.setattr(_patch_svdd, "apply_update", overtake)
    with pytest.raises(RuntimeError, match="one call after the other"):
        est.partial_fit(images[6:])
    assert len(est.training_scores_) == n_learnt
    assert len(est.calibration_scores_) == {"partial_fit": 7, "calibrate": 3}[other]


def test_threads_save_to_one_file(est, images, tmp_path):
    path = tmp_path / "part.model"
    all_at_once([lambda: est.save(path) for _ in range(4)])
    assert os.listdir(tmp_path) == ["part.model"]
    np.testing.assert_array_equal(
        skpatchsvdd.load(path).score_samples(images), est.score_samples(images)
    )


def test_a_bank_is_copied_while_a_search_sorts_it(rng):
    """Rows, owners and places belong together at every moment."""
    import torch

    n_rows = 5000
    rows = rng.random((n_rows, 4), dtype=np.float32)
    numbers = np.arange(n_rows, dtype=np.int32)
    for seed in range(5):
        places = np.column_stack([numbers, numbers])
        index = ExactIndex(Bank(rows.copy(), numbers.copy(), places), seed)
        queries = torch.from_numpy(rows[None, :3])
        calls = [index.bank, lambda x=index, q=queries: x.query(q), index.bank]
        for bank in all_at_once(calls)[::2]:
            np.testing.assert_array_equal(bank.rows, rows[bank.owners])
            np.testing.assert_array_equal(bank.places[:, 0], bank.owners)
