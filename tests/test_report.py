"""Pages about inspections: what they know, and what they show in a browser."""

import base64
import copy
import html
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from browser import BROWSER, needs_browser
from commands import read_page, save_images
from PIL import Image
from settings import SEED
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skpatchsvdd import PatchSVDD
from skpatchsvdd._calibration.calibration import p_values_from_scores
from skpatchsvdd._images import read_display
from skpatchsvdd._report import Page, save_sheet
from skpatchsvdd._report.pictures import OVERLAY_SIZE, encode_map
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.report import write_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of good images, of test images, and a page about the latter."""
    folder = tmp_path_factory.mktemp("report")
    train = make_textures(10, image_size=80, random_state=SEED).images
    test = make_textures(8, image_size=80, anomaly_fraction=0.5, random_state=SEED + 1)
    good = save_images(folder, train, [f"good_{i}" for i in range(10)])
    names = [f"<b>&{i}<b>" for i in range(8)]
    files = list(map(Path, save_images(folder, test.images, names)))
    est = PatchSVDD(
        encoder="hierarchical", embedding_dim=8, max_iter=0, random_state=SEED
    ).fit(good)
    write_report(est, files, folder / "report.html", y=test.labels, title="A </title>")
    return folder, est, files, test.labels


def test_a_page_knows_what_inspect_says(folder):
    folder, est, files, labels = folder
    data, results = read_page(folder / "report.html"), est.inspect(files)
    assert data["title"] == "A </title>"
    assert data["threshold"] == -est.offset_
    np.testing.assert_allclose(data["training"], -est.training_scores_)
    assert [x["name"] for x in data["images"]] == list(map(str, files))
    np.testing.assert_allclose([x["value"] for x in data["images"]], -results.scores)
    np.testing.assert_allclose([x["p"] for x in data["images"]], results.p_values)
    assert [x["label"] for x in data["images"]] == labels.tolist()
    assert "drift" in data["drift"] or "few" in data["drift"]
    for i, x in enumerate(data["images"]):
        assert len(x["regions"]) == min(len(results.regions[i]), 10)
        assert len(x["matches"]) == (2 if results.labels[i] == -1 else 0)
        for match in x["matches"]:
            assert match["normal"].startswith("data:image/jpeg")
            assert "good_" in match["from"]
    assert all("truth" not in x for x in data["images"])  # no masks, no outlines
    settings = dict(map(tuple, data["settings"]))
    assert settings["max_iter"] == "0"
    assert "torch" in settings
    text = (folder / "report.html").read_text("utf-8")
    assert not re.search("https?:|<link", text)  # it needs no network


SLOW_IMPORT = """
import importlib.machinery, sys, time, torch
torch.set_num_threads(4)

