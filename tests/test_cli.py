"""The command line, as a user with a folder of photographs meets it."""

import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import call, read_rows
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import fit, models
from skpatchsvdd._cli.files import find_images
from skpatchsvdd._cli.start import make_parser
from skpatchsvdd.datasets import make_textures

QUICK = ["--max-iter", "0", "--false-alarm-rate", "0.2"]
ENDINGS = ("png", "jpg", "webp", "bmp", "tif")


def save_all(folder, images, sizes=(96,)):
    folder.mkdir(parents=True)
    for i, image in enumerate(images):
        size = sizes[i % len(sizes)]
        picture = Image.fromarray(image).resize((size, size))
        picture.save(folder / f"{i:02d}.{ENDINGS[i % len(ENDINGS)]}")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Good and new photographs of unequal sizes and formats, two broken files."""
    root = tmp_path_factory.mktemp("photos")
    good = make_textures(10, image_size=96, random_state=SEED)
    new = make_textures(6, image_size=96, anomaly_fraction=0.5, random_state=SEED + 1)
    save_all(root / "good" / "monday", good.images[:6], sizes=(96, 110))
    save_all(root / "good" / "tuesday", good.images[6:])
    (root / "good" / "broken.png").write_bytes(b"no image")
    whole = (root / "good" / "monday" / "00.png").read_bytes()
    (root / "good" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "good" / "notes.txt").write_text("good ones")
    save_all(root / "new", new.images, sizes=(96, 120))
    save_all(root / "labelled" / "test" / "good", good.images[:3])
    save_all(root / "labelled" / "test" / "odd", new.images[3:])
    return root


@pytest.fixture(scope="module")
def model(photos):
    path = photos / "models" / "part.model"
    args = ["fit", photos / "good", "-o", path, "--image-size", "64"]
    assert call(*args, *QUICK) == 0
    return path


@pytest.fixture(scope="module")
def own_size(photos):
    """A model that takes images of 96 x 96 alone."""
    path = photos / "models" / "own.model"
    assert call("fit", photos / "good" / "tuesday", "-o", path, *QUICK) == 0
    return path


def test_fit_says_what_it_did(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fit, "_COMMON_SIZE", 64)
    path = tmp_path / "part.model"
    good = photos / "good", photos / "good" / "tuesday"  # a file counts once
    assert call("fit", *good, "-o", path, "--max-iter", "0") == 0
    out, err = capsys.readouterr()
    assert "learnt from 10 images" in out
    assert "images have 2 sizes: all are resized to 64 x 64" in out
    assert "inspected at 64 x 64 pixels" in out
    assert "broken.png cannot be read" in err
    assert "cut.png cannot be read" in err
    assert "1 file without the name of an image format: " in err
    assert len(load(path).training_scores_) == 10
    assert [x.name for x in tmp_path.iterdir()] == ["part.model"]  # nothing half done
    assert call("fit", *good, "-o", tmp_path / "m", "--strict") == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "broken.png" in err
    assert not (tmp_path / "m").exists()


def test_inspect_writes_a_table_and_pictures(photos, model, tmp_path, capsys):
    out = tmp_path / "results"
    status = call("inspect", model, photos / "new", "-o", out)
    rows = read_rows(out)
    paths = [row["file"] for row in rows]
    assert paths == [str(path) for path in sorted((photos / "new").iterdir())]
    est = load(model)
    labels, results = est.predict(paths), est.inspect(paths)
    assert status == (3 if (labels == -1).any() else 0)
    printed = capsys.readouterr().out
    assert f"{(labels == -1).sum()} of 6 images are abnormal" in printed
    for i, row in enumerate(rows):
        assert row["verdict"] == ("abnormal" if labels[i] == -1 else "normal")
        assert float(row["score"]) == pytest.approx(results.scores[i], rel=1e-5)
        assert float(row["p_value"]) == pytest.approx(results.p_values[i], rel=1e-3)
        assert int(row["n_regions"]) == len(results.regions[i])
        assert row["regions"].count(" ") == 4 * len(results.regions[i])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["time"])
        with Image.open(out / row["map"]) as drawn:
            drawn.load()
    assert f"open {out / 'report.html'}" in printed
    page = (out / "report.html").read_text("utf-8")
    assert all(Path(path).name in page for path in paths)


def test_what_a_mask_hides_is_not_inspected(photos, tmp_path):
    args = ["fit", photos / "good" / "tuesday", "-o", tmp_path / "m", *QUICK]
    mask = np.zeros((64, 64), dtype=np.uint8)
    mask[:, 20:50] = 255
    Image.fromarray(mask).convert("RGB").save(tmp_path / "mask.png")
    Image.fromarray(mask).save(tmp_path / "mask.jpg", quality=75)
    for name in ("mask.png", "mask.jpg"):
        assert call(*args, "--image-size", "64", "--roi", tmp_path / name) == 0
        np.testing.assert_array_equal(load(tmp_path / "m").roi_, mask > 0)
    assert call(*args, "--roi", tmp_path / "none.png") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("inspect nowhere x -o y", "there is no model nowhere"),
        ("inspect NO_MODEL x -o y", "not a PatchSVDD model file"),
        ("inspect GOOD x -o y", "good is not a model file"),
        (
            "fit GOOD -o NEW",
            "error: NEW: it is a folder. Pass the name of a file in it",
        ),
        ("fit GOOD -o PHOTO", "exists and is not a model file"),
        ("inspect MODEL nowhere -o y", "no file or folder nowhere"),
        ("inspect MODEL x --watch y -o z", "pass images to inspect, or --watch"),
        ("fit nowhere -o y", "no file or folder nowhere"),
        ("fit GOOD -o y --false-alarm-rate 2", "'false_alarm_rate'"),
        ("evaluate MODEL NEW", "NEW has no folder test/, in which good/ and a folder"),
    ],
)
def test_errors_take_one_line(photos, model, tmp_path, capsys, args, message):
    (tmp_path / "text").write_text("no model")
    names = {
        "NO_MODEL": tmp_path / "text",
        "PHOTO": photos / "new" / "00.png",
        "MODEL": model,
        "GOOD": photos / "good",
        "NEW": photos / "labelled" / "test" / "good",
    }
    assert call(*(names.get(x, x) for x in args.split())) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("error: ")
    for name, path in names.items():
        message = message.replace(name, str(path))
    assert message in err[-1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("fit x -o y --image-size 1x2x3", "as in 192x256, got '1x2x3'"),
        ("fit x -o y --image-size large", "as in 192x256, got 'large'"),
        ("fit x -o y --image-size 64x", "as in 192x256, got '64x'"),
        ("inspect m x -o y --false-alarm-rate 0", "above 0 and at most 0.5"),
        ("inspect m x -o y --false-alarm-rate 0.6", "above 0 and at most 0.5"),
        ("inspect m x -o y --threshold -1", "above 0"),
        ("inspect m x -o y --threshold nan", "above 0"),
        ("inspect m x -o y --threshold x", "must be a number"),
        ("inspect m x -o y --threshold 1 --false-alarm-rate 0.1", "not allowed with"),
        ("inspect m x -o y --maps jpg", "overlay, npy, png, mask"),
        ("calibrate m x --false-alarm-rate nan", "--false-alarm-rate"),
        ("calibrate m x --false-alarm-rate few", "--false-alarm-rate"),
        ("fit x -o y --bank-size 0", "--bank-size"),
        ("fit x -o y --bank-size 1.5", "--bank-size"),
        ("fit x -o y --bank-size many", "--bank-size"),
        *((f"{x} m", "required: images") for x in ("update", "calibrate")),
        ("inspect m -o y", "required: images"),
    ],
)
def test_values_of_options_are_checked(capsys, args, message):
    with pytest.raises(SystemExit, match="2"):
        call(*args.split())
    assert message in capsys.readouterr().err


def test_no_pickle_is_run(photos, tmp_path, capsys):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "has_run",)

    path = tmp_path / "evil.joblib"
    path.write_bytes(pickle.dumps(Evil()))
    assert call("inspect", path, photos / "new", "-o", tmp_path / "out") == 1
    assert "evil.joblib cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "has_run").exists()


def test_images_of_another_size_are_named_and_skipped(
    photos, own_size, tmp_path, capsys
):
    args = ["inspect", own_size, photos / "new", "-o", tmp_path]
    assert call(*args, "--no-maps", "--no-report") in (3, 4)
    rows = read_rows(tmp_path)
    fits = [Path(row["file"]).stem for row in rows if row["verdict"] != "unreadable"]
    assert fits == ["00", "02", "04"]
    err = capsys.readouterr().err
    assert "01.jpg has 120 x 120 pixels, and the model takes images of 96 x 96" in err
    assert call(*args, "--strict") == 1
    assert "--strict ends at what would be skipped" in capsys.readouterr().err
    assert read_rows(tmp_path) == rows  # a run that fails leaves the former table
    bad = tmp_path / "bad"
    save_all(bad / "test" / "good", np.zeros((1, 50, 50), dtype=np.uint8), sizes=(50,))
    assert call("evaluate", own_size, bad) == 1
    assert "00.png has 50 x 50 pixels" in capsys.readouterr().err


def test_pictures_of_an_inspection_are_not_inspected(photos, own_size, tmp_path):
    folder = tmp_path / "line"
    folder.mkdir()
    files = [str(folder / name) for name in ("00.png", "02.webp")]
    for file in files:
        shutil.copy(photos / "new" / Path(file).name, file)
    for output in (folder / "results", folder):
        for _ in range(2):
            call("inspect", own_size, folder, "-o", output, "--no-report")
            assert len(read_rows(output)) == 2
    assert find_images([folder], strict=True) == files


def test_names_that_are_long_or_no_text(photos, own_size, tmp_path):
    folder, out = tmp_path / "odd", tmp_path / "out"
    folder.mkdir()
    image = (photos / "new" / "00.png").read_bytes()
    names = [b"L" * 250 + b".png", b"caf\xe9.png", "\u00e4".encode() * 120 + b".png"]
    for name in names:
        (folder / os.fsdecode(name)).write_bytes(image)
    assert call("inspect", own_size, folder, "-o", out) in (0, 3)
    rows = read_rows(out)  # in UTF-8
    assert len(rows) == len(names)
    assert rows[1]["file"].endswith("caf\\udce9.png")
    assert all((out / row["map"]).exists() for row in rows)
    assert (out / "report.html").exists()


def test_images_may_come_after_options():
    parse = make_parser().parse_args
    for command in ("calibrate m --yes", "inspect m -o out", "update m --yes"):
        assert parse([*command.split(), "new"]).images == ["new"]
    for command in ("calibrate m --training", "inspect m --watch x -o out"):
        assert parse(command.split()).images is None
    args = parse(["fit", "--image-size", "64x80", "good", "-o", "m"])
    assert (args.images, args.image_size) == (["good"], (64, 80))


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, FloatingPointError])
def test_what_fails_takes_one_line(photos, tmp_path, monkeypatch, capsys, error):
    def fail(*args):
        raise error

    monkeypatch.setattr(PatchSVDD, "fit", fail)
    assert call("fit", photos / "good" / "tuesday", "-o", tmp_path / "m") == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {error.__name__}"


def test_an_output_that_cannot_be_written_is_told_before_the_work(
    photos, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(models.os, "access", lambda *args: False)
    path = tmp_path / "folder" / "m"
    assert call("fit", photos / "good", "-o", path) == 1
    assert f"{tmp_path} does not allow it" in capsys.readouterr().err
    monkeypatch.undo()
    assert call("fit", "nowhere", "-o", path) == 1
    assert f"no folder {path.parent} yet: it will be made" in capsys.readouterr().out
