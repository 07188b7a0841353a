"""Callbacks of scikit-learn, alone and inside its pipelines and searches."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest
from conftest import make_untrained
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from trainings import interrupt

from skpatchsvdd import Training, _patch_svdd
from skpatchsvdd._scoring import fitted as fitted_bank
from skpatchsvdd._training import loop
from skpatchsvdd._utils import open_report

callback = pytest.importorskip("sklearn.callback")


class Recorder:
    """Writes every call of it into a file, from whatever process."""

    def __init__(self, path):
        self.path = path

    def setup(self, estimator, context):
        self.write("setup", context)

    def on_fit_task_begin(self, estimator, context):
        self.write("begin", context)

    def on_fit_task_end(self, estimator, context):
        self.write("end", context)

    def teardown(self, estimator, context):
        self.write("teardown", context)

    def write(self, hook, context):
        ids, node = [], context
        while node is not None:
            ids, node = [node.task_id, *ids], node.parent
        call = [hook, context.estimator_name, context.task_name, context.max_subtasks]
        with open(self.path, "a") as file:
            file.write(json.dumps([*call, ids]) + "\n")

    def read(self):
        """Return the calls: hook, estimator, task, most sub tasks, task ids."""
        return [json.loads(line) for line in open(self.path)]

    def names(self):
        """Return the calls in short, without those of parts."""
        return [f"{x[0]} {x[2]}" for x in self.read() if x[2] != "part"]


class SpreadRecorder(Recorder):
    """Is passed on to all that is inside of an estimator."""

    max_propagation_depth = None


class Stopper(Recorder):
    """Asks to stop at the end of a part of a task."""

    def __init__(self, path, task):
        super().__init__(path)
        self.task = task

    def on_fit_task_end(self, estimator, context):
        super().on_fit_task_end(estimator, context)
        return context.task_name == "part" and context.parent.task_name == self.task


@pytest.fixture
def few(normal):
    """Four images of 36 x 36."""
    return normal[:4, :36, :36]


@pytest.fixture
def quick():
    """An estimator that fits to few images in no time."""
    training = Training(method="paper", batch_size=1)
    options = {"max_iter": 2, "training": training, "device": "cpu"}
    return make_untrained().set_params(embedding_dim=4, **options)


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path / "calls")


@pytest.fixture
def spread(tmp_path):
    return SpreadRecorder(tmp_path / "calls")


TASKS = ("training", "encoding images", "scoring images")
PARTS = [f"{hook} {task}" for task in TASKS for hook in ("begin", "end")]
FIT = ["begin fit", *PARTS, "end fit"]


def count_parts(calls):
    """Return how many sub tasks each task has, and how many it may have."""
    ended = [call for call in calls if call[0] == "end"]
    n_children = Counter(tuple(call[4][:-1]) for call in ended)
    return {tuple(x[4]): (n_children[tuple(x[4])], x[3]) for x in ended if x[3] != 0}


def assert_balanced(calls):
    """Assert that the last task to begin is the first to end."""
    is_open = []
    for hook, *_, ids in calls:
        if hook == "begin":
            assert ids[:-1] == (is_open[-1] if is_open else [])
            is_open.append(ids)
        elif hook == "end":
            assert is_open.pop() == ids
    assert not is_open


def test_callbacks_see_the_tasks_of_fit_in_order(quick, few, recorder):
    assert quick.set_callbacks(recorder).fit(few) is quick
    assert recorder.names() == ["setup fit", *FIT, "teardown fit"]
    calls = recorder.read()
    assert_balanced(calls)
    assert {call[1] for call in calls} == {"PatchSVDD"}
    # Two steps, four images.
    expected = {(0,): (3, 3), (0, 0): (2, 2), (0, 1): (4, 4), (0, 2): (4, 4)}
    assert count_parts(calls) == expected


@pytest.mark.parametrize(
    ("params", "n_tasks"),
    [
        ({"training": "dense", "max_iter": 1}, 3),
        ({"max_iter": 0, "bank_size": 9}, 2),
        ({"verbose": 2}, 3),
    ],
)
def test_all_tasks_are_counted_beforehand(quick, few, recorder, params, n_tasks):
    quick.set_params(**params).set_callbacks(recorder).fit(few)
    assert_balanced(recorder.read())
    n_parts = count_parts(recorder.read())
    assert n_parts[0,] == (n_tasks, n_tasks)
    assert all(n == most for n, most in n_parts.values())


class Steps(callback.CallbackSupportMixin):
    """Takes as many steps at a time as it is told."""

    verbose = 0

    @callback.with_callbacks
    def fit(self, batches):
        report = open_report(self, None, None, n_tasks=1)
        with report.progress("counting", sum(batches)) as progress:
            for done in np.cumsum(batches):
                progress(int(done))
        report.end()


@pytest.mark.parametrize(
    ("batches", "n_parts"), [([1] * 7, 7), ([3, 3, 1], 7), ([64, 64, 2], 100)]
)
def test_a_task_has_a_hundred_parts_at_most(recorder, batches, n_parts):
    Steps().set_callbacks(recorder).fit(batches)
    assert_balanced(recorder.read())
    assert count_parts(recorder.read()) == {(0,): (1, 1), (0, 0): (n_parts, n_parts)}


def test_callbacks_change_neither_scores_nor_what_is_printed(
    quick, few, recorder, capsys
):
    quick.set_params(verbose=1)
    expected = quick.fit(few).training_scores_
    said = capsys.readouterr().out
    scores = quick.set_callbacks(recorder).fit(few).training_scores_
    np.testing.assert_array_equal(scores, expected)
    assert capsys.readouterr().out == said


def test_callbacks_of_partial_fit(quick, few, recorder):
    quick.set_callbacks(recorder).partial_fit(few[:2])
    assert recorder.names() == ["setup fit", *FIT, "teardown fit"]
    recorder.path.unlink()
    quick.partial_fit(few)
    task = ["begin adding images", "end adding images"]
    names = ["setup fit", "begin fit", *task, "end fit", "teardown fit"]
    assert recorder.names() == names
    assert count_parts(recorder.read()) == {(0,): (1, 1), (0, 0): (2, 2)}


@pytest.mark.parametrize(
    ("module", "name", "n_seen"),
    [(fitted_bank, "index_banks", 5), (loop, "descend", 2)],
)
@pytest.mark.filterwarnings("ignore:.*are kept")
def test_a_failing_fit_tears_down(
    quick, few, recorder, monkeypatch, module, name, n_seen
):
    def fail(*args):
        raise FloatingPointError

    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        with pytest.raises(FloatingPointError):
            quick.set_callbacks(recorder).fit(few)
    assert recorder.names() == ["setup fit", *FIT[:n_seen], "teardown fit"]
    assert not [name for name in vars(quick) if "callback_fit" in name]
    recorder.path.unlink()
    quick.fit(few)
    assert recorder.names() == ["setup fit", *FIT, "teardown fit"]


def test_images_that_are_refused_set_nothing_up(quick, few, recorder):
    with pytest.raises(ValueError, match="at least two"):
        quick.set_callbacks(recorder).fit(few[:1])
    assert not recorder.path.exists()


def test_an_interrupted_training_is_a_task_that_ends(quick, few, recorder, monkeypatch):
    interrupt(monkeypatch, 3)
    with pytest.warns(UserWarning, match="interrupted after 3 of 50 steps"):
        quick.set_params(max_iter=50).set_callbacks(recorder).fit(few)
    assert recorder.names() == ["setup fit", *FIT, "teardown fit"]
    assert_balanced(recorder.read())
    assert count_parts(recorder.read())[0, 0] == (4, 50)  # the last one halfway


def test_a_callback_can_stop_the_training(quick, few, tmp_path):
    stopper = Stopper(tmp_path / "calls", "training")
    quick.set_params(max_iter=50).set_callbacks(stopper).fit(few)
    assert quick.n_iter_ == quick.best_iter_ == 1
    assert stopper.names() == ["setup fit", *FIT, "teardown fit"]
    assert count_parts(stopper.read())[0, 0] == (1, 50)


def test_nothing_but_training_can_be_stopped(quick, few, tmp_path):
    stopper = Stopper(tmp_path / "calls", "encoding images")
    expected = clone(quick).fit(few).training_scores_
    scores = quick.set_callbacks(stopper).fit(few).training_scores_
    np.testing.assert_array_equal(scores, expected)
    assert count_parts(stopper.read())[0, 1] == (1, 4)
    assert_balanced(stopper.read())


def test_a_second_bank_is_no_task(quick, few, recorder, monkeypatch):
    """A training that has collapsed is undone, and a bank built once more."""
    monkeypatch.setattr(_patch_svdd, "are_tied", lambda scores: True)
    with pytest.warns(UserWarning, match="same"):
        quick.set_callbacks(recorder).fit(few)
    assert quick.best_iter_ == 0
    assert recorder.names() == ["setup fit", *FIT, "teardown fit"]


def test_callbacks_go_along_with_clones_and_pickles(quick, few, recorder):
    est = pickle.loads(pickle.dumps(clone(quick.set_callbacks(recorder))))
    scores = est.fit(few).score_samples(few)
    assert recorder.names() == ["setup fit", *FIT, "teardown fit"]
    again = pickle.loads(pickle.dumps(est))
    np.testing.assert_array_equal(again.score_samples(few), scores)
    again.fit(few)
    assert len(recorder.names()) == 2 * len(FIT) + 4


@pytest.mark.filterwarnings("ignore:The estimator FunctionTransformer does not")
def test_tasks_in_a_pipeline(quick, few, spread):
    def to_images(X):
        return X.reshape(few.shape)

    steps = StandardScaler(), FunctionTransformer(to_images), quick
    pipeline = make_pipeline(*steps).set_callbacks(spread)
    pipeline.fit_predict(few.reshape(4, -1))
    calls = spread.read()
    assert_balanced(calls)
    recorded = [f"{x[0]} {x[2]}" for x in calls if x[1] == "PatchSVDD" and x[3] != 0]
    assert recorded == FIT
    n_parts = count_parts(calls)
    assert n_parts[0,] == (3, 3)  # the steps
    assert n_parts[0, 2] == (3, 3)
    assert n_parts[0, 2, 2] == (4, 4)
    hooks = Counter(call[0] for call in calls)
    assert hooks["setup"] == hooks["teardown"] == 1


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_tasks_in_a_search(quick, few, spread, n_jobs):
    search = GridSearchCV(
        quick.set_params(n_jobs=1),
        {"max_iter": [1, 2]},
        scoring=lambda est, X, y=None: est.n_iter_,
        cv=KFold(2),
        n_jobs=n_jobs,
        error_score="raise",
    )
    search.set_callbacks(spread).fit(few)
    fits = [call for call in spread.read() if call[1:3] == ["PatchSVDD", "fit"]]
    fits = [tuple(call[4]) for call in fits if call[0] == "end"]
    assert len(set(fits)) == len(fits) == 5  # two values, two folds, the refit
    n_parts = count_parts(spread.read())
    assert all(n_parts[fit] == (3, 3) for fit in fits)
    n_steps = sorted(n_parts[(*fit, 0)] for fit in fits)
    assert n_steps == [(1, 1), (1, 1), (2, 2), (2, 2), (2, 2)]
    assert sorted(n_parts[(*fit, 1)] for fit in fits) == [(2, 2)] * 4 + [(4, 4)]
    hooks = Counter(call[0] for call in spread.read())
    assert hooks["setup"] == hooks["teardown"] == 1
    assert hooks["begin"] == hooks["end"]


def test_a_fitted_estimator_is_scored_at_the_end(quick, mixed):
    monitor = callback.ScoringMonitor(scoring="roc_auc")
    X, y = mixed.images, mixed.labels
    quick.set_callbacks(monitor).fit(X, y)
    (row,) = monitor.get_logs().data
    assert row["task_name"] == "fit"
    assert row["roc_auc"] == roc_auc_score(y, quick.decision_function(X))


def test_bars_of_scikit_learn(quick, few, capsys):
    pytest.importorskip("rich")
    quick.set_callbacks(callback.ProgressBar()).fit(few)
    lines = capsys.readouterr().out.splitlines()
    for name in ("fit", "training #0", "encoding images #1", "scoring images #2"):
        assert any(f"PatchSVDD - {name}" in line for line in lines)
    assert sum("100%" in line for line in lines) == 4
