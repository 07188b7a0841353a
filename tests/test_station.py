"""A station: many lines in one server, their file, their turns and their pages."""

import json
import shutil
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from browser import needs_browser, open_browser
from live import put, serve_here, wait_until

from skpatchsvdd import load
from skpatchsvdd._cli import main
from skpatchsvdd._cli.start import make_parser
from skpatchsvdd._serve.batcher import Batcher
from skpatchsvdd._serve.station import Turns
from skpatchsvdd._serve.station_file import read_lines

pytestmark = pytest.mark.wide  # a line loads the model
needs_tomllib = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="there is no tomllib"
)


TOKEN = "correct-horse-battery"


@pytest.fixture
def station(model, tmp_path):
    """Return the file of a station with the lines a and b, and how to write it."""
    pytest.importorskip("tomllib")
    folder = tmp_path / "station"
    folder.mkdir()

    def write(*names, more=""):
        for name in names:
            if not (folder / f"{name}.model").exists():
                shutil.copy(model, folder / f"{name}.model")
            (folder / name).mkdir(exist_ok=True)
        tables = [f'[lines.{x}]\nmodel = "{x}.model"\nsource = "{x}"\n' for x in names]
        (folder / "new.toml").write_text("".join(tables) + more)
        (folder / "new.toml").replace(folder / "station.toml")

    write("a", "b")
    return SimpleNamespace(folder=folder, file=folder / "station.toml", write=write)


def wait_for(line, condition):
    """Wait until a condition of the lines, by name, holds; return them."""

    def look():
        found = {x["name"]: x for x in line.get("/api/lines")["lines"]}
        return found if condition(found) else None

    return wait_until(look)


def are(state, *names):
    return lambda x: all(name in x and x[name]["state"] == state for name in names)


def test_each_line_has_its_page_and_all_are_on_the_overview(station, photos):
    put(station.folder / "a", "good.png", photos[0][0])
    put(station.folder / "b", "bad.png", photos[1])
    with serve_here(station.file) as line:
        found = wait_for(line, lambda x: all(y.get("last") for y in x.values()))
        assert list(found) == ["a", "b"]
        assert [x["waiting"] for x in found.values()] == [0, 1]
        hour = {"images": 1, "alarms": 1}
        wait_for(line, lambda x: x["b"]["hour"] == hour)
        last = found["b"]["last"]
        assert last["verdict"] == "abnormal"
        assert line.ask(f"{last['pictures']}/overlay")[0] == 200
        assert line.ask(f"/lines/b/images/{last['id']}/original")[0] == 200
        assert line.get("/lines/a/api/images")["images"][0]["name"] == "good.png"
        for page in ("/", "/lines/a/", "/lines/a/static/live.js", "/static/station.js"):
            assert line.ask(page)[0] == 200
        _, _, body = line.ask("/lines/b/")
        assert b'"/static' not in body  # addresses are those of the line
        status, headers, _ = line.ask("/lines/a")
        assert (status, headers["location"][-9:]) == (307, "/lines/a/")
        kind = {"Content_Type": "image/png"}
        body = (station.folder / "b" / "bad.png").read_bytes()
        status, _, answer = line.ask("/lines/a/inspect", body, **kind)
        assert status == 200
        assert json.loads(answer)["images"][0]["verdict"] == "abnormal"
        assert line.post("/lines/b/api/seen", images=[last["id"]])[1] == {"seen": 1}
        wait_for(line, lambda x: x["b"]["waiting"] == 0)
        assert line.ask("/lines/c/api/state")[0] == 404


def test_a_threshold_of_a_line_is_its_own(station, photos, model):
    rate, est = 0.3, load(model)
    more = 'false_alarm_rate = 0.3\n[lines.c]\nmodel = "c.model"\nthreshold = 1e6\n'
    shutil.copy(model, station.folder / "c.model")
    station.write("a", "b", more=more)
    with serve_here(station.file) as line:
        wait_for(line, are("running", "a", "b", "c"))
        offsets = [
            line.get(f"/lines/{x}/api/state")["model"]["threshold"] for x in "abc"
        ]
        for name in "bc":
            line.refuses(
                f"/lines/{name}/api/threshold",
                f"the line {name} has a threshold",
                threshold=-1,
            )
        assert line.post("/lines/a/api/threshold", threshold=-1.0)[0] == 200
    assert offsets[0] == pytest.approx(float(est.offset_))
    assert offsets[1] == pytest.approx(float(est._offset_at(rate)))
    assert offsets[2] == pytest.approx(1e6 * float(est.offset_))


