"""What a line counts, in the format of Prometheus."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)

# Upper ends of the spans of the histogram of seconds.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_VERDICTS = ("normal", "abnormal")


class Metrics:
    """Counters of a line, from any thread, and what else is true when it is asked."""

    def __init__(self):
        registry = self._registry = CollectorRegistry()
        watched = "skpatchsvdd_watched_images", "Images of the folder.", ["verdict"]
        self.watched = Counter(*watched, registry=registry)
        requested = "skpatchsvdd_requested_images", "Images of requests.", ["outcome"]
        self.requested = Counter(*requested, registry=registry)
        for verdict in (*_VERDICTS, "unreadable"):
            self.watched.labels(verdict)  # which is 0 until there is one
        for outcome in (*_VERDICTS, "refused", "busy"):
            self.requested.labels(outcome)
        seconds = "skpatchsvdd_image_seconds", "Seconds that an image took."
        self._seconds = Histogram(*seconds, registry=registry, buckets=_SECONDS)

    def measure(self, seconds, n_images):
        """Count how long images took together, each as long as the others."""
        for _ in range(n_images):
            self._seconds.observe(seconds / n_images)

    def write(self, line, n_queued):
        """Return all of it, as bytes."""
        now = CollectorRegistry()

        def make_gauge(name, text, labels=()):
            return Gauge(f"skpatchsvdd_{name}", text, labels, registry=now)

        alarms, signals = line.store.count_waiting()
        make_gauge("queued_images", "Images of requests that wait.").set(n_queued)
        make_gauge("waiting_alarms", "Alarms nobody has looked at.").set(alarms)
        make_gauge("waiting_signals", "Signals not sent yet.").set(signals)
        drift = make_gauge("drift_p_value", "Small if scores have drifted.", ["span"])
        for span, p_value in line.list_drifts():
            drift.labels(span).set(p_value)
        if (seconds := line.seconds_since_look) is not None:
            text = "Since the folder was looked at."
            make_gauge("seconds_since_look", text).set(seconds)
        source = line.arrivals and line.arrivals.describe()
        if source:
            frames = make_gauge("source_frames", "Frames of the source.", ["outcome"])
            for outcome in ("taken", "dropped"):
                frames.labels(outcome).set(source[outcome])
        model = Info("skpatchsvdd_model", "The model.", registry=now)
        model.info({"digest": line.model.digest})
        return generate_latest(self._registry) + generate_latest(now)
