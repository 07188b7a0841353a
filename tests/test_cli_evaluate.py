"""The command evaluate: figures to print and as files, and files that are broken."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from commands import call, read_page
from PIL import Image
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._report import Page
from skpatchsvdd.datasets import load_mvtec_ad, make_textures
from skpatchsvdd.drift import drift_test


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.fixture(scope="module")
def normal():
    return make_textures(24, image_size=48, random_state=SEED).images


@pytest.fixture(scope="module")
def est(normal):
    params = {"patch_size": 32, "embedding_dim": 8, "max_iter": 0, "random_state": 0}
    return PatchSVDD(encoder="hierarchical", **params).fit(normal[:12])


@pytest.fixture
def part(est, normal, tmp_path):
    """A model, and a data set of good images and noise, with masks."""
    est.save(tmp_path / "part.model")
    noise = np.random.default_rng(SEED).integers(0, 256, (3, 48, 48, 3), np.uint8)
    for i in range(3):
        save(tmp_path / f"part/test/good/{i}.png", normal[12 + i])
        save(tmp_path / f"part/test/noise/{i}.png", noise[i])
        mask = np.full((48, 48), 255, dtype=np.uint8)
        mask[:8] = 0
        save(tmp_path / f"part/ground_truth/noise/{i}_mask.png", mask)
    return tmp_path


def evaluate(part, *args):
    return call("evaluate", part / "part.model", part / "part", *args)


def test_figures_are_written_as_files(part, est, capsys):
    assert evaluate(part, "-o", part / "out") == 0
    out = capsys.readouterr().out
    figures = json.loads((part / "out" / "evaluation.json").read_text())
    assert figures["n_images"] == 6
    noise = figures["defects"]["noise"]
    assert (noise["found"], noise["n_images"], noise["image_auroc"]) == (3, 3, 1.0)
    files = sorted((part / "part/test/noise").iterdir())
    found = np.array(est.predict_mask([str(x) for x in files]))
    truth = np.zeros(found.shape, dtype=bool)
    truth[:, 8:] = True
    right = (found & truth).sum()
    assert noise["pixels"]["precision"] == pytest.approx(right / found.sum())
    assert noise["pixels"]["recall"] == pytest.approx(right / truth.sum())
    f1 = 2 * right / (found.sum() + truth.sum())
    assert noise["pixels"]["f1"] == pytest.approx(f1)
    assert f"F1 {f1:.3f}" in out
    assert figures["model"] == str(part / "part.model")
    for label, name in (("image AUROC", "image_auroc"), ("PRO", "pro")):
        printed = re.search(rf"^{label} +(\S+)$", out, re.MULTILINE)[1]
        assert float(printed) == pytest.approx(figures[name], abs=6e-4)
    with (part / "out" / "evaluation.csv").open(encoding="utf-8-sig") as stream:
        rows = list(csv.DictReader(stream))
    assert float(rows[3]["pixel_recall"]) == pytest.approx(
        (found[0] & truth[0]).sum() / truth[0].sum(), abs=1e-4
    )
    assert [row["defect"] for row in rows] == ["good"] * 3 + ["noise"] * 3
    assert [row["verdict"] for row in rows[3:]] == ["abnormal"] * 3
    scores = est.score_samples([row["file"] for row in rows])
    np.testing.assert_allclose([float(row["score"]) for row in rows], scores, 1e-5)
    page = (part / "out" / "report.html").read_text("utf-8")
    assert page.count('"truth":"data:image/png') == 3  # outlines of the masks


def test_without_masks_there_are_no_figures_of_pixels(part, capsys):
    shutil.rmtree(part / "part" / "ground_truth")
    assert evaluate(part) == 0
    out = capsys.readouterr().out
    assert "6 images, 3 of them defective" in out
    assert "of 3 noise" in out
    assert "pixel" not in out


def test_no_cell_of_the_table_is_a_formula(part, monkeypatch):
    monkeypatch.chdir(part)
    (part / "part").rename("=1")
    (part / "=1" / "test" / "noise").rename("=1/test/@noise")
    (part / "=1" / "ground_truth" / "noise").rename("=1/ground_truth/@noise")
    assert call("evaluate", "part.model", "=1", "-o", "out") == 0
    with (part / "out" / "evaluation.csv").open(encoding="utf-8-sig") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["file"][:3] for row in rows} == {"'=1"}
    assert {row["defect"] for row in rows} == {"good", "'@noise"}


@pytest.mark.parametrize("file", ["test/noise/1.png", "ground_truth/noise/1_mask.png"])
def test_a_broken_file_is_named_and_left_out(part, capsys, file):
    (part / "part" / file).write_bytes(b"no image")
    assert evaluate(part, "-o", part / "out") == 0
    out, err = capsys.readouterr()
    assert f"skipped: {part / 'part' / file} cannot be read" in err
    assert "5 images, 2 of them defective" in out
    assert "not counted   1 that could not be read" in out
    figures = json.loads((part / "out" / "evaluation.json").read_text())
    assert figures["skipped"] == [str(part / "part" / "test" / "noise" / "1.png")]
    assert evaluate(part, "--strict") == 1
    assert "--strict ends at what would be skipped" in capsys.readouterr().err


def test_loading_says_what_is_broken(part):
    (part / "part" / "test" / "good" / "0.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"1 of 6 files cannot be read.*\n.*0\.png"):
        load_mvtec_ad(part / "part", split="test")
    with pytest.warns(UserWarning, match=r"1 of 6 files cannot be read.* skipped"):
        data = load_mvtec_ad(part / "part", split="test", on_error="skip")
    assert [len(x) for x in (data.images, data.masks, data.labels)] == [5, 5, 5]
    assert [len(x) for x in (data.defects, data.filenames, data.skipped)] == [5, 5, 1]
    for image, name in zip(data.images, data.filenames, strict=True):
        np.testing.assert_array_equal(image, np.asarray(Image.open(name)))


def add_scores(page, normal, scores, labels):
    """Add images with scores of one's own."""
    results = page._est.inspect(normal[: len(scores)])
    results.scores = np.asarray(scores)
    results.labels = np.ones(len(scores))  # no alarm, so that nothing is explained
    page.add(normal[: len(scores)], results, labels)