class Slow(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        time.sleep(0.5)  # it is in sys.modules, and empty
        super().exec_module(module)

def find_spec(name, path=None, target=None):
    if name == "PIL.Image":
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Slow(name, spec.origin)
        return spec

sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(find_spec)}))
from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.report import write_report
images = make_textures(8, image_size=48, random_state=0).images
est = PatchSVDD(max_iter=0, device="cpu").fit(images)
assert "PIL.Image" not in sys.modules
write_report(est, images, sys.argv[1])
"""


def test_threads_of_a_first_page_wait_for_pillow(tmp_path):
    page = tmp_path / "page.html"
    command = [sys.executable, "-c", SLOW_IMPORT, str(page)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(read_page(page)["images"]) == 8


@pytest.mark.parametrize("is_gone", [True, False])
def test_training_files_that_are_not_what_they_were_are_said(
    tmp_path, normal, mixed, untrained, is_gone
):
    def list_matches():
        write_report(est, mixed.images, tmp_path / "page.html")
        images = read_page(tmp_path / "page.html")["images"]
        return [m for x in images for m in x["matches"]]

    files = save_images(tmp_path, normal)
    est = untrained.fit(files)
    est.offset_ = est.training_scores_.max()  # there will be alarms
    before = list_matches()
    assert before
    assert all(m["normal"] for m in before)
    for file, image in zip(files, normal, strict=True):
        Path(file).unlink()
        if not is_gone:
            Image.fromarray(255 - image).save(file)
    found = list_matches()
    assert [m["normal"] for m in found] == [None] * len(before)
    reason = "can no longer be read" if is_gone else "changed since it was learnt from"
    assert all(reason in m["from"] for m in found)


def test_a_training_file_that_is_replaced_later_is_not_shown(
    tmp_path, normal, mixed, untrained
):
    """A page that goes on, as that of a live line, looks again."""

    def list_matches():
        found = est.inspect(mixed.images, explain=True)
        return [m for x in page.describe(mixed.images, found) for m in x["matches"]]

    files = save_images(tmp_path, normal)
    est = untrained.fit(files)
    est.offset_ = est.training_scores_.max()
    page = Page(est, "Some")
    assert all(m["normal"] for m in list_matches())
    for file, image in zip(files, normal, strict=True):
        stat = Path(file).stat()
        Image.fromarray(255 - image).save(file)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a copy has it
    for match in list_matches():
        assert match["normal"] is None
        assert match["from"].endswith(": the file has changed since it was learnt from")


def test_training_files_are_compared_with_what_was_learnt(
    tmp_path, normal, untrained, monkeypatch
):
    files = list(map(Path, save_images(tmp_path, normal[:4])))
    monkeypatch.chdir(tmp_path)
    est = untrained.fit([x.name for x in files])
    assert est.training_files_ == list(map(str, files))  # found from other folders
    assert est.check_training_files().tolist() == ["same"] * 4
    Image.fromarray(normal[0]).save(files[1])  # that of another training image
    Image.fromarray(normal[2][:40]).save(files[2])
    files[3].write_bytes(b"")
    expected = ["same", "changed", "changed", "unreadable"]
    assert est.check_training_files().tolist() == expected
    assert est.check_training_files([2, 0]).tolist() == ["changed", "same"]
    assert untrained.fit(normal).check_training_files([0]).tolist() == ["no file"]


def test_arrays_have_no_files_and_what_could_not_be_inspected_is_listed(
    tmp_path, fitted, mixed
):
    page = Page(fitted, "Some")
    page.add(mixed.images, fitted.inspect(mixed.images))
    page.add_unreadable(tmp_path / "a.png", "it is empty")
    page.write(tmp_path / "page.html")
    data = read_page(tmp_path / "page.html")
    expected = [{"file": str(tmp_path / "a.png"), "reason": "it is empty"}]
    assert data["unreadable"] == expected
    assert [x["name"] for x in data["images"]] == [f"image {i}" for i in range(8)]
    found = [m for x in data["images"] for m in x["matches"]]
    assert all(m["normal"] is None and "training image" in m["from"] for m in found)
    for name in ("label", "path", "digest"):
        assert {x[name] for x in data["images"]} == {None}
    assert data["folder"] is None


def test_a_page_refers_to_files_from_its_folder(tmp_path, fitted, mixed):
    file, drawn = tmp_path / "in" / "a b#.png", tmp_path / "out" / "maps" / "0.png"
    file.parent.mkdir()
    Image.fromarray(mixed.images[0]).save(file)
    page, results = Page(fitted, "One"), fitted.inspect([file])
    page.add([file], results, maps=[drawn])
    page.add([file], results)
    page.write(tmp_path / "out" / "page.html")
    first, second = read_page(tmp_path / "out" / "page.html")["images"]
    assert (first["file"], first["picture"]) == ("../in/a%20b%23.png", "maps/0.png")
    assert (second["file"], second["picture"]) == ("../in/a%20b%23.png", None)


def test_a_page_counts_groups_and_tells_settings(tmp_path, normal, untrained):
    roi = np.zeros((48, 48))
    roi[:24] = 1
    est = untrained.set_params(image_size=np.array([48, 48]), roi=roi)
    est.fit(normal, groups=[0, 0, 0, 0, 0, 0, 1, 2])
    write_report(est, list(normal[:2]), tmp_path / "page.html")
    data = read_page(tmp_path / "page.html")
    assert data["least_p"] == pytest.approx(1 / 4)
    assert max(data["training_p"]) == pytest.approx(1)
    assert len(data["training_p"]) == len(data["training"]) == 8
    settings = dict(map(tuple, data["settings"]))
    assert settings["image_size"] == "[48 48]"
    assert settings["roi"] == "50% of the pixels are looked at"


def test_alarms_of_grey_files_are_explained_by_a_model_of_colour(tmp_path, untrained):
    images = make_textures(6, image_size=48, random_state=SEED).images
    files = save_images(tmp_path, [*images, np.eye(48, dtype=np.uint8) * 255])
    est = untrained.fit(files[:6])
    assert est.predict(files[-1:]) == [-1]
    write_report(est, files, tmp_path / "page.html")
    assert read_page(tmp_path / "page.html")["images"][-1]["matches"]


@pytest.mark.parametrize("size", [8, 2 * OVERLAY_SIZE])
@pytest.mark.parametrize("ground", [0, 100, 255])
def test_sheets_outline_what_is_abnormal_and_colour_it_beside(tmp_path, size, ground):
    """Also of photographs that are larger than pictures are."""
    image = np.full((size, size), ground, dtype=np.uint8)
    one_map, mask = np.zeros((8, 8), dtype=np.float32), np.zeros((8, 8), dtype=bool)
    one_map[2, 3], one_map[4, 5], mask[4, 5] = 1, 3, True
    region = np.array(
        [(4, 5, 5, 6)], [(x, int) for x in ("top", "left", "bottom", "right")]
    )
    if size > 8:
        one_map = np.kron(one_map, np.ones((9, 9), dtype=np.float32))
    save_sheet(tmp_path / "a.png", read_display(image), one_map, mask, region)
    drawn = np.asarray(Image.open(tmp_path / "a.png")).astype(int)
    side = 400 if size == 8 else OVERLAY_SIZE
    picture = drawn[12:, 12:][:side, :side]
    step = side // 8
    assert (picture[4 * step + step // 2, 5 * step + step // 2] == ground).all()
    rows = picture[3 * step : 4 * step, 5 * step + step // 2, 0]
    assert rows.max() - rows.min() > 200  # a light line beside a dark one
    beside = drawn[12:, 24 + side :][: side // 2, : side // 2]
    beside = beside[step // 4 :: step // 2, step // 4 :: step // 2]
    assert (beside[0, 0] == ground).all()
    assert beside[2, 3, 0] > 150 > beside[2, 3, 2]  # yellow at the threshold
    assert beside[4, 5, 0] > 150 > beside[4, 5, 1]  # red far above it


def test_a_threshold_of_zero_makes_a_page(tmp_path, untrained, normal):
    est = untrained.fit(normal)
    est.offset_ = -0.0
    write_report(est, normal[:1], tmp_path / "page.html")
    data = read_page(tmp_path / "page.html")
    assert data["threshold"] > 0
    assert data["subtitle"].startswith("1 image,")


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ("a.png", None, "Pass a list of paths"),
        ([], None, "Pass at least one image"),
        (iter([1]), None, "X must be an array of images"),
        (np.zeros((8, 48, 48, 3), np.uint8), [1], "inconsistent"),
        (np.zeros((8, 48, 48, 3), np.uint8), [0] * 8, "1 for good images and -1"),
    ],
    ids=["path", "empty", "iterator", "few labels", "other labels"],
)
def test_wrong_images_and_labels_are_refused(tmp_path, fitted, X, y, message):
    with pytest.raises(ValueError, match=message):
        write_report(fitted, X, tmp_path / "page.html", y=y)
    assert not (tmp_path / "page.html").exists()


def test_other_estimators_are_refused(tmp_path, fitted, mixed):
    pipeline = make_pipeline(FunctionTransformer(), fitted)
    with pytest.raises(TypeError, match="Of a Pipeline, pass its last step"):
        write_report(pipeline, mixed.images, tmp_path / "page.html")


def test_maps_keep_their_values():
    values = np.array([[0, 0.01, 1 / 16, 0.5, 1, 2, 16, 100]])
    uri = encode_map(values)
    data = base64.b64decode(uri.partition(",")[2])
    read = np.asarray(Image.open(io.BytesIO(data)))
    decoded = np.where(read == 0, 0, 2.0 ** (read / 255 * 8 - 4))
    np.testing.assert_allclose(decoded, [[0, 0, 0, 0.5, 1, 2, 16, 16]], rtol=0.02)


@pytest.mark.parametrize(
    "image",
    [
        np.full((4, 6), 128, dtype=np.uint8),
        np.full((4, 6, 1), 32896, dtype=np.uint16),
        np.full((4, 6, 2), 0.502, dtype=np.float32),
        np.full((4, 6, 7), 0.502),
    ],
)
def test_any_image_can_be_looked_at(image):
    shown = read_display(image)
    assert shown.shape == (4, 6, 3)
    assert shown.dtype == np.uint8
    assert (abs(shown.astype(int) - 128) <= 1).all()


def drive(folder, script, size="1200,900"):
    """Run a script in a copy of the page, in a browser; return what it makes."""
    page = folder / "driven.html"
    text = (folder / "report.html").read_text("utf-8")
    harness = f"""<script>(async () => {{
      const frames = async () => {{ for (let i = 0; i < 4; i++)
        await new Promise((r) => setTimeout(r, 60)); }};
      const number = (i) => +document.querySelectorAll(".count b")[i].textContent;
      const move = async (id, value) => {{ const e = document.getElementById(id);
        e.value = value; e.dispatchEvent(new Event("input"));
        e.dispatchEvent(new Event("change")); await frames(); }};
      let made;
      try {{ await frames(); {script} }} catch (error) {{ made = String(error); }}
      const pre = document.createElement("pre"); pre.id = "made";
      pre.textContent = JSON.stringify(made); document.body.append(pre);
    }})();</script></body>"""
    page.write_text(text.replace("</body>", harness), "utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={size}"]
    command += ["--disable-background-networking", "--virtual-time-budget=20000"]
    command += ["--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="made">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@needs_browser
@pytest.mark.filterwarnings("ignore:X holds 3 copies", "ignore:all training images")
def test_a_threshold_of_0_gives_no_absurd_numbers(tmp_path, normal, mixed, untrained):
    est = untrained.fit(np.stack([normal[0]] * 4))
    assert est.offset_ == 0
    X = np.concatenate([normal[:1], mixed.images[:2]])
    write_report(est, X, tmp_path / "report.html")
    made = drive(
        tmp_path,
        """
        const texts = () => [...document.querySelectorAll(".card .faint, #factor")]
          .map((x) => x.textContent);
        made = texts(); await move("threshold", 500); made = made.concat(texts());
        """,
    )
    assert not any(re.search(r"NaN|Infinity|e\+|\d{5}", text) for text in made)
    assert any("more than 1,000" in text for text in made)


@needs_browser
@pytest.mark.parametrize("size", ["1200,900", "420,800"])
def test_sliders_move_counts_and_maps(folder, size):
    folder, est, files, labels = folder
    made = drive(
        folder,
        """
        const counts = () => [0, 1, 2, 3, 4].map(number);
        const canvas = document.querySelector(".card canvas");
        const red = () => { const p = canvas.getContext("2d")
          .getImageData(0, 0, canvas.width, canvas.height).data;
          let n = 0; for (let i = 0; i < p.length; i += 4)
            n += p[i] > p[i + 2] + 60; return n; };
        for (let i = 0; i < 400 && canvas.width === 210; i++) await frames();
        const head = () => document.querySelector(".bar").offsetTop;
        made = { first: counts(), drawn: red(), at: [head()] };
        document.getElementById("toggle").click(); // of a narrow page
        const map = document.querySelector("#map button");
        map.click(); await frames();
        for (let i = 0; i < 400 && red() <= made.drawn + 1000; i++) await frames();
        made.mapped = red();
        const legend = document.querySelector("#map .legend");
        made.legend = [legend.textContent, legend.offsetWidth > 0];
        map.click(); await frames(); made.hidden = legend.offsetWidth === 0;
        await move("threshold", 0); made.lowest = counts(); made.at.push(head());
        made.factor = document.getElementById("factor").textContent;
        await move("threshold", 1000); made.highest = counts();
        document.getElementById("reset").click(); await frames();
        made.reset = counts();
        made.names = [...document.querySelectorAll(".card .name")]
          .map((x) => x.textContent);
        await move("filter", "abnormal");
        made.shown = document.querySelectorAll(".card").length;
        await move("filter", "all"); await move("sort", "least");
        made.least = document.querySelector(".card .name").textContent;
        made.wide = document.documentElement.scrollWidth > window.innerWidth;
        """,
        size,
    )
    scores = est.score_samples(files)
    alarms = scores < est.offset_
    found, wrong = np.sum(alarms & (labels == -1)), np.sum(alarms & (labels == 1))
    expected = [alarms.sum(), 0, found, 4 - found, wrong]
    assert made["first"] == made["reset"] == expected
    assert made["lowest"] == [8, 10, 4, 0, 4]
    assert made["highest"] == [0, 0, 0, 4, 0]
    assert made["factor"].startswith("0.")
    assert made["mapped"] > 1000 + made["drawn"]  # no colours until it is asked for
    assert made["legend"] == ["0.512 \u00d7 the threshold", True]
    assert made["hidden"]
    assert len(set(made["at"])) == 1  # nothing moves away under the slider
    order = np.argsort(scores)
    assert made["names"] == [files[i].name for i in order]
    assert made["shown"] == alarms.sum()
    assert made["least"] == files[order[-1]].name
    assert not made["wide"]


@needs_browser
def test_the_dialog_shows_what_was_compared_and_leads_from_image_to_image(folder):
    folder, est, files, _ = folder
    made = drive(
        folder,
        """
        document.querySelector(".card").click(); await frames();
        const dialog = document.getElementById("dialog");
        const title = () => dialog.querySelector("h2").textContent;
        const press = async (key) => { dialog.dispatchEvent(
          new KeyboardEvent("keydown", { key })); await frames(); };
        made = { open: dialog.open, titles: [title()],
          pictures: [...dialog.querySelectorAll(".pair img")]
            .map((x) => x.naturalWidth > 0),
          captions: [...dialog.querySelectorAll("figcaption")]
            .map((x) => x.textContent) };
        for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft"]) {
          await press(key); made.titles.push(title()); }
        made.link = dialog.querySelector("a").getAttribute("href");
        const canvas = dialog.querySelector("canvas");
        const sum = () => canvas.getContext("2d").getImageData(0, 0, canvas.width,
          canvas.height).data.reduce((a, b) => a + b, 0);
        const slider = dialog.querySelector("input[type=range]"), shown = sum();
        slider.value = 30; slider.dispatchEvent(new Event("input")); await frames();
        made.mapped = sum() !== shown;
        made.others = document.querySelector("#map input").value;
        document.dispatchEvent(new KeyboardEvent("keydown", { key: "m" }));
        await frames(); made.again = sum() === shown;
        made.p = dialog.querySelector(".text").textContent;
        dialog.querySelector(".close").click();
        made.closed = !dialog.open;
        """,
    )
    assert made["open"]
    assert made["closed"]
    assert made["pictures"] == [True] * 4
    assert "patch of 32 pixels" in made["captions"][0]
    assert "good_" in made["captions"][1]
    order = np.argsort(est.score_samples(files))
    assert made["titles"] == [str(files[order[i]]) for i in (0, 1, 2, 1)]
    assert made["link"].startswith("%3Cb%3E%26")
    assert made["mapped"]
    assert made["again"]
    assert made["others"] == "30"  # one switch for all pictures
    assert "p = 0.091 at most, with 10 normal images: none of them" in made["p"]


@needs_browser
def test_the_place_of_the_slider_has_a_p_value_and_a_command(folder):
    folder, est, files, _ = folder
    made = drive(
        folder,
        """
        const text = (id) => document.getElementById(id).textContent;
        made = { own: text("factor") };
        await move("threshold", 300);
        made.factor = text("by_factor"); made.alpha = text("by_alpha");
        made.fix = text("fix");
        made.place = text("factor"); made.alarms = number(0);
        """,
    )
    assert made["own"] == f"1 \u00d7 the model's \u00b7 p {1 / 11:.2g}"
    factor = float(made["factor"].split("--threshold ")[1])
    threshold = -est.offset_ * factor
    assert made["alarms"] == np.sum(-est.score_samples(files) > threshold)
    p_value = (1 + np.sum(-est.training_scores_ > threshold)) / 11
    assert float(made["alpha"].split("--false-alarm-rate ")[1]) == pytest.approx(
        p_value, abs=1e-4
    )
    assert made["place"].endswith(f"p {p_value:.2g}")
    assert made["factor"].startswith(f"skpatchsvdd inspect part.model {folder}/ ")
    command, score = made["fix"].split("--at=")
    assert command == "skpatchsvdd threshold part.model "
    assert float(score) == pytest.approx(-threshold)
    fixed = copy.deepcopy(est).fix_threshold(float(score))
    assert made["alarms"] == np.sum(fixed.predict(files) == -1)


@needs_browser
def test_the_p_value_at_a_rate_is_that_of_alarms(folder, tmp_path):
    """At the model's own threshold alarms have p-values of 2 in 11 at most."""
    good = sorted(folder[0].glob("good_*.png"))
    params = {"max_iter": 0, "false_alarm_rate": 0.2}
    est = PatchSVDD(**params).fit(good)
    write_report(est, good[:1], tmp_path / "report.html")
    script = """made = [document.getElementById("factor").textContent];
        await move("threshold", 0);
        made.push(document.getElementById("factor").textContent);"""
    own, lowest = drive(tmp_path, script)
    assert own == f"1 \u00d7 the model's \u00b7 p {2 / 11:.2g}"
    assert lowest.endswith("p 1.0")
    new = np.linspace(1.001 * est.offset_, 2 * est.offset_, 50)
    assert p_values_from_scores(est.training_scores_, new).max() == 2 / 11


