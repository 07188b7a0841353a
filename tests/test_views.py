"""Any numpy view of images gives what a contiguous copy of it gives."""

import matplotlib
import numpy as np
import pytest
from inputs import read_only

from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd._images import check_images
from skpatchsvdd.metrics import best_f1, detection_auroc, pro_score, segmentation_auroc
from skpatchsvdd.model_selection import SyntheticDefectScorer
from skpatchsvdd.plotting import AnomalyMapDisplay

matplotlib.use("Agg")

PARAMS = {"patch_size": 32, "embedding_dim": 8, "random_state": 0}


VIEWS = {
    "channels reversed": lambda X: X[..., ::-1],
    "rows reversed": lambda X: X[:, ::-1],
    "images reversed": lambda X: X[::-1],
    "repeated": lambda X: np.broadcast_to(X[..., :1], X.shape),
    "column-major": np.asfortranarray,
    "channels first": lambda X: np.array(X.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1),
    "read-only": read_only,
    "sliced": lambda X: X.repeat(2, axis=1).repeat(2, axis=2)[:, ::2, 1::2],
    "uint16, swapped": lambda X: (X.astype(np.uint16) * 257).astype(">u2"),
    "float32, swapped": lambda X: (X / np.float32(255)).astype(">f4"),
    "float64, all": lambda X: np.asfortranarray((X / 255).astype(">f8"))[:, ::-1],
}
# Those that torch refuses, or that other code might read in another order.
HARD_VIEWS = ("channels reversed", "column-major", "float64, all")


@pytest.fixture(scope="module")
def images(normal):
    return normal[:4, :40, :40]


@pytest.fixture(scope="module")
def model(normal):
    est = PatchSVDD(encoder="hierarchical", max_iter=0, **PARAMS)
    return est.fit(normal[4:, :40, :40])


@pytest.fixture(params=HARD_VIEWS, scope="module")
def view(request, images):
    return VIEWS[request.param](images)


def plain(X):
    """Return a contiguous copy in the machine's own order of bytes."""
    return np.array(X, dtype=X.dtype.newbyteorder("="), order="C")


def test_a_mapped_view_is_read_batch_by_batch(images, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", (images / 255).astype(">f4"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")[..., ::-1]
    copied = []
    copy = np.ascontiguousarray
    monkeypatch.setattr(
        np, "ascontiguousarray", lambda x: copied.append(len(x)) or copy(x)
    )
    batches = check_images(mapped).batches(2)
    assert copied == []
    np.testing.assert_allclose(next(batches)[1], images[:2, ..., ::-1] / 255, rtol=1e-6)
    assert copied == [2]


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_scored_as_their_copies(model, images, name):
    view = VIEWS[name](images)
    for X in (view, list(view)):
        np.testing.assert_array_equal(model.embed(X, 32), model.embed(plain(view), 32))
    for method in (
        model.score_samples,
        model.decision_function,
        model.predict,
        model.p_values,
        model.predict_mask,
        model.anomaly_map,
    ):
        np.testing.assert_array_equal(method(view), method(plain(view)))


@pytest.mark.parametrize("training", ["dense", "paper"])
def test_views_are_fitted_as_their_copies(view, training):
    results = []
    for X in (view, plain(view)):
        est = PatchSVDD(encoder="hierarchical", max_iter=1, **PARAMS)
        est.set_params(training=Training(method=training, batch_size=2))
        labels = est.fit_predict(X[:3])
        scores = est.partial_fit(X[1:]).training_scores_
        results.append(np.concatenate([labels, scores, est.score_samples(X)]))
    np.testing.assert_array_equal(*results)


def test_scorer_takes_views(model, view):
    scorer = SyntheticDefectScorer(n_copies=1)
    assert scorer(model, view) == scorer(model, plain(view))


def test_displays_draw_views(model, view):
    maps = model.anomaly_map(view[:2]).astype(">f4")
    masks = (maps > maps.mean())[:, ::-1]
    for display in (
        AnomalyMapDisplay.from_estimator(model, view[:1]),
        AnomalyMapDisplay.from_predictions(view[:2], maps[:, ::-1], masks=masks),
    ):
        display.figure_.canvas.draw()
        matplotlib.pyplot.close(display.figure_)


@pytest.mark.parametrize("change", [lambda x: x[:, ::-1], lambda x: x.astype(">f4")])
def test_metrics_take_views(rng, change):
    masks = change(rng.random((4, 20, 20)) > 0.9)
    maps = change(rng.random((4, 20, 20)))
    for metric in (segmentation_auroc, pro_score):
        assert metric(masks, maps) == metric(plain(masks), plain(maps))
    labels = np.array([1, 1, -1, -1]).astype(">i8")[::-1]
    scores = maps[:, 0, 0]
    for metric in (detection_auroc, best_f1):
        assert metric(labels, scores) == metric(plain(labels), plain(scores))
