"""The command fit: what it refuses, what it keeps, and whom it groups."""

import signal

import pytest
from PIL import Image
from settings import SEED

from skpatchsvdd import load
from skpatchsvdd._cli import fit as fit_command
from skpatchsvdd._cli import main
from skpatchsvdd._training import loop
from skpatchsvdd._utils import progress
from skpatchsvdd.datasets import make_textures


def save_all(folder, images, names=None):
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        name = f"{i:02}" if names is None else names[i]
        Image.fromarray(image).save(folder / f"{name}.png")


@pytest.fixture(scope="module")
def images():
    return make_textures(4, image_size=68, random_state=SEED).images


@pytest.fixture(scope="module")
def good(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos") / "good"
    save_all(folder, images)
    return folder


def fit(*args, max_iter="0"):
    return main(["fit", *map(str, args), "--max-iter", max_iter])


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
    assert fit(good, "-o", path, "--device", "cpu", max_iter="3") == 130
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
    assert fit(good, "-o", tmp_path / "m", "--device", "cpu", max_iter="1") == 130
    assert not list(tmp_path.iterdir())
    assert "are kept" not in capsys.readouterr().err


def test_what_a_run_computes_on_is_not_stored(good, tmp_path):
    path = tmp_path / "part.model"
    assert fit(good, "-o", path, "--device", "cpu") == 0
    assert (load(path).device, load(path).verbose) == ("auto", 0)


@pytest.mark.parametrize("command", ["fit", "update"])
@pytest.mark.parametrize("other", ["test", "ground_truth"])
@pytest.mark.parametrize("below", ["", "bottle"])
def test_a_data_set_with_defects_is_refused(
    images, tmp_path, capsys, command, other, below
):
    folder = tmp_path / "data" / below
    save_all(folder / "train" / "good", images)
    save_all(folder / other / "broken", images)
    path = tmp_path / "part.model"
    assert fit(folder / "train" / "good", "-o", path) == 0
    former = path.read_bytes()
    data, model = str(tmp_path / "data"), str(path)
    args = [data, "-o", model] if command == "fit" else [model, data]
    assert main([command, *args]) == 1
    err = capsys.readouterr().err
    assert f"{folder} holds train/ and {other}/" in err
    assert f"Pass {folder / 'train' / 'good'} instead" in err
    assert path.read_bytes() == former


def test_folders_are_groups(images, tmp_path, capsys):
    for name, some in (("monday", images[:2]), ("tuesday", images[2:])):
        save_all(tmp_path / "good" / name, some)
    path = tmp_path / "part.model"
    assert fit(tmp_path / "good", "-o", path, "--group-by", "folder") == 0
    assert "2 groups of images, by folder" in capsys.readouterr().out
    days = [str(tmp_path / "good" / day) for day in ("monday", "tuesday")]
    assert list(load(path).groups_) == [days[0]] * 2 + [days[1]] * 2


def test_beginnings_of_names_are_groups(images, tmp_path, capsys):
    names = ["sheet_1_001", "sheet_1_002", "sheet_2_001", "other"]
    save_all(tmp_path / "good", images, names)
    path = tmp_path / "part.model"
    assert fit(tmp_path / "good", "-o", path, "--group-by", "name") == 0
    groups = [x.rpartition("good/")[2] for x in load(path).groups_]
    assert groups == ["other", "sheet_1", "sheet_1", "sheet_2"]


def test_one_folder_is_no_groups(good, tmp_path, capsys):
    assert fit(good, "-o", tmp_path / "m", "--group-by", "folder") == 1
    assert "at least two groups" in capsys.readouterr().err


def test_large_images_are_resized_which_the_model_knows(
    images, good, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(fit_command, "_MOST_PIXELS", 48 * 48)
    path, out = tmp_path / "part.model", tmp_path / "out"
    assert fit(good, "-o", path) == 0
    printed = capsys.readouterr().out
    assert "images of 68 x 68 pixels are resized to 48 x 48, so that" in printed
    assert "--image-size original keeps all pixels" in printed
    est = load(path)
    assert (tuple(est.image_size), est.inspected_shape_) == ((48, 48), (48, 48, 3))
    assert est.anomaly_map(images).shape == (4, 68, 68)
    assert main(["inspect", str(path), str(good), "-o", str(out)]) == 0


def test_large_images_keep_all_pixels_if_asked_to(good, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fit_command, "_MOST_PIXELS", 48 * 48)
    assert fit(good, "-o", tmp_path / "m", "--image-size", "original") == 0
    assert "resized" not in capsys.readouterr().out
    est = load(tmp_path / "m")
    assert (est.image_size, est.inspected_shape_) == (None, (68, 68, 3))


def test_images_of_several_sizes_cannot_keep_them(images, tmp_path, capsys):
    save_all(tmp_path / "good", images[:3])
    save_all(tmp_path / "good", [images[3][:60]], ["low"])
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
    save_all(tmp_path / "good", images[:n_images])
    assert fit(tmp_path / "good", "-o", tmp_path / "m", *args) == 0
    assert f"of new good images, {expected}" in capsys.readouterr().out


def test_how_many_groups_would_be_needed_is_said(images, tmp_path, capsys):
    save_all(tmp_path / "good", images, ["a_1", "a_2", "b_1", "b_2"])
    assert fit(tmp_path / "good", "-o", tmp_path / "m", "--group-by", "name") == 0
    expected = "about 1 in 3 will raise an alarm; for 1 in 100, learn from 99 groups"
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("command", ["fit", "update"])
@pytest.mark.parametrize(
    ("normal", "other"),
    [("ok", "defective"), ("good", "bad"), ("Normal", "NG"), ("OK", "Not-OK")],
)
def test_defective_images_beside_good_ones_are_refused(
    images, good, tmp_path, capsys, command, normal, other
):
    model = tmp_path / "part.model"
    assert fit(good, "-o", model) == 0
    former = model.read_bytes()
    save_all(tmp_path / "data" / normal, images[:2])
    save_all(tmp_path / "data" / other, images[2:])
    for sources in ([""], [normal, other]):
        paths = [str(tmp_path / "data" / x) for x in sources]
        args = [*paths, "-o", str(model)] if command == "fit" else [str(model), *paths]
        assert main([command, *args]) == 1
        err = capsys.readouterr().err
        assert f"{tmp_path / 'data'} holds {normal}/ and {other}/" in err
        assert f"Pass {tmp_path / 'data' / normal} alone" in err
    assert model.read_bytes() == former


def test_a_folder_of_defective_images_beside_images_is_refused(
    images, tmp_path, capsys
):
    save_all(tmp_path / "data", images[:2])
    save_all(tmp_path / "data" / "anomalies", images[2:])
    assert fit(tmp_path / "data", "-o", tmp_path / "m") == 1
    assert "holds images and anomalies/" in capsys.readouterr().err
    assert fit(tmp_path / "data" / "anomalies", "-o", tmp_path / "m") == 0


def test_reading_many_files_says_how_far_it_has_come(
    good, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    assert fit(good, "-o", tmp_path / "m") == 0
    out = capsys.readouterr().out
    for label in ("reading files", "reading images", "comparing positions in images"):
        assert f"[PatchSVDD] {label} ############################## 4 of 4" in out
