"""A browser that tests drive as a person would: real clicks, drags, keys, downloads."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no chromium or google-chrome is on the path"
)
CODES = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
# Seconds that an answer may take: machines that test are busy.
PATIENCE = 90


@contextmanager
def open_browser(folder, size=(1200, 900), options=()):
    """Start a browser whose profile and downloads lie in a folder; yield its `Tab`."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"]
    command += ["--disable-background-networking", "--hide-scrollbars", *options]
    command += [f"--window-size={size[0]},{size[1]}", "about:blank"]
    # The browser reads what it is told from 3, and answers to 4.
    shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Tab(ours_out, ours_in, folder / "downloads", size)
    finally:
        process.kill()
        process.wait()
        os.close(ours_out)
        os.close(ours_in)


class Tab:
    """One page of a browser, driven by the DevTools protocol over a pipe."""

    def __init__(self, target, source, downloads, size):
        self._target, self._source, self._rest = target, source, b""
        self._number, self._session, self.downloads = 0, None, downloads
        downloads.mkdir(exist_ok=True)
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(x["targetId"] for x in pages if x["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        where = {"behavior": "allow", "downloadPath": str(downloads)}
        self.call("Browser.setDownloadBehavior", **where)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=False, **shape)

    def call(self, method, **params):
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._target, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _read(self):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._source], [], [], end - time.monotonic())
            assert ready, "the browser does not answer"
            chunk = os.read(self._source, 2**20)
            assert chunk, "the browser has ended"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, path):
        """Open a page and wait until its scripts have run."""
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.wait(f"document.readyState === 'complete' && !!({_HAS_STARTED})")

    def run(self, script):
        """Return the value of an expression, or of its promise, in the page."""
        options = {"returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition):
        """Wait until an expression is true in the page."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def click(self, selector, index=0):
        """Click the middle of an element."""
        x, y = self.find(selector, index)
        self._mouse("mousePressed", x, y, buttons=1)
        self._mouse("mouseReleased", x, y)

    def drag(self, selector, start, end):
        """Drag over an element, between two places in fractions of its size."""
        places = [self.find(selector, 0, *place) for place in (start, end)]
        middle = [sum(x) / 2 for x in zip(*places, strict=True)]
        self._mouse("mousePressed", *places[0], buttons=1)
        self._mouse("mouseMoved", *middle, buttons=1)
        self._mouse("mouseMoved", *places[1], buttons=1)
        self._mouse("mouseReleased", *places[1])

    def find(self, selector, index=0, across=0.5, down=0.5):
        """Return where a place of an element is in the window, scrolled to."""
        return self.run(
            f"(() => {{ const e = document.querySelectorAll({json.dumps(selector)})"
            f"[{index}]; e.scrollIntoView({{ block: 'center', behavior: 'instant' }});"
            "const r = e.getBoundingClientRect(); return [r.left + r.width * "
            f"{across}, r.top + r.height * {down}]; }})()"
        )

    def _mouse(self, kind, x, y, buttons=0):
        held = {"button": "left", "buttons": buttons, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def press(self, key):
        """Press a key, a letter or a name such as Enter."""
        more = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": CODES[key]}
        if key == "Enter":
            more["text"] = "\r"  # without it no button is pressed
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def write(self, text):
        """Write into what has the focus."""
        self.call("Input.insertText", text=text)

    def take_download(self, name):
        """Wait for a file that the page saves, remove it and return its bytes."""
        end, file = time.monotonic() + PATIENCE, self.downloads / name
        while not file.exists():
            assert time.monotonic() < end, f"{name} was never saved"
            time.sleep(0.02)
        content = file.read_bytes()
        file.unlink()
        return content

    def screenshot(self, path):
        """Save a picture of the window."""
        picture = self.call("Page.captureScreenshot")["data"]
        path.write_bytes(base64.b64decode(picture))


_HAS_STARTED = "document.querySelector('.card') || document.getElementById('save')"
