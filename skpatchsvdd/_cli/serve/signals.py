"""Alarms passed on: a command that is run, an address that is posted to, lines."""

import json
import os
import queue
import signal as signals
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

from skpatchsvdd._cli.terminal import describe_cause, tell

# Seconds that a command or an address may take, and until the next try: at first, and
# at most; twice as long each time.
_PATIENCE = 30
_FIRST_WAIT, _LONGEST_WAIT = 1, 300
# A command that fails is run so often; an address is tried for as long as there are
# signals for it.
_MOST_RUNS = 5
# Lines of JSON that wait until they are read.
_MOST_LINES = 10_000
# Seconds that they have at the end.
_LAST_WAIT = 2
COMMAND, WEBHOOK = "command", "webhook"


class Lines:
    """Prints lines from a thread of its own, so that who does not read holds up nobody.

    `on_end` is called with what has ended it: there is nobody who could read.
    """

    def __init__(self, on_end):
        self._on_end, self._has_dropped = on_end, False
        self._queue = queue.Queue(_MOST_LINES)
        self._thread = threading.Thread(target=self._run, daemon=True, name="lines")
        self._thread.start()

    def say(self, line):
        """Print a line soon, or tell that it is lost."""
        try:
            self._queue.put_nowait(line)
            self._has_dropped &= self._queue.qsize() > _MOST_LINES // 2
        except queue.Full:
            if not self._has_dropped:
                tell("--json: nobody reads the lines, and further ones are lost.")
            self._has_dropped = True

    def close(self):
        """Print what is left, unless nobody reads it."""
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(_LAST_WAIT)

    def _run(self):
        try:
            # Past Python's own buffer, which the end of the process would wait for.
            descriptor = sys.stdout.fileno()
            while (line := self._queue.get()) is not None:
                data = line.encode() + b"\n"
                while data:
                    data = data[os.write(descriptor, data) :]
        except OSError as error:
            self._on_end(error)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: what is sent goes where it was told to, or nowhere."""

    def redirect_request(self, *args, **kwargs):
        return None


class Signals:
    """Sends what the outbox of a store holds, in a thread, until it is closed.

    `command` is a list of arguments, run without a shell, which gets the alarm as JSON
    on its standard input; `webhook` is an address that the same JSON is posted to.
    """

    def __init__(self, store, command=None, webhook=None):
        self._store, self._command, self._webhook = store, command, webhook
        self._open = urllib.request.build_opener(_NoRedirect).open
        self._is_closed = False
        # Each target has its own: one that does not answer keeps no other waiting.
        self._wakes = {target: threading.Event() for target in (COMMAND, WEBHOOK)}
        self._threads = [
            threading.Thread(target=self._run, args=(x,), daemon=True, name=x)
            for x in self._wakes
        ]
        for thread in self._threads:
            thread.start()

    @property
    def targets(self):
        """What an alarm is sent to."""
        pairs = (COMMAND, self._command), (WEBHOOK, self._webhook)
        return [name for name, where in pairs if where]

    def wake(self):
        """Look at the outbox: something is new."""
        for wake in self._wakes.values():
            wake.set()

    def close(self):
        """End after what is being sent; the rest is sent after the next start."""
        self._is_closed = True
        self.wake()
        for thread in self._threads:
            thread.join(_PATIENCE + 5)

    def _run(self, target):
        wake = self._wakes[target]
        while not self._is_closed:
            wake.clear()
            try:
                signal = self._store.take_signal(target)
                wait = None if signal is None else signal["due"] - time.time()
                # One that is further away was put off before the clock was set back.
                if wait is not None and not 0 < wait <= _LONGEST_WAIT:
                    self._send(signal)
                    continue
            except Exception as error:  # of the disk: the next try may succeed
                tell(f"alarms wait: {describe_cause(error)}")
                wait = _FIRST_WAIT
            wake.wait(wait)

    def _send(self, signal):
        send = {COMMAND: self._run_command, WEBHOOK: self._post}[signal["target"]]
        try:
            send(signal)
        except Exception as error:  # whatever programs, networks and addresses raise
            reason = getattr(error, "reason", None)  # of urllib's errors
            cause = reason if isinstance(reason, OSError) else error
            self._put_off(signal, describe_cause(cause))
        else:
            self._store.drop_signal(signal["id"])

    def _put_off(self, signal, reason):
        target, n_tries = signal["target"], signal["tries"] + 1
        if target not in self.targets or (target == COMMAND and n_tries >= _MOST_RUNS):
            self._store.drop_signal(signal["id"])
            tell(f"alarm not passed on, given up after {n_tries} tries: {reason}")
            return
        wait = min(_FIRST_WAIT * 2 ** (n_tries - 1), _LONGEST_WAIT)
        self._store.put_off_signal(signal["id"], time.time() + wait, reason)
        tell(f"alarm not passed on, tried again in {wait} s: {reason}")

    def _run_command(self, signal):
        if not self._command:
            raise ValueError("there is no --on-alarm any more")
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate(signal["body"].encode(), _PATIENCE)
        except subprocess.TimeoutExpired:
            _end_group(process)
            raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, self._command)

    def _post(self, signal):
        if not self._webhook:
            raise ValueError("there is no --webhook any more")
        request = urllib.request.Request(
            self._webhook,
            signal["body"].encode(),
            {
                "Content-Type": "application/json",
                # The same alarm has the same key, however often it is tried.
                "Idempotency-Key": f"{json.loads(signal['body'])['event']}",
            },
        )
        with self._open(request, timeout=_PATIENCE) as answer:
            answer.read(1)


def _end_group(process):
    """Kill a process and those that it has started, where the system can."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signals.SIGKILL)
    process.kill()
    process.wait()
