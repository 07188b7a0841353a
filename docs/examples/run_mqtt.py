"""Publish lines of JSON: skpatchsvdd serve ... --json | python run_mqtt.py HOST PORT"""

import json
import sys

import paho.mqtt.client as mqtt


def publish(lines, host, port, topic="line1"):
    """Publish each line of JSON, alarms so that a broker keeps the last one."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect(host, port)
    client.loop_start()  # reconnects by itself
    for line in lines:
        event = json.loads(line)
        is_alarm = event["verdict"] == "abnormal"
        name = f"{topic}/{'alarm' if is_alarm else 'image'}"
        client.publish(name, line.strip(), qos=1, retain=is_alarm).wait_for_publish()
    client.disconnect()


if __name__ == "__main__":
    publish(sys.stdin, sys.argv[1], int(sys.argv[2]))
