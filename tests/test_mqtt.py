"""The program of docs/live.rst that publishes by MQTT, with a real broker."""

import json
import runpy
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

mqtt = pytest.importorskip("paho.mqtt.client")
BROKER = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
PROGRAM = Path(__file__).parents[1] / "docs" / "examples" / "run_mqtt.py"


@pytest.fixture
def port():
    """The port of a broker."""
    if BROKER is None:
        pytest.skip("mosquitto is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [BROKER, "-p", str(port)]
    broker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        broker.kill()
        broker.wait()


def test_alarms_reach_a_subscriber(port):
    taken, is_ready = [], []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda *args: taken.append((args[2].topic, args[2].payload))
    client.on_subscribe = lambda *args: is_ready.append(True)
    client.connect("127.0.0.1", port)
    client.subscribe("line1/#", qos=1)
    client.loop_start()
    end = time.monotonic() + 60
    while not is_ready and time.monotonic() < end:
        time.sleep(0.01)
    lines = [json.dumps({"verdict": x}) + "\n" for x in ("normal", "abnormal")]
    runpy.run_path(str(PROGRAM))["publish"](lines, "127.0.0.1", port)
    while len(taken) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    client.loop_stop()
    assert dict(taken) == {
        "line1/image": lines[0].strip().encode(),
        "line1/alarm": lines[1].strip().encode(),
    }
