"""The command inspect, with files, disks and users that are not as they should be."""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from commands import read_rows, save_images
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import main
from skpatchsvdd._cli.maps import KINDS, in_thresholds
from skpatchsvdd._cli.text import printable
from skpatchsvdd._cli.values import KINDS as NAMES
from skpatchsvdd._utils import hold_lock
from skpatchsvdd.datasets import make_textures

FEW = ["--no-maps", "--no-report"]


def read_page(folder):
    text = (folder / "report.html").read_text("utf-8")
    return json.loads(re.search(r"\{\"title\".*\}", text)[0])


@pytest.fixture(scope="module")
def grey():
    """New normal images."""
    return make_textures(6, image_size=48, random_state=SEED + 1).images[..., 0]


@pytest.fixture
def new(tmp_path, grey):
    """A folder of new normal images."""
    save_images(tmp_path / "new", grey)
    return tmp_path / "new"


@pytest.fixture
def lenient(model, tmp_path):
    """A model to which nothing is abnormal."""
    est = load(model)
    est.offset_ = -1e3
    est.save(tmp_path / "lenient.model")
    return tmp_path / "lenient.model"


def spoil(folder):
    """Add a file for each thing that can be wrong; return a word of each reason."""
    whole = (folder / "00.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").touch()
    (folder / "gone.png").symlink_to(folder / "nothing.png")
    Image.new("RGB", (48, 48), "red").save(folder / "rgb.png")
    Image.new("L", (50, 48)).save(folder / "wide.png")
    return {
        "cut": "cannot be read as an image",
        "empty": "0 bytes",
        "gone": "is a link to",
        "rgb": "is coloured, and the model was fitted to grey images",
        "wide": "48 x 50 pixels",
    }


def test_what_cannot_be_inspected_takes_no_other_with_it(
    lenient, new, tmp_path, capsys
):
    expected, out = spoil(new), tmp_path / "out"
    args = ["inspect", str(lenient), str(new), "-o", str(out), "--no-maps"]
    assert main(args) == 4
    rows = {Path(row["file"]).stem: row for row in read_rows(out)}
    printed, err = capsys.readouterr()
    for name, reason in expected.items():
        assert rows[name]["verdict"] == "unreadable"
        assert reason in rows[name]["reason"]
        assert rows[name]["score"] == ""
        assert f"{name}.png" in err
    assert [x for x in rows if rows[x]["verdict"] == "normal"] == [
        f"{i:02d}" for i in range(6)
    ]
    assert "0 of 6 images are abnormal, 5 could not be inspected" in printed
    page = read_page(out)
    assert {Path(x["file"]).stem for x in page["unreadable"]} == set(expected)
    assert all(x["reason"] == rows[Path(x["file"]).stem]["reason"]
               for x in page["unreadable"])  # fmt: skip
    assert len(page["images"]) == 6


def test_an_alarm_counts_for_more_than_what_cannot_be_inspected(model, new, tmp_path):
    (new / "empty.png").touch()
    args = ["inspect", str(model), str(new), "-o", str(tmp_path / "out"), *FEW]
    assert main([*args, "--threshold", "0.001"]) == 3
    verdicts = [row["verdict"] for row in read_rows(tmp_path / "out")]
    assert sorted(set(verdicts)) == ["abnormal", "unreadable"]
    only = ["inspect", str(model), str(new / "empty.png"), "-o", str(tmp_path / "b")]
    assert main(only) == 4
    assert read_page(tmp_path / "b")["images"] == []


def test_coloured_files_do_not_join_a_model_of_grey_ones(model, tmp_path, capsys):
    Image.new("RGB", (48, 48), "red").save(tmp_path / "rgb.png")
    assert main(["update", str(model), str(tmp_path / "rgb.png")]) == 1
    err = capsys.readouterr().err
    assert "rgb.png is coloured" in err
    assert "there is no image left" in err


def test_links_to_nothing_are_named(new, tmp_path, capsys):
    (new / "gone.png").symlink_to("nowhere.png")
    args = ["fit", str(new), "-o", str(tmp_path / "m"), "--max-iter", "0", "--strict"]
    assert main(args) == 1
    assert "gone.png is a link to nowhere.png, which is not there" in (
        capsys.readouterr().err
    )


def fail_at(monkeypatch, word, error, method="inspect"):
    former = getattr(PatchSVDD, method)

    def fail(self, X, **options):
        if any(word in str(x) for x in X):
            raise error
        return former(self, X, **options)

    monkeypatch.setattr(PatchSVDD, method, fail)


