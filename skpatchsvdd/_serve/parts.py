"""The parts of a line, which are started and ended together."""

import threading
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from skpatchsvdd._cli import describe_cause, load_model, make_folder
from skpatchsvdd._serve.alarms import AlarmSender
from skpatchsvdd._serve.arrivals import FolderArrivals, FrameArrivals
from skpatchsvdd._serve.batcher import Batcher
from skpatchsvdd._serve.history import History
from skpatchsvdd._serve.line import Line
from skpatchsvdd._serve.review_queue import ReviewQueue
from skpatchsvdd._serve.sources import find_kind, make_source
from skpatchsvdd._serve.store import Store
from skpatchsvdd._utils import hold_lock

_STORE, _FRAMES = "line.sqlite", "frames"


class Parts(NamedTuple):
    """What answers requests about a line."""

    line: Line
    reviews: ReviewQueue
    batcher: Batcher


@contextmanager
def opened_line(args, say=None, read_model=load_model, turn=nullcontext, n_lines=1):
    """Open all parts of a line but its watch, see `watching`; yield the `Parts`."""
    with ExitStack() as stack:
        folder, history = _open_folders(args, stack)
        store = Store(folder / _STORE, args.keep)
        stack.callback(store.close)
        line = Line(args.model, store, args.device, args.encoder, read_model, turn)
        line.say = say
        with _keeping_history():
            reviews = ReviewQueue(line, history)
        line.alarms = AlarmSender(store, args.on_alarm, args.webhook)
        stack.callback(line.alarms.close)
        batcher = Batcher(lambda: line.model.est, args.queue, turn, n_lines)
        stack.callback(batcher.close)
        yield Parts(line, reviews, batcher)


@contextmanager
def watching(watch, parts, arrivals):
    """Let a thread call a method of a line, `watch` or `keep_watching`."""
    args = arrivals, parts.reviews.note_change
    watcher = threading.Thread(target=watch, args=args, daemon=True, name="watch")
    watcher.start()
    try:
        yield
    finally:
        parts.line.close()
        if arrivals is not None:
            arrivals.close()
        watcher.join(30)


def make_arrivals(args, line):
    """Return what arrives at a line of a station, by its source; None without one."""
    if args.source is None:
        return None
    if find_kind(args.source) == "folder":
        return FolderArrivals(args.source)

    def list_old():
        """List frames that are no longer kept; alarms are as long as their pictures."""
        n_newest = {"normal": args.keep_good, "unreadable": args.keep_good}
        n_newest["abnormal"] = args.keep
        return [y for x in n_newest.items() for y in line.store.list_old_files(*x)]

    return FrameArrivals(
        make_source(args.source),
        args.when,
        Path(_find_output(args), _FRAMES),
        lambda: line.model.est.inspected_shape_[2],
        list_old,
    )


def _find_output(args):
    return args.output or f"{args.model}.line"


def _open_folders(args, stack):
    """Return the folder of what is seen and the history, which no other may use."""
    folder = make_folder(_find_output(args))
    with _keeping_history():
        history = History(args.model)
        history.folder.mkdir(parents=True, exist_ok=True)
    for file, what, another in (
        (folder / _STORE, f"keeps what it sees in {folder}", "folder to -o"),
        (history.log, f"uses {args.model}", "model, as a copy of it"),
    ):
        try:
            stack.enter_context(hold_lock(file))
        except BlockingIOError as error:
            raise ValueError(
                f"another program {what}: {error} Or pass another {another}."
            ) from error
    return folder, history


@contextmanager
def _keeping_history():
    try:
        yield
    except OSError as error:
        raise OSError(
            "the history of the model cannot be kept beside it: "
            f"{describe_cause(error)}. Make room, or let its folder be written to."
        ) from error