def test_an_alarm_says_of_which_line_it_is(station, photos):
    taken = station.folder / "alarms"
    program = f"import sys; open({str(taken)!r}, 'a').write(sys.stdin.read() + chr(10))"
    command = json.dumps([sys.executable, "-c", program])
    station.write("a", "b", more=f"on_alarm = {command}\n")
    for name in "ab":
        put(station.folder / name, "bad.png", photos[1])
    with serve_here(station.file) as line:
        wait_for(line, lambda x: x["a"].get("waiting") == x["b"].get("waiting") == 1)
        wait_for(line, lambda x: x["b"]["signals"] == 0)
    alarms = [json.loads(x) for x in taken.read_text().splitlines()]
    assert [(x["line"], x["verdict"]) for x in alarms] == [("b", "abnormal")]


def test_a_broken_line_says_why_and_the_others_go_on(station, photos):
    images, damaged = photos
    (station.folder / "a.model").unlink()
    with serve_here(station.file) as line:
        put(station.folder / "b", "1.png", images[0])
        found = wait_for(line, lambda x: x["b"].get("last"))
        assert found["a"]["state"] == "broken"
        assert "there is no model" in found["a"]["reason"]
        status, _, body = line.ask("/lines/a/")
        assert status == 503
        assert b"there is no model" in body
        assert not (station.folder / "a.model.line").exists()
        shutil.copy(station.folder / "b.model", station.folder / "a.model")
        (station.folder / "b").rename(station.folder / "away")
        found = wait_for(line, are("broken", "b"))
        assert found["b"]["reason"].endswith("gone. Images are seen when it is back.")
        wait_for(line, are("running", "a"))  # tried again
        (station.folder / "away").rename(station.folder / "b")
        put(station.folder / "b", "2.png", damaged)
        found = wait_for(line, lambda x: x["b"]["waiting"] == 1)
        assert found["b"]["state"] == "running"


def test_lines_come_change_and_go_while_others_run(station, photos, capfd):
    images, _ = photos
    with serve_here(station.file) as line:
        wait_for(line, are("running", "a", "b"))
        put(station.folder / "a", "1.png", images[0])
        wait_for(line, lambda x: x["a"]["last"])
        run = line.get("/lines/a/api/state")["run"]
        station.write("a", "c", more="keep = 7\n")
        found = wait_for(line, are("running", "a", "c"))
        assert list(found) == ["a", "c"]
        assert line.ask("/lines/b/api/state")[0] == 404
        assert line.get("/lines/a/api/state")["run"] == run  # it was not touched
        station.file.write_text("[lines.a]\nmodel = 3\n")
        trouble = wait_until(lambda: line.get("/api/lines")["trouble"])
        assert "line 'a': model must be the name of a model file" in trouble
        line.refuses("/api/reload", "line 'a': model")
        wait_for(line, are("running", "a", "c"))
        station.write("b", "a")
        assert line.post("/api/reload") == (200, {"lines": ["b", "a"]})
        found = wait_for(line, are("running", "a", "b"))
        assert list(found) == ["b", "a"]
        assert line.get("/lines/a/api/state")["run"] == run
        assert line.get("/api/lines")["trouble"] is None


def test_a_flooded_line_delays_another_by_one_batch():
    turns, lock, done = Turns(), threading.Lock(), []

    class Slow:
        defect_kinds_ = ()

        def __init__(self, name):
            self.name = name

        def inspect(self, images, names):
            assert lock.acquire(blocking=False)  # nobody else computes
            time.sleep(0.002 * len(images))
            done.extend([self.name] * len(images))
            lock.release()
            return {"scores": [0.0] * len(images)}

    ests = Slow("flooded"), Slow("calm")
    flooded, calm = (Batcher(lambda x=x: x, 200, turns.take) for x in ests)
    image = SimpleNamespace(size=1)
    n = 20
    try:
        futures = flooded.submit([image] * 10 * n)
        waits = []
        for _ in range(n):
            time.sleep(0.004)
            start = len(done)
            [future] = calm.submit([image])
            future.result(30)
            waits.append(len(done) - start)
            if len(done) > 9 * n:
                break
        for future in futures:
            future.result(30)
    finally:
        flooded.close()
        calm.close()
    # The batch at hand and the one that was waiting, of at most 16 images each.
    assert len(waits) > 3
    assert max(waits) <= 33
    assert done.count("flooded") == 10 * n


def test_lines_of_the_command_line(model, tmp_path, photos):
    (tmp_path / "new").mkdir()
    models = [shutil.copy(model, tmp_path / f"{x}.model") for x in "ab"]
    put(tmp_path / "new", "a.png", photos[1])
    given = ["--line", f"front={models[0]}:{tmp_path / 'new'}"]
    args = make_parser().parse_args(["serve", *given, "--line", f"back={models[1]}"])
    lines = read_lines(args)
    assert [x.source for x in lines.values()] == [str(tmp_path / "new"), None]
    assert lines["back"].keep == args.keep
    with serve_here(*given) as line:
        wait_for(line, lambda x: x["front"].get("waiting") == 1)


