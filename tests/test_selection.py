"""What is chosen on the live page: filters, the table, regions for other programs."""

import csv
import io
import json
import shutil
import zipfile

import pytest
from browser import needs_browser, open_browser
from commands import read_rows
from live import put, serve_here

from skpatchsvdd._cli import COLUMNS, main
from skpatchsvdd._serve import line as line_module

pytestmark = pytest.mark.wide  # a line loads the model
FORMATS = ["coco", "label-studio", "cvat", "masks"]


@pytest.fixture
def part(model, tmp_path, photos):
    """A copy of the model, and a folder with images: good, bad, broken."""
    images, damaged = photos
    folder = tmp_path / "new"
    folder.mkdir()
    for name, image in (("=1.png", images[1]), ("two.png", images[2])):
        put(folder, name, image)
    put(folder, "Bad.png", damaged)
    (folder / "broken.png").write_text("no image")
    return shutil.copy(model, tmp_path / "part.model"), folder


def test_images_are_chosen_by_what_is_said_of_them(part):
    model, folder = part
    with serve_here(model, "--watch", folder) as line:
        line.wait_for(4)

        def choose(query):
            images = line.get(f"/api/images?{query}")["images"]
            changes = line.get(f"/api/changes?since=0&{query}")["images"]
            assert len(changes) == 4
            names = {x["name"] for x in images}
            assert {x["name"] for x in changes if x["is_chosen"]} == names
            return names

        everything = choose("")
        assert everything == {"=1.png", "two.png", "Bad.png", "broken.png"}
        assert choose("only=abnormal") == choose("only=waiting") == {"Bad.png"}
        assert choose("only=unreadable") == {"broken.png"}
        assert choose("only=normal&name=tW") == {"two.png"}
        assert choose("name=b") == {"Bad.png", "broken.png"}
        assert choose("name=new") == set()  # the folder, which the page does not show
        assert choose("times=1") == {"Bad.png"}
        assert choose("times=0") == everything - {"broken.png"}
        assert choose("kind=scr") == set()
        bad = line.get("/api/images?only=abnormal")["images"][0]
        assert choose(f"from={bad['time']}&until={bad['time'] + 1e-6}") == {"Bad.png"}
        said = {"verdict": "defective", "kind": "Scratch"}
        assert line.post("/api/say", image=bad["id"], said=said)[0] == 200
        assert {x["name"] for x in line.get("/api/images?kind=scr")["images"]} == {
            "Bad.png"
        }
        for query in ("only=odd", "from=x", "times=inf", "until=nan"):
            assert line.ask(f"/api/images?{query}")[0] == 400


def test_the_table_and_regions_are_those_of_inspect(part, tmp_path):
    model, folder = part
    formats = ",".join(FORMATS)
    args = (
        "inspect",
        str(model),
        str(folder),
        "-o",
        str(tmp_path / "out"),
        "--no-report",
    )
    assert main([*args, "--no-maps", "--export", formats]) == 3
    rows = {x["file"].rpartition("/")[2]: x for x in read_rows(tmp_path / "out")}
    with serve_here(model, "--watch", folder) as line:
        line.wait_for(4)
        status, headers, body = line.ask("/results.csv")
        assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
        table = list(csv.DictReader(io.StringIO(body.decode())))
        assert list(table[0]) == list(COLUMNS)
        same = [x for x in COLUMNS if x not in ("file", "time", "map")]
        assert len(table) == 4
        for row in table:
            own = rows[row["file"].lstrip("'")]
            assert [row[x] for x in same] == [own[x] for x in same]
        assert {x["file"] for x in table} == {"'=1.png", *rows} - {"=1.png"}
        chosen = line.ask("/results.csv?only=abnormal")[2].decode()
        assert chosen.count("\n") == 2

        def export(query):
            status, headers, body = line.ask(f"/export.zip?{query}")
            assert (status, headers["content-type"]) == (200, "application/zip")
            with zipfile.ZipFile(io.BytesIO(body)) as found:
                return {x: found.read(x) for x in found.namelist()}

        for name in FORMATS:
            files = export(f"format={name}")
            assert b"broken.png" in files.pop("left_out.txt")
            files.pop("masks/regions.csv", None)  # its masks are named by their rows
            for file, content in files.items():
                if not file.startswith("masks/"):
                    assert sorted(content) == sorted(
                        (tmp_path / "out" / file).read_bytes()
                    )
        [image] = json.loads(export("format=coco&only=abnormal")["coco.json"])["images"]
        assert image["file_name"] == "Bad.png"
        (folder / "Bad.png").unlink()
        status, _, body = line.ask("/export.zip?format=cvat&only=abnormal")
        assert status == 409
        assert "Bad.png: its file is gone" in json.loads(body)["error"]
        assert line.ask("/export.zip?format=parquet")[0] == 400


