"""The command line, as a user with a folder of photographs meets it."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from commands import read_rows
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import fit, main, models, watch
from skpatchsvdd._images import read_display
from skpatchsvdd._report import save_overlay
from skpatchsvdd.datasets import make_textures

QUICK = ["--max-iter", "0", "--false-alarm-rate", "0.3"]
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
    path = photos / "models" / "part.joblib"
    args = ["fit", str(photos / "good"), "-o", str(path), "--image-size", "64"]
    assert main([*args, "--max-iter", "0", "--false-alarm-rate", "0.2"]) == 0
    return path


def test_fit_says_what_it_did(photos, tmp_path, capsys):
    path = tmp_path / "part.joblib"
    args = ["fit", str(photos / "good"), "-o", str(path), "--max-iter", "0"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert "learnt from 10 images" in out
    assert "images have 2 sizes: all are resized to 256 x 256" in out
    assert "inspected at 256 x 256 pixels" in out
    assert "broken.png cannot be read" in err
    assert "cut.png cannot be read" in err
    assert "1 files that are no images by name" in err
    est = joblib.load(path)
    assert len(est.training_scores_) == 10
    assert [x.name for x in tmp_path.iterdir()] == ["part.joblib"]  # nothing half done


def test_strict_ends_at_a_broken_file(photos, tmp_path, capsys):
    args = ["fit", str(photos / "good"), "-o", str(tmp_path / "m"), "--strict"]
    assert main(args) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "broken.png" in err
    assert not (tmp_path / "m").exists()


def test_inspect_writes_a_table_and_pictures(photos, model, tmp_path, capsys):
    out = tmp_path / "results"
    status = main(["inspect", str(model), str(photos / "new"), "-o", str(out)])
    rows = read_rows(out)
    assert [row["file"] for row in rows] == [
        str(path) for path in sorted((photos / "new").iterdir())
    ]
    paths = [row["file"] for row in rows]
    est = joblib.load(model)
    labels = est.predict(paths)
    assert status == (3 if (labels == -1).any() else 0)
    printed = capsys.readouterr().out
    assert f"{(labels == -1).sum()} of 6 images are abnormal" in printed
    results = est.inspect(paths)
    for i, row in enumerate(rows):
        assert row["verdict"] == ("abnormal" if labels[i] == -1 else "normal")
        assert float(row["score"]) == pytest.approx(results.scores[i], rel=1e-5)
        assert float(row["p_value"]) == pytest.approx(results.p_values[i], rel=1e-3)
        assert int(row["n_regions"]) == len(results.regions[i])
        boxes = [x.split() for x in row["regions"].split(";") if x]
        assert len(boxes) == len(results.regions[i])
        with Image.open(out / row["map"]) as drawn, Image.open(paths[i]) as image:
            assert drawn.size == image.size
    assert f"open {out / 'report.html'}" in printed
    page = (out / "report.html").read_text("utf-8")
    assert all(Path(path).name in page for path in paths)


def test_an_interrupt_keeps_the_page_of_what_was_inspected(
    photos, model, tmp_path, monkeypatch
):
    monkeypatch.setattr("skpatchsvdd._cli.batches._BATCH", 2)
    inspect, calls = PatchSVDD.inspect, []

    def stop_at_second(self, X, **options):
        calls.append(X)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return inspect(self, X, **options)

    monkeypatch.setattr(PatchSVDD, "inspect", stop_at_second)
    args = ["inspect", str(model), str(photos / "new"), "-o", str(tmp_path)]
    assert main(args) == 130
    assert len(read_rows(tmp_path)) == 2
    assert '"subtitle":"2 images' in (tmp_path / "report.html").read_text("utf-8")


def test_what_a_mask_hides_is_not_inspected(photos, tmp_path):
    good, model = photos / "good" / "tuesday", tmp_path / "m.joblib"
    mask = np.zeros((64, 64), dtype=np.uint8)
    mask[:, 20:50] = 255
    Image.fromarray(mask).convert("RGB").save(tmp_path / "mask.png")
    Image.fromarray(mask).save(tmp_path / "mask.jpg", quality=75)
    args = ["fit", str(good), "-o", str(model), "--max-iter", "0", "--image-size", "64"]
    assert main([*args, "--roi", str(tmp_path / "mask.png")]) == 0
    est = joblib.load(model)
    np.testing.assert_array_equal(est.roi_, mask > 0)
    np.testing.assert_array_equal(fit.read_roi(tmp_path / "mask.jpg"), mask > 0)
    assert main([*args, "--roi", str(tmp_path / "none.png")]) == 1


def test_nothing_abnormal_has_status_0(photos, model, tmp_path):
    good = str(photos / "good" / "tuesday")
    # They are known: none is below the lowest score.
    est = joblib.load(model).set_params(false_alarm_rate="auto")
    est.fit([str(x) for x in sorted((photos / "good" / "tuesday").iterdir())])
    models.save_model(est, tmp_path / "m.joblib")
    args = ["inspect", str(tmp_path / "m.joblib"), good, "-o", str(tmp_path / "out")]
    assert main([*args, "--no-maps", "--no-report"]) == 0
    assert [x.name for x in (tmp_path / "out").iterdir()] == ["results.csv"]


def test_watch_inspects_what_arrives(photos, model, tmp_path, monkeypatch, capsys):
    new = sorted((photos / "new").iterdir())
    line = tmp_path / "line"
    line.mkdir()
    (line / new[0].name).write_bytes(new[0].read_bytes())
    arriving = iter(new[1:3])

    def wait(seconds):
        """Let a picture arrive, the last one in two parts, then press Ctrl-C."""
        n = len(list(line.iterdir()))
        if n == 1:
            path = next(arriving)
            (line / path.name).write_bytes(path.read_bytes())
        elif n == 2:
            path = new[2]
            (line / path.name).write_bytes(path.read_bytes()[:100])
            (line / "broken.png").write_bytes(b"no image")
        elif (line / new[2].name).stat().st_size == 100:
            (line / new[2].name).write_bytes(new[2].read_bytes())
        elif len(read_rows(tmp_path / "out")) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", wait)
    args = ["inspect", str(model), "--watch", str(line), "-o", str(tmp_path / "out")]
    assert main([*args, "--no-maps"]) in (3, 4)
    rows = [x for x in read_rows(tmp_path / "out") if x["verdict"] != "unreadable"]
    assert [row["file"] for row in rows] == [str(line / x.name) for x in new[:3]]
    out, err = capsys.readouterr()
    assert "of 3 images are abnormal" in out
    assert "broken.png" in err
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert all(x.name in page for x in new[:3])


def test_watch_or_images_but_not_both(model, capsys):
    for more in ([], ["x", "--watch", "y"]):
        assert main(["inspect", str(model), *more, "-o", "z"]) == 1
        assert "pass images to inspect, or --watch" in capsys.readouterr().err


def test_evaluate_prints_figures_of_each_defect(photos, model, tmp_path, capsys):
    args = ["evaluate", str(model), str(photos / "labelled"), "-o", str(tmp_path)]
    assert main(args) == 0
    assert '"label":-1' in (tmp_path / "report.html").read_text("utf-8")
    out = capsys.readouterr().out
    assert "6 images, 3 of them defective" in out
    assert "image AUROC" in out
    assert "of 3 odd" in out
    assert "pixel AUROC" not in out  # there are no masks


def test_update_lets_images_join(photos, model, tmp_path, capsys):
    path = tmp_path / "more.joblib"
    args = ["update", str(model), str(photos / "new"), str(photos / "good" / "tuesday")]
    assert main([*args, "-o", str(path), "--yes"]) == 0
    assert "6 of 10 images are new" in capsys.readouterr().out
    assert len(joblib.load(path).training_scores_) == 16
    assert len(joblib.load(model).training_scores_) == 10


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["inspect", "nowhere", "x", "-o", "y"], "there is no model nowhere"),
        (["inspect", "NO_MODEL", "x", "-o", "y"], "no file of PatchSVDD.save"),
        (["inspect", "BROKEN", "x", "-o", "y"], "is no model that can be loaded here"),
        (["update", "UNFITTED", "x"], "holds an estimator that is not fitted"),
        (["fit", "GOOD", "-o", "NEW"], "it is a folder"),
        (["fit", "GOOD", "-o", "PHOTO"], "exists and is no model"),
        (["inspect", "OTHER", "x", "-o", "y"], "holds a dict, not a PatchSVDD"),
        (["inspect", "MODEL", "nowhere", "-o", "y"], "no file or folder nowhere"),
        (["fit", "nowhere", "-o", "y"], "no file or folder nowhere"),
        (["fit", "GOOD", "-o", "y", "--false-alarm-rate", "2"], "'false_alarm_rate'"),
        (["evaluate", "MODEL", "NEW"], "test"),
    ],
)
def test_errors_take_one_line(photos, model, tmp_path, capsys, args, message):
    (tmp_path / "text").write_text("no model")
    (tmp_path / "broken.joblib").write_text("1,2,3\n")
    joblib.dump({}, tmp_path / "other.joblib")
    joblib.dump(PatchSVDD(encoder="hierarchical"), tmp_path / "unfitted.pkl")
    names = {
        "NO_MODEL": tmp_path / "text",
        "BROKEN": tmp_path / "broken.joblib",
        "OTHER": tmp_path / "other.joblib",
        "UNFITTED": tmp_path / "unfitted.pkl",
        "PHOTO": photos / "new" / "00.png",
        "MODEL": model,
        "GOOD": photos / "good",
        "NEW": photos / "labelled" / "test" / "good",
    }
    assert main([str(names.get(x, x)) for x in args]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("error: ")
    assert message in err[-1]


def test_a_failed_save_leaves_the_former_model(model, tmp_path, monkeypatch):
    path = tmp_path / "m.joblib"
    path.write_bytes(model.read_bytes())

    def fail(est, target):
        target.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(models.joblib, "dump", fail)
    with pytest.raises(OSError, match="no space"):
        models.save_model(PatchSVDD(encoder="hierarchical"), path)
    assert path.read_bytes() == model.read_bytes()
    assert [x.name for x in tmp_path.iterdir()] == ["m.joblib"]


def test_pictures_are_clear_where_all_is_normal(tmp_path):
    grey = np.full((8, 8), 100, dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "a.png")
    one_map = np.zeros((8, 8), dtype=np.float32)
    one_map[2, 3], one_map[4, 5] = 1, 3
    image = read_display(tmp_path / "a.png")
    save_overlay(image, one_map, tmp_path / "maps" / "a.png")
    drawn = np.asarray(Image.open(tmp_path / "maps" / "a.png")).astype(int)
    assert (drawn[0, 0] == 100).all()
    assert drawn[2, 3, 1] > 150  # yellow at the threshold
    assert drawn[4, 5, 1] < 50  # red far above it


def test_it_runs_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "skpatchsvdd", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "inspect" in result.stdout


@pytest.fixture(scope="module")
def own_size(photos):
    """A model that takes images of 96 x 96 alone."""
    path = photos / "models" / "own.model"
    args = ["fit", str(photos / "good" / "tuesday"), "-o", str(path)]
    assert main([*args, "--max-iter", "0", "--false-alarm-rate", "0.2"]) == 0
    return path


def test_only_what_is_named_like_a_pickle_is_unpickled(photos, tmp_path, capsys):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "has_run",)

    (tmp_path / "evil.model").write_bytes(pickle.dumps(Evil()))
    args = ["inspect", str(tmp_path / "evil.model"), str(photos / "new")]
    assert main([*args, "-o", str(tmp_path / "out")]) == 1
    assert "evil.model cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "has_run").exists()


def test_images_of_another_size_are_named_and_skipped(
    photos, own_size, tmp_path, capsys
):
    args = ["inspect", str(own_size), str(photos / "new"), "-o", str(tmp_path)]
    assert main([*args, "--no-maps", "--no-report"]) in (3, 4)
    rows = read_rows(tmp_path)
    fits = [Path(row["file"]).stem for row in rows if row["verdict"] != "unreadable"]
    assert fits == ["00", "02", "04"]
    err = capsys.readouterr().err
    assert "01.jpg has 120 x 120 pixels, and the model takes images of 96 x 96" in err
    assert main([*args, "--strict"]) == 1
    assert "--strict ends at what would be skipped" in capsys.readouterr().err
    assert read_rows(tmp_path) == rows  # a run that fails leaves the former table
    bad = tmp_path / "bad"
    save_all(bad / "test" / "good", np.zeros((1, 50, 50), dtype=np.uint8), sizes=(50,))
    assert main(["evaluate", str(own_size), str(bad)]) == 1
    assert "00.png has 50 x 50 pixels" in capsys.readouterr().err


def test_pictures_of_an_inspection_are_not_inspected(photos, own_size, tmp_path):
    folder = tmp_path / "line"
    folder.mkdir()
    for name in ("00.png", "02.webp"):
        (folder / name).write_bytes((photos / "new" / name).read_bytes())
    for output in (folder / "results", folder):
        for _ in range(2):
            main(["inspect", str(own_size), str(folder), "-o", str(output)])
            assert len(read_rows(output)) == 2
    path = tmp_path / "m.model"
    assert main(["fit", str(folder), "-o", str(path), *QUICK]) == 0
    assert len(load(path).training_scores_) == 2


def test_a_watch_goes_on_with_the_table(photos, own_size, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for n, name in enumerate(("00.png", "02.webp"), start=1):
        line = tmp_path / f"line{n}"
        line.mkdir()
        (line / name).write_bytes((photos / "new" / name).read_bytes())
        (line / ".hidden.png").write_bytes((photos / "new" / "00.png").read_bytes())
        (line / "notes.txt").write_text("not an image")

        def wait(seconds, n=n):
            if len(read_rows(out)) == n:
                raise KeyboardInterrupt

        monkeypatch.setattr(watch.time, "sleep", wait)
        args = ["inspect", str(own_size), "--watch", str(line), "-o", str(out)]
        assert main([*args, "--no-report"]) in (0, 3)
    rows = read_rows(out)
    assert [Path(row["file"]).name for row in rows] == ["00.png", "02.webp"]
    assert [row["map"][5:10] for row in rows] == ["00000", "00001"]
    (out / "results.csv").write_text("a,b\n")
    assert main([*args, "--no-report"]) == 1
    assert (out / "results.csv").read_text() == "a,b\n"


def test_a_watch_survives_a_file_that_vanishes(
    photos, own_size, tmp_path, monkeypatch, capsys
):
    line, out = tmp_path / "line", tmp_path / "out"
    line.mkdir()
    (line / "a.png").write_bytes((photos / "new" / "00.png").read_bytes())
    inspect = PatchSVDD.inspect

    def vanish(self, X, **options):
        monkeypatch.setattr(PatchSVDD, "inspect", inspect)
        (line / "a.png").rename(line / "b.png")
        return self.inspect(X, **options)

    def wait(seconds):
        if read_rows(out):
            raise KeyboardInterrupt

    monkeypatch.setattr(PatchSVDD, "inspect", vanish)
    monkeypatch.setattr(watch.time, "sleep", wait)
    args = ["inspect", str(own_size), "--watch", str(line), "-o", str(out)]
    assert main([*args, "--no-maps", "--no-report"]) in (0, 3)
    assert "skipped: there is no file" in capsys.readouterr().err
    assert [Path(row["file"]).name for row in read_rows(out)] == ["b.png"]


def test_a_file_that_is_given_twice_counts_once(photos, tmp_path, capsys):
    folder = str(photos / "good" / "tuesday")
    args = ["fit", folder, folder, "-o", str(tmp_path / "m"), "--max-iter", "0"]
    assert main(args) == 0
    assert "learning from 4 images" in capsys.readouterr().out


def test_names_that_are_long_or_no_text(photos, own_size, tmp_path):
    folder, out = tmp_path / "odd", tmp_path / "out"
    folder.mkdir()
    image = (photos / "new" / "00.png").read_bytes()
    names = [b"L" * 250 + b".png", b"caf\xe9.png", "\u00e4".encode() * 120 + b".png"]
    for name in names:
        (folder / os.fsdecode(name)).write_bytes(image)
    assert main(["inspect", str(own_size), str(folder), "-o", str(out)]) in (0, 3)
    assert len(list((out / "maps").iterdir())) == len(names)
    assert (out / "report.html").exists()


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, FloatingPointError])
def test_what_fails_takes_one_line(photos, tmp_path, monkeypatch, capsys, error):
    def fail(*args):
        raise error

    monkeypatch.setattr(PatchSVDD, "fit", fail)
    args = ["fit", str(photos / "good" / "tuesday"), "-o", str(tmp_path / "m")]
    assert main(args) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {error.__name__}"


@pytest.mark.parametrize(("text", "size"), [("64", (64, 64)), ("64x80", (64, 80))])
def test_a_size_is_one_argument(photos, tmp_path, capsys, text, size):
    path = tmp_path / "m.model"
    folder = str(photos / "good" / "tuesday")
    assert main(["fit", "--image-size", text, folder, "-o", str(path)] + QUICK) == 0
    assert load(path).inspected_shape_[:2] == size
    for wrong in ("1x2x3", "large", "64x"):
        with pytest.raises(SystemExit):
            main(["fit", "--image-size", wrong, folder, "-o", str(path)])
        assert f"as in 192x256, got '{wrong}'" in capsys.readouterr().err


def test_an_update_of_a_model_with_groups_names_the_group(photos, tmp_path, capsys):
    path = tmp_path / "m.model"
    images = [str(x) for x in sorted((photos / "good" / "tuesday").iterdir())]
    PatchSVDD(encoder="hierarchical", patch_size=32, max_iter=0, random_state=0).fit(
        images, groups=["a", "a", "b", "b"]
    ).save(path)
    args = ["update", str(path), str(photos / "new" / "00.png")]
    assert main(args) == 1
    assert "Pass --group" in capsys.readouterr().err
    assert main([*args, "--group", "c", "--yes"]) == 0
    assert list(load(path).groups_) == ["a", "a", "b", "b", "c"]


def test_an_output_that_cannot_be_written_is_told_before_the_work(
    photos, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(models.os, "access", lambda *args: False)
    monkeypatch.setattr(PatchSVDD, "fit", lambda *args: 1 / 0)
    args = ["fit", str(photos / "good"), "-o", str(tmp_path / "folder" / "m")]
    assert main(args) == 1
    assert f"{tmp_path} does not allow it" in capsys.readouterr().err
