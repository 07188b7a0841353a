"""A camera of RTSP: serves the pictures 0.jpg, 1.jpg, ... of a folder, again and again.

Needs GStreamer, as of Debian's packages: apt-get install python3-gi
gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good. Those are for the system's Python,
which runs this file: /usr/bin/python3 _rtsp.py PORT FOLDER [PICTURES_A_SECOND]
"""

import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

_PYTHON = shutil.which("python3", path="/usr/bin") or sys.executable
_IMPORTS = """
import gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer
Gst.init(None)
assert Gst.ElementFactory.find("rtpjpegpay")
"""


def has_rtsp():
    """Whether there is all that it needs."""
    found = subprocess.run([_PYTHON, "-c", _IMPORTS], capture_output=True)
    return found.returncode == 0


@contextmanager
def running_rtsp(folder, port, rate=5):
    """Serve a folder at rtsp://127.0.0.1:PORT/stream until the block ends."""
    command = [_PYTHON, __file__, str(port), str(folder), str(rate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        yield f"rtsp://127.0.0.1:{port}/stream"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def serve(port, folder, rate="5"):
    """Serve until the process is ended."""
    names = {}
    exec(_IMPORTS, names)
    server = names["GstRtspServer"].RTSPServer.new()
    server.set_service(port)
    factory = names["GstRtspServer"].RTSPMediaFactory.new()
    last = len(list(Path(folder).glob("*.jpg"))) - 1
    factory.set_launch(
        f'( multifilesrc location="{folder}/%d.jpg" start-index=0 stop-index={last} '
        f"loop=true caps=image/jpeg,framerate={rate}/1 ! jpegdec ! jpegenc "
        "! rtpjpegpay name=pay0 pt=26 )"
    )
    factory.set_shared(True)
    server.get_mount_points().add_factory("/stream", factory)
    server.attach(None)
    print("serving", flush=True)
    names["GLib"].MainLoop().run()


if __name__ == "__main__":
    serve(*sys.argv[1:])