@needs_tomllib
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[lines.a", "is not a file of TOML"),
        ("", "names no line"),
        ("port = 1\n[lines.a]", "'port' stands outside of all lines"),
        ("[lines.a]", "line 'a': model is missing"),
        ('[lines."a b"]\nmodel = "x"', "line 'a b': names have up to 40 letters"),
        ('[lines.a]\nmodel = "x"\nmodle = 1', "line 'a': there is no key 'modle'"),
        ('[lines.a]\nmodel = "x"\nkeep = 0', "line 'a': keep must be a whole number"),
        ('[lines.a]\nmodel = "x"\nkeep = true', "line 'a': keep must be"),
        ('[lines.a]\nmodel = "x"\nfalse_alarm_rate = 2', "at most 0.5"),
        ('[lines.a]\nmodel = "x"\nthreshold = inf', "line 'a': threshold must be"),
        (
            '[lines.a]\nmodel = "x"\nthreshold = 1\nfalse_alarm_rate = 0.1',
            "exclude each other",
        ),
        ('[lines.a]\nmodel = "x"\non_alarm = ["./nothing"]', "on_alarm must be a list"),
        ('[lines.a]\nmodel = "x"\nwebhook = "u:secret@host"', "webhook must be"),
        (
            '[lines.a]\nmodel = "x"\n[lines.b]\nmodel = "./x"',
            "line 'b': model is that of line 'a'",
        ),
    ],
)
def test_errors_of_the_file_name_line_and_key(tmp_path, capsys, text, words):
    (tmp_path / "station.toml").write_text(text)
    assert main(["serve", str(tmp_path / "station.toml"), "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "pass a model, or the file of a station"),
        (["--line", "front"], "one has no model"),
        (["--line", "a=b", "--line", "a=c"], "two lines of the name 'a'"),
        (["station.toml", "--watch", "new"], "each has its own source"),
        (["--line", "a=b", "-o", "x"], "each has its own output"),
        (["station.toml", "--line", "a=b"], "pass a model, or the file"),
        (["missing.toml"], "missing.toml: No such file"),
    ],
)
def test_what_names_no_lines_is_refused(tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *options]) == 1
    assert words in capsys.readouterr().err


def test_python_without_tomllib_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tomllib", None)
    (tmp_path / "station.toml").write_text("")
    assert main(["serve", str(tmp_path / "station.toml")]) == 1
    assert "need Python 3.11 or later" in capsys.readouterr().err


def test_a_token_opens_all_lines(station):
    with serve_here(station.file, token=TOKEN) as line:
        status, headers, _ = line.ask("/lines/a/")
        assert (status, headers["location"]) == (303, "/login")
        for path in ("/api/lines", "/lines/a/api/state", "/lines/a/health"):
            assert line.ask(path)[0] == 401
        assert line.ask("/health")[0] == 200
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert line.ask("/api/lines", **bearer)[0] == 200


@needs_browser
def test_people_go_from_the_overview_to_a_line_and_back(station, photos, tmp_path):
    (station.folder / "b.model").unlink()
    put(station.folder / "a", "bad.png", photos[1])
    with serve_here(station.file) as line, open_browser(tmp_path, (390, 800)) as tab:
        wait_for(line, lambda x: x["a"].get("waiting") == 1)
        tab.call("Page.navigate", url=line.url)
        tab.wait("document.querySelectorAll('#lines .last img').length === 1")
        tab.wait("document.querySelector('#lines .last img').naturalWidth > 0")
        said = tab.run("document.getElementById('lines').innerText")
        assert "1 alarm to look at" in said
        assert "b broken" in said
        assert "there is no model" in said
        assert tab.run("document.title") == "(1) Station"
        assert tab.run("document.documentElement.scrollWidth") == 390
        for text, shown in (("A", ["a"]), ("c", []), ("", ["a", "b"])):
            tab.press("/")
            tab.run(
                f"document.activeElement.value = '{text}'; "
                "document.activeElement.dispatchEvent(new Event('input'))"
            )
            found = "[...document.querySelectorAll('#lines > li:not([hidden])')]"
            assert tab.run(f"{found}.map(x => x.dataset.name)") == shown
            assert tab.run("document.getElementById('empty').hidden") == bool(shown)
        tab.run("document.querySelector('#lines a').focus()")
        tab.press("Enter")
        tab.wait("document.querySelector('#alarms .card img')?.naturalWidth > 0")
        tab.wait("document.getElementById('model').textContent === 'a'")
        tab.click("#see-all")
        tab.wait("document.getElementById('waiting').hidden")
        tab.click("#station")
        tab.wait("document.getElementById('lines')?.innerText.includes('no alarm')")
