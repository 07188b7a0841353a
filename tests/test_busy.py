"""Threads that wait for each other leave the cores to other processes."""

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.slow

COMMAND = """
import os, sys
from skpatchsvdd._cli import main
assert "torch" not in sys.modules
main(["fit", "no such folder", "-o", "part.model"])
import torch
"""
# Of a short step that threads share, and a pause, again and again: the seconds of the
# CPU, as torch is, and in a call of the estimator.
LIBRARY = """
import json, threading, time
import numpy as np, torch
from skpatchsvdd import PatchSVDD

def work():
    torch.ones(torch.get_num_threads() * 2**15)
    start = time.process_time()
    for _ in range(100):
        torch.ones(torch.get_num_threads() * 2**15)
        time.sleep(0.004)
    return time.process_time() - start

class Module(torch.nn.Conv2d):
    def forward(self, x):
        found.append(work())
        return super().forward(x)

found = []
X = np.random.default_rng(0).random((2, 32, 32, 3))
PatchSVDD(encoder=Module(3, 4, 3, stride=4), max_iter=0).fit(X)
n_left = threading.active_count()
print(json.dumps([work(), max(found), n_left, torch.get_num_threads()]))
"""


def run(code, cwd, **variables):
    """Run code without the variables of OpenMP that are set here."""
    own = {k: v for k, v in os.environ.items() if "OMP_" not in k and "MKL_" not in k}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=own | variables, cwd=cwd, capture_output=True, text=True
    )


def uses_gnu():
    """Whether torch uses GNU's libgomp, which says how it is set."""
    if not os.path.exists("/proc/self/maps"):
        return False
    with open("/proc/self/maps") as maps:
        return torch.get_num_threads() > 0 and "libgomp" in maps.read()


@pytest.fixture
def busy_machine():
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(os.cpu_count())]
    yield
    for process in others:
        process.kill()
        process.wait()


@pytest.mark.skipif(not uses_gnu(), reason="needs GNU's OpenMP")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "GOMP_SPINCOUNT = '0'"),  # the policy is "PASSIVE" also if it is not set
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "OMP_WAIT_POLICY = 'ACTIVE'"),
    ],
)
def test_the_command_line_sets_a_policy_before_torch_is_loaded(tmp_path, given, said):
    done = run(COMMAND, tmp_path, OMP_DISPLAY_ENV="VERBOSE", **given)
    assert said in done.stderr


@pytest.mark.skipif(not uses_gnu(), reason="needs GNU's OpenMP")
def test_threads_of_the_estimator_sleep_where_cores_are_wanted(tmp_path, busy_machine):
    done = run(LIBRARY, tmp_path)
    assert done.returncode == 0, done.stderr
    spinning, sleeping, n_left, n_threads = json.loads(done.stdout)
    assert n_left == 1
    if n_threads == 1:
        pytest.skip("one thread waits for none")
    assert sleeping < spinning / 2
