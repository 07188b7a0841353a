"""The pages as axe-core judges them, and as they are used on a narrow screen."""

import json
import os
import shutil
from pathlib import Path

import pytest
from browser import needs_browser, open_browser
from live import make_photos, put, serve_here
from PIL import Image
from settings import SEED
from test_station import wait_for

from skpatchsvdd._cli import main
from skpatchsvdd._report import read_review
from skpatchsvdd.datasets import make_textures

# npm pack axe-core, and the path of axe.min.js in it.
AXE = Path(os.environ.get("AXE_CORE", ""))
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="AXE_CORE names no axe.min.js")
SIZES = pytest.mark.parametrize("size", [(1400, 1000), (390, 800)])
pytestmark = [pytest.mark.wide, needs_browser]  # a line loads the model
SAY = (
    "axe.run(document).then((x) => JSON.stringify(x.violations.map((v) => [v.id, "
    "v.nodes.map((n) => [n.html, n.failureSummary])])))"
)


def find_faults(tab):
    """Return what axe-core has against a page, in light and in dark."""
    faults = []
    tab.run(AXE.read_text() + "; 0")
    for scheme in ("light", "dark"):
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.call("Emulation.setEmulatedMedia", features=media)
        faults += json.loads(tab.run(SAY))
    return faults


@needs_axe
@SIZES
def test_the_overview_and_a_line(model, tmp_path, size):
    pytest.importorskip("tomllib")
    text = ""
    for name in ("front", "back"):
        (tmp_path / name).mkdir()
        text += f'[lines.{name}]\nmodel = "{name}.model"\nsource = "{name}"\n'
    shutil.copy(model, tmp_path / "front.model")  # the other one is broken
    (tmp_path / "station.toml").write_text(text)
    images, damaged = make_photos()
    put(tmp_path / "front", "bad.png", damaged)
    put(tmp_path / "front", "good.png", images[1])
    (tmp_path / "front" / "broken.png").write_text("no image")
    with (
        serve_here(tmp_path / "station.toml") as line,
        open_browser(tmp_path, size) as tab,
    ):
        wait_for(line, lambda x: sum(x["front"].get("counts", {}).values()) == 3)
        tab.call("Page.navigate", url=line.url)
        tab.wait("document.querySelectorAll('#lines .last img').length === 1")
        assert find_faults(tab) == []
        tab.call("Page.navigate", url=f"{line.url}lines/front/")
        tab.wait("document.querySelectorAll('#images .card').length === 3")
        assert find_faults(tab) == []
        tab.press("n")
        tab.wait("document.getElementById('detail').open")
        tab.press("d")
        tab.wait("state.said === 1")
        assert find_faults(tab) == []
        tab.run("document.getElementById('detail').close()")
        for key, name in (("l", "threshold"), ("h", "history"), ("?", "help")):
            tab.press(key)
            tab.wait(f"document.getElementById('{name}').open")
            assert find_faults(tab) == []
            tab.run(f"document.getElementById('{name}').close()")


@pytest.fixture(scope="module")
def suspected(tmp_path_factory):
    """The page of fit --review, of images of which one has a black square."""
    folder = tmp_path_factory.mktemp("suspected")
    images = make_textures(12, image_size=48, random_state=SEED).images
    images[4, 10:30, 10:30] = 0
    (folder / "good").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / "good" / f"part_{i}.png")
    args = "fit", str(folder / "good"), "-o", str(folder / "part.model")
    args += "--contamination", "auto", "--max-iter", "0", "--device", "cpu"
    assert main([*args, "--review", str(folder)]) == 0
    return folder / "suspects.html"


@SIZES
def test_suspects_are_reviewed_by_keys(suspected, tmp_path, size):
    with open_browser(tmp_path, size) as tab:
        tab.open(suspected)
        assert tab.run("document.documentElement.scrollWidth") == size[0]
        [text] = tab.run(
            "[...document.querySelectorAll('.card')].map(x => x.innerText)"
        )
        assert "part_4.png" in text
        tab.press("n")
        tab.wait("document.getElementById('dialog').open")
        assert "set aside, p-value" in text
        tab.wait("document.querySelector('#dialog .pair img').naturalWidth > 0")
        tab.press("b")
        tab.press("Escape")
        tab.click("#save")
        command = tab.run("document.getElementById('apply').textContent")
        path = tmp_path / command.rpartition(" ")[2]
        path.write_bytes(tab.take_download(path.name))
        [image] = read_review(path).images
        assert (image.file, image.verdict) == ("part_4.png", "defective")
        top, left, bottom, right = image.boxes[0]
        assert (top, left) < (20, 20) < (bottom, right)


@needs_axe
@SIZES
def test_the_page_of_suspects(suspected, tmp_path, size):
    with open_browser(tmp_path, size) as tab:
        tab.open(suspected)
        assert find_faults(tab) == []
        tab.press("n")
        tab.wait("document.getElementById('dialog').open")
        assert find_faults(tab) == []