def test_any_failure_is_that_of_its_image(lenient, new, tmp_path, monkeypatch):
    fail_at(monkeypatch, "03.png", RuntimeError("no kernel"))
    args = ["inspect", str(lenient), str(new), "-o", str(tmp_path / "out"), *FEW]
    assert main(args) == 4
    rows = read_rows(tmp_path / "out")
    assert [row["verdict"] for row in rows] == ["normal"] * 3 + ["unreadable"] + [
        "normal"
    ] * 2
    assert "03.png cannot be inspected: no kernel" in rows[3]["reason"]


def test_a_reason_names_its_file_whatever_it_says(lenient, new, tmp_path, monkeypatch):
    (new / "00.png").rename(tmp_path / "no")  # a word of the message
    monkeypatch.chdir(tmp_path)
    fail_at(monkeypatch, "no", RuntimeError("no kernel"))
    assert main(["inspect", str(lenient), "no", "-o", "out", *FEW]) == 4
    assert read_rows(tmp_path / "out")[0]["reason"] == (
        "no cannot be inspected: no kernel"
    )


def test_a_device_that_fails_is_no_fault_of_images(
    model, new, tmp_path, monkeypatch, capsys
):
    fail_at(monkeypatch, "", RuntimeError("device lost"))
    fail_at(monkeypatch, "", RuntimeError("device lost"), method="score_samples")
    args = ["inspect", str(model), str(new), "-o", str(tmp_path / "out"), *FEW]
    assert main(args) == 1
    assert "error: device lost" in capsys.readouterr().err
    assert not (tmp_path / "out" / "results.csv").exists()


def test_a_threshold_of_zero_divides_nothing(model, new, tmp_path, capsys):
    est = load(model)
    est.offset_ = 0.0
    est.save(tmp_path / "zero.model")
    args = [
        "inspect",
        str(tmp_path / "zero.model"),
        str(new),
        "-o",
        str(tmp_path / "o"),
    ]
    assert main([*args, "--maps", "overlay,png"]) == 3
    assert "warning" not in capsys.readouterr().err
    assert (in_thresholds(np.zeros((2, 2)), est) == 0).all()
    assert main([*args, "--threshold", "0.5"]) == 1
    assert "Pass --false-alarm-rate instead" in capsys.readouterr().err