@needs_browser
def test_cards_say_how_far_above_the_threshold_and_are_found_by_name(folder):
    folder, est, files, _ = folder
    made = drive(
        folder,
        """
        const texts = (x) => [...document.querySelectorAll(x)]
          .map((e) => e.textContent);
        const style = getComputedStyle(document.querySelector(".card .name"));
        made = { lines: texts(".card .line"), cut: style.direction };
        const search = document.getElementById("search");
        search.value = "&3"; search.dispatchEvent(new Event("input")); await frames();
        made.found = texts(".card .name");
        search.value = "none"; search.dispatchEvent(new Event("input")); await frames();
        made.nothing = !document.getElementById("nothing").hidden;
        """,
    )
    ratio = (est.score_samples(files) / est.offset_).max()
    assert made["lines"][0] == f"abnormal \u00b7 {ratio:.1f} \u00d7 threshold"
    assert made["cut"] == "rtl"
    assert made["found"] == [files[3].name]
    assert made["nothing"]


@needs_browser
def test_outlines_show_on_white(tmp_path, fitted):
    white = np.full((1, 48, 48, 3), 255, dtype=np.uint8)
    fitted = copy.deepcopy(fitted)
    fitted.offset_ = 0.5 * fitted.score_samples(white)[0]
    results = fitted.inspect(white)
    spot = np.zeros((48, 48), dtype=np.float32)
    spot[15:30, 15:30] = -1.01 * fitted.offset_
    results.maps[0] = spot
    page = Page(fitted, "White")
    page.add(white, results)
    page.write(tmp_path / "report.html")
    made = drive(
        tmp_path,
        """
        const canvas = document.querySelector(".card canvas");
        const dark = () => { const p = canvas.getContext("2d")
          .getImageData(0, 0, canvas.width, canvas.height).data;
          let n = 0; for (let i = 0; i < p.length; i += 4) n += p[i] < 60; return n; };
        for (let i = 0; i < 400 && !dark(); i++) await frames();
        made = dark();
        """,
    )
    assert made > 40  # around a square of 15 pixels


