"""The commands update and calibrate: what they say, refuse, and never lose."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import call, copy_model, save_images, save_untrained
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import models
from skpatchsvdd._utils import hold_lock
from skpatchsvdd.datasets import make_textures

N_NEW = 9
COMMANDS = ("update", "calibrate")
update, calibrate = (partial(call, command) for command in COMMANDS)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Folders: good images, more of them, broken ones, and those of a new light.

    And a model of the good ones, to which no good image is abnormal.
    """
    root = tmp_path_factory.mktemp("photos")
    images = make_textures(6 + N_NEW, image_size=48, random_state=SEED).images
    good = save_images(root / "good", images[:6])
    save_images(root / "more", images[6:8])
    rng = np.random.default_rng(SEED)
    save_images(root / "broken", rng.integers(0, 256, (2, 48, 48, 3), np.uint8))
    new = np.clip(images[6:] + rng.normal(0, 20, images[6:].shape), 0, 255)
    new = new.astype(np.uint8)
    save_images(root / "new", new)
    for i, image in enumerate(new[:6]):
        save_images(root / "lots" / f"lot{i // 2}", [image])
        save_images(root / "lots" / f"lot{i // 2}" / "more", [255 - image])
    save_untrained(root / "part.model", good, is_lenient=True, verbose=3)
    return root


@pytest.fixture
def model(photos, tmp_path):
    return copy_model(photos, tmp_path)


@pytest.fixture
def strict_model(model):
    """A model whose threshold is that of its training images."""
    load(model).calibrate(None).save(model)
    return model


def test_defects_are_told_and_not_taken(photos, model, capsys):
    former = model.read_bytes()
    assert update(model, photos / "more", photos / "broken") == 3
    out = capsys.readouterr().out
    assert "4 of 4 images are new" in out
    assert "2 of them look abnormal to the model as it was" in out
    assert all(str(photos / "broken" / x) in out for x in ("00.png", "01.png"))
    assert str(photos / "more" / "00.png") not in out
    assert f"it was {load(model).offset_:.4g}" in out
    assert "nothing was written: look at these images" in out
    assert model.read_bytes() == former
    assert [x.name for x in model.parent.iterdir()] == ["part.model"]


def test_yes_takes_them_and_keeps_a_backup(photos, model, capsys):
    former = model.read_bytes()
    assert update(model, photos / "broken", "--yes") == 0
    assert len(load(model).training_scores_) == 8
    backup = model.with_name("part.model.bak")
    assert f"the former model is {backup}" in capsys.readouterr().out
    assert backup.read_bytes() == former
    assert sorted(x.name for x in model.parent.iterdir()) == [model.name, backup.name]


def test_former_models_stay_as_backups(model):
    kept = []
    for i in range(6):
        kept.insert(0, model.read_bytes())
        load(model).set_params(verbose=i).save(model.with_name("new"))
        models.back_up(model)
        model.with_name("new").replace(model)
    names = [f"{model}.bak{x}" for x in ("", 2, 3, 4, 5)]
    assert [Path(x).read_bytes() for x in names] == kept[:5]
    assert not Path(f"{model}.bak6").exists()


def test_images_that_look_normal_join_without_asking(photos, model, capsys):
    assert update(model, photos / "more", photos / "good", "--device", "cpu") == 0
    out, est = capsys.readouterr().out, load(model)
    assert "2 of 8 images are new; the others were known" in out
    assert "0 of them look abnormal" in out
    assert len(est.training_scores_) == 8
    assert (est.device, est.verbose) == ("auto", 3)  # not those of the run
    learnt = model.read_bytes()
    assert update(model, photos / "good") == 0
    assert "there is nothing new" in capsys.readouterr().out
    assert model.read_bytes() == learnt


def test_an_update_of_a_model_with_groups_names_the_group(photos, model, capsys):
    groups = list("aabbcc")
    load(model).fit(sorted((photos / "good").iterdir()), groups=groups).save(model)
    args = model, photos / "more" / "00.png"
    assert update(*args) == 1
    assert "Pass --group" in capsys.readouterr().err
    assert update(*args, "--group", "d", "--yes") == 0
    assert list(load(model).groups_) == [*groups, "d"]


def test_images_that_are_not_learnt_from_set_the_threshold(
    photos, strict_model, capsys
):
    model = strict_model
    former, before = load(model), model.read_bytes()
    assert calibrate(model, photos / "new") == 0
    out, est = capsys.readouterr().out, load(model)
    files = sorted(map(str, (photos / "new").iterdir()))
    n_alarms = np.sum(former.predict(files) == -1)
    assert n_alarms > 0
    assert f"{N_NEW} images to calibrate on\n" in out
    assert f"score of {est.offset_:.4g}; it was {former.offset_:.4g}" in out
    assert f"of these {N_NEW} images {n_alarms} raised an alarm, 0 will" in out
    assert "about 1 in 10 will raise an alarm; for 1 in 100, calibrate on 99" in out
    assert model.with_name("part.model.bak").read_bytes() == before
    expected = former.calibrate(files)
    assert est.offset_ == expected.offset_
    np.testing.assert_array_equal(est.calibration_scores_, expected.calibration_scores_)
    np.testing.assert_array_equal(est.training_scores_, former.training_scores_)
    assert (est.device, est.verbose) == ("auto", 3)


def test_too_few_images_for_the_rate_need_yes(photos, model, capsys):
    before = model.read_bytes()
    args = model, photos / "new", "--false-alarm-rate", 0.05
    assert calibrate(*args) == 3
    out = capsys.readouterr().out
    assert "a rate of false alarms of 0.05 needs 19" in out
    assert "about 1 in 10 will raise an alarm; for 1 in 20, calibrate on 19" in out
    assert f"nothing was written: {N_NEW} images are too few" in out
    assert calibrate(*args, "--dry-run") == 3
    assert "it would be written with --yes only" in capsys.readouterr().out
    assert model.read_bytes() == before
    assert [x.name for x in model.parent.iterdir()] == ["part.model"]
    assert calibrate(*args, "--yes") == 0
    assert load(model).false_alarm_rate == 0.05


