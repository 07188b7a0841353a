"""The page's review, in a browser: clicks, boxes, keys, and the file that it saves."""

import copy
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from browser import needs_browser, open_browser
from commands import call, save_images
from conftest import make_untrained
from settings import SEED

from skpatchsvdd import load
from skpatchsvdd._report import Page, digest_file, fingerprint, read_review
from skpatchsvdd.datasets import make_textures

pytestmark = needs_browser

N_IMAGES, N_ALARMS = 6, 3
# What the page shows: verdicts on cards, counts, the open image and its verdict.
TEXTS = (
    "[...document.querySelectorAll('%s [aria-pressed=true]')].map((x) => x.textContent)"
)
PRESSED = TEXTS % ".card"
DIALOG = f"{TEXTS % 'dialog'}.join()"
TALLY = "document.querySelector('#review .tally').textContent"
TITLE = "document.querySelector('dialog[open] h2').textContent"


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """A model, files of 48 x 64 pixels, the most abnormal first, and a page of them."""
    root = tmp_path_factory.mktemp("inspected")
    images = make_textures(12, image_size=64, random_state=SEED).images[:, :48]
    files = list(map(Path, save_images(root / "new", images[6:], range(N_IMAGES))))
    est = make_untrained().fit(images[:6])
    scores = est.score_samples(files)
    order = np.argsort(scores)
    est.offset_ = float(np.mean(scores[order[N_ALARMS - 1 : N_ALARMS + 1]]))
    est.save(root / "part.model")
    page = Page(est, "Parts", model=str(root / "part.model"))
    page.add(files, est.inspect(files, explain=True))
    page.write(root / "report.html")
    return root, page, [files[i] for i in order]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(browser, inspected):
    """A tab with the page, as if it were opened for the first time."""
    browser.open(inspected[0] / "report.html")
    browser.run("localStorage.clear()")
    browser.open(inspected[0] / "report.html")
    return browser


def save(tab, tmp_path):
    tab.click("#save")
    command = tab.run("document.getElementById('apply').textContent")
    path = tmp_path / command.rpartition(" ")[2]
    path.write_bytes(tab.take_download(path.name))
    return path


def test_verdicts_are_counted_kept_and_saved(tab, inspected, tmp_path):
    root, _, files = inspected
    tally = "{} really good · {} really defective · {} of 3 alarms to review"
    assert tab.run(TALLY) == tally.format(0, 0, 3)
    assert tab.run("document.getElementById('save').disabled")
    for i in (0, 1):
        tab.click(".card .good", i)
    for i in (1, 4, 5, 5):  # the second time takes it back
        tab.click(".card .defective", i)
    tab.open(root / "report.html")  # the browser has kept all
    assert tab.run(PRESSED) == ["really good", "really defective", "really defective"]
    assert tab.run(TALLY) == tally.format(1, 2, 1)
    assert not tab.run("document.getElementById('dialog').open")
    path = save(tab, tmp_path)
    content, est = json.loads(path.read_bytes()), load(root / "part.model")
    assert content["format"] == "skpatchsvdd-review"
    assert content["version"] == 1
    assert content["model"] == fingerprint(est)
    assert content["folder"] == str(root / "new")
    found = {x.file: x.verdict for x in read_review(path).images}
    names = [x.name for x in files]
    expected = {names[0]: "good", names[1]: "defective", names[4]: "defective"}
    assert found == expected
    digests = {x["file"]: x["digest"] for x in content["images"]}
    assert digests == {x: digest_file(root / "new" / x) for x in expected}
    said = tab.run("document.getElementById('apply').textContent")
    assert said == f"skpatchsvdd update {root / 'part.model'} --review {path.name}"
    assert re.fullmatch(r"review-\d{8}-\d{6}\.json", path.name)


def test_boxes_are_drawn_in_pixels_of_the_image(tab, inspected, tmp_path):
    tab.click(".card .open", 0)
    tab.wait("document.querySelector('.stage canvas').clientHeight > 200")
    tab.drag(".stage", (0.252, 0.252), (0.498, 0.748))
    assert tab.run(DIALOG) == "really defective"  # a box says so
    tab.drag(".stage", (0.9, 0.9), (0.7, 0.8))  # backwards
    tab.drag(".stage", (0.5, 0.1), (1.2, -0.2))  # out of the picture
    tab.click(".stage canvas")  # no box
    assert tab.run("document.querySelectorAll('.stage .box').length") == 3
    tab.click(".stage .box button", 1)
    tab.click("dialog .judge input")
    tab.write("  deep  dent ")
    tab.press("Enter")
    tab.press("Escape")
    assert not tab.run("document.getElementById('dialog').open")
    assert tab.run("document.querySelector('.card .said').textContent") == (
        "deep dent · 2 boxes"
    )
    [image] = read_review(save(tab, tmp_path)).images
    assert image.kind == "deep dent"
    first, second = image.boxes
    assert first == (12, 16, 36, 32)
    assert second[0] == 0
    assert second[3] == 64
    assert second[1:3] == pytest.approx((32, 5), abs=1)


