"""Sources of a line: cameras, videos, users' own, and which frames are inspected."""

import base64
import http.server
import itertools
import shutil
import socket
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from live import put, serve, serve_here, to_bytes, wait_until
from PIL import Image
from settings import SEED
from test_station import are, wait_for

from skpatchsvdd._cli import RetrySchedule
from skpatchsvdd._serve import arrivals as arrivals_module
from skpatchsvdd._serve.arrivals import FrameArrivals
from skpatchsvdd._serve.sources import (
    Frame,
    Source,
    VideoSource,
    find_kind,
    hide_secrets,
    make_choice,
    make_source,
)
from skpatchsvdd.datasets import make_textures

pytestmark = pytest.mark.wide  # a line loads the model


def write_video(path, images, rate=10):
    cv2 = pytest.importorskip("cv2")
    height, width = images[0].shape[:2]
    kind = cv2.VideoWriter_fourcc(*"MJPG")
    writer = cv2.VideoWriter(str(path), kind, rate, (width, height))
    assert writer.isOpened()
    for image in images:
        writer.write(np.broadcast_to(np.atleast_3d(image), (height, width, 3)))
    writer.release()


class Camera(http.server.BaseHTTPRequestHandler):
    """Sends JPEGs as cameras do, to those who know the password, until it is cut."""

    images, n_sent, is_cut = (), 0, False
    protocol_version = "HTTP/1.0"

    def do_GET(self):
        given = self.headers.get("Authorization", "")
        if given != "Basic " + base64.b64encode(b"user:s3cret").decode():
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="camera"')
            self.end_headers()
            return
        self.send_response(200)
        kind = "multipart/x-mixed-replace; boundary=frame"
        self.send_header("Content-Type", kind)
        self.end_headers()
        for image in itertools.cycle(Camera.images):
            if Camera.is_cut:
                return
            body = to_bytes(image, "JPEG")
            head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}"
            try:
                self.wfile.write(head.encode() + b"\r\n\r\n" + body + b"\r\n")
            except OSError:
                return
            Camera.n_sent += 1
            time.sleep(0.03)

    def log_message(self, *args):
        pass


@contextmanager
def running_camera(images, port=0):
    Camera.images, Camera.is_cut, Camera.n_sent = images, False, 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Camera)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        Camera.is_cut = True
        server.shutdown()
        server.server_close()


@pytest.fixture
def write_station(model, tmp_path):
    """Return a function that writes a station of one line, `cam`, with some keys."""
    pytest.importorskip("tomllib")
    pytest.importorskip("cv2")
    shutil.copy(model, tmp_path / "cam.model")

    def write(source, *keys):
        text = "\n".join(['[lines.cam]\nmodel = "cam.model"', *keys])
        (tmp_path / "station.toml").write_text(f'{text}\nsource = "{source}"\n')
        return tmp_path / "station.toml"

    return write


# What a source is


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("0", "camera"),
        ("rtsp://user:pw@host/stream", "camera"),
        ("belt.mp4", "video"),
        ("videos/BELT.AVI", "video"),
        ("new/", "folder"),
        ("C:\\new", "folder"),
        ("my.cameras:open_it", "own"),
    ],
)
def test_a_source_is_what_its_text_says(source, kind):
    assert find_kind(source) == kind


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pass@host/a", "http://***@host/a"),
        ("rtsp://u:p@ss/w@host:554/a fails", "rtsp://***@host:554/a fails"),
        ("http://host/a.cgi?user=u&pwd=p x", "http://host/a.cgi?*** x"),
        ("http://host/a", "http://host/a"),
        ("new/what?.png", "new/what?.png"),
    ],
)
def test_secrets_of_addresses_are_hidden(text, shown):
    assert hide_secrets(text) == shown


def test_frames_of_a_video_have_its_colours_and_times(tmp_path):
    images = np.zeros((5, 64, 64, 3), dtype=np.uint8)
    images[..., 2] = 200  # red, as OpenCV writes it
    write_video(tmp_path / "belt.avi", images, rate=10)
    source = VideoSource(str(tmp_path / "belt.avi"))
    frames = list(source.frames())
    assert len(frames) == 5
    assert source.can_wait
    red, green, _ = frames[0].image.reshape(-1, 3).mean(axis=0)
    assert red > 150
    assert green < 50
    np.testing.assert_allclose(np.diff([x.time for x in frames]), 0.1, atol=0.02)