def test_a_line_that_stands_still_says_since_when(part, monkeypatch):
    model, folder = part
    with serve_here(model, "--watch", folder) as line:
        assert line.wait_for(4)["standstill"] is None
        monkeypatch.setattr(line_module, "_LEAST_STILL", 0.5)
        state = line.wait(lambda x: x["standstill"])
        newest = line.get("/api/images")["images"][0]
        assert state["standstill"]["since"] == newest["time"]
        assert state["standstill"]["usual"] > 0


def test_an_image_called_good_that_looks_defective_is_doubted(part, photos):
    model, folder = part
    ruined = photos[1].copy()
    ruined[10:30:2, 10:30] = 255
    put(folder, "Bad.png", ruined)
    with serve_here(model, "--watch", folder) as line:
        line.wait_for(4)
        ids = {x["name"]: x["id"] for x in line.get("/api/images")["images"]}
        for name in ("Bad.png", "two.png"):
            said = {"verdict": "good", "similar": True}
            assert line.post("/api/say", image=ids[name], said=said)[0] == 200
        assert line.post("/api/try")[0] == 200
        trial = line.wait(lambda x: x["trial"]["state"] != "running")["trial"]
        [[name, before, after]] = trial["changes"]["suspects"]
        assert name == "Bad.png"
        assert before < 0.002 < after


@needs_browser
def test_people_filter_and_download_by_keys(part, tmp_path, photos):
    model, folder = part
    shown = "[...document.querySelectorAll('#images .name')].map((x) => x.textContent)"
    with serve_here(model, "--watch", folder) as line, open_browser(tmp_path) as tab:
        line.wait_for(4)
        tab.call("Page.navigate", url=line.url)
        tab.wait("document.querySelectorAll('#images .card').length === 4")
        tab.press("4")
        tab.wait("document.querySelectorAll('#images .card').length === 1")
        assert tab.run(shown) == ["broken.png"]
        tab.press("1")
        tab.press("/")
        assert tab.run("document.activeElement.id") == "by-name"
        tab.write("wo")
        tab.wait("document.querySelectorAll('#images .card').length === 1")
        assert tab.run(shown) == ["two.png"]
        put(folder, "three.png", photos[0][3])
        put(folder, "wood.png", photos[0][4])
        tab.wait("document.querySelectorAll('#images .card').length === 2")
        assert tab.run(shown) == ["wood.png", "two.png"]
        tab.run("document.getElementById('table').focus()")
        tab.press("Enter")
        rows = tab.take_download("results.csv").decode().splitlines()
        assert [x.partition(",")[0] for x in rows] == ["file", "two.png", "wood.png"]
        tab.run("document.getElementById('export').focus()")
        tab.press("Enter")
        with zipfile.ZipFile(io.BytesIO(tab.take_download("coco.zip"))) as found:
            assert len(json.loads(found.read("coco.json"))["images"]) == 2
        tab.click("#filter [type=reset]")
        tab.wait("document.querySelectorAll('#images .card').length === 6")
        tab.run("document.querySelector('[name=times]').focus()")
        tab.write("1e9")
        tab.wait("!document.getElementById('empty').hidden")
        assert tab.run("document.all.empty.textContent") == "No image is like that."
