"""The command update: what it says before it writes, and what it never loses."""

import os
import subprocess
import sys

import numpy as np
import pytest
from commands import copy_model, save_images
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import main
from skpatchsvdd._utils import hold_lock
from skpatchsvdd.datasets import make_textures


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Folders: good images, more of them, broken ones, and a model of the good ones."""
    root = tmp_path_factory.mktemp("photos")
    images = make_textures(8, image_size=48, random_state=SEED).images
    good = save_images(root / "good", images[:6])
    save_images(root / "more", images[6:])
    noise = np.random.default_rng(SEED).integers(0, 256, (2, 48, 48, 3), np.uint8)
    save_images(root / "broken", noise)
    est = PatchSVDD(
        encoder="hierarchical", patch_size=32, max_iter=0, random_state=0, verbose=3
    ).fit(good)
    est.offset_ = float(2 * est.training_scores_.min())  # no good image is beyond it
    est.save(root / "part.model")
    return root


@pytest.fixture
def model(photos, tmp_path):
    return copy_model(photos, tmp_path)


def update(model, *args):
    return main(["update", str(model), *map(str, args)])


def test_defects_are_told_and_not_taken(photos, model, capsys):
    former = model.read_bytes()
    assert update(model, photos / "more", photos / "broken") == 3
    out = capsys.readouterr().out
    assert "4 of 4 images are new" in out
    assert "2 of them look abnormal to the model as it was" in out
    assert [str(photos / "broken" / x) in out for x in ("00.png", "01.png")] == [
        True
    ] * 2
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


def test_images_that_look_normal_join_without_asking(photos, model, capsys):
    assert update(model, photos / "more", photos / "good") == 0
    out = capsys.readouterr().out
    assert "2 of 8 images are new; the others were known" in out
    assert "0 of them look abnormal" in out
    assert len(load(model).training_scores_) == 8


def test_another_output_leaves_the_model(photos, model, tmp_path):
    former, other = model.read_bytes(), tmp_path / "new" / "other.model"
    assert update(model, photos / "more", "-o", other) == 0
    assert model.read_bytes() == former
    assert len(load(other).training_scores_) == 8
    assert [x.name for x in other.parent.iterdir()] == ["other.model"]


@pytest.mark.parametrize(("folder", "status"), [("more", 0), ("broken", 3)])
def test_a_dry_run_writes_nothing(photos, model, capsys, folder, status):
    former = model.read_bytes()
    assert update(model, photos / folder, "--dry-run", "--yes") == status
    assert "nothing was written: --dry-run" in capsys.readouterr().out
    assert model.read_bytes() == former
    assert [x.name for x in model.parent.iterdir()] == ["part.model"]


def test_known_images_change_nothing(photos, model, capsys):
    former = model.read_bytes()
    assert update(model, photos / "good") == 0
    assert "there is nothing new" in capsys.readouterr().out
    assert model.read_bytes() == former


def test_device_and_verbosity_of_a_run_are_not_stored(photos, model):
    assert update(model, photos / "more", "--device", "cpu") == 0
    assert (load(model).device, load(model).verbose) == ("auto", 3)


def test_two_updates_at_a_time_are_refused(photos, model, capsys):
    former = model.read_bytes()
    with hold_lock(model):
        assert update(model, photos / "more") == 1
    err = capsys.readouterr().err
    assert f"{model} is being changed by process {os.getpid()} on" in err
    assert model.read_bytes() == former
    assert update(model, photos / "more") == 0


def test_the_lock_of_a_dead_process_is_free(photos, model):
    code = (
        "import os, sys\n"
        "from skpatchsvdd._utils import hold_lock\n"
        "with hold_lock(sys.argv[1]): os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(model)], check=False)
    assert (model.parent / ".part.model.lock").exists()
    assert update(model, photos / "more") == 0
    assert not (model.parent / ".part.model.lock").exists()


def test_a_model_that_was_replaced_meanwhile_stays(photos, model, monkeypatch, capsys):
    partial_fit = PatchSVDD.partial_fit

    def fit_elsewhere(est, *args, **kwargs):
        load(photos / "part.model").set_params(n_jobs=1).save(model)
        return partial_fit(est, *args, **kwargs)

    monkeypatch.setattr(PatchSVDD, "partial_fit", fit_elsewhere)
    assert update(model, photos / "more") == 1
    assert "has been replaced while images joined" in capsys.readouterr().err
    assert load(model).n_jobs == 1
