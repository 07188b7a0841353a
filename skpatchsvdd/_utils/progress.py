"""Bars and lines that say how far a long call has come."""

import sys
import time

_WIDTH = 30  # characters of a bar
# How often a log file gets a line, what is too short to say how long it takes, and
# after how long small steps are worth a bar.
_LOG_SECONDS, _SHORT_SECONDS, _PATIENCE = 30.0, 5.0, 3.0


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
        has_grown, self._n_cells = n_cells > self._n_cells, n_cells
        now = time.monotonic()
        if not self._is_drawn(now):
            return
        if done >= self._total:
            if has_grown:
                self._draw(end="\n")
        elif sys.stdout.isatty():
            if has_grown:
                self._draw(end="")
        elif now - self._last >= _LOG_SECONDS:
            self._draw(end="\n")

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

    A context, as `Progress` is. ``report(line)`` prints a line about the losses, which
    have `names`; None does not report them.
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
