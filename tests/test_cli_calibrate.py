"""The command calibrate: what it says, what it refuses, and what it never loses."""

import os

import numpy as np
import pytest
from commands import copy_model, save_images
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import main
from skpatchsvdd._utils import hold_lock
from skpatchsvdd.datasets import make_textures

N_NEW = 9


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Folders: good images, those of a new light, and a model of the good ones."""
    root = tmp_path_factory.mktemp("photos")
    images = make_textures(6 + N_NEW, image_size=48, random_state=SEED).images
    good = save_images(root / "good", images[:6])
    noise = np.random.default_rng(SEED).normal(0, 20, images[6:].shape)
    new = np.clip(images[6:] + noise, 0, 255).astype(np.uint8)
    save_images(root / "new", new)
    for i, image in enumerate(new[:6]):
        save_images(root / "lots" / f"lot{i // 2}", [image])
        save_images(root / "lots" / f"lot{i // 2}" / "more", [255 - image])
    save_images(root / "defect", [images[0].max() - images[0]])
    est = PatchSVDD(
        encoder="hierarchical", patch_size=32, max_iter=0, random_state=0, verbose=3
    )
    est.fit(good).save(root / "part.model")
    return root


@pytest.fixture
def model(photos, tmp_path):
    return copy_model(photos, tmp_path)


def calibrate(model, *args):
    return main(["calibrate", str(model), *map(str, args)])


def test_images_that_are_not_learnt_from_set_the_threshold(photos, model, capsys):
    former, before = load(model), model.read_bytes()
    assert calibrate(model, photos / "new") == 0
    out, est = capsys.readouterr().out, load(model)
    n_alarms = np.sum(former.predict(est_files(photos)) == -1)
    assert n_alarms > 0
    assert f"{N_NEW} images to calibrate on\n" in out
    assert f"score of {est.offset_:.4g}; it was {former.offset_:.4g}" in out
    assert f"of these {N_NEW} images {n_alarms} raised an alarm, 0 will" in out
    assert "about 1 in 10 will raise an alarm; for 1 in 100, calibrate on 99" in out
    backup = model.with_name("part.model.bak")
    assert f"the former model is {backup}" in out
    assert backup.read_bytes() == before
    expected = former.calibrate(est_files(photos))
    assert est.offset_ == expected.offset_
    np.testing.assert_array_equal(est.calibration_scores_, expected.calibration_scores_)
    np.testing.assert_array_equal(est.training_scores_, former.training_scores_)
    assert (est.device, est.verbose) == ("auto", 3)


def est_files(photos):
    return [str(x) for x in sorted((photos / "new").iterdir())]


def test_too_few_images_for_the_rate_need_yes(photos, model, capsys):
    before = model.read_bytes()
    args = model, photos / "new", "--false-alarm-rate", 0.05
    assert calibrate(*args) == 3
    out = capsys.readouterr().out
    assert "a rate of false alarms of 0.05 needs 19" in out
    assert "about 1 in 10 will raise an alarm; for 1 in 20, calibrate on 19" in out
    assert f"nothing was written: {N_NEW} images are too few" in out
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
    assert np.sum(est.calibration_scores_ < est.offset_) == 2  # in 9 + 1


def test_groups_count_the_same(photos, model, capsys):
    assert calibrate(model, photos / "lots", "--group-by", "folder") == 0
    assert "6 groups of images to calibrate on" in capsys.readouterr().out
    assert len(load(model).calibration_groups_) == 6


def test_the_training_images_calibrate_again(photos, model, capsys):
    before = load(model)
    assert calibrate(model, "--training") == 0
    assert "there is nothing new" in capsys.readouterr().out
    assert calibrate(model, photos / "new") == 0
    offset = load(model).offset_
    assert calibrate(model, "--training") == 0
    assert f"{before.offset_:.4g}; it was {offset:.4g}" in capsys.readouterr().out
    assert load(model).offset_ == before.offset_
    assert load(model).calibrates_.all()


def test_the_rate_changes_without_images(model):
    assert calibrate(model, "--training", "--false-alarm-rate", 0.3) == 0
    est = load(model)
    assert est.false_alarm_rate == 0.3
    assert np.sum(est.training_scores_ < est.offset_) == 2


def test_training_images_are_refused_by_name(photos, model, capsys):
    before = model.read_bytes()
    assert calibrate(model, photos / "new", photos / "good" / "03.png") == 1
    err = capsys.readouterr().err
    assert f"{photos / 'good' / '03.png'} is known as a training image" in err
    assert model.read_bytes() == before


def test_known_defects_are_refused_by_name(photos, model, capsys):
    file = str(photos / "defect" / "00.png")
    load(model).partial_fit([file], ["stain"]).save(model)
    assert calibrate(model, photos / "new", file) == 1
    assert f"{file} is known as defective" in capsys.readouterr().err
    assert calibrate(model, photos / "new") == 0


def test_a_dry_run_writes_nothing(photos, model, capsys):
    before = model.read_bytes()
    args = model, photos / "new", "--dry-run", "--false-alarm-rate"
    assert calibrate(*args, 0.1) == 0
    assert "nothing was written: --dry-run" in capsys.readouterr().out
    assert calibrate(*args, 0.05) == 3
    assert "it would be written with --yes only" in capsys.readouterr().out
    assert model.read_bytes() == before
    assert [x.name for x in model.parent.iterdir()] == ["part.model"]


def test_another_output_leaves_the_model(photos, model, tmp_path):
    before, other = model.read_bytes(), tmp_path / "new" / "other.model"
    assert calibrate(model, photos / "new", "-o", other) == 0
    assert model.read_bytes() == before
    assert len(load(other).calibration_scores_) == N_NEW
    assert [x.name for x in other.parent.iterdir()] == ["other.model"]


def test_a_model_that_cannot_be_written_whole_stays(photos, model, monkeypatch):
    before = model.read_bytes()

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    assert calibrate(model, photos / "new") == 1
    assert model.read_bytes() == before


def test_two_changes_at_a_time_are_refused(photos, model, capsys):
    with hold_lock(model):
        assert calibrate(model, photos / "new") == 1
    assert f"{model} is being changed by process" in capsys.readouterr().err


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
        ([], "pass images of good parts to calibrate on, or --training"),
        (["new", "--training"], "and not both"),
        (["--training", "--group-by", "name"], "--group-by is for images"),
        (["new", "--group-by", "folder"], "at least two groups"),
        (["absent"], "absent"),
        (["new", "--max-pixels", "100"], "there is no image left"),
        (["new", "--device", "abacus"], "abacus"),
        (["new", "--output", "good/00.png"], "is no model"),
    ],
)
def test_bad_input_is_named(photos, model, monkeypatch, capsys, args, message):
    monkeypatch.chdir(photos)
    before = model.read_bytes()
    assert calibrate(model, *args) == 1
    assert message in capsys.readouterr().err
    assert model.read_bytes() == before


@pytest.mark.parametrize("rate", ["0", "0.6", "nan", "few"])
def test_bad_rates_are_refused(photos, model, capsys, rate):
    with pytest.raises(SystemExit, match="2"):
        calibrate(model, photos / "new", "--false-alarm-rate", rate)
    assert "--false-alarm-rate" in capsys.readouterr().err
