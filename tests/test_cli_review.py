"""The command update with a review: what it learns, says and refuses."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from commands import call, copy_model, save_images, save_untrained
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._report import digest_file, fingerprint
from skpatchsvdd._utils import messages
from skpatchsvdd.datasets import make_textures

N_GOOD = 6
update = partial(call, "update")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A model of good images, and new ones: 0 and 1 raise no alarm, 2 and 3 do."""
    root = tmp_path_factory.mktemp("photos")
    images = make_textures(N_GOOD + 2, image_size=60, random_state=SEED).images[:, :48]
    noise = np.random.default_rng(SEED).integers(0, 256, (2, 48, 60, 3), np.uint8)
    good = save_images(root / "good", images[:N_GOOD], range(N_GOOD))
    save_images(root / "new" / "day 1", [*images[N_GOOD:], *noise], range(4))
    save_untrained(root / "part.model", good, is_lenient=True)
    return root


@pytest.fixture
def model(photos, tmp_path):
    return copy_model(photos, tmp_path)


@pytest.fixture
def review(photos, tmp_path):
    """What a page would save, and a function that writes it with other images."""
    content = {
        "format": "skpatchsvdd-review",
        "version": 1,
        "model": fingerprint(load(photos / "part.model")),
        "folder": str(photos / "new"),
    }

    def write(images, **others):
        for image in images:
            file = photos / "new" / image["file"]
            image.setdefault("digest", digest_file(file) if file.exists() else None)
        path = tmp_path / "review.json"
        path.write_text(json.dumps(content | {"images": images} | others))
        return path

    return write


def good(i):
    return {"file": f"day 1/{i}.png", "verdict": "good"}


def defective(i, kind=None, boxes=()):
    return good(i) | {"verdict": "defective", "kind": kind, "boxes": list(boxes)}


def stub_partial_fit(monkeypatch, factor=1.0):
    """Let `partial_fit` multiply the threshold and learn nothing; return its calls."""
    calls = []

    def partial_fit(est, X, y=None, *, masks=None, groups=None, corrections=False):
        calls.append({"X": X, "y": y, "masks": masks, "groups": groups})
        est.offset_ *= factor
        est._fitted = replace(est._fitted)
        return est

    monkeypatch.setattr(PatchSVDD, "partial_fit", partial_fit)
    return calls


def test_good_images_are_corrections(photos, model, review, capsys):
    former, files = model.read_bytes(), load(model).training_files_
    assert update(model, "--review", review([good(0), good(2)])) == 0
    out, est = capsys.readouterr().out, load(model)
    n_wrong = np.sum(est.predict([photos / f"new/day 1/{i}.png" for i in (0, 2)]) < 0)
    right = "the model was right about 1, and is now about"
    assert f"of 2 reviewed images {right} {2 - n_wrong}" in out
    assert f"really good: 1 of 2 raised an alarm, {n_wrong} do now" in out
    assert "really defective" not in out
    assert "other images" not in out
    assert out.count("called good and looks defective") == 1
    assert "2.png is called good" in out
    assert est.training_files_ == files  # what is normal stays what it was
    assert model.with_name("part.model.bak").read_bytes() == former


def test_a_calibrated_model_learns_a_review(photos, model, review):
    files = [photos / f"new/day 1/{i}.png" for i in (0, 1)]
    load(model).calibrate(files).save(model)
    said = [good(0), defective(2, "dent", [[0, 0, 40, 40]])]
    assert update(model, "--review", review(said), "--yes") == 0
    est = load(model)
    assert est.defect_kinds_.tolist() == ["dent"]
    assert not est.calibrates_.any()
    assert len(est.calibration_scores_) == 2


def test_a_model_that_has_learnt_a_review_takes_the_next_and_no_copy(
    model, review, capsys
):
    for path in (
        lambda: review([good(0)]),
        lambda: review([good(1)]),
        lambda: review([defective(2, "dent", [[0, 0, 40, 40]])]),
    ):
        former = model.read_bytes()
        assert update(model, "--review", path()) == 0
        assert f"wrote {model}" in capsys.readouterr().out
        after = model.read_bytes()
        assert after != former
        assert update(model, "--review", path()) == 0
        assert "there is nothing new" in capsys.readouterr().out
        assert model.read_bytes() == after
    assert len(load(model).training_scores_) == N_GOOD