def test_another_rate_is_kept(photos, model, capsys):
    assert calibrate(model, photos / "new", "--false-alarm-rate", 0.2) == 0
    out, est = capsys.readouterr().out, load(model)
    assert "needs 4\n" in out
    assert "about 1 in 5 will raise an alarm\n" in out
    assert est.false_alarm_rate == 0.2
    assert est.offset_ == np.sort(est.calibration_scores_)[1]  # 2 of 9 + 1
    assert calibrate(model, "--training", "--false-alarm-rate", 0.3) == 0
    est = load(model)
    assert est.false_alarm_rate == 0.3
    assert est.offset_ == np.sort(est.training_scores_)[1]  # 2 of 6 + 1


def test_groups_count_the_same(photos, model, capsys):
    assert calibrate(model, photos / "lots", "--group-by", "folder") == 0
    assert "6 groups of images to calibrate on" in capsys.readouterr().out
    assert len(load(model).calibration_groups_) == 6


def test_the_training_images_calibrate_again(photos, strict_model, capsys):
    model = strict_model
    before = load(model)
    assert calibrate(model, "--training") == 0
    assert "there is nothing new" in capsys.readouterr().out
    assert calibrate(model, photos / "new") == 0
    offset = load(model).offset_
    assert calibrate(model, "--training") == 0
    assert f"{before.offset_:.4g}; it was {offset:.4g}" in capsys.readouterr().out
    assert load(model).offset_ == before.offset_
    assert load(model).calibrates_.all()


@pytest.mark.parametrize(
    ("file", "message"),
    [("good/03.png", "a training image"), ("broken/00.png", "defective")],
)
def test_what_is_known_is_refused_by_name(photos, model, capsys, file, message):
    load(model).partial_fit([photos / "broken" / "00.png"], ["stain"]).save(model)
    before = model.read_bytes()
    assert calibrate(model, photos / "new", photos / file) == 1
    assert f"{photos / file} is known as {message}" in capsys.readouterr().err
    assert model.read_bytes() == before
    assert calibrate(model, photos / "new") == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_another_output_leaves_the_model(photos, model, tmp_path, command):
    former, other = model.read_bytes(), tmp_path / "new" / "other.model"
    assert call(command, model, photos / "more", "-o", other) == 0
    assert model.read_bytes() == former
    assert len(load(other).calibration_scores_) == (8 if command == "update" else 2)
    assert [x.name for x in other.parent.iterdir()] == ["other.model"]


@pytest.mark.parametrize(
    ("command", "folder", "status"),
    [("update", "more", 0), ("update", "broken", 3), ("calibrate", "new", 0)],
)
def test_a_dry_run_writes_nothing(photos, model, capsys, command, folder, status):
    former = model.read_bytes()
    assert call(command, model, photos / folder, "--dry-run", "--yes") == status
    assert "nothing was written: --dry-run" in capsys.readouterr().out
    assert model.read_bytes() == former
    assert [x.name for x in model.parent.iterdir()] == ["part.model"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_cannot_be_written_whole_stays(
    photos, model, monkeypatch, command
):
    before = model.read_bytes()

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    assert call(command, model, photos / "more") == 1
    assert model.read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_two_changes_at_a_time_are_refused(photos, model, capsys, command):
    former = model.read_bytes()
    with hold_lock(model):
        assert call(command, model, photos / "more") == 1
    err = capsys.readouterr().err
    assert f"{model} is being changed by process {os.getpid()} on" in err
    assert model.read_bytes() == former
    assert call(command, model, photos / "more") == 0


def test_a_model_that_was_replaced_meanwhile_stays(photos, model, monkeypatch, capsys):
    partial_fit = PatchSVDD.partial_fit

    def fit_elsewhere(est, *args, **kwargs):
        load(photos / "part.model").set_params(n_jobs=1).save(model)
        return partial_fit(est, *args, **kwargs)

    monkeypatch.setattr(PatchSVDD, "partial_fit", fit_elsewhere)
    assert update(model, photos / "more") == 1
    assert "has been replaced while images joined" in capsys.readouterr().err
    assert load(model).n_jobs == 1


def test_broken_files_are_skipped_or_end_it(photos, model, tmp_path, capsys):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    assert calibrate(model, photos / "new", broken, "--strict") == 1
    assert str(broken) in capsys.readouterr().err
    assert calibrate(model, photos / "new", broken) == 0
    captured = capsys.readouterr()
    assert f"skipped: {broken}" in captured.err
    assert f"{N_NEW} images to calibrate on" in captured.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("new --training", "and not both"),
        ("--training --group-by name", "--group-by is for images"),
        ("new --group-by folder", "at least two groups"),
        ("absent", "absent"),
        ("new --max-pixels 100", "no image is left"),
        ("new --device abacus", "abacus"),
        ("new --output good/00.png", "is not a model file"),
    ],
)
def test_bad_input_is_named(photos, model, monkeypatch, capsys, args, message):
    monkeypatch.chdir(photos)
    before = model.read_bytes()
    assert calibrate(model, *args.split()) == 1
    assert message in capsys.readouterr().err
    assert model.read_bytes() == before


def test_a_group_for_a_model_without_groups_is_refused(photos, model, capsys):
    assert call("update", model, photos / "more", "--group", "lot 7") == 1
    assert "was fitted without groups. Leave out --group" in capsys.readouterr().err
