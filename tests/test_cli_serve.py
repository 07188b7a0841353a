"""The command serve: a line live, its reviews, signals, API, and who may ask."""

import asyncio
import base64
import errno
import http.client
import http.server
import io
import json
import os
import pkgutil
import re
import shutil
import socket
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import uvicorn
from browser import needs_browser, open_browser
from live import put, running, serve, serve_here, to_bytes, wait_until
from PIL import Image
from settings import SEED
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._cli import main
from skpatchsvdd._cli.batches import cut_batches
from skpatchsvdd._serve import connections
from skpatchsvdd._serve.access import Sessions
from skpatchsvdd._serve.alarms import AlarmSender, LinePrinter
from skpatchsvdd._serve.answers import RefusedError
from skpatchsvdd._serve.app import make_app
from skpatchsvdd._serve.arrivals import FolderArrivals
from skpatchsvdd._serve.batcher import Batcher, BusyError
from skpatchsvdd._serve.command import _listen
from skpatchsvdd._serve.history import History
from skpatchsvdd._serve.line import Line
from skpatchsvdd._serve.review_queue import ReviewQueue
from skpatchsvdd._serve.store import Store
from skpatchsvdd.datasets import make_textures

pytestmark = pytest.mark.wide  # other processes load the model
TOKEN = "correct-horse-battery"


@pytest.fixture
def part(model, tmp_path):
    """A copy of the model, and a folder in which images arrive."""
    (tmp_path / "new").mkdir()
    return shutil.copy(model, tmp_path / "part.model"), tmp_path / "new"