def test_defects_that_are_labelled_are_no_drift(est, normal, tmp_path):
    usual = est.training_scores_
    scores = np.concatenate([usual, np.full(12, 9 * usual.min())])
    for labels, drifted in ((None, True), ([1] * 12 + [-1] * 12, False)):
        page = Page(est, "x")
        some = scores[12:] if labels is None else scores
        add_scores(page, normal, some, labels)
        page.write(tmp_path / "report.html")
        found = read_page(tmp_path / "report.html")
        assert found["drifted"] == drifted
        assert ("skpatchsvdd update" in found["drift"]) == drifted
    assert "labelled defective: 12" in found["drift"]


def test_the_report_says_what_check_drift_says(est, normal, tmp_path):
    """Many alarms are not left out: they may be the drift that is looked for."""
    usual = est.training_scores_
    scores = np.sort(usual) + np.array([9 * usual.min()] * 7 + [0] * 5)
    page = Page(est, "x")
    add_scores(page, normal, scores, None)
    page.write(tmp_path / "report.html")
    result = drift_test(est.calibration_scores_, scores, est.calibration_groups_)
    assert read_page(tmp_path / "report.html")["drift"] == result.verdict
    assert "2 most abnormal of the 12 images were left out" in result.verdict


@pytest.mark.parametrize(
    ("factor", "label", "words"), [(9, 1, "update"), (1, -1, "all are labelled defec")]
)
def test_only_good_images_tell_of_drift(est, normal, tmp_path, factor, label, words):
    page = Page(est, "x")
    add_scores(page, normal, factor * est.training_scores_, [label] * 12)
    page.write(tmp_path / "report.html")
    found = read_page(tmp_path / "report.html")
    assert words in found["drift"]
    assert found["drifted"] == (label == 1)
