"""The command threshold: what sets the threshold of a model, and what it says."""

from functools import partial

import numpy as np
import pytest
from commands import call, copy_model, save_images, save_untrained
from settings import SEED

from skpatchsvdd import load
from skpatchsvdd.datasets import make_textures

threshold = partial(call, "threshold")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Folders of good images, of more of them and of defective ones, and a model."""
    root = tmp_path_factory.mktemp("photos")
    images = make_textures(13, image_size=48, random_state=SEED).images
    for image in images[10:]:
        image[10:30, 10:30] = 0
    save_untrained(root / "part.model", save_images(root / "good", images[:6]))
    save_images(root / "more", images[6:10])
    save_images(root / "defective", images[10:])
    return root


@pytest.fixture
def model(photos, tmp_path):
    return copy_model(photos, tmp_path)


@pytest.fixture
def labelled(photos):
    return "--good", photos / "more", "--defective", photos / "defective"


def test_labelled_images_set_it_and_what_that_means_is_said(
    photos, model, labelled, capsys
):
    former, before = load(model), model.read_bytes()
    assert threshold(model, *labelled, "--dry-run") == 0
    assert model.read_bytes() == before
    assert "nothing was written: --dry-run" in capsys.readouterr().out
    assert threshold(model, *labelled) == 0
    out, est = capsys.readouterr().out, load(model)
    files = [sorted((photos / x).iterdir()) for x in ("more", "defective")]
    assert (est.predict(files[0]) == 1).all()
    assert (est.predict(files[1]) == -1).all()
    assert "of 4 good images 0 raise an alarm: 0.0% to 60.2% of such" in out
    assert "of 3 images with defects 0 are missed: 0.0% to 70.8% of such" in out
    expected = former.tune_threshold([*files[0], *files[1]], [1] * 4 + [-1] * 3)
    assert est.offset_ == est.fixed_threshold_ == expected.threshold
    assert f"score of {est.offset_:.4g}; it was" in out
    low, high = expected.false_alarm_range
    assert f"by the 6 that calibrate, {low:.1%} to {high:.1%} will" in out
    assert model.with_name("part.model.bak").read_bytes() == before
    assert threshold(model, *labelled) == 0
    assert "there is nothing new" in capsys.readouterr().out


def test_costs_may_let_a_defect_pass(photos, model, capsys):
    # What is called good looks like a defect.
    files = sorted((photos / "defective").iterdir())
    args = model, "--good", *files[:2], "--defective", files[2]
    assert threshold(*args, "--miss-cost", 1.5, "--alarm-cost", 10, "-o", model) == 0
    captured = capsys.readouterr()
    order = np.argsort(np.argsort(load(model).score_samples(files)))
    is_lowest = order[2] == 0
    assert ("1 are missed" in captured.out) == (not is_lowest)
    assert ("warning: labels contradict" in captured.err) == (not is_lowest)
    assert "0 raise an alarm" in captured.out
    assert threshold(*args) == 0
    assert "0 are missed" in capsys.readouterr().out


def test_contradictions_are_said_and_files_listed(photos, model, capsys):
    files = sorted((photos / "more").iterdir())
    good = sorted((photos / "defective").iterdir())
    assert threshold(model, "--good", *good, "--defective", *files) == 0
    captured = capsys.readouterr()
    assert "warning: labels contradict each other" in captured.err
    assert "of 3 good images 3 raise an alarm" in captured.out
    assert all(f"  {x}\n" in captured.out for x in good)


def test_it_is_set_to_a_score_or_a_rate_and_undone(model, capsys):
    own = load(model)
    assert threshold(model, "--at=-1.5e-3") == 0
    assert load(model).offset_ == load(model).fixed_threshold_ == -1.5e-3
    assert f"it was {own.offset_:.4g}" in capsys.readouterr().out
    assert threshold(model, "--at", -1.5, "--dry-run") == 0
    assert load(model).offset_ == -1.5e-3
    assert threshold(model, "--undo") == 0
    assert load(model).offset_ == own.offset_
    assert threshold(model, "--at", -1.5) == 0
    assert threshold(model, "--false-alarm-rate", 0.3) == 0
    est = load(model)
    assert (est.false_alarm_rate, est.fixed_threshold_) == (0.3, None)
    assert est.offset_ == np.sort(est.training_scores_)[1]  # 2 of 6 + 1
    capsys.readouterr()
    assert threshold(model, "--undo") == 0
    assert "there is nothing new" in capsys.readouterr().out


def test_it_stays_through_updates_until_it_is_calibrated(photos, model, labelled):
    assert threshold(model, *labelled) == 0
    fixed = load(model).offset_
    assert call("update", model, photos / "more", "--yes") == 0
    assert load(model).offset_ == fixed
    assert call("calibrate", model, "--training") == 0
    est = load(model)
    assert (est.fixed_threshold_, est.offset_) == (None, est.training_scores_.min())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("", "pass what sets the threshold: --defective and --good"),
        ("--good MORE", "pass what sets the threshold"),
        ("--at=-1 --good MORE", "go with --defective alone"),
        ("--undo --miss-cost 2", "go with --defective alone"),
        ("--defective MISSING", "there is no"),
        ("--good ROOT --defective BAD", "would be learnt as normal ones"),
    ],
)
def test_what_does_not_go_together_is_refused(photos, model, capsys, args, message):
    before = model.read_bytes()
    names = {"MORE": photos / "more", "ROOT": photos, "BAD": photos / "defective"}
    assert threshold(model, *(names.get(x, x) for x in args.split())) == 1
    assert message in capsys.readouterr().err
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--at=1", "must be a score, 0 or less, such as -1.5, got '1'"),
        ("--at=low", "must be a score, 0 or less, such as -1.5, got 'low'"),
        ("--at=nan", "must be a score"),
        ("--at=-inf", "must be a score"),
        ("--at=-1 --undo", "not allowed with"),
        ("--defective x --false-alarm-rate 0.1", "not allowed with"),
        ("--defective x --miss-cost 0", "must be a number above 0"),
    ],
)
def test_values_are_checked(capsys, args, message):
    with pytest.raises(SystemExit, match="2"):
        threshold("m", *args.split())
    assert message in capsys.readouterr().err
