import itertools
import sys

import pytest

from skpatchsvdd._utils import messages
from skpatchsvdd._utils.messages import Progress


def run(capsys, *, total=60):
    with Progress("counting", total, True) as bar:
        for done in range(1, total + 1):
            bar(done)
    return capsys.readouterr().out


def test_a_bar_grows_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    drawn = run(capsys).split("\r")[1:]
    assert len(drawn) == 30
    assert drawn[0] == "counting #............................. 2 of 60"
    assert drawn[-1] == "counting ############################## 60 of 60\n"


@pytest.mark.parametrize("total", [1, 7, 60, 1000])
def test_a_file_gets_one_line(capsys, total):
    out = run(capsys, total=total)
    assert out.count("counting") == 1
    assert out.endswith(f"{total:,} of {total:,}\n")


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("done", [1, 7, 59])
def test_a_bar_that_stops_ends_its_line(capsys, monkeypatch, is_terminal, done):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    with Progress("counting", 60, True) as bar:
        bar(done)
    out = capsys.readouterr().out
    assert out.endswith(f" {done} of 60\n")
    assert out.count("\n") == 1


@pytest.mark.parametrize(("done", "is_shown"), [(0, True), (7, False)])
def test_a_bar_that_was_not_drawn_ends_nothing(capsys, done, is_shown):
    with Progress("counting", 60, is_shown) as bar:
        if done:
            bar(done)
    assert capsys.readouterr().out == ""


@pytest.fixture
def slow(monkeypatch):
    """A clock of which every look takes a second."""
    seconds = itertools.count(1.0)
    monkeypatch.setattr(messages.time, "monotonic", lambda: next(seconds))


def test_a_long_job_says_how_long_it_takes(capsys, slow):
    lines = run(capsys, total=1200).splitlines()
    assert len(lines) > 20  # about every 30 seconds
    assert lines[0].endswith("of 1,200, about 20 min left")
    assert " s left" in lines[-2]
    assert lines[-1].endswith(" 1,200 of 1,200")


def test_a_shorter_line_covers_the_last_one(capsys, slow, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    drawn = run(capsys, total=60).split("\r")[1:]
    lengths = [len(line.rstrip("\n")) for line in drawn]
    assert all(b >= len(a.rstrip()) for a, b in zip(drawn, lengths[1:], strict=False))