def test_keys_lead_through_alarms(tab, inspected, tmp_path):
    names = [str(x) for x in inspected[2]]
    titles = []
    for key in "ngnnnpp":
        tab.press(key)
        titles.append(tab.run(TITLE))
    # From alarm to alarm, of which there are three, and no farther.
    assert titles == [names[i] for i in (0, 0, 1, 2, 2, 1, 0)]
    assert tab.run(DIALOG) == "really good"
    tab.press("n")
    tab.press("d")
    assert tab.run(DIALOG) == "really defective"
    tab.press("u")
    assert tab.run(DIALOG) == ""
    tab.press("u")  # leads back to what it undoes
    assert tab.run(TITLE) == names[0]
    assert tab.run(DIALOG) == ""
    assert tab.run("document.getElementById('undo').disabled")
    for key in ("g", "ArrowRight", "d", "Escape", "n"):
        tab.press(key)
    # It leads to the first that is not reviewed.
    assert tab.run(TITLE) == names[2]
    assert tab.run("document.querySelector('dialog .keys').textContent") == (
        "n next alarmp previousg goods similard defectiveb boxesu undom map"
    )


def test_what_looks_like_a_good_image_and_boxes_of_what_was_found(tab, tmp_path):
    tab.press("n")
    tab.press("s")
    assert tab.run(DIALOG) == "good, and so is what looks like it"
    tab.press("g")
    assert tab.run(DIALOG) == "really good"
    tab.press("s")
    tab.press("n")
    tab.press("b")
    assert tab.run(DIALOG) == "really defective"
    regions = tab.run("opened.regions")
    tab.press("Escape")
    found = {x.verdict: x for x in read_review(save(tab, tmp_path)).images}
    assert found["good"].similar
    assert not found["defective"].similar
    assert found["defective"].boxes == [tuple(x[:4]) for x in regions]


def test_the_page_says_what_to_do_next(tab):
    hint = "document.querySelector('dialog .hint').textContent"
    how = "(({hidden, textContent}) => hidden ? '' : textContent)($('how'))"
    assert "was a defect missed? Say so below the image" in tab.run(how)
    tab.press("n")
    assert tab.run(hint).startswith('Is nothing wrong? Say "really good".')
    tab.press("p")
    assert tab.run(hint) == "This is the first alarm. 3 alarms are left to review."
    tab.press("g")
    assert tab.run(hint) == "Kept as really good. 2 alarms are left to review."
    assert tab.run(how) == ""
    tab.click("dialog .next")
    tab.press("g")
    tab.click("dialog .next")
    tab.click("dialog .next")
    assert tab.run(hint) == "This is the last alarm. 1 alarm is left to review."
    tab.press("g")
    assert "No alarm is left to review: close this and save" in tab.run(hint)
    tab.press("ArrowRight")
    assert tab.run(hint).startswith("Was a defect missed?")
    tab.press("Escape")
    assert tab.run(how).startswith("No alarm is left to review.")
    tab.click("#save")
    assert tab.run(how) == ""
    tab.run("$('search').value = 'no such image'; arrange()")
    tab.press("n")
    assert tab.run(how) == "There is no alarm among the images that are shown."


