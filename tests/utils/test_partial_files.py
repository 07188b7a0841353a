"""What is left of files whose writers were killed."""

import os

import pytest

from skpatchsvdd._utils import hold_lock, replaced_when_whole


def save(path):
    with replaced_when_whole(path) as partial:
        partial.write_text("whole")


def test_partial_files_of_the_killed_are_removed(tmp_path):
    begun, old = (tmp_path / f".part.model.{i}.2.partial" for i in (1, 2))
    begun.touch()  # somebody may be writing it
    others = (tmp_path / ".other.model.1.2.partial", tmp_path / ".part.model.note")
    for path in (old, *others):
        path.touch()
        os.utime(path, (0, 0))
    save(tmp_path / "part.model")
    assert (tmp_path / "part.model").read_text() == "whole"
    assert set(tmp_path.iterdir()) == {begun, *others, tmp_path / "part.model"}


def test_a_lock_is_held_once_and_let_go(tmp_path):
    path = tmp_path / "part.model"
    with hold_lock(path):
        match = f"being changed by process {os.getpid()} on"
        with pytest.raises(BlockingIOError, match=match), hold_lock(path):
            pass
    with hold_lock(path):
        pass
    assert not list(tmp_path.iterdir())