def test_a_second_run_into_a_folder_is_refused(model, new, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    args = ["inspect", str(model), str(new), "-o", str(out), *FEW]
    with hold_lock(out / "results.csv"):
        assert main(args) == 1
        assert f"by process {os.getpid()} on" in capsys.readouterr().err
        assert not (out / "results.csv").exists()
    # Locks of killed processes are ignored.
    (out / ".results.csv.lock").write_text("process 1 on nowhere")
    assert main(args) in (0, 3)
    assert [x.name for x in out.iterdir()] == ["results.csv"]


def test_names_cannot_forge_lines(model, grey, tmp_path, capfd):
    folder, out = tmp_path / "new", tmp_path / "out"
    save_images(folder, grey[:1])
    forged = "normal    p 1.000  other.png"
    (folder / "00.png").rename(folder / f"a\n{forged}\x1b[2J\u2028.png")
    (folder / f"b\n{forged}.png").write_bytes(b"no image")
    (folder / f"c\n{forged}.txt").touch()
    args = ["inspect", str(model), str(folder), "-o", str(out)]
    assert main(args) in (3, 4)
    assert main([*args, "--strict"]) == 1
    assert main(["inspect", str(model), f"x\n{forged}", "-o", str(out)]) == 1
    with pytest.raises(SystemExit):
        main(["inspect", f"--x\n{forged}"])
    for text in capfd.readouterr():
        assert not any(line.startswith(forged) for line in text.splitlines())
        assert "\x1b" not in text
    names = {row["file"] for row in read_rows(out)}
    assert printable(folder / f"b\n{forged}.png") in names
    assert b"\x1b" not in (out / "results.csv").read_bytes()
    assert printable("a\tb\u00e4\u00a0\x7f") == "a\\tb\u00e4\u00a0\\x7f"


def test_a_name_that_is_no_text_leaves_the_table_in_utf_8(model, grey, tmp_path):
    folder, out = tmp_path / "new", tmp_path / "out"
    save_images(folder, grey[:1])
    os.rename(folder / "00.png", os.fsencode(folder) + b"/caf\xe9.png")
    assert main(["inspect", str(model), str(folder), "-o", str(out)]) in (0, 3)
    (row,) = read_rows(out)
    assert row["file"].endswith("caf\\udce9.png")
    assert (out / row["map"]).exists()


@pytest.mark.parametrize(
    ("options", "n_bytes", "name"),
    [(["--no-maps"], 400, "results.csv"), ([], 300, "maps/00000_00.png")],
)
def test_a_disk_that_is_full_names_the_file(
    model, new, tmp_path, capsys, options, n_bytes, name
):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    out = tmp_path / "out"
    args = ["inspect", str(model), str(new), "-o", str(out), "--no-report", *options]
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        assert main(args) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(out / name) in capsys.readouterr().err
    assert (out / "results.csv").read_bytes().endswith(b"\r\n")  # no part of a row
    assert main(args) in (0, 3)
    assert len(read_rows(out)) == 6


def test_former_maps_go_when_a_folder_is_inspected_again(model, new, tmp_path):
    out = tmp_path / "out"
    args = ["inspect", str(model), str(new), "-o", str(out), "--no-report"]
    main(args)
    (out / "maps" / "mine.png").touch()
    for i in range(3, 6):
        (new / f"{i:02d}.png").unlink()
    main(args)
    named = {Path(row["map"]).name for row in read_rows(out)}
    assert len(named) == 3
    assert {x.name for x in (out / "maps").iterdir()} == {*named, "mine.png"}


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_waits_for_the_batch_at_hand(
    model, new, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("skpatchsvdd._cli.batches._BATCH", 4)
    inspect = PatchSVDD.inspect

    def interrupted(self, X, **options):
        os.kill(os.getpid(), signal.SIGINT)
        return inspect(self, X, **options)

    monkeypatch.setattr(PatchSVDD, "inspect", interrupted)
    args = ["inspect", str(model), str(new), "-o", str(tmp_path / "out"), "--no-maps"]
    assert main(args) == 130
    assert len(read_rows(tmp_path / "out")) == 4
    assert len(read_page(tmp_path / "out")["images"]) == 4
    printed, err = capsys.readouterr()
    assert "Ctrl-C again ends it at once" in err
    assert "of 4 images are abnormal" in printed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_interrupt_ends_at_once(model, new, tmp_path, monkeypatch):
    def interrupted(self, X, **options):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError

    monkeypatch.setattr(PatchSVDD, "inspect", interrupted)
    args = ["inspect", str(model), str(new), "-o", str(tmp_path / "out"), *FEW]
    assert main(args) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    "options", [["--threshold", "0.80"], ["--false-alarm-rate", "0.34"]]
)
def test_the_threshold_is_chosen_on_the_command_line(
    model, new, tmp_path, capsys, options
):
    out, est = tmp_path / "out", load(model)
    status = main(["inspect", str(model), str(new), "-o", str(out), *options])
    results = est.inspect([str(x) for x in sorted(new.iterdir())])
    if (
        options[0] == "--false-alarm-rate"
    ):  # three of nine: eight of training, and the new one
        threshold = -np.nextafter(np.sort(est.training_scores_)[2], np.inf)
        alarms = results.p_values <= 0.34
    else:
        threshold = -0.8 * est.offset_
        alarms = results.scores < -threshold
    rows = read_rows(out)
    assert [row["verdict"] == "abnormal" for row in rows] == alarms.tolist()
    assert [int(row["n_regions"]) > 0 for row in rows] == alarms.tolist()
    assert status == (3 if alarms.any() else 0)
    page = read_page(out)
    assert page["threshold"] == pytest.approx(threshold)
    assert page["model_threshold"] == pytest.approx(-est.offset_)
    factor = page["threshold"] / page["model_threshold"]
    assert f"{factor:.2f} x the model's" in capsys.readouterr().out
    assert load(model).offset_ == est.offset_  # the file stays as it was


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--false-alarm-rate", "0"], "above 0 and at most 0.5"),
        (["--false-alarm-rate", "0.6"], "above 0 and at most 0.5"),
        (["--threshold", "-1"], "above 0"),
        (["--threshold", "nan"], "above 0"),
        (["--threshold", "x"], "must be a number"),
        (["--threshold", "1", "--false-alarm-rate", "0.1"], "not allowed with"),
        (["--maps", "jpg"], "overlay, npy, png, mask"),
    ],
)
def test_options_of_inspect_are_checked(capsys, options, message):
    with pytest.raises(SystemExit):
        main(["inspect", "m", "x", "-o", "y", *options])
    assert message in capsys.readouterr().err


def test_maps_are_saved_as_numbers_and_masks(model, new, tmp_path):
    assert tuple(KINDS) == NAMES
    out, est = tmp_path / "out", load(model)
    args = ["inspect", str(model), str(new), "-o", str(out), "--no-report"]
    assert main([*args, "--threshold", "0.5", "--maps", "npy,png,mask"]) == 3
    rows = read_rows(out)
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


def test_rows_say_when(model, new, tmp_path):
    main(["inspect", str(model), str(new), "-o", str(tmp_path / "out"), *FEW])
    for row in read_rows(tmp_path / "out"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["time"])
