"""Callbacks of scikit-learn, where it has them: what they are told of a fit."""

from skpatchsvdd._utils.progress import Report

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:
        """Nothing: this scikit-learn has no callbacks."""


# Parts of a task, at most. scikit-learn keeps an object for each until the outermost
# fit is over, and a callback in another process waits for each to be heard.
_MAX_PARTS = 100


def open_report(estimator, X, y, n_tasks):
    """Return the `Report` of a call that fits; the callbacks, if any, hear it too.

    The estimator's method is decorated with `_fit_context`, which takes the callbacks
    down. There will be `n_tasks` bars at most. The report's `end` is called when the
    estimator is fitted, not if it fails.
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

    A context, as `Progress` is. The task begins and ends with it; one that fails does
    not end, as in scikit-learn.
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