@needs_browser
@pytest.mark.parametrize("is_alarm", [True, False])
def test_true_outlines_are_drawn_in_dashes(tmp_path, fitted, is_alarm):
    grey = np.full((2, 48, 48, 3), 128, dtype=np.uint8)
    fitted = copy.deepcopy(fitted)
    fitted.offset_ = (0.5 if is_alarm else 2) * fitted.score_samples(grey)[0]
    masks = np.zeros((2, 48, 48), dtype=bool)
    masks[0, 10:30, 20:40] = True
    page = Page(fitted, "Outlines")
    page.add(grey, fitted.inspect(grey), [-1, 1], masks=masks)
    page.write(tmp_path / "report.html")
    made = drive(
        tmp_path,
        """
        const blue = () => [...document.querySelectorAll(".card canvas")].map((x) => {
          const p = x.getContext("2d").getImageData(0, 0, x.width, x.height).data;
          const found = [];
          for (let i = 0; i < p.length; i += 4) if (p[i + 2] > p[i] + 100)
            found.push([Math.floor(i / 4 / x.width), i / 4 % x.width]);
          return found; });
        for (let i = 0; i < 400 && !blue()[0].length; i++) await frames();
        made = { blue: blue(),
          legend: !document.getElementById("outlines").hidden };
        """,
    )
    marked, unmarked = made["blue"]
    assert not unmarked
    assert made["legend"]
    scale = 256 / 48
    assert 200 < len(marked) < 4 * 20 * scale  # some of those around the square
    for row, column in np.array(marked) / scale:
        assert min(abs(row - 10), abs(row - 30), abs(column - 20), abs(column - 40)) < 1
        assert 9 < row < 31
        assert 19 < column < 41


@needs_browser
def test_the_bar_of_a_narrow_page_is_low(folder):
    script = """
        const bar = document.querySelector(".bar");
        const shown = () => document.getElementById("search").offsetHeight > 0;
        made = { height: bar.offsetHeight, search: shown() };
        document.getElementById("toggle").click(); await frames();
        made.opened = shown();
        """
    made = drive(folder[0], script, "420,800")
    assert made["height"] <= 60
    assert not made["search"]
    assert made["opened"]
    assert drive(folder[0], script, "1400,900")["search"]
