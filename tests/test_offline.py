"""Nothing asks the network for anything."""

import subprocess
import sys

CODE = """
import sys

def refuse(event, _):
    if event.startswith("socket."):
        raise AssertionError(f"the network was asked: {event}")

sys.addaudithook(refuse)  # also for what compiled code opens by Python's sockets

import socket
try:
    socket.create_connection(("127.0.0.1", 9))
except AssertionError:
    pass
else:
    raise SystemExit("sockets are not closed")

import numpy as np
from skpatchsvdd import PatchSVDD, load

rng = np.random.default_rng(0)
images = rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
est = PatchSVDD(device="cpu", random_state=0).fit(images)
labels = est.predict(images)
est.save(sys.argv[1])
assert (load(sys.argv[1]).predict(images) == labels).all()
"""


def test_defaults_need_no_network(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "model")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