def test_a_model_of_arrays_takes_a_review_after_a_known_defect(photos, model, review):
    files = sorted((photos / "good").iterdir())
    est = load(model).fit(np.stack([np.array(Image.open(file)) for file in files]))
    est.save(model)
    name = fingerprint(est)
    for i in (2, 3):
        path = review([defective(i, "noise", [[0, 0, 48, 60]])], model=name)
        assert update(model, "--review", path, "--yes") == 0
    assert load(model).defect_kinds_.tolist() == ["noise", "noise"]


def test_images_that_were_moved_are_found_and_the_others_counted(
    photos, model, review, tmp_path, capsys
):
    (tmp_path / "moved").symlink_to(photos / "new")
    path = review([good(0), good(2)], folder=str(tmp_path / "gone"))
    assert update(model, "--review", path) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert update(model, "--review", path, "--images", tmp_path / "moved") == 0
    out = capsys.readouterr().out
    assert f"2 other images are in {tmp_path / 'moved'}: 1 raised an alarm" in out
    assert f"wrote {model}" in out


def test_a_dry_run_of_a_review_writes_nothing(model, review, capsys):
    former, path = model.read_bytes(), review([good(2)])
    assert update(model, "--review", path, "--dry-run") == 0
    assert "nothing was written: --dry-run" in capsys.readouterr().out
    assert model.read_bytes() == former
    assert {x.name for x in model.parent.iterdir()} == {"part.model", "review.json"}


def test_defects_are_handed_on_with_kinds_and_masks(
    photos, model, review, monkeypatch, capsys
):
    calls = stub_partial_fit(monkeypatch)
    boxes = [[0, 10, 5, 60], [40, 0, 48, 2]]
    path = review([good(1), defective(2, "dent", boxes), defective(3), defective(0)])
    assert update(model, "--review", path) == 0
    folder = photos / "new" / "day 1"
    assert [x["X"] for x in calls] == [
        [str(folder / "1.png")],
        [str(folder / "2.png")],
        [str(folder / "3.png"), str(folder / "0.png")],
    ]
    assert [x["y"] for x in calls] == [[1], ["dent"], [-1, -1]]
    assert [x["groups"] for x in calls] == [None] * 3
    assert calls[0]["masks"] is None
    [mask] = calls[1]["masks"]
    expected = np.zeros((48, 60), dtype=bool)
    expected[:5, 10:] = expected[40:, :2] = True
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, expected)
    assert calls[2]["masks"] == [None, None]
    out = capsys.readouterr().out
    assert "of 4 reviewed images the model was right about 3" in out
    assert "really defective: 2 of 3 raised an alarm, 2 do now" in out
    assert f"still not right:\n  {folder / '0.png'}\n" in out
    assert f"wrote {model}" in out


def test_what_makes_reviewed_images_wrong_is_written_only_if_asked(
    model, review, monkeypatch, capsys
):
    stub_partial_fit(monkeypatch, 1e6)  # nothing is abnormal any more
    former, path = model.read_bytes(), review([defective(2)])
    assert update(model, "--review", path) == 3
    assert "fewer of the reviewed images would be right" in capsys.readouterr().out
    assert update(model, "--review", path, "--dry-run") == 3
    assert "with --yes only: fewer of the reviewed" in capsys.readouterr().out
    assert model.read_bytes() == former
    assert update(model, "--review", path, "--yes") == 0
    assert model.read_bytes() != former


def test_others_whose_alarms_have_gone_are_named(
    photos, model, review, monkeypatch, capsys
):
    stub_partial_fit(monkeypatch, 1e6)
    update(model, "--review", review([good(2)]), "--images", photos / "new")
    gone = photos / "new" / "day 1" / "3.png"
    assert f"no alarms any more:\n  {gone}\n" in capsys.readouterr().out


