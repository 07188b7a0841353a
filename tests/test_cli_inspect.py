"""The command inspect, with files, disks and users that are not as they should be."""

import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from commands import call, read_page, read_rows, save_images, save_untrained
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import inspect as inspect_command
from skpatchsvdd._cli.maps import KINDS
from skpatchsvdd._cli.terminal import printable
from skpatchsvdd._cli.values import KINDS as NAMES
from skpatchsvdd._utils import hold_lock
from skpatchsvdd.datasets import make_textures

FEW = ["--no-maps", "--no-report"]


@pytest.fixture
def new(tmp_path):
    """A folder of new normal images."""
    images = make_textures(6, image_size=48, random_state=SEED + 1).images[..., 0]
    save_images(tmp_path / "new", images)
    return tmp_path / "new"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def inspect(model, new, out):
    """Inspect the folder, or something else, with a model."""

    def inspect(*options, model=model, images=new):
        return call("inspect", model, images, "-o", out, *options)

    return inspect


def change_offset(model, path, offset):
    """Save a model with another threshold."""
    est = load(model)
    est.offset_ = offset
    est.save(path)
    return path


def spoil(folder):
    """Add a file for each thing that can be wrong; return a word of each reason."""
    whole = (folder / "00.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").touch()
    (folder / "gone.png").symlink_to("nothing.png")
    Image.new("RGB", (48, 48), "red").save(folder / "rgb.png")
    Image.new("L", (50, 48)).save(folder / "wide.png")
    return {
        "cut": "cannot be read as an image",
        "empty": "0 bytes",
        "gone": "is a link to nothing.png, which is not there",
        "rgb": "is coloured, and the model was fitted to grey images",
        "wide": "48 x 50 pixels",
    }


def test_what_cannot_be_inspected_takes_no_other_with_it(
    model, new, out, inspect, tmp_path, capsys
):
    expected, lenient = spoil(new), change_offset(model, tmp_path / "m", -1e3)
    assert inspect("--no-maps", model=lenient) == 4
    rows = {Path(row["file"]).stem: row for row in read_rows(out)}
    printed, err = capsys.readouterr()
    for name, reason in expected.items():
        assert rows[name]["verdict"] == "unreadable"
        assert reason in rows[name]["reason"]
        assert rows[name]["score"] == ""
        assert f"{name}.png" in err
    normal = [x for x in rows if rows[x]["verdict"] == "normal"]
    assert normal == [f"{i:02d}" for i in range(6)]
    assert "0 of 6 images are abnormal, 5 could not be inspected" in printed
    page = read_page(out / "report.html")
    told = {Path(x["file"]).stem: x["reason"] for x in page["unreadable"]}
    assert told == {name: rows[name]["reason"] for name in expected}
    assert len(page["images"]) == 6
    # An alarm counts for more.
    assert inspect("--threshold", "0.001", *FEW) == 3
    assert inspect(images=new / "empty.png") == 4
    assert read_page(out / "report.html")["images"] == []


def test_coloured_files_do_not_join_a_model_of_grey_ones(model, tmp_path, capsys):
    Image.new("RGB", (48, 48), "red").save(tmp_path / "rgb.png")
    assert call("update", model, tmp_path / "rgb.png") == 1
    err = capsys.readouterr().err
    assert "rgb.png is coloured" in err
    assert "no image is left" in err


def test_a_reason_names_its_file_whatever_it_says(
    new, out, inspect, tmp_path, monkeypatch
):
    def fail(self, X, **options):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(PatchSVDD, "inspect", fail)
    monkeypatch.chdir(tmp_path)
    (new / "00.png").rename("no")  # a word of the message
    assert inspect(*FEW, images="no") == 4
    assert read_rows(out)[0]["reason"] == "no cannot be inspected: no kernel"


def test_a_threshold_of_zero_divides_nothing(model, inspect, tmp_path, capsys):
    zero = change_offset(model, tmp_path / "m", 0.0)
    assert inspect("--maps", "overlay,png", model=zero) == 3
    assert "warning" not in capsys.readouterr().err
    assert inspect("--threshold", "0.5", model=zero) == 1
    assert "Pass --false-alarm-rate instead" in capsys.readouterr().err


