"""A station: lines that are opened, closed and changed while the others run."""

import functools
import os
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager

from skpatchsvdd._cli import choose_offset, describe_cause, load_model, printable, tell
from skpatchsvdd._serve.answers import RefusedError, make_error
from skpatchsvdd._serve.app import make_line_app, show_image
from skpatchsvdd._serve.line import find_stat
from skpatchsvdd._serve.parts import make_arrivals, opened_line, watching
from skpatchsvdd._serve.station_file import read_lines
from skpatchsvdd._version import __version__

# Seconds between two looks at the file of the station, and until a line that could not
# be opened is tried again: at first, and at most; twice as long each time.
_LOOK_SECONDS = 1.0
_FIRST_WAIT, _LONGEST_WAIT = 2, 60


class Turns:
    """Lets one block of code run at a time, in the order in which they have come.

    A line asks for each batch, and so waits for one batch of each other line at most.
    """

    def __init__(self):
        self._lock, self._waiting = threading.Lock(), deque()

    @contextmanager
    def take(self):
        """Wait for a turn, which ends with the block."""
        turn = threading.Event()
        with self._lock:
            self._waiting.append(turn)
            if self._waiting[0] is turn:
                turn.set()
        turn.wait()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.popleft()
                if self._waiting:
                    self._waiting[0].set()


class _Entry:
    """A line of a station: what is wanted of it, what there is, and what is wrong."""

    def __init__(self, args):
        self.args, self.stack = args, ExitStack()
        self.parts = self.app = self.reason = None
        self.due = self.wait = 0

    def close(self):
        """Close what is open; a failure is printed, and the other lines go on."""
        self.app = None
        try:
            self.stack.close()
        except Exception as error:
            tell(f"{self.args.line} was not closed well: {describe_cause(error)}")


class Station:
    """Lines in one process, which compute in turn and share pretrained weights.

    When the file that names them changes, lines are added, removed and opened again,
    and others run on. A line that cannot be opened is broken, and tried again.
    """

    def __init__(self, args, say=None, token=None):
        self._args, self._say, self._token = args, say, token
        self._turns, self._wanted = Turns(), read_lines(args)
        self._stat, self.trouble = self._find_stat(), None
        self._entries, self._wake = {}, threading.Event()
        self._is_closed, self._run_id = False, os.urandom(8).hex()
        self._reading, self._thread = threading.Lock(), None
        self._arrange()

    def start(self, end):
        """Open all lines in a thread, which calls `end` with what ends it too soon."""

        def run():
            try:
                self._keep_up()
            except BaseException as error:
                end(f"the station has ended: {type(error).__name__}: {error}")

        self._thread = threading.Thread(target=run, daemon=True, name="station")
        self._thread.start()

    def close(self):
        """Close all lines."""
        self._is_closed = True
        self._wake.set()
        self._thread.join()
        for entry in self._entries.values():  # all at once: they then wait together
            if entry.parts is not None:
                entry.parts.line.close()
        for entry in self._entries.values():
            entry.close()

    def reload(self):
        """Read the file of the station again; raise if it is wrong."""
        try:
            with self._reading:
                self._wanted, self.trouble = read_lines(self._args), None
        except (OSError, ValueError) as error:
            raise RefusedError(describe_cause(error)) from error
        self._wake.set()
        return {"lines": list(self._wanted)}

    def _find_stat(self):
        return None if self._args.line else find_stat(self._args.model)

    def _keep_up(self):
        """Bring the lines to what is wanted, again and again."""
        while not self._is_closed:
            if self._stat != (stat := self._find_stat()):
                self._stat = stat
                self._read_again()
            self._arrange()
            for entry in list(self._entries.values()):
                if entry.parts is None and time.monotonic() >= entry.due:
                    self._open(entry)
                if self._is_closed:
                    return
            self._wake.wait(_LOOK_SECONDS)
            self._wake.clear()

    def _read_again(self):
        try:
            self.reload()
        except RefusedError as error:
            self.trouble = f"{printable(error)} The lines are as they were before."
            tell(f"{self._args.model} has changed, and is not used: {error}")

    def _arrange(self):
        """Close the lines that are no longer wanted as they are, and note new ones."""
        former, entries = self._entries, {}
        for name, args in self._wanted.items():
            entry = former.get(name)
            is_same = entry is not None and entry.args == args
            entries[name] = entry if is_same else _Entry(args)
        self._entries = entries  # in the order of the file
        for name, entry in former.items():
            if entries.get(name) is not entry:
                entry.close()

    def _open(self, entry):
        args, n_lines = entry.args, len(self._entries)
        read_model = functools.partial(_read_model, args)
        opened = opened_line(args, self._say, read_model, self._turns.take, n_lines)
        try:
            if not os.path.isfile(args.model):
                raise FileNotFoundError(f"there is no model {args.model}.")
            with ExitStack() as stack:
                parts = stack.enter_context(opened)
                parts.line.name = args.line
                given = args.threshold, args.false_alarm_rate
                parts.line.has_own_threshold = given != (None, None)
                arrivals = make_arrivals(args, parts.line)
                watch = watching(parts.line.keep_watching, parts, arrivals)
                stack.enter_context(watch)
                entry.stack = stack.pop_all()
        except Exception as error:  # whatever is wrong with a model, a disk, a library
            entry.wait = min(2 * entry.wait or _FIRST_WAIT, _LONGEST_WAIT)
            entry.due = time.monotonic() + entry.wait
            reason = printable(describe_cause(error))
            if reason != entry.reason:
                tell(f"{args.line} is broken: {reason}")
            entry.reason = reason
        else:
            entry.parts, entry.reason = parts, None
            entry.app = make_line_app(*parts, token=self._token)

    async def answer(self, scope, receive, send):
        """Answer a request about a line, as an application of ASGI."""
        entry = self._entries.get(scope["path_params"]["name"])
        app = entry and entry.app
        if entry is None:
            app = make_error(404, "there is no such line")
        elif app is None:
            app = make_error(503, entry.reason or "the line is being opened")
        await app(scope, receive, send)

    def describe(self):
        """Return what the overview shows."""
        return {
            "run": self._run_id,
            "version": __version__,
            "has_token": self._token is not None,
            "trouble": self.trouble,
            "lines": [_describe(*x) for x in list(self._entries.items())],
        }


def _read_model(args, path, device, encoder):
    est = load_model(path, device, encoder, mmap=True)
    est.offset_ = choose_offset(est, args.false_alarm_rate, args.threshold)
    return est


def _describe(name, entry):
    """Return what the overview shows of a line."""
    root = f"/lines/{name}"
    described = {"name": name, "url": f"{root}/", "reason": entry.reason}
    if entry.parts is None:
        return described | {"state": "broken" if entry.reason else "opening"}
    line = entry.parts.line
    try:
        waiting, signals = line.store.count_waiting()
        hour = line.describe_span("hour")
        last = [show_image(x, root) for x in line.store.list_images(limit=1)]
        return described | {
            "state": "broken" if line.trouble else "running",
            "reason": line.trouble,
            "standstill": line.standstill,
            "model": printable(os.path.basename(line.path)),
            "waiting": waiting,
            "signals": signals,
            "counts": line.store.count(),
            "hour": {x: sum(hour[x]) for x in ("images", "alarms")},
            "drift": hour["drift"],
            "last": last[0] if last else None,
        }
    except Exception as error:  # of its disk: the others are shown
        reason = printable(describe_cause(error))
        return described | {"state": "broken", "reason": reason}