def test_kinds_that_the_model_knows_are_offered(browser, inspected, tmp_path):
    page, est = copy.copy(inspected[1]), load(inspected[0] / "part.model")
    files, mask = [str(inspected[2][5])], np.zeros((1, 48, 64), bool)
    mask[:, :40, :40] = True
    page._est = est.partial_fit(files, ["dent"], masks=mask)
    page.write(tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    browser.click(".card .open", 0)
    kinds = "[...document.querySelectorAll('#kinds option')].map((x) => x.value)"
    assert browser.run(kinds) == ["dent"]


def test_keys_do_nothing_where_text_is_written(tab):
    tab.click("#search")
    for key in "ngd":
        tab.press(key)
    assert tab.run("document.getElementById('search').value") == "ngd"
    tab.run("document.getElementById('search').value = ''; arrange()")
    tab.click(".card .open", 1)
    tab.press("d")
    title = tab.run(TITLE)
    tab.click("dialog .judge input")
    for key in ("n", "g", "ArrowLeft"):
        tab.press(key)
    assert tab.run(TITLE) == title
    assert tab.run(DIALOG) == "really defective"
    tab.run("document.querySelector('dialog .judge input').value = ''")
    tab.write("normal")
    tab.press("Enter")
    hint = tab.run("document.querySelector('dialog .hint').textContent")
    assert hint == 'No kind of defect can be called "normal".'
    tab.click("dialog .judge input")
    tab.write("ng")
    tab.click("dialog .close")
    assert tab.run("document.querySelectorAll('.card .said')[1].textContent") == "ng"


def test_a_focused_card_takes_keys_and_filters_know_reviews(tab):
    tab.run("document.querySelectorAll('.card .open')[1].focus()")
    tab.press("g")
    assert tab.run(PRESSED) == ["really good"]
    n_shown = (
        "(() => { const e = document.getElementById('filter'); e.value = '%s';"
        "e.onchange(); return document.querySelectorAll('.card').length; })()"
    )
    assert tab.run(n_shown % "open") == N_ALARMS - 1
    assert tab.run(n_shown % "reviewed") == 1


def test_a_browser_that_keeps_nothing_is_said(tab, inspected, tmp_path):
    assert tab.run("document.getElementById('warning').hidden")
    source = (
        "Object.defineProperty(window, 'localStorage',"
        "{ get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    added = tab.call("Page.addScriptToEvaluateOnNewDocument", source=source)
    try:
        tab.open(inspected[0] / "report.html")
        text = tab.run("document.getElementById('warning').textContent")
        assert "does not keep the review: save it before you close" in text
        tab.click(".card .good", 0)
        assert len(read_review(save(tab, tmp_path)).images) == 1
    finally:
        name = added["identifier"]
        tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=name)


def test_what_is_kept_and_damaged_is_dropped(tab, inspected):
    tab.run("localStorage.setItem(storageKey(), '{')")
    tab.open(inspected[0] / "report.html")
    assert tab.run(TALLY).startswith("0 really good")
    assert tab.run("document.querySelectorAll('.card').length") == N_IMAGES
    assert tab.run("document.getElementById('warning').hidden")


def test_an_image_whose_file_has_changed_is_not_reviewed(browser, inspected, tmp_path):
    page = copy.copy(inspected[1])
    page._images = copy.deepcopy(page._images)
    page._images.append(dict(page._images[0], digest="other"))
    page.write(tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    name = os.path.basename(page._images[0]["file"])
    disabled = browser.run(
        "[...cards].map(([card, x]) => [x.path, x.digest, "
        "card.querySelector('.good').disabled])"
    )
    digest = page._images[0]["digest"]
    assert [x[:2] for x in disabled if x[2]] == [[name, digest]]


def test_a_thousand_images_stay_quick(browser, inspected, tmp_path):
    page = copy.copy(inspected[1])
    images = list(page._images) * 170
    page._images = [
        dict(x, file=str(tmp_path / f"{i}.png"), name=f"{i}.png")
        for i, x in enumerate(images)
    ]
    page.write(tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    spent = browser.run(
        "(async () => { while (n_rendered < images.length) more();"
        "const start = performance.now();"
        "for (const x of images.slice(0, 20)) judge(x, 'good');"
        "return (performance.now() - start) / 20; })()"
    )
    assert spent < 250  # milliseconds; a person waits for none of it
    assert browser.run(TALLY).startswith("20 really good")


def test_a_narrow_page_has_room_for_images(inspected, tmp_path):
    with open_browser(tmp_path, (420, 800)) as tab:
        tab.open(inspected[0] / "report.html")
        wide = "document.documentElement.scrollWidth > window.innerWidth"
        assert not tab.run(wide)
        assert tab.run("document.getElementById('review').offsetHeight") <= 80
        tab.click(".card .defective", 0)
        tab.click(".card .open", 0)
        tab.drag(".stage", (0.25, 0.25), (0.75, 0.75))
        assert tab.run("document.querySelectorAll('.stage .box').length") == 1
        dialog = "document.getElementById('dialog')"
        assert not tab.run(f"{dialog}.scrollWidth > {dialog}.clientWidth")


def test_a_walk_from_an_alarm_to_a_model_that_knows_better(
    tab, inspected, tmp_path, capsys
):
    root, _, files = inspected
    for key in ("n", "g", "n", "g", "Escape"):
        tab.press(key)
    path, model = save(tab, tmp_path), tmp_path / "part.model"
    model.write_bytes((root / "part.model").read_bytes())
    assert call("update", model, "--review", path) == 0
    out = capsys.readouterr().out
    assert "really good: 2 of 2 raised an alarm" in out
    assert (load(model).predict(files[:2]) == 1).all()
