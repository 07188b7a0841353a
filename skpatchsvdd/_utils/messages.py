"""What a call says: warnings at the user's line, bars, callbacks of scikit-learn.

And checks of scikit-learn that leave the filters of warnings alone.
"""

import sys
import time
import warnings

import numpy as np
import sklearn.utils

from skpatchsvdd._utils.threads import make_lock

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:
        """Nothing: this scikit-learn has no callbacks."""


# Whose frames lie between a user's call and a warning.
_BETWEEN = {"skpatchsvdd", "sklearn", "joblib"}
_CHECKING = make_lock()
_WIDTH = 30  # characters of a bar
# How often a log file gets a line, what is too short to say how long it takes, and
# after how long small steps are worth a bar.
_LOG_SECONDS, _SHORT_SECONDS, _PATIENCE = 30.0, 5.0, 3.0
# Parts of a task, at most. scikit-learn keeps an object for each until the outermost
# fit is over, and a callback in another process waits for each to be heard.
_MAX_PARTS = 100


class TrainingInterrupted(UserWarning):
    """An interrupt has ended a training early, and `fit` goes on with its weights.

    As an error, by a filter of warnings, it ends `fit`.
    """


class TrainingKept(UserWarning):
    """A `fit` that failed after its training keeps the trained weights."""


class TwinsFound(UserWarning):
    """Some images look like several pictures of one piece, and count as one."""


class SuspectsFound(UserWarning):
    """Some images that are learnt from look defective, or unlike all others."""


def warn(message, category=UserWarning):
    """Warn about the first line outside of this package and scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _BETWEEN:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_array(*args, **kwargs):
    """Call scikit-learn's check, one thread at a time.

    It changes warning filters, which are those of all threads, and sets them back.
    """
    with _CHECKING:
        return sklearn.utils.check_array(*args, **kwargs)


def column_or_1d(*args, **kwargs):
    """Call scikit-learn's function, one thread at a time, as `check_array`."""
    with _CHECKING:
        return sklearn.utils.column_or_1d(*args, **kwargs)


def check_finite_scores(scores, name):
    """Return scores as a float64 array, or raise if any is not finite or none is."""
    scores = column_or_1d(scores, dtype=np.float64)
    if len(scores) == 0 or not np.isfinite(scores).all():
        raise ValueError(
            f"{name} must hold finite scores of at least one image, got {scores!r}."
        )
    return scores


class Report:
    """Says what a long call is doing, in lines that begin with a name.

    With `verbose` 1 it reports each step and draws bars, with 2 also losses while
    training, with 0 nothing.
    """

    def __init__(self, name, verbose):
        self._name = name
        self._verbose = verbose

    def log(self, message):
        """Print a line."""
        if self._verbose >= 1:
            print(f"[{self._name}] {message}", flush=True)

    def progress(self, label, total):
        """Return a bar."""
        return self._make_bar(label, total, self._verbose >= 1)

    def side_progress(self, label, total):
        """Return a bar of a step that callbacks are not told of, if it takes long."""
        name = f"[{self._name}] {label}"
        return Progress(name, total, self._verbose >= 1, _PATIENCE)

    def training_log(self, names, max_iter):
        """Return what draws a bar of training steps, or reports the losses."""
        report = self.log if self._verbose >= 2 else None
        bar = self._make_bar("training", max_iter, self._verbose == 1)
        return TrainingLog(bar, report, names, max_iter)

    def end(self):
        """Say that all is done: nothing, to those who read."""

    def _make_bar(self, label, total, is_shown):
        return Progress(f"[{self._name}] {label}", total, is_shown)


class Progress:
    """Draws a bar in a terminal; elsewhere, as in a log file, a line now and then.

    A context: leaving it ends the line of a bar that has stopped halfway. Nothing is
    drawn before `patience` seconds have passed.
    """

    def __init__(self, label, total, is_shown, patience=0.0):
        self._label = label
        self._total = total
        self._is_shown = is_shown
        self._n_cells = 0
        self._n_done = 0
        self._n_drawn = 0  # length of the last line
        self._start = self._last = time.monotonic()
        self._patience = patience

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._is_drawn(time.monotonic()) and 0 < self._n_done < self._total:
            self._draw(end="\n", goes_on=False)

    def __call__(self, done):
        """Say how many steps are done."""
        n_cells, self._n_done = _WIDTH * done // self._total, done
        is_due, self._n_cells = n_cells > self._n_cells, n_cells
        now, is_over = time.monotonic(), done >= self._total
        is_line = is_over or not sys.stdout.isatty()
        if is_line and not is_over:
            is_due = now - self._last >= _LOG_SECONDS
        if is_due and self._is_drawn(now):
            self._draw(end="\n" if is_line else "")

    def _is_drawn(self, now):
        return self._is_shown and now - self._start >= self._patience

    def _draw(self, end, goes_on=True):
        self._last = time.monotonic()
        bar = "#" * self._n_cells + "." * (_WIDTH - self._n_cells)
        line = f"{self._label} {bar} {self._n_done:,} of {self._total:,}"
        if goes_on:
            line += say_time_left(self._last - self._start, self._n_done, self._total)
        n_drawn, self._n_drawn = self._n_drawn, len(line)
        if sys.stdout.isatty():
            line = "\r" + line.ljust(n_drawn)
        print(line, end=end, flush=True)


