"""The command inspect: each image is on its own, whatever it makes fail."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from commands import call, read_rows, save_images
from conftest import make_untrained
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD, _patch_svdd
from skpatchsvdd._cli import batches, record
from skpatchsvdd._cli.table import Table
from skpatchsvdd._images import ImageStack, arrays, stack
from skpatchsvdd._report import Page, patches
from skpatchsvdd.datasets import make_textures

# The size of the image that fails, by which what knows no file knows it.
ODD = (40, 52)


@pytest.fixture(scope="module")
def taught(tmp_path_factory, normal):
    """A model that resizes, and knows a kind of defect."""
    est = make_untrained().set_params(image_size=48).fit(normal[..., 0])
    hole, mask = normal[0, ..., 0].copy(), np.zeros((48, 48), dtype=bool)
    hole[10:30, 10:30], mask[10:30, 10:30] = 0, True
    est.partial_fit([hole], ["hole"], masks=[mask])
    path = tmp_path_factory.mktemp("models") / "taught.model"
    est.save(path)
    return path


@pytest.fixture
def new(tmp_path):
    """A folder of four images, the third of another size."""
    images = list(make_textures(4, image_size=52, random_state=SEED + 1).images[..., 0])
    images[2] = images[2][: ODD[0]]
    save_images(tmp_path / "new", images)
    return tmp_path / "new"


@pytest.fixture
def run(taught, new, tmp_path):
    """Inspect the folder with an alarm for each image; return the verdicts."""

    def run(*options):
        args = ["inspect", taught, new, "-o", tmp_path / "out"]
        status = call(*args, "--threshold", "0.001", *options)
        return status, [row["verdict"] for row in read_rows(tmp_path / "out")]

    return run


def concerns(x):
    """Whether something is of the third image."""
    if isinstance(x, ImageStack):
        return any(map(concerns, x.files))
    if isinstance(x, np.ndarray):
        return x.shape[:2] == ODD
    if isinstance(x, list | tuple):
        return list(x) == list(ODD) if len(x) == 2 else any(map(concerns, x))
    return isinstance(x, str | Path) and Path(x).name.startswith("02")


def plant(monkeypatch, owner, name, error):
    """Let a function raise whenever it is called with what is of the third image."""
    former = getattr(owner, name)

    def fail(*args, **kwargs):
        is_told = kwargs.get("verdict") == "unreadable"
        if not is_told and any(map(concerns, [*args, *kwargs.values()])):
            raise error
        return former(*args, **kwargs)

    monkeypatch.setattr(owner, name, fail)


STEPS = {
    "shape": (batches, "read_shape"),
    "reading": (stack, "read_known"),
    "resizing": (stack, "resize_image"),
    "scoring": (_patch_svdd, "inspect_images"),
    "regions": (PatchSVDD, "_resize_regions"),
    "naming": (PatchSVDD, "_name"),
    "matches": (PatchSVDD, "_explain"),
    "picture": (arrays, "read_small"),
    "map": (record, "save_maps"),
    "patches": (patches, "_cut"),
    "page": (Page, "_describe"),
    "row": (Table, "add"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_fault_in_any_step_is_that_of_its_image(
    run, tmp_path, monkeypatch, capsys, step
):
    plant(monkeypatch, *STEPS[step], IndexError("odd"))
    status, verdicts = run()
    assert verdicts == ["abnormal", "abnormal", "unreadable", "abnormal"]
    assert status == 3
    row, out = read_rows(tmp_path / "out")[2], tmp_path / "out"
    assert row["reason"].endswith("02.png cannot be inspected: odd")
    assert "3 of 3 images are abnormal, 1 could not" in capsys.readouterr().out
    drawn = {f"maps/{x.name}" for x in (out / "maps").iterdir()}
    assert drawn == {row["map"] for row in read_rows(out)} - {""}
    text = (out / "report.html").read_text("utf-8")
    assert text.count('"thumb":') == 3
    assert text.count('"reason":') == 1


def test_tiny_and_thin_images_are_inspected(tmp_path):
    """With patches of a fifth of their sides, also where that is less than a pixel."""
    images = make_textures(4, image_size=160, random_state=SEED).images[..., 0]
    make_untrained().set_params(image_size=160).fit(images).save(tmp_path / "m")
    sizes = [(1, 1), (2, 2), (3, 5000), (5000, 3), (8, 4096), (4096, 8)]
    for i, (height, width) in enumerate(sizes):
        image = np.full((height, width), 128, dtype=np.uint8)
        image[height // 2 :, width // 2 :] = 255  # what is abnormal is at the end
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    files = [str(tmp_path / f"{i}.png") for i in range(len(sizes))]
    args = ["inspect", tmp_path / "m", *files, "-o", tmp_path / "out"]
    assert call(*args, "--threshold", "0.001") == 3
    verdicts = [row["verdict"] for row in read_rows(tmp_path / "out")]
    assert verdicts == ["abnormal"] * len(sizes)


@pytest.mark.parametrize(
    ("owner", "name"), [(stack, "read_known"), (_patch_svdd, "inspect_images")]
)
@pytest.mark.parametrize(
    "error",
    [MemoryError("9 GiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=type,
)
def test_an_image_too_large_for_memory_has_a_row(run, monkeypatch, owner, name, error):
    plant(monkeypatch, owner, name, error)
    assert run("--no-report")[1].count("unreadable") == 1


def test_memory_that_runs_out_is_no_fault_of_a_file(new, monkeypatch, run, tmp_path):
    def fail(self):
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
    assert set(run()[1]) == {"unreadable"}
    for row in read_rows(tmp_path / "out"):
        assert "there is not enough memory to read" in row["reason"]
        assert "save it again" not in row["reason"]
    # What learns from files would do without most of them.
    args = ["fit", new, "-o", tmp_path / "x.model", "--max-iter", "0"]
    assert call(*args) == 1


@pytest.mark.parametrize("device", ["cuda:x", "gpu", "cuda:99"])
def test_a_device_that_is_not_there_ends_every_command(
    taught, new, tmp_path, capsys, device
):
    model, out = str(taught), str(tmp_path / "out")
    for args in (
        ["inspect", model, str(new), "-o", out],
        ["inspect", model, "--watch", str(new), "-o", out],
        ["evaluate", model, str(new), "-o", out],
        ["update", model, str(new), "-o", out],
        ["fit", str(new), "-o", out],
    ):
        assert call(*args, "--device", device) == 1
        assert f"'{device}'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("below", ["", "below"])
def test_an_output_that_is_a_file_is_refused(taught, new, capsys, below):
    output = taught / below
    (new / "test").mkdir()
    for command in ("inspect", "evaluate"):
        assert call(command, taught, new, "-o", output) == 1
        err = capsys.readouterr().err
        assert "-o must name a folder to write to" in err
        assert "Errno" not in err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="where there are pipes")
@pytest.mark.parametrize("strict", [False, True])
def test_pipes_and_devices_have_rows(run, new, tmp_path, capsys, strict):
    os.mkfifo(new / "04.png")
    (new / "05.png").symlink_to("/dev/zero")
    if strict:
        assert run("--strict")[0] == 1
    else:
        assert run()[1] == ["abnormal"] * 4 + ["unreadable"] * 2
    err = capsys.readouterr().err
    assert err.count("it is a pipe, a socket or a device") == 2
    assert call("inspect", "no.model", new / "04.png", "-o", "x") == 1


@pytest.mark.parametrize("start", ["=cmd|'calc'!A0", "+1", "-1", "@SUM(1)", "'x"])
def test_no_cell_is_a_formula(taught, new, tmp_path, monkeypatch, start):
    monkeypatch.chdir(new)
    os.rename("00.png", f"{start}\x1b[2J.png")
    Path(f"{start}\r.png").write_bytes(b"no image")
    args = ["inspect", "-o", tmp_path, "--threshold", "0.001", taught]
    assert call(*args, "--", f"{start}\x1b[2J.png", f"{start}\r.png") == 3
    text = (tmp_path / "results.csv").read_bytes()
    assert b"\x1b" not in text
    assert b"\r" not in text.replace(b"\r\n", b"")
    good, bad = read_rows(tmp_path)
    assert good["file"] == f"'{start}\\x1b[2J.png"
    assert bad["file"] == f"'{start}\\r.png"
    assert bad["reason"].startswith(f"'{start}")
    assert float(good["score"]) < 0  # numbers stay numbers


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ESTALE])
def test_a_disk_that_fails_is_named_as_it_is(run, monkeypatch, tmp_path, code):
    plant(monkeypatch, Image, "open", OSError(code, os.strerror(code)))
    assert run("--no-maps")[1].count("unreadable") == 1
    reason = read_rows(tmp_path / "out")[2]["reason"]
    assert os.strerror(code) in reason
    assert "02.png" in reason
    assert "save it again" not in reason
