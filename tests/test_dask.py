"""The recipes of docs/dask.rst, run as they stand there on two worker processes."""

import numpy as np
import pytest
from commands import save_images
from conftest import make_untrained
from pages import read_block
from settings import SEED
from sklearn.base import clone
from sklearn.model_selection import KFold

from skpatchsvdd.datasets import make_textures

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")
pytest.importorskip("dask.array")

# Dask's status page takes another port if someone else's cluster has this one.
pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore:Port 8787 is already in use"),
]

N_WORKERS = 2
# Rounding may swap a normal and an abnormal image, 8 each in a fold, that score alike.
ONE_PAIR = 1.01 / 64


def run_recipe(marker, names, change=None):
    """Run the one block of the page that holds `marker`; return all names after it.

    `change` is a pair of texts: the second stands in for the first.
    """
    block = read_block("dask.rst", marker)
    if change is not None:
        assert change[0] in block
        block = block.replace(*change)
    # As a script: what it defines is pickled by value, for workers cannot import it.
    names = {"__name__": "__main__", **names}
    exec(compile(block, "dask.rst", "exec"), names)
    return names


@pytest.fixture(scope="module")
def cluster():
    # Dask drops copies that it thinks nobody needs every two seconds.
    with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
        names = run_recipe("LocalCluster", {})
    yield names
    run_recipe("cluster.close", names)
    assert names["client"].status == "closed"
    assert not names["cluster"].workers


@pytest.fixture(scope="module")
def data():
    return make_textures(24, image_size=64, anomaly_fraction=1 / 3, random_state=SEED)


@pytest.fixture(scope="module")
def est():
    """An estimator that is not fitted yet. Tests must not change it.

    With random weights: a worker has a process, threads and perhaps kernels of its own,
    with which a training may end elsewhere.
    """
    return make_untrained().set_params(n_jobs=1)


@pytest.fixture(scope="module")
def scored(cluster, data, est):
    """The names after the recipe that scores, with a fitted `est`."""
    fitted = clone(est).fit(data.images[data.labels == 1])
    return run_recipe("anomaly_map", {**cluster, "est": fitted, "X_new": data.images})


def folds_of(y):
    """Pairs (train, test) that train on normal images only."""
    normal, abnormal = np.flatnonzero(y == 1), np.flatnonzero(y == -1)
    return [
        (normal[train], np.concatenate([normal[test], abnormal]))
        for train, test in KFold(2).split(normal)
    ]


def split_scores(search):
    results = search.cv_results_
    return [results[f"split{i}_test_score"] for i in range(search.n_splits_)]


@pytest.mark.slow
def test_search_on_dask_finds_what_it_finds_here(cluster, data, est):
    X, y = data.images, data.labels
    names = {**cluster, "X": X, "y": y, "est": est, "folds": folds_of(y)}
    on_dask = run_recipe("GridSearchCV", names)["search"]
    assert len(np.unique(split_scores(on_dask))) > 1
    for n_jobs in (1, 2):
        here = clone(on_dask).set_params(n_jobs=n_jobs).fit(X, y)
        np.testing.assert_allclose(
            split_scores(here), split_scores(on_dask), rtol=0, atol=ONE_PAIR
        )
        means = here.cv_results_["mean_test_score"]
        assert means[on_dask.best_index_] >= here.best_score_ - ONE_PAIR


@pytest.mark.slow
def test_workers_train(cluster, data, est):
    X = data.images[data.labels == 1]
    est = clone(est).set_params(max_iter=2, training__batch_size=2)
    there = cluster["client"].submit(est.fit, X).result()
    here = clone(est).fit(X)
    assert there.n_iter_ == 2
    for name, curve in here.loss_curve_.items():  # of the same crops and weights
        assert there.loss_curve_[name][0] == pytest.approx(curve[0], rel=0.01)


def test_scores_and_maps_on_dask_are_those_of_the_estimator(scored, data):
    est, scores, maps = (scored[name] for name in ("est", "scores", "maps"))
    assert scores.numblocks == (2,)
    assert (scores.shape, scores.dtype) == (data.labels.shape, np.float64)
    expected = est.score_samples(data.images)
    np.testing.assert_allclose(scores.compute(), expected, rtol=1e-3)
    assert (maps.shape, maps.dtype) == (data.masks.shape, np.float32)
    expected = est.anomaly_map(data.images)
    np.testing.assert_allclose(maps.compute(), expected, rtol=1e-3)
    (workers,) = scored["client"].who_has([scored["shared"]]).values()
    assert len(workers) == N_WORKERS


def test_files_are_scored_by_the_workers(scored, data, tmp_path):
    filenames = save_images(tmp_path, data.images)
    names = run_recipe("filenames", {**scored, "filenames": filenames})
    expected = scored["est"].score_samples(data.images)
    np.testing.assert_allclose(names["file_scores"], expected, rtol=1e-3)


@pytest.mark.slow
def test_parts_that_workers_have_learnt_are_joined(cluster, data, est, tmp_path):
    files = save_images(tmp_path, data.images[data.labels == 1])
    est = clone(est).set_params(inspection__relative_weight=0)
    names = {**cluster, "est": est, "files": files}
    joined = run_recipe("est.join", names, ("500", "4"))["est"]
    alone = clone(est).fit(files[:4]).partial_fit(files[4:])
    assert joined.bank_size_ == alone.bank_size_
    assert sorted(joined.training_files_) == sorted(alone.training_files_)
    for X in (data.images[data.labels == -1], files):
        scores = joined.score_samples(X)
        np.testing.assert_allclose(scores, alone.score_samples(X), rtol=1e-3)