def say_time_left(seconds, n_done, total):
    """Return words, after a comma, for how long the rest of some steps will take.

    `seconds` is how long those that are done took. Empty if it is short.
    """
    seconds *= (total - n_done) / max(n_done, 1)
    if seconds < _SHORT_SECONDS:
        return ""
    if seconds < 100:
        return f", about {seconds:.0f} s left"
    return f", about {seconds / 60:.0f} min left"


class TrainingLog:
    """Counts the steps of a training with a bar, and reports its losses twenty times.

    A context, as `Progress` is. ``report(line)`` prints a line; None prints nothing.
    """

    def __init__(self, progress, report, names, max_iter):
        self._progress = progress
        self._report = report
        self._names = names
        self._every = max(max_iter // 20, 1)
        self._start = time.perf_counter()

    def __enter__(self):
        self._progress.__enter__()
        return self

    def __exit__(self, *error):
        self._progress.__exit__(*error)

    def __call__(self, step, terms):
        """Say how many steps are done, and the loss terms of the last one.

        Returns whether to stop.
        """
        if self._report is not None and step % self._every == 0:
            pairs = zip(self._names, terms.tolist(), strict=True)
            losses = "  ".join(f"{name} {value:.4f}" for name, value in pairs)
            seconds = time.perf_counter() - self._start
            self._report(f"step {step}  {seconds:.1f} s  {losses}")
        return self._progress(step)


def open_report(estimator, X, y, n_tasks):
    """Return the `Report` of a call that fits, of `n_tasks` bars at most.

    The callbacks, if any, hear it too; `_fit_context`, which decorates the method,
    takes them down. `end` is called when the estimator is fitted, not if it fails.
    """
    if hasattr(estimator, "_skl_callbacks"):
        return CallbackReport(estimator, X, y, n_tasks)
    return Report(type(estimator).__name__, estimator.verbose)


class CallbackReport(Report):
    """A report that is a task of scikit-learn's callbacks, and each bar one in it."""

    def __init__(self, estimator, X, y, n_tasks):
        super().__init__(type(estimator).__name__, estimator.verbose)
        self._context = {"estimator": estimator, "X": X, "y": y}
        self._task = estimator._init_callback_context(max_subtasks=n_tasks)
        self._task.call_on_fit_task_begin(**self._context)

    def end(self):
        """Say that the estimator is fitted: callbacks may score it."""
        self._task.call_on_fit_task_end(**self._context, reconstruction_attributes={})

    def _make_bar(self, label, total, is_shown):
        bar = super()._make_bar(label, total, is_shown)
        n_parts = min(total, _MAX_PARTS)
        name = label.partition(",")[0]  # ProgressBar leaves it half a line
        task = self._task.subcontext(name, max_subtasks=n_parts)
        return TaskProgress(bar, total, task, n_parts, self._context)


class TaskProgress:
    """A bar that is a task of scikit-learn's callbacks, of equal parts.

    One that fails does not end, as in scikit-learn.
    """

    def __init__(self, bar, total, task, n_parts, context):
        self._bar = bar
        self._total = total  # steps
        self._task = task
        self._n_parts = n_parts
        self._context = context  # what callbacks are told besides
        self._part = None  # the one that has begun
        self._n_ended = 0
        self._is_stopped = False

    def __enter__(self):
        self._bar.__enter__()
        self._task.call_on_fit_task_begin(**self._context)
        self._begin_part()
        return self

    def __exit__(self, *error):
        self._bar.__exit__(*error)
        if error == (None, None, None):
            if self._part is not None:  # stopped early
                self._end_part()
            self._task.call_on_fit_task_end(**self._context)

    def __call__(self, done):
        """Say how many steps are done; return whether a callback asks to stop.

        One that has asked is told of no more parts.
        """
        self._bar(done)
        n_due = self._n_parts * done // self._total
        while self._n_ended < n_due and not self._is_stopped:
            self._end_part()
            if self._n_ended < self._n_parts and not self._is_stopped:
                self._begin_part()
        return self._is_stopped

    def _begin_part(self):
        self._part = self._task.subcontext("part")
        self._part.call_on_fit_task_begin(**self._context)

    def _end_part(self):
        part, self._part = self._part, None
        self._n_ended += 1
        self._is_stopped = part.call_on_fit_task_end(**self._context)
