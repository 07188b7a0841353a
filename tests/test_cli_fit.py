"""The command fit: what it refuses, what it keeps, and whom it groups."""

import signal
from pathlib import Path

import numpy as np
import pytest
from commands import call, read_page, save_images
from scipy.ndimage import gaussian_filter
from settings import SEED

from skpatchsvdd import load
from skpatchsvdd._cli import fit as fit_command
from skpatchsvdd._report import fingerprint
from skpatchsvdd._screening import Suspects
from skpatchsvdd._training import loop
from skpatchsvdd._utils import messages
from skpatchsvdd.datasets import make_textures


@pytest.fixture(scope="module")
def images():
    return make_textures(4, image_size=68, random_state=SEED).images


@pytest.fixture(scope="module")
def good(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos") / "good"
    save_images(folder, images)
    return folder


def fit(*args, max_iter=0):
    return call("fit", *args, "--max-iter", max_iter)


def interrupt_at(monkeypatch, step):
    """Press Ctrl-C at a step of the training."""
    descend, steps = loop.descend, []

    def press(*args):
        steps.append(1)
        if len(steps) == step:
            signal.raise_signal(signal.SIGINT)
        return descend(*args)

    monkeypatch.setattr(loop, "descend", press)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupt_in_training_keeps_the_former_model(
    good, tmp_path, monkeypatch, capsys, step
):
    path = tmp_path / "part.model"
    assert fit(good, "-o", path) == 0
    former = path.read_bytes()
    interrupt_at(monkeypatch, step)
    assert fit(good, "-o", path, "--device", "cpu", max_iter=3) == 130
    assert path.read_bytes() == former
    assert [x.name for x in tmp_path.iterdir()] == ["part.model"]
    err = capsys.readouterr().err
    assert f"interrupted: nothing was written, {path} is as it was" in err
    assert "Continuing with the weights" not in err


def test_an_interrupt_after_training_promises_nothing(
    good, tmp_path, monkeypatch, capsys
):
    def press(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("skpatchsvdd._patch_svdd.build_bank", press)
    assert fit(good, "-o", tmp_path / "m", "--device", "cpu", max_iter=1) == 130
    assert not list(tmp_path.iterdir())
    assert "are kept" not in capsys.readouterr().err


def test_what_a_run_computes_on_is_not_stored(good, tmp_path):
    path = tmp_path / "part.model"
    assert fit(good, "-o", path, "--device", "cpu") == 0
    assert (load(path).device, load(path).verbose) == ("auto", 0)


def check_refused(command, model, sources, messages, capsys):
    """Check that a command does not learn from folders, and leaves its model."""
    former = model.read_bytes()
    sources = [*sources, "-o", model] if command == "fit" else [model, *sources]
    assert call(command, *sources) == 1
    err = capsys.readouterr().err
    assert all(x in err for x in messages)
    assert model.read_bytes() == former


@pytest.mark.parametrize("command", ["fit", "update"])
@pytest.mark.parametrize("other", ["test", "ground_truth"])
@pytest.mark.parametrize("below", ["", "bottle"])
def test_a_data_set_with_defects_is_refused(
    images, model, tmp_path, capsys, command, other, below
):
    folder = tmp_path / "data" / below
    save_images(folder / "train" / "good", images)
    save_images(folder / other / "broken", images)
    good = folder / "train" / "good"
    messages = f"{folder} holds train/ and {other}/", f"Pass {good} instead"
    check_refused(command, model, [tmp_path / "data"], messages, capsys)


def test_folders_are_groups(images, good, tmp_path, capsys):
    days = [str(tmp_path / "good" / day) for day in ("monday", "tuesday")]
    for day, some in zip(days, (images[:2], images[2:]), strict=True):
        save_images(Path(day), some)
    path = tmp_path / "part.model"
    assert fit(tmp_path / "good", "-o", path, "--group-by", "folder") == 0
    out = capsys.readouterr().out
    assert "2 groups of images, by folder" in out
    expected = "about 1 in 3 will raise an alarm; for 1 in 100, learn from 99 groups"
    assert expected in out
    assert list(load(path).groups_) == [days[0]] * 2 + [days[1]] * 2
    assert fit(good, "-o", tmp_path / "m", "--group-by", "folder") == 1
    assert "at least two groups" in capsys.readouterr().err


def test_beginnings_of_names_are_groups(images, tmp_path, capsys):
    names = ["sheet_1_001", "sheet_1_002", "sheet_2_001", "other"]
    save_images(tmp_path / "good", images, names)
    path = tmp_path / "part.model"
    assert fit(tmp_path / "good", "-o", path, "--group-by", "name") == 0
    groups = [x.rpartition("good/")[2] for x in load(path).groups_]
    assert groups == ["other", "sheet_1", "sheet_1", "sheet_2"]


def test_large_images_are_resized_which_the_model_knows(
    images, good, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(fit_command, "_MOST_PIXELS", 48 * 48)
    path = tmp_path / "part.model"
    assert fit(good, "-o", path) == 0
    printed = capsys.readouterr().out
    assert "images of 68 x 68 pixels are resized to 48 x 48, so that" in printed
    assert "--image-size full looks at full resolution" in printed
    est = load(path)
    assert (tuple(est.image_size), est.inspected_shape_) == ((48, 48), (48, 48, 3))
    assert call("inspect", path, good, "-o", tmp_path / "out") == 0
    assert fit(good, "-o", path, "--image-size", "original") == 0
    assert "are resized" not in capsys.readouterr().out
    est = load(path)
    assert (est.image_size, est.inspected_shape_) == (None, (68, 68, 3))


def test_full_resolution_says_how_long_it_takes(good, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("skpatchsvdd._images.arrays.COARSE_PIXELS", 34 * 34)
    path = tmp_path / "part.model"
    assert fit(good, "-o", path, "--image-size", "full") == 0
    printed = capsys.readouterr().out
    start = printed.index("68 x 68 pixels, ")
    assert "encoding an image takes" in printed[start:]
    assert start < printed.index("encoding images")
    est = load(path)
    assert (est.image_size, est.inspected_shape_) == ("full", (34, 34, 3))
    assert call("inspect", path, good, "-o", tmp_path / "out") == 0


def test_images_of_several_sizes_cannot_keep_them(images, tmp_path, capsys):
    save_images(tmp_path / "good", [*images[:3], images[3][:60]])
    args = tmp_path / "good", "-o", tmp_path / "m", "--image-size", "original"
    assert fit(*args) == 1
    assert "--image-size original needs images of one size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("n_images", "args", "expected"),
    [
        (2, [], "about 1 in 3 will raise an alarm; for 1 in 100, learn from 99 images"),
        (
            4,
            ["--false-alarm-rate", "0.1"],
            "about 1 in 5 will raise an alarm; for 1 in 10",
        ),
        (4, ["--false-alarm-rate", "0.4"], "about 1 in 2 will raise an alarm\n"),
        (4, ["--false-alarm-rate", "0.2"], "about 1 in 5 will raise an alarm\n"),
    ],
)
def test_what_to_expect_of_good_images_is_said(
    images, tmp_path, capsys, n_images, args, expected
):
    save_images(tmp_path / "good", images[:n_images])
    assert fit(tmp_path / "good", "-o", tmp_path / "m", *args) == 0
    out = capsys.readouterr().out
    assert f"of new good images, {expected}" in out
    spread = f"of nine in ten that learn from {n_images} images it is "
    assert spread in out


@pytest.mark.parametrize("command", ["fit", "update"])
@pytest.mark.parametrize(
    ("kept", "other"),
    [("ok", "defective"), ("good", "bad"), ("Normal", "NG"), ("OK", "Not-OK")],
)
def test_defective_images_beside_good_ones_are_refused(
    images, model, tmp_path, capsys, command, kept, other
):
    data = tmp_path / "data"
    save_images(data / kept, images[:2])
    save_images(data / other, images[2:])
    messages = f"{data} holds {kept}/ and {other}/", f"Pass {data / kept} alone"
    for sources in ([data], [data / kept, data / other]):
        check_refused(command, model, sources, messages, capsys)


def test_a_folder_of_defective_images_beside_images_is_refused(
    images, tmp_path, capsys
):
    save_images(tmp_path / "data", images[:2])
    save_images(tmp_path / "data" / "anomalies", images[2:])
    assert fit(tmp_path / "data", "-o", tmp_path / "m") == 1
    assert "holds images and anomalies/" in capsys.readouterr().err
    assert fit(tmp_path / "data" / "anomalies", "-o", tmp_path / "m") == 0


def test_reading_many_files_says_how_far_it_has_come(
    good, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(messages, "_PATIENCE", 0.0)
    assert fit(good, "-o", tmp_path / "m") == 0
    out = capsys.readouterr().out
    for label in ("reading files", "reading images", "comparing positions in images"):
        assert f"[PatchSVDD] {label} ############################## 4 of 4" in out


@pytest.mark.parametrize("options", [[], ["--group-by", "none"]])
def test_pictures_of_one_piece_are_named_and_count_as_one(tmp_path, capsys, options):
    """Of 26 images, of which the last are shifted pictures of the first six."""
    noise = np.random.default_rng(SEED).normal(size=(20, 49, 49, 3))
    noise = gaussian_filter(noise, (0, 2, 2, 0))
    pieces = np.clip(128 + 50 * noise / noise.std(), 0, 255).astype(np.uint8)
    twins = np.concatenate([pieces[:, 1:, 1:], pieces[:6, :48, :48]])
    files = save_images(tmp_path / "twins", twins)
    assert fit(tmp_path / "twins", "-o", tmp_path / "m", *options) == 0
    out, err = capsys.readouterr()
    assert "places in X" not in err
    est, is_found = load(tmp_path / "m"), not options
    assert ("look like several pictures of one piece" in out) == is_found
    assert (f"  {files[0]}, {files[20]}\n" in out) == is_found
    assert ("--group-by" in out) == is_found
    assert (est.twins_ is not None) == is_found
    assert est.groups_ is None or is_found


@pytest.fixture(scope="module")
def dirty(tmp_path_factory):
    """Eight images, of which the third and the sixth are defective; their paths."""
    images = make_textures(8, image_size=64, random_state=0).images
    images[2, 10:30, 10:30] = 0
    images[5, 40:52, 20:50] = 255
    return save_images(tmp_path_factory.mktemp("dirty") / "good", images)


def test_images_that_were_set_aside_are_listed_and_reviewed(dirty, tmp_path, capsys):
    path, folder = tmp_path / "part.model", tmp_path / "review"
    options = "--contamination", "0.25", "--review", folder
    assert fit(*dirty, "-o", path, *options) == 0
    out, err = capsys.readouterr()
    est = load(path)
    assert est.contamination == 0.25
    assert est.training_files_ == [x for x in dirty if x not in (dirty[2], dirty[5])]
    assert "learnt from 6 images" in out
    assert "2 images may be defective, or unlike all others, of which 2 were" in out
    assert all(f"  < 1e-06  set aside  {dirty[i]}\n" in out for i in (2, 5))
    assert "warning" not in err
    assert f"open {folder / 'suspects.html'} in a browser" in out
    data = read_page(folder / "suspects.html")
    assert {x["name"] for x in data["images"]} == {dirty[2], dirty[5]}
    assert all(x["value"] > data["threshold"] and x["matches"] for x in data["images"])
    assert data["images"][0]["note"] == "set aside, p-value < 1e-06"
    assert (data["drift"], data["model"]) == ("", str(path))
    assert data["fingerprint"] == fingerprint(est)


def test_without_suspects_there_is_no_page(good, tmp_path, capsys):
    folder = tmp_path / "review"
    assert fit(good, "-o", tmp_path / "part.model", "--review", folder) == 0
    assert "there is no suspects.html" in capsys.readouterr().out
    assert not folder.exists()


def test_only_the_first_suspects_are_listed(capsys):
    n = 12
    files = [f"{i}.png" for i in range(n)]
    p_values, is_aside = np.full(n, 1e-3), np.arange(n) < 3
    suspects = Suspects(np.arange(n), p_values, is_aside, files)
    fit_command.tell_suspects(suspects, "part.model", None)
    out = capsys.readouterr().out
    assert "12 images may be defective, or unlike all others, of which 3 were" in out
    assert "  1.0e-03  set aside  2.png\n  1.0e-03  learnt     3.png\n" in out
    assert "9.png\n  and 2 more\n" in out
    assert "skpatchsvdd forget part.model" in out


@pytest.mark.parametrize("value", ["0.6", "-0.1", "nan", "some"])
def test_a_wrong_contamination_is_refused(good, tmp_path, capsys, value):
    with pytest.raises(SystemExit):
        fit(good, "-o", tmp_path / "m", f"--contamination={value}")
    assert "must be auto, or from 0 to 0.5" in capsys.readouterr().err
