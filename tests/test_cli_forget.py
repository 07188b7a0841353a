"""The command forget: which images it takes out of a model, says and refuses."""

import shutil
from functools import partial

import numpy as np
import pytest
from commands import call, copy_model, save_images, save_untrained
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd.datasets import make_textures

forget = partial(call, "forget")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six images, two of which the model has not learnt from."""
    root = tmp_path_factory.mktemp("photos")
    images = make_textures(6, image_size=48, random_state=SEED).images
    files = save_images(root / "all", images)
    save_untrained(root / "part.model", files[:4])
    return root


@pytest.fixture
def model(photos, tmp_path):
    return copy_model(photos, tmp_path)


def test_images_leave_a_model_as_if_they_had_never_joined(photos, model, capsys):
    former, files = model.read_bytes(), sorted(map(str, (photos / "all").iterdir()))
    before = load(model)
    assert forget(model, files[1]) == 0
    out, est = capsys.readouterr().out, load(model)
    assert f"forgets 1 image:\n  {files[1]}\n3 images stay\n" in out
    assert f"of {est.offset_:.4g}; it was {before.offset_:.4g}" in out
    assert f"the former model is {model}.bak" in out
    assert model.with_name("part.model.bak").read_bytes() == former
    clean = before.fit([files[0], *files[2:4]])
    assert est.training_files_ == clean.training_files_
    expected = clean.score_samples(files)
    np.testing.assert_allclose(est.score_samples(files), expected, rtol=1e-4)


def test_images_are_known_by_path_or_by_their_pixels(photos, model, tmp_path, capsys):
    files = shutil.copytree(photos / "all", tmp_path / "moved")
    assert forget(model, files / "02.png", "--dry-run") == 0
    out = capsys.readouterr().out
    assert f"  {photos / 'all' / '02.png'}\n" in out
    assert "nothing was written: --dry-run" in out
    assert len(load(model).training_files_) == 4
    learnt = sorted(map(str, files.iterdir()))[:4]
    with pytest.warns(UserWarning, match="copies of other images"):
        load(model).fit([*learnt, learnt[0]]).save(model)
    (files / "00.png").unlink()
    assert forget(model, files / "00.png") == 0  # whose file is gone; and its copy
    assert load(model).training_files_ == learnt[1:]


def test_what_is_not_in_a_model_is_named_and_changes_nothing(
    photos, model, tmp_path, capsys
):
    files = list(map(str, sorted((photos / "all").iterdir())))
    changed = shutil.copy(files[0], tmp_path / "changed.png")
    est = PatchSVDD(encoder="procedural", max_iter=0, random_state=0, contamination=0.2)
    with pytest.warns(UserWarning, match="were set aside"):
        est.fit([changed, *files[1:5]]).save(model)
    [aside], stays = est.suspects_.files, est.training_files_[-1]
    shutil.copy(files[5], changed)
    former = model.read_bytes()
    assert forget(model, files[5], aside, changed, tmp_path, stays) == 1
    err = capsys.readouterr().err
    assert f"nothing can be taken out of {model}:" in err
    assert f"{files[5]} is not among the images that were learnt from" in err
    assert f"{aside} was set aside by fit" in err
    assert f"{changed} has changed since it was learnt from" in err
    assert str(tmp_path) in err
    assert stays not in err
    assert model.read_bytes() == former


def test_two_images_must_stay(photos, model, capsys):
    former = model.read_bytes()
    files = [photos / "all" / f"{i:02d}.png" for i in range(3)]
    assert forget(model, *files) == 1
    assert "3 of 4 training images cannot be forgotten" in capsys.readouterr().err
    assert model.read_bytes() == former
