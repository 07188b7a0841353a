"""The command inspect --watch, which is to run for months beside a camera."""

import errno
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from commands import call, read_page, read_rows, save_images
from conftest import make_untrained
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD, _patch_svdd, load
from skpatchsvdd._cli import batches, watch
from skpatchsvdd._cli.files import find_state
from skpatchsvdd._cli.table import COLUMNS, Table
from skpatchsvdd._report import Page
from skpatchsvdd.datasets import make_textures

N_KILLS = 5


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of new images."""
    folder = tmp_path_factory.mktemp("photos")
    images = make_textures(24, image_size=48, random_state=SEED + 1).images[..., 0]
    save_images(folder, images)
    return folder


class Line:
    """A folder to which photographs come, and the one that a watch writes to."""

    def __init__(self, photos, model, root, monkeypatch):
        self.photos, self.model, self._patch = photos, model, monkeypatch
        self.folder, self.out = root / "line", root / "out"
        self.folder.mkdir()

    def put(self, name, to=None, n_bytes=None):
        """Let a photograph, or its first bytes, come under a name or at a path."""
        target = self.folder / (to or name)
        target.write_bytes((self.photos / name).read_bytes()[:n_bytes])
        return target

    def watch(self, *steps, folder=None, options=("--no-maps", "--no-report")):
        """Watch the folder, with something done before each look but the first."""
        steps = iter(steps)

        def wait(seconds):
            step = next(steps, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        self._patch.setattr(watch.time, "sleep", wait)
        folder = folder or self.folder
        return call("inspect", self.model, "--watch", folder, "-o", self.out, *options)

    def rows(self):
        return read_rows(self.out)

    def verdicts(self):
        """Return the name of each file, and whether it could not be inspected."""
        rows = self.rows()
        return [(Path(x["file"]).name, x["verdict"] == "unreadable") for x in rows]


@pytest.fixture
def line(photos, model, tmp_path, monkeypatch):
    return Line(photos, model, tmp_path, monkeypatch)


def look():
    """Do nothing but look again."""


def test_a_watch_started_again_doubles_no_row(line, monkeypatch):
    for name in ("00.png", "01.png"):
        line.put(name)
    os.rename(line.folder / "01.png", os.fsencode(line.folder) + b"/caf\xe9\n.png")
    line.put("00.png", ".hidden.png")
    (line.folder / "notes.txt").write_text("not an image")
    line.watch(look, look, options=())
    rows = line.rows()
    assert len(rows) == 2
    monkeypatch.chdir(line.folder.parent)
    Path("link").symlink_to(line.folder)
    for folder in (line.folder, "line", "link", f"../{Path.cwd().name}/line"):
        line.watch(look, look, folder=folder)
        assert line.rows() == rows
    other = line.folder.with_name("other")
    other.mkdir()
    line.put("02.png", other / "02.png")
    line.watch(look, look, folder=other, options=())
    assert line.rows()[:2] == rows
    maps = [row["map"][5:10] for row in line.rows()]
    assert maps == ["00000", "00001", "00002"]


def test_a_watch_leaves_a_table_that_is_none_of_its_own(line):
    line.out.mkdir()
    (line.out / "results.csv").write_text("a,b\n")
    assert line.watch(look) == 1
    assert (line.out / "results.csv").read_text() == "a,b\n"


def test_a_file_that_has_changed_is_looked_at_again(line):
    def finish():
        line.put("00.png")

    def overwrite():
        os.utime(line.put("01.png", "00.png"), ns=(1, 1))

    line.put("00.png", n_bytes=100)
    status = line.watch(look, look, finish, look, overwrite, look, look)
    assert line.verdicts() == [("00.png", True), ("00.png", False), ("00.png", False)]
    first, second = line.rows()[1:]
    assert first["score"] != second["score"]
    assert status in (0, 3)  # in the end it could be inspected
    line.watch(look, look)
    assert len(line.rows()) == 3


def test_a_file_that_grows_is_waited_for(line):
    def grow(n_bytes):
        return lambda: line.put("00.png", n_bytes=n_bytes)

    line.watch(grow(50), grow(90), grow(200), grow(None), look, look)
    assert line.verdicts() == [("00.png", False)]


def test_odd_files_do_not_stop_a_watch(line, capsys):
    line.put("00.png")
    Image.new("RGB", (48, 48), "red").save(line.folder / "01.png")
    line.put("02.png")
    (line.folder / "03.png").touch()
    (line.folder / "04.png").symlink_to("nothing.png")
    status = line.watch(look, look)
    assert line.verdicts() == [(f"{i:02d}.png", i in (1, 3)) for i in range(4)]
    assert status in (3, 4)
    printed, err = capsys.readouterr()
    assert "of 2 images are abnormal, 2 could not be inspected" in printed
    assert err.count("04.png is a link to nothing.png") == 1  # not at each look


def test_a_model_that_fails_leaves_all_files_to_be_inspected(line, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise ValueError("a bank of NaN")

    line.put("00.png")
    with monkeypatch.context() as patch:
        patch.setattr(_patch_svdd, "inspect_images", fail)
        patch.setattr(PatchSVDD, "score_samples", fail)
        assert line.watch(look) == 1
    assert "error: a bank of NaN" in capsys.readouterr().err
    assert line.rows() == []
    line.watch(look)
    assert line.verdicts() == [("00.png", False)]


def test_strict_ends_a_watch_at_what_fails(line, capsys):
    line.put("00.png")
    line.put("01.png", n_bytes=100)
    line.put("02.png")
    assert line.watch(look, look, options=("--strict",)) == 1
    assert line.verdicts() == [("00.png", False)]
    err = capsys.readouterr().err
    assert "--strict ends at" in err
    assert "01.png cannot be read as an image" in err
    (line.folder / "01.png").unlink()
    line.watch(look, options=("--strict",))
    assert line.verdicts() == [("00.png", False), ("02.png", False)]


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EIO, "Input/output error")], ids=type
)
def test_what_is_no_fault_of_a_file_is_tried_again(line, monkeypatch, capsys, error):
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
    line.put("00.png")
    line.put("01.png")
    assert line.watch(*[wait] * 8) == 4
    assert tried == [1, 3, 7]
    assert line.verdicts() == [("01.png", False)]
    printed, err = capsys.readouterr()
    assert err.count("tried again in") == 3
    assert "00.png" in err
    assert "1 could not be inspected" in printed
    now[0] = 10
    assert line.watch(look) in (0, 3)
    assert line.verdicts() == [("01.png", False), ("00.png", False)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="where there are pipes")
def test_pipes_and_devices_have_a_row_each(line):
    os.mkfifo(line.folder / "00.png")
    (line.folder / "01.png").symlink_to("/dev/zero")
    line.put("02.png")
    line.watch(look, lambda: os.utime(line.folder / "00.png", ns=(1, 1)), look, look)
    assert line.verdicts() == [("00.png", True), ("01.png", True), ("02.png", False)]


def test_an_image_that_is_replaced_has_no_picture_of_another(line, monkeypatch, capsys):
    line.put("00.png")
    inspect = PatchSVDD.inspect

    def replace(self, X, **options):
        results = inspect(self, X, **options)
        os.utime(line.put("01.png", "00.png"), ns=(1, 1))
        return results

    with monkeypatch.context() as patch:
        patch.setattr(PatchSVDD, "inspect", replace)
        line.watch(look, options=())
    (row,) = line.rows()
    assert row["map"] == ""
    err = capsys.readouterr().err
    assert "Its verdict is of what it was" in err
    assert "skipped" not in err
    line.watch(look, options=())
    assert [row["map"] != "" for row in line.rows()] == [False, True]


def test_names_of_any_kind_are_known_again(line, monkeypatch):
    monkeypatch.chdir(line.folder.parent)
    folder = Path("=1+1")
    folder.mkdir()
    names = ["@a.png", "-b\t.png", "c\x1b[2J\r\n.png", '"d",.png']
    for i, name in enumerate(names):
        line.put(f"{i:02d}.png", folder.absolute() / name)
    line.watch(look, look, folder="=1+1")
    rows = line.rows()
    assert len(rows) == 4
    assert all(row["file"].startswith("'=1+1") for row in rows)
    line.watch(look, look, folder="=1+1")
    assert line.rows() == rows


def test_those_that_wait_come_in_batches(line, monkeypatch):
    sizes, inspect = [], PatchSVDD.inspect

    def count(self, X, **options):
        # All before are in the table already.
        assert len(line.rows() if sizes else []) == sum(sizes)
        sizes.append(len(X))
        return inspect(self, X, **options)

    monkeypatch.setattr(PatchSVDD, "inspect", count)
    for file in line.photos.iterdir():
        line.put(file.name)
    line.watch(look)
    assert sizes == [16, 8]
    assert [x for x, _ in line.verdicts()] == sorted(
        x.name for x in line.photos.iterdir()
    )


def test_batches_of_large_images_are_smaller(line, monkeypatch):
    monkeypatch.setattr(batches, "_BATCH_PIXELS", 5 * 48 * 48)
    cut = batches.cut_batches(sorted(line.photos.iterdir()), load(line.model))
    assert [len(x) for x in cut] == [5] * 4 + [4]


def test_files_that_are_moved_away_leave_the_others(line, monkeypatch, capsys):
    """Before they are read, while they are, and before a picture is drawn."""
    monkeypatch.setattr(batches, "_BATCH", 2)
    inspect = PatchSVDD.inspect
    for i in range(6):
        line.put(f"{i:02d}.png")

    def move_away(self, X, **options):
        (line.folder / "05.png").unlink(missing_ok=True)  # of a later batch
        (line.folder / "01.png").unlink(missing_ok=True)  # is read now
        results = inspect(self, X, **options)
        if "02.png" in str(X):
            (line.folder / "02.png").unlink(missing_ok=True)  # was read
        return results

    monkeypatch.setattr(PatchSVDD, "inspect", move_away)
    line.watch(look, look, options=())
    assert line.verdicts() == [(f"{i:02d}.png", False) for i in (0, 2, 3, 4)]
    assert [row["map"] == "" for row in line.rows()] == [False, True, False, False]
    err = capsys.readouterr().err
    assert "skipped: there is no file" in err
    assert "02.png: it was moved or written to after it was inspected" in err


def test_a_folder_that_is_away_for_a_while_is_waited_for(line):
    away = line.folder.with_name("away")
    line.put("00.png")

    def mount():
        away.rename(line.folder)
        line.put("01.png")

    line.watch(look, lambda: line.folder.rename(away), mount, look, look)
    assert line.verdicts() == [("00.png", False), ("01.png", False)]


@pytest.mark.parametrize("n_left", [3, 20, 110, -1, -2, -30])
def test_a_torn_row_is_dropped_and_done_again(line, tmp_path, n_left):
    """Torn in the names of columns, in a row, or just before its end."""
    for name in ("00.png", 'a,\n"b".png'):
        line.put("00.png", name)
    line.watch(look, look, options=("--no-report",))
    rows = line.rows()
    table = line.out / "results.csv"
    table.write_bytes(table.read_bytes()[:n_left])
    line.watch(look, look, options=("--no-report",))
    assert [x["file"] for x in line.rows()] == [x["file"] for x in rows]
    assert [x["state"] for x in line.rows()] == [x["state"] for x in rows]
    drawn = sorted(x.name for x in (line.out / "maps").iterdir())
    assert drawn == sorted(Path(row["map"]).name for row in line.rows())


def test_a_table_that_is_moved_away_is_followed_by_another(tmp_path):
    table = Table(tmp_path / "results.csv", goes_on=True)
    table.add(file="a", verdict="normal", state=1)
    (tmp_path / "results.csv").rename(tmp_path / "old.csv")
    table.add(file="b", verdict="normal", state=2)
    (row,) = read_rows(tmp_path)
    assert row["file"] == "b"


def test_the_page_is_not_written_for_every_image(line, monkeypatch):
    written, write = [], Page.write

    def count(self, path):
        written.append(len(self))
        write(self, path)

    monkeypatch.setattr(Page, "write", count)

    def arrive(i):
        return lambda: line.put(f"{i:02d}.png")

    line.watch(*(arrive(i) for i in range(6)), look, options=("--no-maps",))
    assert len(line.rows()) == 6
    assert written == [1, 6]  # with the first one, and at the end
    assert len(read_page(line.out / "report.html")["images"]) == 6


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.wide
@pytest.mark.slow
def test_a_watch_that_is_killed_loses_nothing(line, normal, tmp_path):
    """Against a process that writes, and with kill -9 at random moments."""
    model = tmp_path / "part.model"
    make_untrained().fit(normal[..., 0]).save(model)
    script = Path(__file__).with_name("killed_watch.py")
    paths = script, model, line.photos, line.folder, line.out
    args = list(map(str, (sys.executable, *paths, SEED, N_KILLS)))
    ended = subprocess.run(args, capture_output=True, text=True, timeout=240)
    assert ended.returncode in (0, 3, 4), ended.stderr
    assert "Traceback" not in ended.stderr
    rows = line.rows()
    assert {tuple(row) for row in rows} == {COLUMNS}
    assert not any(None in row.values() for row in rows)
    assert max(Counter(row["state"] for row in rows).values()) == 1
    by_state = {row["state"]: row for row in rows}
    for file in line.folder.iterdir():
        row = by_state[f"{find_state(file):016x}"]
        assert row["file"] == str(file)
        is_broken = file.name.startswith("broken_")
        assert (row["verdict"] == "unreadable") == is_broken
    drawn = {row["map"] for row in rows} - {""}
    assert drawn == {f"maps/{x.name}" for x in (line.out / "maps").iterdir()}
    for name in drawn:
        with Image.open(line.out / name) as picture:
            picture.load()
    written = {x.name for x in line.out.iterdir()}
    assert written <= {"results.csv", "maps", "report.html"}
