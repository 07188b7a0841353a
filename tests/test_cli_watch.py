"""The command inspect --watch, which is to run for months beside a camera."""

import csv
import errno
import io
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from commands import read_rows, save_images
from conftest import make_untrained
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import batches, main, watch
from skpatchsvdd._cli.states import find_state, find_states
from skpatchsvdd._cli.table import COLUMNS, Table
from skpatchsvdd._report import Page
from skpatchsvdd._scoring import Inspector
from skpatchsvdd.datasets import make_textures

N_KILLS = 5


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of new images."""
    folder = tmp_path_factory.mktemp("photos")
    images = make_textures(24, image_size=48, random_state=SEED + 1).images[..., 0]
    save_images(folder, images)
    return folder


@pytest.fixture
def line(tmp_path):
    (tmp_path / "line").mkdir()
    return tmp_path / "line"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run_watch(model, line, out, monkeypatch):
    """Watch the folder, with something done before each look but the first."""

    def run(*steps, folder=line, options=("--no-maps", "--no-report")):
        steps = iter(steps)

        def wait(seconds):
            step = next(steps, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(watch.time, "sleep", wait)
        args = ["inspect", str(model), "--watch", str(folder), "-o", str(out)]
        return main([*args, *options])

    return run


def look():
    """Do nothing but look again."""


def put(file, folder, name=None, n_bytes=None):
    target = folder / (name or file.name)
    target.write_bytes(file.read_bytes()[:n_bytes])
    return target


def verdicts(folder):
    return [
        (Path(x["file"]).name, x["verdict"] == "unreadable") for x in read_rows(folder)
    ]


def test_a_watch_started_again_doubles_no_row(
    photos, line, out, run_watch, monkeypatch
):
    for name in ("00.png", "01.png"):
        put(photos / name, line)
    os.rename(line / "01.png", os.fsencode(line) + b"/caf\xe9\n.png")
    run_watch(look, look)
    rows = read_rows(out)
    assert len(rows) == 2
    monkeypatch.chdir(line.parent)
    (line.parent / "link").symlink_to(line)
    for folder in (line, "line", "link", "../" + line.parent.name + "/line"):
        run_watch(look, look, folder=folder)
        assert read_rows(out) == rows
    put(photos / "02.png", line)
    run_watch(look, look)
    assert read_rows(out)[:2] == rows
    assert len(read_rows(out)) == 3


def test_a_file_that_has_changed_is_looked_at_again(photos, line, out, run_watch):
    def finish():
        put(photos / "00.png", line)

    def overwrite():
        os.utime(put(photos / "01.png", line, "00.png"), ns=(1, 1))

    put(photos / "00.png", line, n_bytes=100)
    status = run_watch(look, look, finish, look, overwrite, look, look)
    assert verdicts(out) == [("00.png", True), ("00.png", False), ("00.png", False)]
    first, second = read_rows(out)[1:]
    assert first["score"] != second["score"]
    assert status in (0, 3)  # in the end it could be inspected
    run_watch(look, look)
    assert len(read_rows(out)) == 3


def test_a_file_that_grows_is_waited_for(photos, line, out, run_watch):
    def grow(n_bytes):
        return lambda: put(photos / "00.png", line, n_bytes=n_bytes)

    run_watch(grow(50), grow(90), grow(200), grow(None), look, look)
    assert verdicts(out) == [("00.png", False)]


def test_odd_files_do_not_stop_a_watch(photos, line, out, run_watch, capsys):
    put(photos / "00.png", line)
    Image.new("RGB", (48, 48), "red").save(line / "01.png")
    put(photos / "02.png", line)
    (line / "03.png").touch()
    (line / "04.png").symlink_to("nothing.png")
    status = run_watch(look, look)
    odd = {"01.png", "03.png"}
    assert verdicts(out) == [
        (x, x in odd) for x in ("00.png", "01.png", "02.png", "03.png")
    ]
    assert status in (3, 4)
    printed, err = capsys.readouterr()
    assert "of 2 images are abnormal, 2 could not be inspected" in printed
    assert err.count("04.png is a link to nothing.png") == 1  # not at each look


@pytest.mark.parametrize("device", ["cuda:x", "cuda:99"])
def test_a_wrong_device_leaves_all_files_to_be_inspected(
    photos, line, out, run_watch, device
):
    put(photos / "00.png", line)
    assert run_watch(look, options=("--device", device)) == 1
    assert read_rows(out) == []
    run_watch(look)
    assert verdicts(out) == [("00.png", False)]


def test_a_model_that_fails_leaves_all_files_to_be_inspected(
    photos, line, out, run_watch, monkeypatch
):
    put(photos / "00.png", line)
    with monkeypatch.context() as patch:
        patch.setattr(Inspector, "look", fail_with(ValueError("a bank of NaN")))
        patch.setattr(PatchSVDD, "score_samples", fail_with(ValueError("a bank")))
        assert run_watch(look) == 1
    assert read_rows(out) == []
    run_watch(look)
    assert verdicts(out) == [("00.png", False)]


def fail_with(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def test_strict_ends_a_watch_at_what_fails(photos, line, out, run_watch, capsys):
    put(photos / "00.png", line)
    put(photos / "01.png", line, n_bytes=100)
    put(photos / "02.png", line)
    assert run_watch(look, look, options=("--strict",)) == 1
    assert verdicts(out) == [("00.png", False)]
    err = capsys.readouterr().err
    assert "--strict ends at" in err
    assert "01.png cannot be read as an image" in err
    (line / "01.png").unlink()
    run_watch(look, options=("--strict",))
    assert verdicts(out) == [("00.png", False), ("02.png", False)]


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EIO, "Input/output error")], ids=type
)
def test_what_is_no_fault_of_a_file_is_tried_again(
    photos, line, out, run_watch, monkeypatch, capsys, error
):
    """After 2 s, 4 s and so on, while others are inspected."""
    tried, now, read = [], [0.0], Image.open

    def open_or_fail(file, **options):
        if "00.png" in str(file) and now[0] < 10:
            tried.append(now[0])
            raise error
        return read(file, **options)

    def wait():
        now[0] += 1

    monkeypatch.setattr(Image, "open", open_or_fail)
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    put(photos / "00.png", line)
    put(photos / "01.png", line)
    assert run_watch(*[wait] * 8) == 4
    assert tried == [1, 3, 7]
    assert verdicts(out) == [("01.png", False)]
    printed, err = capsys.readouterr()
    assert err.count("tried again in") == 3
    assert "00.png" in err
    assert "1 could not be inspected" in printed
    now[0] = 10
    assert run_watch(look) in (0, 3)
    assert verdicts(out) == [("01.png", False), ("00.png", False)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="where there are pipes")
def test_pipes_and_devices_have_a_row_each(photos, line, out, run_watch):
    os.mkfifo(line / "00.png")
    (line / "01.png").symlink_to("/dev/zero")
    put(photos / "02.png", line)
    run_watch(look, lambda: os.utime(line / "00.png", ns=(1, 1)), look, look)
    assert verdicts(out) == [("00.png", True), ("01.png", True), ("02.png", False)]


def test_an_image_that_is_replaced_has_no_picture_of_another(
    photos, line, out, run_watch, monkeypatch, capsys
):
    put(photos / "00.png", line)
    inspect = PatchSVDD.inspect

    def replace(self, X, **options):
        results = inspect(self, X, **options)
        os.utime(put(photos / "01.png", line, "00.png"), ns=(1, 1))
        return results

    with monkeypatch.context() as patch:
        patch.setattr(PatchSVDD, "inspect", replace)
        run_watch(look, options=())
    (row,) = read_rows(out)
    assert row["map"] == ""
    err = capsys.readouterr().err
    assert "Its verdict is of what it was" in err
    assert "skipped" not in err
    run_watch(look, options=())
    assert [row["map"] != "" for row in read_rows(out)] == [False, True]


def test_names_of_any_kind_are_known_again(photos, out, run_watch, line, monkeypatch):
    monkeypatch.chdir(line.parent)
    folder = Path("=1+1")
    folder.mkdir()
    names = ["@a.png", "-b\t.png", "c\x1b[2J\r\n.png", '"d",.png']
    for i, name in enumerate(names):
        put(photos / f"{i:02d}.png", folder, name)
    run_watch(look, look, folder="=1+1")
    rows = read_rows(out)
    assert len(rows) == 4
    assert all(row["file"].startswith("'=1+1") for row in rows)
    run_watch(look, look, folder="=1+1")
    assert read_rows(out) == rows


def test_those_that_wait_come_in_batches(photos, line, out, run_watch, monkeypatch):
    sizes, inspect = [], PatchSVDD.inspect

    def count(self, X, **options):
        # All before are in the table already.
        assert len(read_rows(out) if sizes else []) == sum(sizes)
        sizes.append(len(X))
        return inspect(self, X, **options)

    monkeypatch.setattr(PatchSVDD, "inspect", count)
    for file in photos.iterdir():
        put(file, line)
    run_watch(look)
    assert sizes == [16, 8]
    assert [x for x, _ in verdicts(out)] == sorted(x.name for x in photos.iterdir())


def test_batches_of_large_images_are_smaller(photos, model, monkeypatch):
    monkeypatch.setattr(batches, "_BATCH_PIXELS", 5 * 48 * 48)
    cut = batches.cut_batches(sorted(photos.iterdir()), load(model))
    assert [len(x) for x in cut] == [5] * 4 + [4]


def test_files_that_are_moved_away_leave_the_others(
    photos, line, out, run_watch, monkeypatch, capsys
):
    """Before they are read, while they are, and before a picture is drawn."""
    monkeypatch.setattr(batches, "_BATCH", 2)
    inspect = PatchSVDD.inspect
    for i in range(6):
        put(photos / f"{i:02d}.png", line)

    def move_away(self, X, **options):
        (line / "05.png").unlink(missing_ok=True)  # of a later batch
        (line / "01.png").unlink(missing_ok=True)  # is read now
        results = inspect(self, X, **options)
        if "02.png" in str(X):
            (line / "02.png").unlink(missing_ok=True)  # was read
        return results

    monkeypatch.setattr(PatchSVDD, "inspect", move_away)
    run_watch(look, look, options=())
    assert verdicts(out) == [(f"{i:02d}.png", False) for i in (0, 2, 3, 4)]
    assert [row["map"] == "" for row in read_rows(out)] == [False, True, False, False]
    err = capsys.readouterr().err
    assert "skipped: there is no file" in err
    assert "02.png: it was moved or written to after it was inspected" in err


def test_a_folder_that_is_away_for_a_while_is_waited_for(photos, line, out, run_watch):
    away = line.with_name("away")
    put(photos / "00.png", line)

    def mount():
        away.rename(line)
        put(photos / "01.png", line)

    run_watch(look, lambda: line.rename(away), mount, look, look)
    assert verdicts(out) == [("00.png", False), ("01.png", False)]


@pytest.mark.parametrize("n_left", [3, 20, 110, -1, -2, -30])
def test_a_torn_row_is_dropped_and_done_again(
    photos, line, out, run_watch, tmp_path, n_left
):
    """Torn in the names of columns, in a row, or just before its end."""
    for name in ("00.png", 'a,\n"b".png'):
        put(photos / "00.png", line, name)
    run_watch(look, look, options=("--no-report",))
    rows = read_rows(out)
    table = out / "results.csv"
    table.write_bytes(table.read_bytes()[:n_left])
    run_watch(look, look, options=("--no-report",))
    assert [x["file"] for x in read_rows(out)] == [x["file"] for x in rows]
    assert [x["state"] for x in read_rows(out)] == [x["state"] for x in rows]
    drawn = sorted(x.name for x in (out / "maps").iterdir())
    assert drawn == sorted(Path(row["map"]).name for row in read_rows(out))


def test_a_table_that_is_moved_away_is_followed_by_another(tmp_path):
    table = Table(tmp_path / "results.csv", goes_on=True)
    table.add(file="a", verdict="normal", state=1)
    (tmp_path / "results.csv").rename(tmp_path / "old.csv")
    table.add(file="b", verdict="normal", state=2)
    (row,) = read_rows(tmp_path)
    assert row["file"] == "b"


def test_a_state_changes_with_what_it_stands_for(photos, line, monkeypatch):
    file = put(photos / "00.png", line)
    os.utime(file, ns=(10, 10))
    monkeypatch.chdir(line)
    states = [find_state(file), find_state("00.png"), find_state(str(file))]
    assert len(set(states)) == 1
    os.utime(file, ns=(10, 11))
    states.append(find_state(file))
    put(photos / "00.png", line, "01.png")
    os.utime(line / "01.png", ns=(10, 11))
    states += find_states([line / "01.png", line / "02.png"]).values()
    assert len(set(states)) == 4
    assert states[-1] is None


def test_the_page_is_not_written_for_every_image(
    photos, line, out, run_watch, monkeypatch
):
    written, write = [], Page.write

    def count(self, path):
        written.append(len(self))
        write(self, path)

    monkeypatch.setattr(Page, "write", count)

    def arrive(i):
        return lambda: put(photos / f"{i:02d}.png", line)

    run_watch(*(arrive(i) for i in range(6)), look, options=("--no-maps",))
    assert len(read_rows(out)) == 6
    assert written == [1, 6]  # with the first one, and at the end


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.wide
@pytest.mark.slow
def test_a_watch_that_is_killed_loses_nothing(normal, photos, line, out, tmp_path):
    """Against a process that writes, and with kill -9 at random moments."""
    model = tmp_path / "part.model"
    make_untrained().fit(normal[..., 0]).save(model)
    script = Path(__file__).with_name("killed_watch.py")
    args = [sys.executable, script, model, photos, line, out, SEED, N_KILLS]
    ended = subprocess.run(
        list(map(str, args)), capture_output=True, text=True, timeout=240
    )
    assert ended.returncode in (0, 3, 4), ended.stderr
    assert "Traceback" not in ended.stderr
    text = (out / "results.csv").read_bytes().decode("utf-8")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0] == list(COLUMNS)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    rows = read_rows(out)
    assert max(Counter(row["state"] for row in rows).values()) == 1
    by_state = {row["state"]: row for row in rows}
    for file in line.iterdir():
        row = by_state[f"{find_state(file):016x}"]
        assert row["file"] == str(file)
        is_broken = file.name.startswith("broken_")
        assert (row["verdict"] == "unreadable") == is_broken
    drawn = {row["map"] for row in rows} - {""}
    assert drawn == {f"maps/{x.name}" for x in (out / "maps").iterdir()}
    for name in drawn:
        with Image.open(out / name) as picture:
            picture.load()
    assert {x.name for x in out.iterdir()} <= {"results.csv", "maps", "report.html"}
