"""benchmarks/paper: its arguments, its tables, its pictures and what it keeps."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paper import commands, fits, images, pictures, rows, tables, views
from paper import run as running
from PIL import Image

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(root, tmp_path, monkeypatch, capsys):
    """Run a table; return what it prints and the JSON of the last line."""
    monkeypatch.setattr(images, "QUICK_IMAGES", 6)
    monkeypatch.setattr(tables, "QUICK_STEPS", 2)
    monkeypatch.setattr(tables, "QUICK_BATCH", 1)

    def call(table, *arguments, n_failures=0):
        argv = ["paper", table, "--data", root, "--cache", tmp_path / "cache"]
        argv += ["--quick", "--image-size", 80, "--device", "cpu", *arguments]
        monkeypatch.setattr(sys, "argv", [str(x) for x in argv])
        fails = pytest.raises(SystemExit, match="see above") if n_failures else None
        with fails or contextlib.nullcontext():
            commands.main()
        printed = capsys.readouterr().out
        figures = json.loads(printed.splitlines()[-1])
        assert len(figures["failures"]) == n_failures
        return printed, figures

    return call


def test_the_folder_runs_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = subprocess.run(
        [sys.executable, ROOT / "benchmarks/paper", "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "Example: python benchmarks/paper table1" in result.stdout


def test_tables_share_fits_and_stand_beside_the_paper(run):
    _, first = run("scales")
    printed, again = run("scales")
    assert printed.count("cached") == 1
    assert again["rows"] == first["rows"]
    by_setting = {row["setting"]: row for row in first["rows"]}
    assert list(by_setting) == ["K=32", "K=64", "joined", "summed"]
    assert by_setting["joined"]["paper det"] == 0.986
    assert by_setting["K=32"]["paper det"] is None
    assert first["means"][0]["paper det"] == 0.902
    printed, table1 = run("table1")
    assert printed.count("cached") == 1
    assert table1["rows"][0]["det"] == by_setting["joined"]["det"]


@pytest.mark.slow
def test_times_are_of_a_fit_of_their_own(run):
    run("table1")
    assert "cached" not in run("time")[0]
    assert run("time")[0].count("cached") == 1


@pytest.mark.slow
def test_what_is_said_twice_counts_once(run):
    _, figures = run("lambda", "--values", 0.3, 0.3, "--seeds", 0, 0)
    assert [row["fits"] for row in figures["rows"]] == [1]
    assert len(figures["means"]) == 1


@pytest.mark.slow
def test_joined_maps_are_those_of_the_estimator(root, run, monkeypatch):
    fit, fitted = fits.fit_patch_svdd, []

    def keep(*args):
        fitted.append(fit(*args))
        return fitted[-1]

    monkeypatch.setattr(fits, "fit_patch_svdd", keep)
    _, figures = run("table1")
    [(est, _, _)] = fitted  # the one fit that the figures are of
    _, test = images.Images(root, "bottle", 80, True).arrays()
    maps = est.anomaly_map(test.images)
    expected = fits.rate(test, maps, est.score_samples(test.images))
    row = figures["rows"][0]
    assert [row["det"], row["seg"]] == pytest.approx(list(expected.values()), abs=1e-4)


@pytest.mark.slow
def test_baselines_fit_once_where_no_seed_matters(run):
    _, figures = run("baselines", "--seeds", 0, 1)
    n_fits = {row["setting"]: row["fits"] for row in figures["rows"]}
    assert n_fits["IsolationForest on PCA"] == n_fits["Deep SVDD"] == 2
    assert n_fits["OneClassSVM (SVDD) on PCA"] == 1
    assert n_fits["LocalOutlierFactor on PCA"] == 1
    rated = {row["setting"]: row["seg"] for row in figures["rows"]}
    assert rated["Deep SVDD"] is None
    assert 0 <= rated["L2 autoencoder"] <= 1


@pytest.mark.slow
def test_other_images_have_other_figures(root, run):
    _, first = run("random")
    extra = root / "bottle/ground_truth/hole/readme.txt"
    extra.write_text("new")
    printed, again = run("random")
    extra.unlink()
    assert "cached" not in printed
    for before, after in zip(first["rows"], again["rows"], strict=True):
        assert after["setting"] == before["setting"]
        if after["setting"] != "trained":  # a training may end elsewhere
            assert after["det"] == pytest.approx(before["det"])
    assert run("random")[0].count("cached") == 4


def test_a_view_goes_on_without_a_category_that_fails(run, tmp_path, monkeypatch):

    def fail(*args):
        raise OSError("bottle/train/good/3.png is broken")

    monkeypatch.setattr(views, "fit_patch_svdd", fail)
    picture = tmp_path / "x.png"
    printed, figures = run("maps", "--picture", picture, n_failures=1)
    assert figures["failures"] == ["bottle: OSError: bottle/train/good/3.png is broken"]
    assert f"FAILED {figures['failures'][0]}" in printed
    # Without any it draws nothing.
    assert "nothing is drawn" in printed
    assert figures["picture"] is None
    assert not picture.exists()


def test_a_failed_fit_is_told_and_tried_again(run, monkeypatch):
    run_fit = running.run_fit

    def fail(images, line, seed, device):
        if line.label == "D=8":
            raise RuntimeError("no memory")
        return run_fit(images, line, seed, device)

    monkeypatch.setattr(running, "run_fit", fail)
    printed, figures = run("dimension", "--values", 8, 16, n_failures=1)
    assert [row["setting"] for row in figures["rows"]] == ["D=16"]
    assert figures["failures"] == ["bottle, D=8, seed 0: RuntimeError: no memory"]
    monkeypatch.setattr(running, "run_fit", run_fit)
    printed, figures = run("dimension", "--values", 8, 16)
    assert printed.count("cached") == 1
    assert [row["setting"] for row in figures["rows"]] == ["D=8", "D=16"]
    assert figures["failures"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table1", "--values", "1"], "--values is for lambda and dimension"),
        (["dimension", "--values", "0.5"], "must be positive integers"),
        (["table1", "--picture", "x.png"], "--picture is for losses"),
        (["losses", "--picture", "no/such/x.png"], "there is no folder no/such"),
        (["table1", "--device", "tpu9"], "--device"),
        (["table9"], "TABLE"),
        (["lambda", "--values", "-1"], "must be numbers of at least 0"),
        (["lambda", "--values", "nan"], "must be numbers of at least 0"),
        (["table1", "--seeds", "0", "-1"], "--seeds must not be negative"),
        (["table1", "--image-size", "63"], "--image-size must be at least 64"),
        (["table1", "--cache", __file__], "--cache must be a folder"),
        (["losses", "--picture", "x.xyz"], "--picture must end in one of"),
    ],
)
def test_bad_arguments_are_named(root, arguments, message, monkeypatch, capsys):
    argv = ["paper", *arguments, "--data", str(root)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as end:
        commands.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("table", ["losses", "lambda", "dimension"])
def test_pictures_are_drawn_where_figures_lack(table, tmp_path):
    lines = tables.TABLES[table].make_lines(tables.Choice())
    figures = dict.fromkeys(tables.TABLES[table].columns, 0.5)
    made = [
        {"category": "bottle", "setting": line.label} | figures for line in lines[1:]
    ]
    means = [row | {"category": "mean"} for row in made]
    pictures.draw_picture(table, made, means, lines, tmp_path / "x.png")
    assert len(np.unique(Image.open(tmp_path / "x.png"))) > 50


@pytest.mark.parametrize("view", ["maps", "tsne"])
def test_views_have_a_row_for_each_category(view, run, tmp_path):
    _, figures = run(view, "--picture", tmp_path / "x.png")
    assert figures["categories"] == ["bottle"]
    assert len(np.unique(Image.open(tmp_path / "x.png"))) > 50
    assert not (tmp_path / "cache").exists()  # of which it has no use


def test_means_weigh_categories_alike():
    line = tables.Line("a", paper={"bottle": {"det": 0.9}, "mean": {"det": 0.8}})
    found = [
        {"label": "a", "category": f"x/{name}", "class": name, "det": det}
        for name, det in (("bottle", 0.5), ("bottle", 0.7), ("nut", 1.0))
    ]
    made = rows.make_rows(found, [line], ("det",))
    assert [row["det"] for row in made] == pytest.approx([0.6, 1.0])
    assert made[0]["det sd"] == pytest.approx(0.02**0.5)
    means = rows.make_means(made, [line], ("det",))
    assert [row["det"] for row in means] == pytest.approx([0.8, 0.6])
    assert [row["paper det"] for row in means] == pytest.approx([0.8, 0.9])


def test_means_are_over_the_same_categories():
    lines = [tables.Line("a"), tables.Line("b"), tables.Line("failed everywhere")]
    made = [
        {"category": x, "setting": y, "fits": 1, "det": det, "paper det": None}
        for x, y, det in (("x", "a", 0.5), ("x", "b", 0.7), ("y", "a", 1))
    ]
    means = rows.make_means(made, lines, ("det",))
    assert [(row["setting"], row["det"]) for row in means] == [("a", 0.5), ("b", 0.7)]


def test_means_lack_what_a_fit_lacks():
    lines = [tables.Line("a"), tables.Line("b")]
    found = [
        {"category": x, "label": y, "det": det, "seg": seg, "class": ""}
        for x, y, det, seg in (
            ("masks", "a", 0.5, 0.7),
            ("masks", "b", 0.5, 0.9),
            ("masks", "b", 0.7, None),
            ("no masks", "a", 0.9, None),
            ("no masks", "b", 0.9, None),
        )
    ]
    made = rows.make_rows(found, lines, ("det", "seg"))
    assert [row["seg"] for row in made] == [0.7, None, None, None]
    assert made[1]["seg sd"] is None
    means = rows.make_means(made, lines, ("det", "seg"))
    assert [row["det"] for row in means] == pytest.approx([0.7, 0.75])
    assert [row["seg"] for row in means] == [0.7, None]


def test_columns_stand_in_order_whatever_the_first_row_has():
    made = [
        {"setting": "one seed", "det": 0.5, "paper det": 0.7},
        {"setting": "two", "det": 0.5, "det sd": 0.1, "paper det": None},
    ]
    shown = rows.printable(made)
    assert list(shown[0]) == ["setting", "det", "det sd", "paper det"]
    assert list(shown[1].values()) == ["two", "0.500", "0.100", ""]


def test_half_a_cache_file_is_no_figure(tmp_path):
    cache = running.Cache(tmp_path / "new")
    key = {"category": "a/b", "model": "PatchSVDD", "seed": 0}
    assert cache.load(key) is None
    figures = {"parts": {"joined": {"det": 1.0}}}
    cache.save(key, figures)
    assert cache.load(key) == figures
    [path] = (tmp_path / "new").iterdir()
    whole = path.read_bytes()
    parts = (b"{}", b'{"parts": {}}', b'{"parts": {"joined": {}}}', b"null")
    damaged = [b'{"figures": ' + part + b"}" for part in parts]
    for text in (whole[:10], b"", b"\xff\xfe\x00", b"null", b"[]", *damaged):
        path.write_bytes(text)
        assert cache.load(key) is None
    path.write_bytes(whole)
    assert cache.load(key) == figures