def test_what_cannot_be_opened_says_why(photos, tmp_path, monkeypatch, capfd):
    pytest.importorskip("cv2")
    (tmp_path / "no.avi").write_text("no video")
    with running_camera(photos[0]) as port:
        cases = {
            str(tmp_path / "none.avi"): "is not there",
            str(tmp_path / "no.avi"): "is not a video",
            f"http://user:wrong@127.0.0.1:{port}/": "check the rest of the address",
            "rtsp://user:wrong@127.0.0.1:1/": "does not answer .Connection refused",
            "http://user:wrong@nowhere.invalid/": "no machine of that name",
            "77": "camera 77 cannot be opened",
        }
        for place, words in cases.items():
            with pytest.raises(OSError, match=words) as caught:
                next(VideoSource(place).frames())
            assert "wrong" not in str(caught.value)
    assert "wrong" not in "".join(capfd.readouterr())
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ImportError, match="pip install opencv-python-headless"):
        next(VideoSource("0").frames())


def test_sources_of_users_are_imported(make_arrivals, tmp_path, monkeypatch):
    (tmp_path / "my_camera.py").write_text(
        "import numpy as np\n"
        "class Camera:\n"
        "    name = 'mine'\n"
        "    def frames(self):\n"
        "        yield np.zeros((4, 4), np.uint8), 1.0\n"
        "def none(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    source = make_source("my_camera:Camera")
    assert source.name == "mine"
    arrivals = make_arrivals(source, when="trigger")
    wait_until(lambda: arrivals.describe()["frames"])
    with pytest.raises(TypeError, match=r"that has frames\(\)"):
        make_source("my_camera:none")
    with pytest.raises(ImportError, match="no_camera:open_it cannot be imported"):
        make_source("no_camera:open_it")


# Which frames are inspected


def choose(when, images, step=0.1):
    choice = make_choice(when)
    return [i for i, x in enumerate(images) if choice(Frame(x, i * step))]


def test_every_frame_or_one_in_some_seconds():
    images = np.zeros((12, 8, 8), dtype=np.uint8)
    assert choose("frame", images) == list(range(12))
    assert choose(0.35, images) == [0, 4, 8]


def test_a_scene_is_inspected_once_when_it_is_still():
    rng = np.random.default_rng(SEED)
    empty = np.full((120, 160), 90, dtype=np.uint8)
    images = []
    for i in range(40):
        image = empty.copy()
        left = min(5 * i, 60) if i < 25 else 60 + 5 * (i - 25)  # it stops, and goes
        image[40:80, left : left + 40] = 200
        images.append(image + rng.integers(0, 6, image.shape).astype(np.uint8))
    chosen = choose("still", images)
    assert chosen == [17]  # half a second after the last motion, at 12
    assert choose("still", [empty] * 20) == [5]


def test_a_trigger_takes_the_next_frame():
    choice, image = make_choice("trigger"), np.zeros((8, 8), dtype=np.uint8)
    assert not choice(Frame(image, 0.0))
    choice.pull()
    assert choice(Frame(image, 0.1))
    assert not choice(Frame(image, 0.2))


# Frames that arrive


class Burst(Source):
    """Sends frames as fast as they are taken, then fails or ends."""

    name = "http://user:s3cret@burst/"

    def __init__(self, n_frames, can_wait=False):
        self.n_frames, self.can_wait, self.n_opened = n_frames, can_wait, 0

    def frames(self):
        self.n_opened += 1
        for i in range(self.n_frames):
            yield Frame(np.full((16, 16, 3), i % 250, dtype=np.uint8), float(i))
        if not self.can_wait:
            raise OSError(f"{self.name} broke")


@pytest.fixture
def make_arrivals(tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals_module, "_FIRST_WAIT", 0.05)
    made = []

    def make(source, when="frame", n_channels=3, old=()):
        made.append(
            FrameArrivals(source, when, tmp_path / "f", lambda: n_channels, lambda: old)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_frames_that_come_too_fast_are_dropped_and_counted(make_arrivals, tmp_path):
    source = Burst(30)
    arrivals = make_arrivals(source)
    wait_until(lambda: source.n_opened > 1)  # opened again after it has failed
    arrivals.close()
    said = arrivals.describe()
    assert said["taken"] == 8
    assert said["dropped"] == said["frames"] - 8
    assert len(list((tmp_path / "f").glob("*.png"))) == 8
    looks = arrivals.list_looks(lambda state: False, RetrySchedule())
    assert len(next(looks)) == 8


def test_frames_of_a_file_wait_and_none_is_lost(make_arrivals, tmp_path):
    arrivals = make_arrivals(Burst(30, can_wait=True), n_channels=1)
    known = set()
    for files in arrivals.list_looks(known.__contains__, RetrySchedule()):
        known.update(map(arrivals_module.find_state, files))
        if len(known) == 30 and arrivals.describe()["has_ended"]:
            break
    assert arrivals.describe()["dropped"] == 0
    assert arrivals.find_trouble() is None
    files = sorted((tmp_path / "f").glob("*.png"))
    shades = [np.asarray(Image.open(x)) for x in files]
    assert [x.shape for x in shades] == [(16, 16)] * 30  # grey, as the model
    assert [int(x[0, 0]) for x in shades] == list(range(30))


def test_what_is_wrong_with_a_source_is_said_without_secrets(
    make_arrivals, monkeypatch, capfd
):
    arrivals = make_arrivals(Burst(1))
    wait_until(arrivals.find_trouble)
    reason = arrivals.find_trouble()
    assert "http://***@burst/ broke" in reason
    assert "s3cret" not in "".join(capfd.readouterr())

    class Silent(Source):
        name = "silent"

        def frames(self):
            time.sleep(60)
            yield

    monkeypatch.setattr(arrivals_module, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(arrivals_module, "_LAST_SECONDS", 0.1)
    silent = make_arrivals(Silent())
    wait_until(silent.find_trouble)
    assert "no picture has come from silent" in silent.find_trouble()
    wrong = make_arrivals(Burst(1))
    wrong._source.frames = lambda: iter([Frame(np.zeros((4, 4)), 0.0)])
    wait_until(lambda: "arrays of bytes" in (wrong.find_trouble() or ""))


def test_frames_that_a_kill_has_left_are_inspected_first(make_arrivals, tmp_path):
    (tmp_path / "f").mkdir()
    for name in ("b.png", "a.png"):
        Image.new("L", (8, 8)).save(tmp_path / "f" / name)
    known = {arrivals_module.find_state(str(tmp_path / "f" / "a.png"))}
    arrivals = make_arrivals(Burst(0, can_wait=True))
    looks = arrivals.list_looks(known.__contains__, RetrySchedule())
    assert next(looks) == [str(tmp_path / "f" / "b.png")]


def test_a_full_disk_drops_frames_and_says_so(make_arrivals, monkeypatch):
    def fail(self, image):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FrameArrivals, "_write", fail)
    arrivals = make_arrivals(Burst(5, can_wait=True))
    wait_until(lambda: arrivals.describe()["has_ended"])
    assert arrivals.find_trouble() == "frames cannot be kept: No space left on device"
    assert arrivals.describe()["dropped"] == 5


def test_only_old_frames_of_the_own_folder_are_removed(make_arrivals, tmp_path):
    others = tmp_path / "elsewhere.png"
    others.write_bytes(b"x")
    old = [str(others)]
    arrivals = make_arrivals(Burst(3, can_wait=True), old=old)
    wait_until(lambda: arrivals.describe()["has_ended"])
    looks = arrivals.list_looks(lambda state: False, RetrySchedule())
    files = next(looks)
    old.append(files[0])
    assert next(looks) == files[1:]
    assert others.exists()


# With a line


def test_a_video_is_inspected_and_alarms_are_kept(write_station, photos, tmp_path):
    _, damaged = photos
    normal = make_textures(6, image_size=48, random_state=SEED + 1).images[..., 0]
    write_video(tmp_path / "belt.avi", [*normal[:4], damaged, *normal[4:]])
    file = write_station("belt.avi", 'when = "frame"', "keep_good = 1")
    with serve_here(file) as line:
        found = wait_for(line, lambda x: count_images(x["cam"]) == 7)["cam"]
        assert found["state"] == "running"
        source = line.get("/lines/cam/api/state")["source"]
        assert (source["taken"], source["dropped"]) == (7, 0)
        assert source["has_ended"]
        status, headers, _ = line.ask("/lines/cam/source.jpg")
        assert (status, headers["Content-Type"]) == (200, "image/jpeg")
        shown = line.get("/lines/cam/api/images?only=abnormal")["images"]
        assert found["waiting"] == len(shown) >= 1
        for image in shown:
            assert line.ask(f"/lines/cam/images/{image['id']}/original")[0] == 200
        n_good = found["counts"].get("normal", 0)
        frames = tmp_path / "cam.model.line" / "frames"
        wait_until(lambda: len([*frames.glob("*.png")]) == len(shown) + min(n_good, 1))
        assert line.ask("/lines/cam/trigger", b"")[0] == 409


def test_a_camera_is_cut_and_comes_back_and_keeps_its_secrets(
    write_station, photos, tmp_path, monkeypatch, capfd
):
    pytest.importorskip("cv2")
    monkeypatch.setattr(arrivals_module, "_FIRST_WAIT", 0.1)
    monkeypatch.setattr(arrivals_module, "_LONGEST_WAIT", 0.2)
    _, damaged = photos
    with running_camera([damaged]) as port:
        secret = f"http://user:s3cret@127.0.0.1:{port}/video?pwd=s3cret"
        file = write_station(secret, 'when = "trigger"')
        with serve_here(file) as line:
            wait_for(line, are("running", "cam"))
            state = lambda: line.get("/lines/cam/api/state")["source"]  # noqa: E731
            wait_until(lambda: state()["frames"] > 3)
            assert state()["taken"] == 0
            status, _, body = line.ask("/lines/cam/trigger", b"")
            assert (status, body) == (202, b'{"triggered":true}')
            wait_for(line, lambda x: x["cam"]["counts"] != {})
            Camera.is_cut = True
            found = wait_for(line, are("broken", "cam"))
            assert "It is tried again in" in found["cam"]["reason"]
            Camera.is_cut = False
            wait_for(line, are("running", "cam"))
            line.ask("/lines/cam/trigger", b"")
            wait_for(line, lambda x: count_images(x["cam"]) == 2)
            paths = ("/", "/lines/cam/", "/lines/cam/api/state", "/api/lines")
            metrics = line.ask("/lines/cam/metrics")[2].decode()
            assert 'skpatchsvdd_source_frames{outcome="taken"} 2.0' in metrics
            said = b"".join(line.ask(x)[2] for x in paths)
    assert b"http://***@127.0.0.1" in said
    assert b"s3cret" not in said
    assert "s3cret" not in "".join(capfd.readouterr())


def test_a_camera_of_rtsp_is_cut_and_comes_back(
    write_station, photos, tmp_path, monkeypatch, benchmarks
):
    from _rtsp import has_rtsp, running_rtsp

    if not has_rtsp():
        pytest.skip("there is no server of RTSP: see benchmarks/_rtsp.py")
    monkeypatch.setattr(arrivals_module, "_LONGEST_WAIT", 1)
    (tmp_path / "jpg").mkdir()
    Image.fromarray(photos[1]).convert("RGB").save(tmp_path / "jpg" / "0.jpg")
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    file = write_station(f"rtsp://127.0.0.1:{port}/stream", "when = 0.5")
    with serve_here(file) as line:
        for n_images in (1, 3):
            wait_for(line, are("broken", "cam"))
            with running_rtsp(tmp_path / "jpg", port):
                wait_for(line, are("running", "cam"))
                wait_for(line, lambda x, n=n_images: count_images(x["cam"]) >= n)
                shown = line.get("/lines/cam/api/images?only=abnormal")["images"]
                assert len(shown) >= n_images  # they are what the camera sees


@pytest.mark.slow
def test_kills_and_cuts_lose_and_double_no_image(write_station, photos, tmp_path):
    images, damaged = photos
    n_kills, n_images = 4, 5
    with running_camera([*images, damaged]) as port:
        secret = f"http://user:s3cret@127.0.0.1:{port}/video"
        file = write_station(secret, "when = 0.3")
        for name in "ab":
            shutil.copy(tmp_path / "cam.model", tmp_path / f"{name}.model")
            (tmp_path / name).mkdir()
            with file.open("a") as stream:
                stream.write(f'[lines.{name}]\nmodel = "{name}.model"\n')
                stream.write(f'source = "{name}"\n')
        for i in range(n_kills):
            with serve(file) as line:
                for name, j in itertools.product("ab", range(n_images)):
                    put(tmp_path / name, f"{i}_{j}.png", images[j])
                n_former = i * n_images
                wait_for(line, lambda x, n=n_former: count_images(x["a"]) > n)
                Camera.is_cut = True
                wait_for(line, are("broken", "cam"))
                Camera.is_cut = False
                wait_for(line, are("running", "cam"))
                line.kill()
        with serve(file) as line:
            n_all = n_kills * n_images
            wait_for(line, lambda x: all(count_images(x[y]) >= n_all for y in "ab"))
            time.sleep(2.5)  # two more looks
            for name in "ab":
                shown = line.get(f"/lines/{name}/api/images")["images"]
                assert len(shown) == len({x["name"] for x in shown}) == n_all
            shown = line.get("/lines/cam/api/images")["images"]
            names = [x["name"] for x in shown]
            assert len(names) == len(set(names)) >= n_kills
            assert all(x["verdict"] != "unreadable" for x in shown)


def count_images(line):
    return sum(line.get("counts", {}).values())