def test_a_second_run_into_a_folder_is_refused(out, inspect, capsys):
    out.mkdir()
    with hold_lock(out / "results.csv"):
        assert inspect(*FEW) == 1
        assert f"by process {os.getpid()} on" in capsys.readouterr().err
        assert not (out / "results.csv").exists()
    # Locks of killed processes are ignored.
    (out / ".results.csv.lock").write_text("process 1 on nowhere")
    assert inspect(*FEW) in (0, 3)
    assert [x.name for x in out.iterdir()] == ["results.csv"]


def test_names_cannot_forge_lines(new, out, inspect, capfd):
    forged = "normal    p 1.000  other.png"
    (new / "00.png").rename(new / f"a\n{forged}\x1b[2J\u2028.png")
    (new / f"b\n{forged}.png").write_bytes(b"no image")
    (new / f"c\n{forged}.txt").touch()
    assert inspect() in (3, 4)
    assert inspect("--strict") == 1
    assert inspect(images=f"x\n{forged}") == 1
    with pytest.raises(SystemExit):
        call("inspect", f"--x\n{forged}")
    for text in capfd.readouterr():
        assert not any(line.startswith(forged) for line in text.splitlines())
        assert "\x1b" not in text
    names = {row["file"] for row in read_rows(out)}
    assert printable(new / f"b\n{forged}.png") in names
    assert b"\x1b" not in (out / "results.csv").read_bytes()
    assert printable("a\tb\u00e4\u00a0\x7f") == "a\\tb\u00e4\u00a0\\x7f"


@pytest.mark.parametrize(
    ("options", "n_bytes", "name"),
    [(["--no-maps"], 400, "results.csv"), ([], 300, "maps/00000_00.png")],
)
def test_a_disk_that_is_full_names_the_file(
    out, inspect, capsys, options, n_bytes, name
):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        assert inspect("--no-report", *options) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(out / name) in capsys.readouterr().err
    assert (out / "results.csv").read_bytes().endswith(b"\r\n")  # no part of a row
    assert inspect("--no-report", *options) in (0, 3)
    assert len(read_rows(out)) == 6


def test_former_maps_go_when_a_folder_is_inspected_again(new, out, inspect):
    inspect("--no-report")
    (out / "maps" / "mine.png").touch()
    for i in range(3, 6):
        (new / f"{i:02d}.png").unlink()
    inspect("--no-report")
    named = {Path(row["map"]).name for row in read_rows(out)}
    assert len(named) == 3
    assert {x.name for x in (out / "maps").iterdir()} == {*named, "mine.png"}


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("n_presses", [1, 2])
def test_an_interrupt_waits_for_the_batch_at_hand_and_a_second_does_not(
    out, inspect, monkeypatch, capsys, n_presses
):
    monkeypatch.setattr("skpatchsvdd._cli.batches._BATCH", 4)
    inspect_all = PatchSVDD.inspect

    def interrupted(self, X, **options):
        if len(X) > 1:  # not the first, which comes alone
            for _ in range(n_presses):
                os.kill(os.getpid(), signal.SIGINT)
            assert n_presses == 1
        return inspect_all(self, X, **options)

    monkeypatch.setattr(PatchSVDD, "inspect", interrupted)
    assert inspect("--no-maps") == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    printed, err = capsys.readouterr()
    assert "Ctrl-C again ends it at once" in err
    if n_presses == 1:
        assert len(read_rows(out)) == 5
        assert len(read_page(out / "report.html")["images"]) == 5
        assert "of 5 images are abnormal" in printed


def test_it_says_from_the_start_how_far_it_has_come(inspect, monkeypatch, capsys):
    seconds = iter(range(0, 10_000, 30))
    monkeypatch.setattr(inspect_command.time, "monotonic", lambda: next(seconds))
    inspect(*FEW)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "inspecting 6 images"
    assert re.fullmatch(r"1 of 6 images done, about \d+ min left", lines[1])