@pytest.fixture(scope="module")
def open_line(model, tmp_path_factory):
    """A server without a token, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("open")
    model = shutil.copy(model, folder / "part.model")
    with serve_here(model, "--max-megabytes", 1) as line:
        yield line


@pytest.fixture(scope="module")
def closed_line(model, tmp_path_factory):
    """A server with a token."""
    folder = tmp_path_factory.mktemp("closed")
    model = shutil.copy(model, folder / "part.model")
    with serve_here(model, token=TOKEN) as line:
        yield line


def make_image(i=0, verdict="abnormal"):
    """Make an image as a store takes it."""
    return {"state": f"{i:016x}", "file": b"x", "time": 1.0 + i, "verdict": verdict}


def make_form(*bodies):
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="f"; filename="../../a"\r\n'
        b"Content-Type: image/png\r\n\r\n" + body + b"\r\n"
        for body in bodies
    ]
    return b"".join(parts) + b"--x--\r\n", "multipart/form-data; boundary=x"


# What a line shows


def test_what_arrives_is_inspected_kept_and_shown(part, photos):
    model, folder = part
    images, damaged = photos
    put(folder, "a.png", images[0])
    with serve(model, "--watch", folder, "--json") as line:
        line.wait_for(1)
        put(folder, "b.png", damaged)
        (folder / "c.png").write_bytes(b"no image")
        state = line.wait_for(3)
        assert state["counts"] == {"normal": 1, "abnormal": 1, "unreadable": 1}
        assert state["waiting"] == 1
        line.wait(lambda x: sum(x["spans"]["hour"]["images"]) == 2)
        shown = {x["name"]: x for x in line.get("/api/images")["images"]}
        assert set(shown) == {"a.png", "b.png", "c.png"}
        alarm = shown["b.png"]
        est = load(model)
        found = est.inspect([str(folder / "b.png")])
        assert alarm["score"] == pytest.approx(float(found.scores[0]), rel=1e-3)
        assert alarm["p_value"] == pytest.approx(float(found.p_values[0]))
        details = line.get(f"/api/images/{alarm['id']}")
        assert len(details["regions"]) == len(found.regions[0])
        assert details["matches"][0]["patch"].startswith("data:image/jpeg")
        for name, size in (("thumb", 48), ("overlay", 336)):  # enlarged, for numbers
            _, headers, body = line.ask(f"{alarm['pictures']}/{name}")
            assert headers["Content-Type"] == "image/jpeg"
            assert "immutable" in headers["Cache-Control"]
            assert Image.open(io.BytesIO(body)).size == (size, size)
        original = f"/images/{alarm['id']}/original"
        _, headers, body = line.ask(original)
        assert (headers["Content-Type"], body) == ("image/png", to_bytes(damaged))
        line.post("/api/seen", images=[alarm["id"]], who="Ann")
        assert line.get("/api/state")["waiting"] == 0
        assert line.get(f"/api/images/{alarm['id']}")["seen_by"] == "Ann"
        changed = line.get(f"/api/changes?since={state['revision']}")["images"]
        assert [x["name"] for x in changed] == ["b.png"]
        put(folder, "b.png", images[2])
        status, _, body = line.ask(original)
        assert status == 404
        assert b"b.png has changed since it was inspected" in body
        said = [json.loads(line.process.stdout.readline()) for _ in range(3)]
    assert {x["verdict"] for x in said} == {"normal", "abnormal", "unreadable"}
    assert line.process.returncode == 0


def test_a_picture_has_an_address_of_its_own_whatever_its_number(part, photos):
    model, folder = part
    shown = []
    for i, image in enumerate((photos[1], np.fliplr(photos[1]))):
        put(folder, f"{i}.png", image)
        with serve_here(model, "--watch", folder, "-o", folder.parent / str(i)) as line:
            line.wait_for(1)
            shown += line.get("/api/images")["images"]
            assert line.ask(f"{shown[0]['pictures']}/overlay")[0] == (404 if i else 200)
        (folder / f"{i}.png").unlink()
    assert [x["id"] for x in shown] == [1, 1]
    assert shown[0]["pictures"] != shown[1]["pictures"]


@pytest.mark.slow
def test_a_killed_server_goes_on_and_loses_and_doubles_nothing(part, photos):
    model, folder = part
    images, damaged = photos
    with serve(model, "--watch", folder) as line:
        for i, image in enumerate((*images[:3], damaged)):
            put(folder, f"{i}.png", image)
        line.wait(lambda x: sum(x["counts"].values()) >= 1)
        line.kill()
    put(folder, "later.png", images[3])
    with serve(model, "--watch", folder) as line:
        line.wait_for(5)
        time.sleep(2.5)  # two more looks
        shown = line.get("/api/images")["images"]
        assert line.get("/api/state")["waiting"] == 1
    names = Counter(x["name"] for x in shown)
    assert names == Counter([*(f"{i}.png" for i in range(4)), "later.png"])


def test_a_name_that_is_no_text_and_a_model_that_is_replaced(part, photos):
    model, folder = part
    images, _ = photos
    with serve_here(model, "--watch", folder) as line:
        put(folder, os.fsdecode(b"caf\xe9\n.png"), images[0])
        first = line.wait_for(1)["model"]
        assert line.get("/api/images")["images"][0]["name"] == "caf\\udce9\\n.png"
        est = load(model)
        est.partial_fit(images[1:3]).save(model)
        second = line.wait(lambda x: x["model"] != first)["model"]
        assert second["n_images"] == first["n_images"] + 2
        line.wait(lambda x: len(line.get("/api/history")["entries"]) > 1)
        entries = line.get("/api/history")["entries"]
        assert [x["what"] for x in entries] == ["elsewhere", "begin"]


# Reviews


def review(line, number, **said):
    status, answer = line.post("/api/say", image=number, said=said, who="Ann")
    assert status == 200, answer


def try_all(line):
    status, answer = line.post("/api/try")
    assert status == 200, answer
    state = line.wait(lambda x: x["trial"] and x["trial"]["state"] != "running")
    return state["trial"]


def test_a_correction_silences_the_next_like_it_until_it_is_undone(part, photos):
    model, folder = part
    _, damaged = photos
    other = damaged.copy()
    other[0, 0] ^= 1  # another picture of the same
    with serve_here(model, "--watch", folder) as line:
        former = line.get("/api/state")["model"]["digest"]
        put(folder, "alarm.png", damaged)
        line.wait_for(1)
        review(line, 1, verdict="good", similar=True)
        trial = try_all(line)
        assert trial["changes"]["right_before"] == 0
        assert trial["changes"]["right_after"] == 1
        assert line.get("/api/state")["model"]["digest"] == former  # not yet
        status, entry = line.post("/api/apply", trial=trial["number"], who="Ann")
        assert (status, entry["who"], entry["what"]) == (200, "Ann", "review")
        assert line.get("/api/state")["said"] == 0
        put(folder, "next.png", other)
        assert line.wait_for(2)["counts"] == {"abnormal": 1, "normal": 1}
        status, _ = line.post("/api/restore", model=former, who="Bob")
        assert status == 200
        other[0, 1] ^= 1
        put(folder, "again.png", other)
        assert line.wait_for(3)["counts"] == {"abnormal": 2, "normal": 1}
        assert line.get("/api/state")["said"] == 1
        whats = [x["what"] for x in line.get("/api/history")["entries"]]
        assert whats == ["restore", "review", "begin"]
        line.post("/api/restore", model=entry["to"])  # it knows the image again
        assert line.get("/api/state")["said"] == 0
        line.refuses("/api/say", "has learnt it", image=1, said=None)
        line.post("/api/restore", model=former)
    history = folder.parent / "part.model.history"
    # The same, by the command line, of the former model and the images that were kept.
    shutil.rmtree(folder)
    replayed = folder.parent / "replayed.model"
    args = ["update", str(model), "--review", str(history / "0002.review.json")]
    assert main([*args, "-o", str(replayed)]) == 0
    applied = load(history / f"{entry['to']}.model")
    scores = [x.score_samples([damaged, other]) for x in (load(replayed), applied)]
    # Processes may round differently.
    np.testing.assert_allclose(*scores, rtol=1e-3, atol=-1e-4 * applied.offset_)


def test_what_is_said_after_a_trial_or_while_the_model_learns_is_not_learnt(
    part, photos
):
    model, folder = part
    with serve_here(model, "--watch", folder) as line:
        put(folder, "a.png", photos[1])
        line.wait_for(1)
        review(line, 1, verdict="good")
        trial = try_all(line)["number"]
        review(line, 1, verdict="defective", kind="hole")
        line.refuses("/api/apply", "something else was said", trial=trial)
        assert line.get("/api/state")["said"] == 1
        review(line, 1, verdict="good")
        with ThreadPoolExecutor(2) as pool:
            writing = pool.submit(line.post, "/api/apply", trial=trial, who="Ann")
            said = {"verdict": "defective"}
            saying = pool.submit(line.post, "/api/say", image=1, said=said)
            statuses = {writing.result()[0], saying.result()[0]}
        assert statuses == {200, 409}  # the first of them was served
        image = line.get("/api/images/1")
        assert (image["applied"] is not None) == (image["said"]["verdict"] == "good")


def test_what_a_model_knows_is_noted_and_can_be_undone(part, photos):
    model, folder = part
    with serve_here(model, "--watch", folder) as line:
        former = line.get("/api/state")["model"]["digest"]
        put(folder, "a.png", photos[1])
        put(folder, "twin.png", photos[1])
        line.wait_for(2)
        review(line, 1, verdict="good")
        line.post("/api/apply", trial=try_all(line)["number"])
        review(line, 2, verdict="good")
        assert not try_all(line)["changes"]["is_new"]
        found = line.get("/api/history")
        assert [x["what"] for x in found["entries"]] == ["known", "review", "begin"]
        assert found["former"] == former
        assert line.get("/api/state")["said"] == 0
        line.post("/api/restore", model=former)
        assert line.get("/api/state")["said"] == 2
        assert line.post("/api/say", image=2, said=None)[0] == 200
        line.post("/api/restore", model=found["model"])
        assert line.get("/api/state")["said"] == 0


def test_the_threshold_is_set_by_a_score_or_a_rate_and_undone(part, photos):
    model, folder = part
    with serve_here(model, "--watch", folder) as line:
        own = line.get("/api/state")["model"]
        assert own["threshold"] == load(model).offset_
        assert not own["is_fixed"]
        assert own["false_alarm_rate"] == pytest.approx(1 / 9)
        put(folder, "alarm.png", photos[1])
        line.wait_for(1)
        lower = 2 * line.get("/api/images/1")["score"]
        status, entry = line.post("/api/threshold", threshold=lower, who="Ann")
        assert (status, entry["what"], entry["who"]) == (200, "threshold", "Ann")
        assert (entry["threshold"], entry["is_fixed"]) == (lower, True)
        assert load(model).fixed_threshold_ == lower
        other = photos[1].copy()
        other[0, 0] ^= 1
        put(folder, "passes.png", other)
        assert line.wait_for(2)["counts"] == {"abnormal": 1, "normal": 1}
        # What is learnt leaves it as it is.
        review(line, 1, verdict="good", similar=True)
        line.post("/api/apply", trial=try_all(line)["number"])
        assert load(model).offset_ == lower
        status, answer = line.post("/api/threshold", threshold=lower)
        assert status == 409
        assert answer["error"] == "the model's threshold is that already."
        status, entry = line.post("/api/threshold", threshold=None)
        assert (status, entry["is_fixed"]) == (200, False)
        status, entry = line.post("/api/threshold", false_alarm_rate=0.3)
        assert (status, entry["false_alarm_rate"]) == (200, pytest.approx(2 / 9))
        assert load(model).false_alarm_rate == 0.3
        before = line.get("/api/history")
        for bad in ({"threshold": 1}, {"threshold": "x"}, {"false_alarm_rate": 0.9}):
            assert line.post("/api/threshold", **bad)[0] == 409
        for bad in ({}, {"threshold": -1, "false_alarm_rate": 0.1}):
            assert line.post("/api/threshold", **bad)[0] == 400
        assert line.get("/api/history") == before
        whats = [x["what"] for x in before["entries"]]
        assert whats == ["threshold", "threshold", "review", "threshold", "begin"]
        line.post("/api/restore", model=before["entries"][-1]["to"])
        assert line.get("/api/state")["model"] == own


def test_a_model_written_elsewhere_is_kept_and_a_damaged_one_not_used(part, photos):
    model, _ = part
    with serve_here(model) as line:  # which does not watch, and does not notice
        first = line.get("/api/state")["model"]["digest"]
        load(model).partial_fit(photos[0][1:3]).save(model)
        written = Path(model).read_bytes()
        status, entry = line.post("/api/restore", model=first)
        assert status == 200
        kept = Path(f"{model}.history", f"{entry['from']}.model")
        assert kept.read_bytes() == written
        kept.write_bytes(written[:1000])
        line.refuses("/api/restore", "is damaged", model=entry["from"])
        assert line.get("/api/state")["model"]["digest"] == first


def test_a_change_that_a_kill_came_into_is_noted_as_what_it_was(tmp_path):
    model = tmp_path / "part.model"
    model.write_bytes(b"first")
    history = History(model)
    first = history.begin()
    second = history.keep_model(lambda file: file.write_bytes(b"second"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "append", interrupt)  # between the model and the log
        with pytest.raises(KeyboardInterrupt):
            history.use("review", "Ann", first, second)
    assert model.read_bytes() == b"second"
    assert history.begin() == second
    assert [(x["what"], x["who"]) for x in history.list_entries()] == [
        ("begin", None),
        ("review", "Ann"),
    ]
    assert history.begin() == second
    assert len(history.list_entries()) == 2


def test_an_image_that_changes_while_it_is_copied_is_not_kept(tmp_path):
    history = History(tmp_path / "part.model")
    file = tmp_path / "new.png"
    file.write_bytes(b"changed")
    with pytest.raises(RefusedError, match="has changed"):
        history.keep_image({"file": str(file), "digest": "0" * 16})
    assert not history.images.exists() or not list(history.images.iterdir())


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_a_defect_gets_a_kind_and_a_box(part, photos, is_calibrated):
    model, folder = part
    images, damaged = photos
    if is_calibrated:
        load(model).calibrate(images[:, ::-1]).save(model)
    with serve_here(model, "--watch", folder) as line:
        put(folder, "a.png", damaged)
        line.wait_for(1)
        review(line, 1, verdict="defective", kind="hole", boxes=[[10, 10, 30, 30]])
        trial = try_all(line)
        assert trial["changes"]["is_new"]
        line.post("/api/apply", trial=trial["number"])
        state = line.get("/api/state")
        assert state["model"]["kinds"] == ["hole"]
        put(folder, "b.png", np.fliplr(damaged))
        line.wait_for(2)
        assert line.get("/api/images")["images"][0]["kind"] == "hole"


def test_a_training_image_that_is_defective_is_forgotten(part, normal):
    model, folder = part
    known = load(model).training_digests_
    with serve_here(model, "--watch", folder) as line:
        put(folder, "a.png", normal[2, ..., 0])
        line.wait_for(1)
        review(line, 1, verdict="defective", kind="hole", boxes=[[10, 10, 30, 30]])
        trial = try_all(line)
        assert trial["changes"]["is_new"]
        line.post("/api/apply", trial=trial["number"])
        assert line.get("/api/state")["model"]["kinds"] == ["hole"]
    assert load(model).training_digests_ == known[:2] + known[3:]


def test_what_cannot_be_learnt_is_refused_and_loses_nothing(part, photos):
    model, folder = part
    _, damaged = photos
    with serve_here(model, "--watch", folder) as line:
        put(folder, "a.png", damaged)
        line.wait_for(1)
        before = line.get("/api/state")["model"]
        for path, content, words in (
            ("/api/try", {}, "nothing was said"),
            ("/api/apply", {"trial": 1}, "no such trial"),
            ("/api/restore", {"model": "0" * 32}, "no such model"),
            ("/api/restore", {"model": before["digest"]}, "in use"),
            ("/api/say", {"image": 9, "said": {"verdict": "good"}}, "no image 9"),
            ("/api/say", {"image": 1, "said": {"verdict": "fine"}}, "verdict"),
            (
                "/api/say",
                {"image": 1, "said": {"verdict": "defective", "similar": True}},
                "similar",
            ),
        ):
            line.refuses(path, words, **content)
        (folder / "a.png").write_bytes(to_bytes(damaged) + b"\0")
        said = {"verdict": "defective"}
        line.refuses("/api/say", "has changed", image=1, said=said)
        (folder / "a.png").unlink()
        line.refuses("/api/say", "gone", image=1, said=said)
        assert line.get("/api/state")["model"] == before
        assert line.get("/api/state")["said"] == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_file_that_became_a_pipe_holds_up_nothing(part, photos):
    model, folder = part
    with serve(model, "--watch", folder) as line:
        put(folder, "a.png", photos[1])
        line.wait_for(1)
        (folder / "a.png").unlink()
        os.mkfifo(folder / "a.png")
        line.refuses(
            "/api/say", "cannot be read any more", image=1, said={"verdict": "good"}
        )
        assert line.post("/api/drop")[0] == 200
        start = time.monotonic()
        line.process.terminate()
        line.process.wait(30)
        assert time.monotonic() - start < 15


def test_what_cannot_be_learnt_is_said_in_the_words_of_the_page(
    part, photos, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(PatchSVDD, "partial_fit", raise_python)
    store = Store(tmp_path / "line.sqlite")
    line = Line(part[0], store)
    put(part[1], "a.png", photos[1])
    reviews = ReviewQueue(line, History(part[0]))
    line._take(next(cut_batches([part[1] / "a.png"], line.model.est)))
    reviews.say(1, {"verdict": "defective"}, "Ann")
    reviews.start_trial("Ann")
    wait_until(lambda: reviews.describe_trial()["state"] == "failed")
    trial = reviews.describe_trial()
    assert "calibrate" not in trial["error"]
    assert "Take back" in trial["error"]
    assert "calibrate(None)" in capsys.readouterr().err


def raise_python(*args, **kwargs):
    raise ValueError("partial_fit and join do not go with it. Call calibrate(None).")


def test_a_request_waits_for_a_change_of_the_model_but_not_for_ever(
    part, tmp_path, monkeypatch
):
    monkeypatch.setattr("skpatchsvdd._serve.review_queue._PATIENCE", 0.1)
    reviews = ReviewQueue(
        Line(part[0], Store(tmp_path / "line.sqlite")), History(part[0])
    )
    with reviews._held(), pytest.raises(RefusedError, match="Try again"):
        reviews.drop_trial()
    reviews.drop_trial()


def test_more_alarms_are_looked_at_than_a_page_shows(tmp_path, part):
    lines = tmp_path / "lines"
    lines.mkdir()
    store = Store(lines / "line.sqlite")
    for i in range(1501):
        store.add(make_image(i))
    store.close()
    with serve_here(part[0], "-o", lines) as line:
        numbers = list(range(1, 1502))
        assert line.post("/api/seen", images=numbers) == (200, {"seen": 1501})
        assert line.get("/api/state")["waiting"] == 0
        assert line.post("/api/seen", images=numbers) == (200, {"seen": 0})
        assert line.post("/api/seen", images=[*numbers, "x"])[0] == 400


# Signals


class Hook(http.server.BaseHTTPRequestHandler):
    """Fails at first, then takes what is posted."""

    taken, n_failures = [], 1

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if Hook.n_failures > 0:
            Hook.n_failures -= 1
            self.send_response(500)
        else:
            Hook.taken.append((self.headers["Idempotency-Key"], json.loads(body)))
            self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.mark.slow
def test_alarms_are_passed_on_and_outlive_a_kill(part, photos):
    model, folder = part
    images, damaged = photos
    seen = folder.parent / "seen.jsonl"
    script = folder.parent / "on alarm;.sh"  # nothing of it is for a shell
    script.write_text(f'#!/bin/sh\ncat >> "{seen}"; echo >> "{seen}"\n')
    script.chmod(0o700)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    address = f"http://127.0.0.1:{server.server_address[1]}/hook"
    options = ["--watch", folder, "--webhook", address, "--on-alarm", script]
    with serve(model, *options) as line:  # nobody answers at the address
        put(folder, "$(touch x).png", damaged)
        put(folder, "good.png", images[0])
        line.wait(lambda x: x["waiting"] == 1 and x["signals"] == 1)
        assert len(seen.read_text().splitlines()) == 1
        line.kill()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with serve(model, *options) as line:
            line.wait(lambda x: x["signals"] == 0)
    finally:
        server.shutdown()
        server.server_close()
    ((key, event),) = Hook.taken
    assert event["file"].endswith("$(touch x).png")
    assert event["verdict"] == "abnormal"
    assert key == event["event"]
    assert json.loads(seen.read_text()) == event  # once, of before the kill
    assert not (folder / "x").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no processes in files")
def test_a_program_that_hangs_is_ended_with_what_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr("skpatchsvdd._serve.alarms._PATIENCE", 1)
    monkeypatch.setattr("skpatchsvdd._serve.alarms._MOST_RUNS", 1)
    store, file = Store(tmp_path / "line.sqlite"), tmp_path / "number"
    store.add(make_image(), None, {}, ["command"])
    text = 'sleep 60 & echo $! > "$0".part; mv "$0".part "$0"; wait'
    sender = AlarmSender(store, ["sh", "-c", text, str(file)])
    wait_until(lambda: store.count_waiting()[1] == 0)
    sender.close()
    stat = Path(f"/proc/{file.read_text().strip()}/stat")
    with suppress(FileNotFoundError):  # it is gone, or nobody has asked for its end
        wait_until(lambda: stat.read_text().split()[2] == "Z")


def test_a_clock_that_is_set_back_puts_no_alarm_off(tmp_path, monkeypatch):
    store, now = Store(tmp_path / "line.sqlite"), time.time
    monkeypatch.setattr("time.time", lambda: now() + 3600)
    store.add(make_image(), None, {}, ["command"])
    monkeypatch.setattr("time.time", now)  # an hour ago
    file = tmp_path / "sent"
    sender = AlarmSender(store, ["touch", str(file)])
    wait_until(file.exists)
    sender.close()


@contextmanager
def piped(monkeypatch):
    """Let what is printed go to a pipe; yield what it is read from."""
    target, source = os.pipe()
    with os.fdopen(target, "rb") as read, os.fdopen(source, "w") as written:
        monkeypatch.setattr("sys.stdout", written)
        yield read


def test_lines_that_nobody_reads_hold_up_nothing(monkeypatch, capsys):
    monkeypatch.setattr("skpatchsvdd._serve.alarms._MOST_LINES", 100)
    with piped(monkeypatch) as read:
        lines = LinePrinter(pytest.fail)
        for i in range(2000):  # more than the pipe and the queue hold
            lines.say(f"{i} {'x' * 1000}")
        found = [int(read.readline().split()[0]) for _ in range(100)]
        assert found == list(range(100))
        threading.Thread(target=read.read, daemon=True).start()
        lines.close()
    # Once, and again if the pipe has taken half of them meanwhile.
    assert 1 <= capsys.readouterr().err.count("nobody reads") <= 5


def test_a_reader_that_ends_is_noticed(monkeypatch):
    reasons = []
    with piped(monkeypatch) as read:
        lines = LinePrinter(reasons.append)
        read.close()
        lines.say("{}")
        lines.close()
    assert isinstance(reasons[0], BrokenPipeError)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("store:Store.add", sqlite3.OperationalError("disk is full"), "disk is full"),
        ("line:_draw", OSError(errno.EMFILE, "Too many files"), "Too many files"),
    ],
)
def test_a_fault_of_the_machine_is_shown_and_waited_for(
    part, photos, tmp_path, monkeypatch, name, error, words
):
    model, folder = part
    monkeypatch.setattr("skpatchsvdd._cli.watch._LONGEST_OF_MACHINE", 1)
    name, is_over = f"skpatchsvdd._serve.{name}", threading.Event()
    function = pkgutil.resolve_name(name)

    def fail_at_first(*args):
        if not is_over.is_set():
            raise error
        return function(*args)

    monkeypatch.setattr(name.replace(":", "."), fail_at_first)
    put(folder, "a.png", photos[1])
    store = Store(tmp_path / "line.sqlite")
    line = Line(model, store)
    watched = FolderArrivals(folder), None
    watch = threading.Thread(target=line.watch, args=watched, daemon=True)
    watch.start()
    assert words in wait_until(lambda: line.trouble)
    is_over.set()
    wait_until(store.count)
    line.close()
    watch.join(30)
    assert line.trouble is None
    assert store.read_details(store.find(1))["size"] == [48, 48]


# The API


def test_requests_are_answered_as_the_estimator_does(open_line, photos, model):
    images, damaged = photos
    results = load(model).inspect([damaged, images[1]])
    status, _, body = open_line.ask("/inspect?map", to_bytes(damaged))
    assert status == 200
    (answer,) = json.loads(body)["images"]
    assert answer["verdict"] == "abnormal"
    assert answer["score"] == pytest.approx(float(results.scores[0]), rel=1e-4)
    assert len(answer["regions"]) == len(results.regions[0])
    grey = Image.open(io.BytesIO(base64.b64decode(answer["map"])))
    expected = 10_000 * results.maps[0] / -answer["threshold"]
    np.testing.assert_allclose(np.asarray(grey), expected.clip(0, 65535), atol=2)
    body, kind = make_form(to_bytes(damaged), to_bytes(images[1], "BMP"))
    status, _, body = open_line.ask("/inspect", body, Content_Type=kind)
    verdicts = [x["verdict"] for x in json.loads(body)["images"]]
    assert (status, verdicts) == (200, ["abnormal", "normal"])
    text = open_line.ask("/metrics")[2].decode()
    assert 'skpatchsvdd_requested_images_total{outcome="abnormal"} 2.0' in text
    assert "skpatchsvdd_waiting_alarms 0.0" in text
    digest = open_line.get("/api/state")["model"]["digest"]
    assert f'skpatchsvdd_model_info{{digest="{digest}"}} 1.0' in text
    assert open_line.get("/health") == {"status": "ok"}
    assert "/inspect" in open_line.get("/openapi.json")["paths"]


class SlowEstimator:
    """Says how many images it was given at a time, and waits for a sign."""

    defect_kinds_ = ()

    def __init__(self):
        self.sizes, self.go = [], threading.Event()

    def inspect(self, X, names):
        self.go.wait(30)
        self.sizes.append(len(X))
        values = [int(x[0, 0]) for x in X]
        if 0 in values:
            raise ValueError("bad")
        return {"labels": values}


def test_simultaneous_requests_form_batches_and_a_full_queue_refuses(monkeypatch):
    est = SlowEstimator()
    batcher = Batcher(lambda: est, size=10)
    images = [np.full((2, 2), i) for i in (1, 0, *range(2, 12))]
    (first,) = batcher.submit(images[:1])
    wait_until(lambda: not batcher.n_waiting)
    others = batcher.submit(images[1:9])
    with pytest.raises(BusyError):
        batcher.submit(images[9:])
    monkeypatch.setattr("skpatchsvdd._serve.batcher._MOST_PIXELS", 20)
    with pytest.raises(BusyError):
        batcher.submit(images[9:10])
    est.go.set()
    assert first.result(30) == (est, {"labels": 1})
    with pytest.raises(ValueError, match="bad"):
        others[0].result(30)
    assert others[-1].result(30)[1] == {"labels": 8}
    batcher.close()
    assert est.sizes == [1, 8, *[1] * 8]  # each alone where all together fail


def test_a_batch_waits_for_images_that_are_being_decoded_if_they_are_many(monkeypatch):
    monkeypatch.setattr("skpatchsvdd._serve.batcher._PATIENCE", 30)
    est = SlowEstimator()
    est.go.set()
    batcher = Batcher(lambda: est)
    one = np.ones((2, 2))
    for n in (8, 4):  # so few are inspected one by one, and do not wait
        with batcher.expecting(n):
            first = batcher.submit([one])
            time.sleep(0.01)
            others = batcher.submit([one] * (n - 1))
        for future in (*first, *others):
            future.result(30)
    batcher.close()
    assert est.sizes == [8, *[1] * 4]


# Who may ask, and for what


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"),
    [
        ("/inspect", b"no image", {}, 400, "cannot be read as an image"),
        ("/inspect", b"", {}, 400, "not a byte"),
        ("/inspect", bytes(2 * 10**6), {}, 413, "1,000,000 bytes"),
        ("/inspect", iter([bytes(10**6)] * 3), {}, 413, "1,000,000 bytes"),
        ("/inspect", b"x", {"Content_Type": "multipart/form-data"}, 400, ""),
        ("/inspect", b"x", {"Origin": "http://evil.example"}, 403, "other pages"),
        ("/inspect", b"x", {"Sec_Fetch_Site": "cross-site"}, 403, "other pages"),
        ("/inspect", b"x", {"Origin": "http://["}, 403, "other pages"),
        ("/inspect", b"x", {"Origin": "null"}, 403, "other pages"),
        ("/login", bytes(5000), {}, 413, "4,096 bytes"),
        ("/inspect", b"x", {"Host": "evil.example"}, 421, "host"),
        ("/api/state", None, {"Host": "evil.example:80"}, 421, "host"),
        ("/api/say", b"{}", {"Content_Type": "text/plain"}, 415, "application/json"),
        ("/api/say", b"[", {"Content_Type": "application/json"}, 400, "JSON"),
        ("/api/say", b"[" * 10**5, {"Content_Type": "application/json"}, 400, "JSON"),
        ("/api/images?before=-1", None, {}, 400, "before"),
        ("/api/images?only=1;DROP", None, {}, 400, "only"),
        ("/images/1/ab/thumb", None, {}, 404, "no such image"),
        ("/images/" + "9" * 5000 + "/ab/thumb", None, {}, 404, "no such image"),
        ("/api/images/x", None, {}, 404, "no such image"),
        ("/images/1/..%2f..%2fpart.model", None, {}, 404, ""),
        ("/static/..%2fcommand.py", None, {}, 404, ""),
        ("/static/command.py", None, {}, 404, "no such file"),
        ("/../part.model", None, {}, 404, ""),
    ],
)
def test_bad_requests_are_refused(open_line, path, body, headers, status, words):
    found, answered, text = open_line.ask(path, body, **headers)
    assert found == status, text
    assert words in text.decode()
    assert "script-src 'self'" in answered["Content-Security-Policy"]
    assert answered["X-Content-Type-Options"] == "nosniff"


def test_images_of_too_many_pixels_are_refused(open_line):
    for sides in ([6000], [11_000], [16_000], [4200, 4200]):
        bombs = [to_bytes(np.zeros((x, x), dtype=np.uint8), "GIF") for x in sides]
        body, kind = make_form(*bombs)
        status, _, body = open_line.ask("/inspect", body, Content_Type=kind)
        assert status == 400
        limit = b"100,000,000" if sides == [16_000] else b"33,333,333"
        assert b"the limit of " + limit in body


def test_decoding_that_takes_long_is_given_up(part, photos, monkeypatch, tmp_path):
    is_over = threading.Event()
    monkeypatch.setattr("skpatchsvdd._serve.app._DECODE_SECONDS", 0.1)
    monkeypatch.setattr(
        "skpatchsvdd._serve.app.read_bytes", lambda *args: is_over.wait(60)
    )
    line = Line(part[0], Store(tmp_path / "line.sqlite"))
    app = make_app(line, None, Batcher(lambda: line.model.est))
    with run_app(app) as port:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        client.request("POST", "/inspect", to_bytes(photos[1]))
        answer = client.getresponse()
        assert answer.status == 503
        assert b"decoding took more than" in answer.read()
        client.request("GET", "/metrics")
        text = client.getresponse().read().decode()
        assert 'skpatchsvdd_requested_images_total{outcome="refused"} 1.0' in text
        client.request("GET", "/health")
        assert client.getresponse().status == 200
        is_over.set()


def test_nothing_is_printed_of_malformed_requests(part, photos, capfd):
    tiff = io.BytesIO()
    Image.fromarray(photos[1]).save(tiff, "TIFF", compression="tiff_deflate")
    broken = bytearray(tiff.getvalue())
    broken[20:200] = bytes(180)
    with serve_here(part[0]) as line:
        capfd.readouterr()
        assert line.ask("/inspect", bytes(broken))[0] == 400
        for form in (b"x", b"--x\r\n\r\n", make_form(b"")[0] + b"after it"):
            kind = "multipart/form-data; boundary=x"
            assert line.ask("/inspect", form, Content_Type=kind)[0] == 400
        assert capfd.readouterr().err == ""


PATHS = ("/api/state", "/api/images", "/images/1/ab/thumb", "/metrics")


def test_nothing_but_health_is_seen_without_the_token(closed_line, photos):
    assert closed_line.post("/api/threshold", threshold=-1)[0] == 401
    for path in (*PATHS, "/openapi.json", "/static/live.js", "/api/history"):
        assert closed_line.ask(path)[0] == 401
    status, headers, _ = closed_line.ask("/")
    assert (status, headers["Location"]) == (303, "/login")
    assert closed_line.ask("/inspect", to_bytes(photos[1]))[0] == 401
    for wrong in ("", "x" * len(TOKEN), TOKEN + "x", "\xe9"):
        bearer = {"Authorization": f"Bearer {wrong}".encode("latin-1")}
        assert closed_line.ask("/api/state", **bearer)[0] == 401
        cookie = {"Cookie": f"skpatchsvdd={wrong}".encode("latin-1")}
        assert closed_line.ask("/api/state", **cookie)[0] == 401
    assert closed_line.get("/health") == {"status": "ok"}
    assert b"skpatchsvdd" in closed_line.ask("/login")[2]


def submit(line, path, body="", **headers):
    """Send a form as a browser does, which heeds the policy of the page."""
    policy = line.ask("/login")[1]["Referrer-Policy"]
    sent = {
        "Content_Type": "application/x-www-form-urlencoded",
        "Origin": "null" if policy == "no-referrer" else line.url.rstrip("/"),
    }
    return line.ask(path, body, "POST", **sent, **headers)


def sign_in(line):
    """Return the headers of a browser that is signed in."""
    status, headers, _ = submit(line, "/login", f"token={TOKEN}")
    assert (status, headers["Location"]) == (303, "/")
    return {"Cookie": headers["Set-Cookie"].partition(";")[0]}


def test_the_token_opens_by_header_and_by_cookie(closed_line, photos):
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert closed_line.ask("/api/state", **bearer)[0] == 200
    assert closed_line.ask("/inspect", to_bytes(photos[1]), **bearer)[0] == 200
    status, headers, body = submit(closed_line, "/login", "token=wrong")
    assert (status, headers["Set-Cookie"]) == (401, None)
    assert b"not the token" in body
    of_browser = {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate"}
    _, headers, _ = submit(closed_line, "/login", f"token={TOKEN}", **of_browser)
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Max-Age=604800" in cookie
    assert TOKEN not in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    assert closed_line.ask("/", **session)[0] == 200
    foreign = {"Origin": "http://evil.example", **session}
    assert closed_line.ask("/api/try", b"{}", **foreign)[0] == 403


def test_each_sign_in_differs_and_ends_by_signing_out(closed_line):
    first, second = sign_in(closed_line), sign_in(closed_line)
    assert first != second
    status, headers, _ = submit(closed_line, "/logout", **first)
    assert (status, headers["Location"]) == (303, "/login")
    assert "Max-Age=0" in headers["Set-Cookie"]
    assert closed_line.ask("/api/state", **first)[0] == 401
    assert closed_line.ask("/api/state", **second)[0] == 200


def test_sessions_end_and_do_not_grow_without_bound(monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])  # other servers keep theirs
    monkeypatch.setattr("skpatchsvdd._serve.access.time", clock)
    scope = {"type": "http", "headers": [], "scheme": "http", "path": "/"}
    request = Request(scope | {"query_string": b"", "server": ("localhost", 80)})

    def begin():
        answer = Response()
        sessions.begin(request, answer)
        return {"cookie": answer.headers["Set-Cookie"].partition(";")[0]}

    sessions = Sessions(TOKEN)
    first = begin()
    assert sessions.is_signed_in(first)
    now[0] += 7 * 86400
    assert not sessions.is_signed_in(first)
    former = [begin() for _ in range(1001)]
    assert [sessions.is_signed_in(x) for x in former[:2]] == [False, True]
    assert not Sessions(TOKEN).is_signed_in(former[-1])  # after a restart


def test_guesses_are_limited_and_noted(part):
    with serve(part[0], env={"SKPATCHSVDD_TOKEN": TOKEN}) as line:
        session = sign_in(line)
        with ThreadPoolExecutor(8) as pool:
            guesses = [{"Authorization": f"Bearer {i}"} for i in range(40)]
            found = list(pool.map(lambda x: line.ask("/api/state", **x), guesses))
        assert Counter(x[0] for x in found) == {401: 10, 429: 30}
        assert int(found[-1][1]["Retry-After"]) <= 61
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert line.ask("/api/state", **right)[0] == 429  # it is not looked at
        assert submit(line, "/login", f"token={TOKEN}")[0] == 429
        assert line.ask("/api/state", **session)[0] == 200  # who was there stays
        line.process.terminate()
        noted = line.process.stderr.read().decode()
    assert noted.count("wrong token") == 2


def test_guesses_from_many_addresses_lock_out_no_known_one(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    sessions = Sessions(TOKEN)

    def check(token, address):
        return sessions.check(token, {"client": (address, 1)})

    assert check(TOKEN, "known")
    assert not any(check("wrong", str(i)) for i in range(100))
    with pytest.raises(HTTPException):
        check(TOKEN, "new")
    assert check(TOKEN, "known")
    now[0] += 60
    assert check(TOKEN, "new")
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "takes a token"),
        (["--token-file", "short"], "at least 16 characters"),
        (["--token-file", "missing"], "missing"),
        (["--watch", "nowhere"], "nowhere is not a folder"),
        (["--watch", "short"], "short is a file, not a folder"),
        (["--port", "TAKEN"], "nothing can listen"),
        (["--webhook", "host/hook"], "--webhook must be an address"),
        (["--on-alarm", "./nothing", "-x"], "there is no such program"),
        (["--on-alarm"], "--on-alarm needs the program"),
        (["--key", "short"], "pass both"),
        (["--certificate", "short"], "no certificate and its key can be read"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    model, tmp_path, monkeypatch, capsys, options, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("short")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = [port if x == "TAKEN" else x for x in options]
        assert main(["serve", str(model), "-o", "out", *options]) == 1
    assert words in capsys.readouterr().err


def test_answers_are_sent_at_once():
    with (
        _listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        accepted, _ = listening.accept()
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepted.close()


def test_without_the_extra_the_error_names_it(model, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert main(["serve", str(model)]) == 1
    said = capsys.readouterr().err
    assert "pip install starlette uvicorn python-multipart prometheus_client" in said


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-o", "elsewhere"]])
def test_two_servers_share_neither_a_model_nor_what_was_seen(
    part, options, tmp_path, monkeypatch, capsys
):
    model, folder = part
    monkeypatch.chdir(tmp_path)
    with serve(model, "--watch", folder) as line:
        assert main(["serve", str(model), "--port", "0", *options]) == 1
        err = capsys.readouterr().err
        assert f"process {line.process.pid} on" in err
        assert re.search(r"try again\. Or pass another (folder|model)", err)


def test_a_full_disk_leaves_no_part_of_a_model(tmp_path):
    model = tmp_path / "part.model"
    model.write_bytes(b"model")
    history = History(model)

    def fail(file):
        file.write_bytes(b"mod")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        history.keep_model(fail)
    assert not list(history.folder.iterdir())


def test_grey_images_become_coloured_and_a_replaced_model_is_used(
    model, photos, tmp_path
):
    coloured = make_textures(6, image_size=48, random_state=SEED + 1).images
    est = PatchSVDD(max_iter=0, random_state=SEED, device="cpu").fit(coloured)
    path, file = tmp_path / "part.model", tmp_path / "grey.png"
    est.save(path)
    file.write_bytes(to_bytes(photos[1]))
    with serve_here(path) as line:
        _, _, body = line.ask("/inspect", file.read_bytes())
        (found,) = json.loads(body)["images"]
        assert found["score"] == pytest.approx(float(est.score_samples([file])[0]))
        assert found["note"] == "grey, and the training images are in colour"
        former = line.get("/api/state")["model"]["digest"]
        shutil.copy(model, tmp_path / "other")
        (tmp_path / "other").replace(path)
        line.wait(lambda x: x["model"]["digest"] != former)
        status, _, body = line.ask("/inspect", to_bytes(coloured[0]))
        assert status == 400
        assert "was fitted to grey images" in body.decode()


@pytest.mark.slow
def test_slow_clients_are_cut_off_and_others_are_answered(open_line):
    silent = [
        socket.create_connection(("127.0.0.1", open_line.port)) for _ in range(50)
    ]
    half = socket.create_connection(("127.0.0.1", open_line.port))
    half.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
    try:
        assert open_line.get("/health") == {"status": "ok"}
        for client in (*silent[:3], half):
            client.settimeout(30)
            assert client.recv(100) in (b"", b"HTTP/1.1 408")
    finally:
        for client in (*silent, half):
            client.close()


def run_app(app):
    """Serve an ASGI application in a thread; yield its port."""
    kind = connections.Connection
    config = uvicorn.Config(app, http=kind, lifespan="off", log_level="critical")
    return running(uvicorn.Server(config))


@pytest.fixture
def slow_port(monkeypatch):
    """The port of a server of 8 connections that answers after 0.6 seconds."""
    monkeypatch.setattr(connections, "MOST", 8)
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)

    async def app(scope, receive, send):
        await asyncio.sleep(0.6)
        await PlainTextResponse("done")(scope, receive, send)

    with run_app(app) as port:
        yield port


@pytest.mark.slow
def test_a_client_that_hangs_up_is_no_fault(part, photos):
    head = b"POST /inspect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
    with serve(part[0]) as line:
        for kind in (b"image/png", b"multipart/form-data; boundary=x"):
            client = socket.create_connection(("127.0.0.1", line.port))
            client.sendall(head + b"Content-Type: " + kind + b"\r\n\r\n--x\r\n")
            time.sleep(0.3)
            client.close()
        assert line.ask("/inspect", to_bytes(photos[1]))[0] == 200
        line.process.terminate()
        assert line.process.stderr.read() == b""


def ask(client):
    client.request("GET", "/")
    return client.getresponse().read()


def test_an_answer_may_take_longer_than_a_question(slow_port):
    client = http.client.HTTPConnection("127.0.0.1", slow_port, timeout=10)
    assert [ask(client) for _ in range(2)] == [b"done"] * 2
    client.close()


def test_nothing_is_read_of_a_request_that_was_answered(slow_port, monkeypatch):
    monkeypatch.setattr(connections, "_PATIENCE", 60)
    client = socket.create_connection(("127.0.0.1", slow_port))
    client.settimeout(10)
    client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert client.recv(1000).startswith(b"HTTP/1.1 200")
    with pytest.raises(ConnectionError):  # long before the end
        client.sendall((b"10000\r\n" + bytes(2**16) + b"\r\n") * 1000)
    client.close()


@pytest.mark.parametrize(
    "said", [b"", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"]
)
def test_those_who_ask_nothing_keep_nobody_out(slow_port, monkeypatch, said):
    monkeypatch.setattr(connections, "_PATIENCE", 60)
    clients = [
        http.client.HTTPConnection("127.0.0.1", slow_port, timeout=10) for _ in range(3)
    ]
    assert ask(clients[0]) == b"done"  # before the crowd comes, and it stays
    address = ("127.0.0.1", slow_port)
    crowd = [socket.create_connection(address) for _ in range(20)]
    for one in crowd:
        with suppress(ConnectionError):
            one.sendall(said)
    time.sleep(0.3)  # until all of it is taken in
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, clients)) == [b"done"] * 3
    if not said:
        crowd[0].settimeout(10)
        assert crowd[0].recv(1) == b""  # the oldest went
    for one in (*clients, *crowd):
        one.close()


def test_a_foreign_file_is_not_written_to(tmp_path):
    path = tmp_path / "line.sqlite"
    path.write_bytes(b"something else, " * 100)
    with pytest.raises(ValueError, match="is not a file of this command"):
        Store(path)
    with sqlite3.connect(tmp_path / "other.sqlite") as base:
        base.execute("PRAGMA user_version=99")
    with pytest.raises(ValueError, match="version 99"):
        Store(tmp_path / "other.sqlite")


def test_old_pictures_go_but_those_of_alarms_that_wait(tmp_path):
    store = Store(tmp_path / "line.sqlite", n_pictures=150)
    for i in range(300):
        image = make_image(i, "abnormal" if i in (120, 130) else "normal")
        assert store.add(image, (b"t", b"o", "{}")) == i + 1
    assert store.add(image) is None  # known
    store.see([131], "Ann")
    store._forget(150)
    digest = store.find(300)["pictures"]
    kept = [i for i in range(1, 301) if store.read_picture(i, digest, "thumb")]
    assert kept == [121, *range(151, 301)]
    assert all(map(store.knows, range(300)))
    assert not store.knows(300)


# In a browser

# Pixels of the map over the picture that is open.
COLOURED = (
    "(({ width, height }) => document.all.boxes.getContext('2d')"
    ".getImageData(0, 0, width, height).data.filter((x, i) => i % 4 === 3 && x)"
    ".length)(document.all.boxes)"
)


@needs_browser
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_people_sign_in_and_out(closed_line, tmp_path, host):
    with open_browser(tmp_path) as tab:
        tab.call("Page.navigate", url=f"http://{host}:{closed_line.port}/")
        has_focus = "document.activeElement?.id === 'token'"
        tab.wait(has_focus)
        tab.write("wrong")
        tab.press("Enter")
        tab.wait(f"{has_focus} && document.body.innerText.includes('not the token')")
        tab.write(TOKEN)
        tab.press("Enter")
        tab.wait("location.pathname === '/' && typeof run !== 'undefined' && run")
        tab.wait("!document.getElementById('sign-out').hidden")
        tab.click("#sign-out button")
        tab.wait("location.pathname === '/login'")
        tab.call("Page.navigate", url=f"http://{host}:{closed_line.port}/")
        tab.wait("location.pathname === '/login'")


@needs_browser
def test_the_page_follows_the_line_and_reviews_by_keys(part, photos, tmp_path):
    model, folder = part
    images, damaged = photos
    nasty = "<img src=x onerror=alert(1)>.png"
    with serve(model, "--watch", folder) as line, open_browser(tmp_path) as tab:
        tab.call("Page.navigate", url=line.url)
        tab.wait("typeof run !== 'undefined' && run !== null")
        put(folder, "good.png", images[1])
        tab.wait("document.querySelectorAll('#images .card').length === 1")
        put(folder, nasty, damaged)
        tab.wait("document.querySelectorAll('#alarms .card').length === 1")
        shown = "document.querySelector('#alarms .name').textContent"
        assert tab.run(shown) == nasty
        assert tab.run("document.querySelector('#images img[onerror]')") is None
        alt = "[...document.images].every((x) => x.alt || !x.src)"
        assert tab.run(alt)
        tab.press("n")
        tab.wait("document.getElementById('detail').open")
        assert tab.run(alt)
        found = tab.run("document.all['detail-p'].textContent")
        assert re.match(r"p = 0\.\d+ at most, with \d+ normal images", found)
        assert tab.run(COLOURED) == 0  # until somebody wants to see the map
        tab.press("m")
        tab.wait(f"{COLOURED} > 100")
        tab.press("m")
        tab.wait(f"{COLOURED} === 0")
        tab.press("b")
        tab.wait("detail.said && detail.said.boxes.length === detail.regions.length")
        assert tab.run("detail.said.boxes.length > 0 && !document.all.clear.hidden")
        tab.press("s")
        tab.wait("state.said === 1 && detail.said.similar")
        tab.press("u")
        tab.wait("detail.said.verdict === 'defective' && detail.said.boxes.length")
        tab.press("s")
        tab.wait("detail.said.similar")
        tab.run("document.getElementById('detail').close()")
        tab.press("t")
        tab.wait("state.trial && state.trial.state === 'ready'")
        tab.wait("!document.getElementById('apply').hidden")
        tab.press("w")
        tab.wait("document.activeElement.id === 'apply'")  # teaches nothing yet
        assert tab.run("state.said") == 1
        tab.press("Enter")
        tab.wait("state.said === 0")
        other = damaged.copy()
        other[0, 0] ^= 1
        put(folder, "next.png", other)
        tab.wait("document.querySelectorAll('#images .card').length === 3")
        assert tab.run("state.waiting") == 0
        tab.press("h")
        tab.wait("document.activeElement.id === 'undo'")
        tab.click("#undo")
        tab.wait("state.said === 1")
        tab.run("document.getElementById('history').close()")
        tab.press("2")
        tab.wait("document.querySelectorAll('#images .card').length === 1")
        assert "newest image" in tab.run("document.all.age.textContent")
        line.kill()
        tab.wait("!document.getElementById('lost').hidden")
        assert tab.run("document.title") == "\u26a0 No answer \u00b7 part.model"


@needs_browser
def test_the_page_shows_and_sets_the_threshold(part, tmp_path):
    model, _ = part
    own = load(model).offset_
    now = "document.all['threshold-now'].textContent"
    with serve_here(model) as line, open_browser(tmp_path) as tab:
        tab.call("Page.navigate", url=line.url)
        tab.wait("typeof run !== 'undefined' && run !== null")
        tab.wait("document.all['alarm-rate'].textContent === '11%'")
        tab.press("l")
        tab.wait("document.all.threshold.open")
        assert "about 11% of good images raise an alarm." in tab.run(now)
        assert tab.run("document.all.free.hidden")
        tab.run("document.all.factor.value = 2")
        tab.click("#by-factor button")
        tab.wait("state.model.is_fixed && !document.all.free.hidden")
        assert load(model).offset_ == pytest.approx(2 * own)
        assert "(95%: 0% to 37%)" in tab.run(now)
        tab.click("#free")
        tab.wait("!state.model.is_fixed")
        tab.run("document.all.rate.value = 30")
        tab.click("#by-rate button")
        tab.wait("document.all['alarm-rate'].textContent === '22%'")
        assert load(model).false_alarm_rate == 0.3
        tab.run("document.all.threshold.close()")
        tab.press("h")
        tab.wait("document.querySelectorAll('#entries li').length === 4")
        assert "threshold set" in tab.run("document.all.entries.textContent")
        tab.click("#undo")
        tab.wait("document.all['alarm-rate'].textContent === '11%'")
        assert load(model).offset_ == own


@needs_browser
@pytest.mark.slow
def test_thousands_of_images_do_not_slow_the_page(part, tmp_path):
    model, folder = part
    lines = tmp_path / "lines"
    lines.mkdir()
    store = Store(lines / "line.sqlite")
    for i in range(3000):
        scores = {"score": -1.0, "threshold": -2.0, "p_value": 0.5}
        store.add(make_image(i, "normal") | scores | {"time": time.time()})
    store.close()
    count = "document.querySelectorAll('#images .card').length"
    with (
        serve_here(model, "--watch", folder, "-o", lines) as line,
        open_browser(tmp_path) as tab,
    ):
        tab.call("Page.navigate", url=line.url)
        tab.wait(f"{count} >= 60")
        tab.wait(f"scrollTo(0, document.body.scrollHeight), {count} === 3000")
        start = time.monotonic()
        tab.run("scrollTo(0, 0)")
        tab.wait(f"{count} <= 600")  # those that are far away go
        assert time.monotonic() - start < 10
        tab.wait(f"scrollTo(0, document.body.scrollHeight), {count} > 600")