BAD = {
    "gone": ([good(7)], {}, "there is no file"),
    "changed": ([good(0) | {"digest": "00"}], {}, "has changed since"),
    "low": ([defective(2, None, [[0, 0, 49, 60]])], {}, "a box reaches to row 49"),
    "wide": ([defective(2, None, [[0, 0, 48, 61]])], {}, "and column 61"),
    "up": ([good("../../good/1")], {}, "outside of the folder"),
    "root": ([good(0) | {"file": "/etc/a.png"}], {}, "outside of the folder"),
    "verdict": ([good(0) | {"verdict": "ok"}], {}, "the verdict of day 1/0.png"),
    "model": ([good(0)], {"model": "6-0123"}, "a review of another model's report"),
    "format": ([good(0)], {"format": "x"}, "is not a review"),
    "version": ([good(0)], {"version": 9}, "is a review of version 9"),
    "folder": ([good(0)], {"folder": None}, "does not say where its images are"),
    "one of two": ([good(0), good(8)], {}, "cannot be applied"),
}


@pytest.mark.parametrize(("images", "others", "message"), BAD.values(), ids=BAD)
def test_a_wrong_review_changes_nothing(
    model, review, monkeypatch, capsys, images, others, message
):
    calls = stub_partial_fit(monkeypatch)
    former, path = model.read_bytes(), review([dict(x) for x in images], **others)
    assert update(model, "--review", path) == 1
    assert message in capsys.readouterr().err
    assert model.read_bytes() == former
    assert {x.name for x in model.parent.iterdir()} == {"part.model", "review.json"}
    assert not calls


