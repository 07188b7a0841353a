"""Alarms passed on: a command that is run, an address that is posted to, lines."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

from skpatchsvdd._cli import describe_cause, tell

# Seconds that a command or an address may take, and until the next try: at first, and
# at most; twice as long each time.
_PATIENCE = 30
_FIRST_WAIT, _LONGEST_WAIT = 1, 300
# Runs of a command that fails; an address is tried as long as alarms wait.
_MOST_RUNS = 5
# Lines of JSON that wait until they are read.
_MOST_LINES = 10_000
# Seconds that they have at the end.
_LAST_WAIT = 2
COMMAND, WEBHOOK = "command", "webhook"


class LinePrinter:
    """Prints lines from its own thread, so that a slow reader holds up nothing.

    `on_end` is called with the error that has ended it: nobody can read any more.
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


class AlarmSender:
    """Sends what the outbox of a store holds, until it is closed.

    `command`, run without a shell, gets the alarm as JSON on its standard input;
    `webhook` is an address that it is posted to. Each has a thread of its own.
    """

    def __init__(self, store, command=None, webhook=None):
        self._store, self._command, self._webhook = store, command, webhook
        self._open = urllib.request.build_opener(_NoRedirect).open
        self._is_closed = False
        self._wakes = {COMMAND: threading.Event(), WEBHOOK: threading.Event()}
        self._threads = [
            threading.Thread(target=self._run, args=args, daemon=True, name=args[0])
            for args in ((COMMAND, self._run_command), (WEBHOOK, self._post))
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

    def _run(self, target, send):
        wake = self._wakes[target]
        while not self._is_closed:
            try:
                alarm = self._store.take_signal(target)
                wait = None if alarm is None else alarm["due"] - time.time()
                # One that is further away was put off before the clock was set back.
                if wait is not None and not 0 < wait <= _LONGEST_WAIT:
                    self._send(alarm, send)
                    continue
            except Exception as error:  # of the disk: the next try may succeed
                tell(f"alarms wait: {describe_cause(error)}")
                wait = _FIRST_WAIT
            wake.wait(wait)
            wake.clear()

    def _send(self, alarm, send):
        try:
            send(alarm["body"])
        except Exception as error:  # whatever programs, networks and addresses raise
            reason = getattr(error, "reason", None)  # of urllib's errors
            cause = reason if isinstance(reason, OSError) else error
            self._put_off(alarm, describe_cause(cause))
        else:
            self._store.drop_signal(alarm["id"])

    def _put_off(self, alarm, reason):
        target, n_tries = alarm["target"], alarm["tries"] + 1
        if target not in self.targets or (target == COMMAND and n_tries >= _MOST_RUNS):
            self._store.drop_signal(alarm["id"])
            tell(f"alarm not passed on, given up after {n_tries} tries: {reason}")
            return
        wait = min(_FIRST_WAIT * 2 ** (n_tries - 1), _LONGEST_WAIT)
        self._store.put_off_signal(alarm["id"], time.time() + wait, reason)
        tell(f"alarm not passed on, tried again in {wait} s: {reason}")

    def _run_command(self, body):
        if not self._command:
            raise ValueError("there is no --on-alarm any more")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
        with subprocess.Popen(
            self._command, **pipes, start_new_session=True
        ) as process:
            try:
                process.communicate(body.encode(), _PATIENCE)
            except Exception:
                if hasattr(os, "killpg"):  # with those that it has started
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, self._command)

    def _post(self, body):
        if not self._webhook:
            raise ValueError("there is no --webhook any more")
        # The same alarm has the same key, however often it is tried.
        key = f"{json.loads(body)['event']}"
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        request = urllib.request.Request(self._webhook, body.encode(), headers)
        with self._open(request, timeout=_PATIENCE) as answer:
            answer.read(1)
