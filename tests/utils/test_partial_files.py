"""What is left of files whose writers were killed."""

import os
import subprocess
import sys

import pytest

from skpatchsvdd._utils import hold_lock, replaced_when_whole

# Writes half of a file, then waits to be killed, or for ever.
WRITER = """
import sys, time
from skpatchsvdd._utils import replaced_when_whole
with replaced_when_whole(sys.argv[1]) as partial:
    partial.write_text("half")
    print(partial, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that writes a file, and its partial file, which looks old."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "part.model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        partial = process.stdout.readline().strip()
        os.utime(partial, (0, 0))
        yield process
        process.kill()


def save(path):
    with replaced_when_whole(path) as partial:
        partial.write_text("whole")


def test_partial_files_of_the_killed_are_removed(writer, tmp_path):
    for name in (".other.model.1.2.partial", ".part.model.note"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    save(tmp_path / "part.model")
    assert len(list(tmp_path.glob(".part.model.*.partial"))) == 1  # it is alive
    writer.kill()
    writer.wait()
    save(tmp_path / "part.model")
    assert (tmp_path / "part.model").read_text() == "whole"
    left = {x.name for x in tmp_path.iterdir()}
    assert left == {".other.model.1.2.partial", ".part.model.note", "part.model"}


def test_a_file_that_was_just_begun_is_left_alone(tmp_path):
    begun = tmp_path / ".part.model.1.2.partial"
    begun.touch()  # its writer has not locked it yet
    save(tmp_path / "part.model")
    assert begun.exists()


def test_a_lock_is_held_once_and_let_go(tmp_path):
    path = tmp_path / "part.model"
    with hold_lock(path):
        match = f"being changed by process {os.getpid()} on"
        with pytest.raises(BlockingIOError, match=match), hold_lock(path):
            pass
    with hold_lock(path):
        pass
    assert not list(tmp_path.iterdir())