def test_what_the_model_was_not_made_for_is_noted(tmp_path, out, capsys):
    images = make_textures(6, image_size=48, random_state=SEED).images
    save_untrained(
        tmp_path / "m", save_images(tmp_path / "good", images), image_size=48
    )
    new = tmp_path / "new"
    save_images(new, images[:1], ["alike"])
    Image.fromarray(images[0]).convert("L").save(new / "grey.png")
    Image.fromarray(images[0]).resize((96, 48)).save(new / "wide.png")
    assert call("inspect", tmp_path / "m", new, "-o", out) in (0, 3)
    notes = [
        "",
        "grey, and the training images are in colour",
        "distorted: height is 0.50 x width, and 1.00 x in the training images",
    ]
    assert [row["note"] for row in read_rows(out)] == notes
    found = {x["name"]: x["note"] for x in read_page(out / "report.html")["images"]}
    assert [found[x] for x in sorted(found)] == notes
    printed = capsys.readouterr().out
    assert all(f"({note})" in printed for note in notes[1:])


@pytest.mark.parametrize("watches", [False, True])
def test_a_data_set_as_a_whole_is_refused(model, new, out, tmp_path, capsys, watches):
    for part in ("train/good", "test/good", "ground_truth/dent"):
        shutil.copytree(new, tmp_path / "data" / part)
    data = tmp_path / "data"
    images = ["--watch", data] if watches else [data]
    assert call("inspect", model, *images, "-o", out) == 1
    err = capsys.readouterr().err
    assert f"{data} holds train/ and test/ and ground_truth/" in err
    assert f"Pass {data / 'test'} instead" in err
    assert call("inspect", model, data / "test", "-o", out, *FEW) in (0, 3)


@pytest.mark.parametrize(
    "options", [["--threshold", "0.80"], ["--false-alarm-rate", "0.34"]]
)
def test_the_threshold_is_chosen_on_the_command_line(
    model, new, out, inspect, capsys, options
):
    est, status = load(model), inspect(*options)
    results = est.inspect([str(x) for x in sorted(new.iterdir())])
    if options[0] == "--threshold":
        threshold = -0.8 * est.offset_
        alarms = results.scores < -threshold
    else:  # three of nine: eight of training, and the new one
        threshold = -np.sort(est.training_scores_)[2]
        alarms = results.p_values <= 0.34
    rows = read_rows(out)
    assert [row["verdict"] == "abnormal" for row in rows] == alarms.tolist()
    assert [int(row["n_regions"]) > 0 for row in rows] == alarms.tolist()
    assert status == (3 if alarms.any() else 0)
    page = read_page(out / "report.html")
    assert page["threshold"] == pytest.approx(threshold)
    assert page["model_threshold"] == pytest.approx(-est.offset_)
    factor = page["threshold"] / page["model_threshold"]
    assert f"{factor:.2f} x the model's" in capsys.readouterr().out
    assert load(model).offset_ == est.offset_  # the file stays as it was


def test_maps_are_saved_as_numbers_and_masks(model, out, inspect):
    assert tuple(KINDS) == NAMES
    args = "--no-report", "--threshold", "0.5", "--maps", "npy,png,mask"
    assert inspect(*args) == 3
    est, rows = load(model), read_rows(out)
    results = est.inspect([row["file"] for row in rows])
    assert any(row["verdict"] == "abnormal" for row in rows)
    for row, one_map in zip(rows, results.maps, strict=True):
        numbers, grey, mask = (out / x for x in row["map"].split(";"))
        np.testing.assert_array_equal(np.load(numbers), one_map)
        grey, mask = (np.asarray(Image.open(x)) for x in (grey, mask))
        relative = one_map / (-0.5 * est.offset_)
        np.testing.assert_allclose(grey / 10_000, relative, atol=1e-4)
        is_abnormal = row["verdict"] == "abnormal"
        assert ((mask == 255) == ((relative > 1) & is_abnormal)).mean() > 0.99
        assert (mask.max() == 255) == is_abnormal
    assert len(list((out / "maps").iterdir())) == 3 * len(rows)