def test_a_broken_image_changes_nothing(photos, model, review, tmp_path, capsys):
    whole = (photos / "new" / "day 1" / "0.png").read_bytes()
    (tmp_path / "0.png").write_bytes(whole[: len(whole) // 2])
    former = model.read_bytes()
    path = review([{"file": "0.png", "verdict": "good"}], folder=str(tmp_path))
    assert update(model, "--review", path) == 1
    assert "0.png" in capsys.readouterr().err
    assert model.read_bytes() == former


@pytest.fixture
def review_training(photos, review):
    """A function that writes a review of training images, by their verdicts."""

    def write(verdicts, **others):
        images = [
            {"file": f"{i}.png", "verdict": verdict, "digest": None}
            for i, verdict in verdicts.items()
        ]
        return review(images, folder=str(photos / "good"), **others)

    return write


def test_a_defective_training_image_is_forgotten_and_known(
    photos, model, review_training, capsys
):
    path = review_training({3: "defective", 1: "good"})
    assert update(model, "--review", path) == 0
    out, est = capsys.readouterr().out, load(model)
    files = [str(photos / "good" / f"{i}.png") for i in range(N_GOOD)]
    assert f"not learnt from any more:\n  {files[3]}\n" in out
    assert est.training_files_ == files[:3] + files[4:]
    assert est.defect_kinds_.tolist() == ["defect"]
    assert not est._fitted.feedback.corrected  # what is learnt, and no alarm, is right
    # As if it had never been among them.
    clean = load(photos / "part.model").fit(est.training_files_)
    clean.partial_fit(files[3:4], [-1])
    np.testing.assert_allclose(
        est.score_samples(files), clean.score_samples(files), rtol=1e-4
    )
    after = model.read_bytes()
    assert update(model, "--review", path) == 0  # the same report's, once more
    assert "there is nothing new" in capsys.readouterr().out
    assert model.read_bytes() == after


def test_copies_of_a_defective_training_image_are_forgotten(
    photos, model, review_training
):
    files = sorted((photos / "good").iterdir())
    with pytest.warns(UserWarning, match="copies of other images"):
        load(model).fit([*files, files[3]]).save(model)
    assert update(model, "--review", review_training({3: "defective"}), "--yes") == 0
    assert load(model).training_files_ == [str(x) for x in files if x != files[3]]


def test_what_cannot_be_forgotten_is_named_and_changes_nothing(
    photos, model, review_training, capsys
):
    former = model.read_bytes()
    path = review_training(dict.fromkeys(range(N_GOOD - 1), "defective"))
    assert update(model, "--review", path) == 1
    err = capsys.readouterr().err
    assert "at least two must stay" in err
    assert str(photos / "good" / "0.png") in err
    assert model.read_bytes() == former


def test_a_training_image_that_raises_an_alarm_is_corrected(
    photos, model, review_training
):
    est = load(model)
    odd = int(np.argmin(est.training_scores_))
    est.offset_ = float(np.sort(est.training_scores_)[:2].mean())
    est.save(model)
    assert update(model, "--review", review_training({odd: "good"})) == 0
    assert load(model).score_samples([photos / "good" / f"{odd}.png"]) == 0


def fit_odd(photos, model, folder, **params):
    """Fit, with the first of the alarms among the images, which is set aside."""
    files = [*sorted((photos / "good").iterdir()), photos / "new" / "day 1" / "2.png"]
    est = PatchSVDD(encoder="procedural", max_iter=0, random_state=0, contamination=0.2)
    with pytest.warns(UserWarning, match="were set aside"):
        est.fit(files, **params).save(model)
    assert est.suspects_.files[0] == str(files[-1])
    return fingerprint(est)


@pytest.mark.filterwarnings("ignore:.*look defective")
@pytest.mark.parametrize("groups", [None, list("aabbccd")])
def test_a_good_image_that_was_set_aside_joins(photos, model, review, groups):
    name = fit_odd(photos, model, photos, groups=groups)
    # From another place: it is known by the path at which it was reviewed.
    moved = model.parent / "moved"
    moved.symlink_to(photos / "new")
    path = review([good(2)], model=name)
    args = "--review", path, "--images", moved, "--yes"
    assert update(model, *args) == 0
    est = load(model)
    assert est.training_files_[-1] == str(moved / "day 1" / "2.png")
    is_correction = est._fitted.feedback is not None
    assert is_correction == (groups is not None)
    assert est.calibrates_[-1] == (groups is None)
    after = model.read_bytes()
    assert update(model, *args) == 0
    assert model.read_bytes() == after


@pytest.mark.filterwarnings("ignore:.*look defective")
def test_a_defective_image_that_was_set_aside_is_known(photos, model, review):
    name = fit_odd(photos, model, photos)
    files = load(model).training_files_
    path = review([defective(2, "noise")], model=name)
    assert update(model, "--review", path, "--yes") == 0
    assert load(model).training_files_ == files
    assert load(model).defect_kinds_.tolist() == ["noise"]


def test_a_review_needs_no_groups(photos, model, review):
    est = load(model).fit(sorted((photos / "good").iterdir()), groups=list("aabbcc"))
    est.save(model)
    path = review([good(0), defective(3)], model=fingerprint(est))
    assert update(model, "--review", path, "--yes") == 0
    assert load(model).groups_.tolist() == list("aabbcc")


def test_sources_exclude_each_other(photos, model, review, capsys):
    path = review([good(0)])
    assert update(model, photos / "new", "--review", path) == 1
    assert "not both" in capsys.readouterr().err
    assert update(model, photos / "new", "--images", photos / "new") == 1
    assert "where the images of --review are" in capsys.readouterr().err
    # Options may stand before the images, as they always could.
    assert update(model, "--dry-run", photos / "new" / "day 1" / "0.png") == 0


def test_a_review_says_how_far_it_has_come(model, review, monkeypatch, capsys):
    monkeypatch.setattr(messages, "_PATIENCE", 0.0)
    box = [0, 0, 40, 40]
    path = review([good(0), good(2), defective(3, boxes=[box])])
    assert update(model, "--review", path, "--dry-run") in (0, 3)
    out = capsys.readouterr().out
    for step in (
        "inspecting images ############################## 3 of 3",
        "learning defects ############################## 1 of 1",
        "scoring images learnt from ##############################",
    ):
        assert f"[PatchSVDD] {step}" in out
