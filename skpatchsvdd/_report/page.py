"""One page that holds all it shows: images, maps, scores, and what was compared."""

import hashlib
import json
import os
import platform
from collections import deque
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import numpy as np
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from skpatchsvdd._calibration import p_values_from_scores
from skpatchsvdd._images import list_images, read_display, read_shape
from skpatchsvdd._report.patches import PatchPairs
from skpatchsvdd._report.pictures import (
    N_REGIONS,
    OVERLAY_SIZE,
    encode_map,
    encode_mask,
    encode_picture,
)
from skpatchsvdd._report.review import digest_file, fingerprint
from skpatchsvdd._utils import map_in_threads, replaced_when_whole
from skpatchsvdd._version import __version__
from skpatchsvdd.drift import drift_test

# Longest side of the pictures of images.
_IMAGE_SIZE = 256
# Images inspected at a time.
_BATCH = 16
# By how much height : width may differ from that of every training image.
_RATIO = 1.1
_TINY = 1e-12  # instead of a threshold of 0


def write_report(estimator, X, path, *, y=None, title="Inspection report") -> None:
    """Inspect images and write a page about them, to be opened in a browser.

    The page is one file that needs no network. It shows all images, the most abnormal
    first, with their maps, a slider for the threshold, the histogram of scores, and
    beside each alarm the normal patch that it was compared with.

    Parameters
    ----------
    estimator : PatchSVDD
        Fitted.
    X : list of str, or array-like of shape (n_images, height, width[, n_channels])
        Paths of image files, or images, as for `PatchSVDD.fit`. If the training images
        came as files that are still there, the page shows patches of them, too.
    path : str
        The file to write.
    y : array-like of shape (n_images,), default=None
        1 for good images and -1 for defective ones, where that is known: the page
        counts how many are found, and how many alarms are false.
    title : str, default="Inspection report"
        The page's heading.

    Examples
    --------
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> from skpatchsvdd.report import write_report
    >>> normal = make_textures(4, image_size=48, random_state=0)
    >>> test = make_textures(2, image_size=48, anomaly_fraction=0.5, random_state=1)
    >>> est = PatchSVDD(patch_size=32, max_iter=0, random_state=0).fit(normal.images)
    >>> write_report(est, test.images, "report.html", y=test.labels)  # doctest: +SKIP
    """
    if not hasattr(estimator, "explain"):
        raise TypeError(
            f"estimator must be a fitted PatchSVDD, got a {type(estimator).__name__}. "
            "Of a Pipeline, pass its last step, and X as the steps before it give it."
        )
    check_is_fitted(estimator)
    X = list_images(X)
    if y is not None:
        y = np.asarray(y)
        check_consistent_length(X, y)
        if not np.isin(y, (1, -1)).all():
            raise ValueError("y must be 1 for good images and -1 for defective ones.")
    page = Page(estimator, title)
    for start in range(0, len(X), _BATCH):
        batch = slice(start, start + _BATCH)
        labels = None if y is None else y[batch]
        has_kinds = len(estimator.defect_kinds_) > 0
        results = estimator.inspect(X[batch], explain=True, names=has_kinds)
        page.add(X[batch], results, labels)
    page.write(path)


class Page:
    """Collects what an inspection finds, and writes a page about it.

    Only the last `limit` images are kept, or all if it is None. `model_offset` is the
    model's own `offset_`, where the estimator was given another one.
    """

    def __init__(
        self,
        estimator,
        title,
        limit=None,
        model_offset=None,
        model=None,
        tells_drift=True,
    ):
        self._est, self._title, self._model = estimator, title, model
        self._tells_drift = tells_drift  # not of images chosen for how they look
        self._model_offset = estimator.offset_ if model_offset is None else model_offset
        self._images = deque(maxlen=limit)
        self._unreadable = {}
        self._n_seen = 0
        self._pairs = PatchPairs(estimator)
        self._notes = Notes(estimator)
        # Then masks are where damage is, and not what lies above a threshold.
        self._is_compared = estimator._fitted.comparison_weight > 0

    def __len__(self):
        return len(self._images)

    def add(self, X, results, labels=None, maps=None, masks=None):
        """Take in some images and what `inspect` says of them; see `describe`."""
        self.keep(self.describe(X, results, labels, maps, masks=masks))

    def describe(self, X, results, labels=None, maps=None, pictures=None, masks=None):
        """Return what the page shows of each of some images, for `keep`.

        `results` are of `inspect`, `labels` 1 or -1, `maps` files that the page refers
        to, `pictures` what `read_display` gives for X, and `masks` which pixels are
        truly defective, in the sizes that the images came in. Each but `results` may be
        None.
        """
        matches = self._find_matches(X, results)
        known, groups = self._est.calibration_scores_, self._est.calibration_groups_
        floor = f"{len(known)} normal images"
        if groups is not None and (n := len(np.unique(groups))) < len(known):
            floor += f" in {n} groups"
        self._pairs.check_files(matches.values())

        def describe(i):
            image = pictures[i] if pictures else read_display(X[i], OVERLAY_SIZE)
            described = self._describe(X[i], image, i, results, matches.get(i, ()))
            described["label"] = None if labels is None else int(labels[i])
            drawn = maps[i] if maps else None
            described["picture"] = os.path.abspath(drawn) if drawn else None
            if results.scores[i] < known.min():  # then p is at its least
                described["p_floor"] = floor
            if self._is_compared and np.any(results.masks[i]):
                described["mask"] = encode_mask(results.masks[i], _IMAGE_SIZE)
            if masks is not None and np.any(masks[i]):
                described["truth"] = encode_mask(np.asarray(masks[i]), _IMAGE_SIZE)
            return described

        return map_in_threads(describe, range(len(X)))

    def keep(self, described):
        """Take in what `describe` has returned."""
        self._images.extend(described)
        self._n_seen += len(described)
        for one in described:
            self._unreadable.pop(one["name"], None)

    def add_unreadable(self, file, reason):
        """Take in a file that could not be inspected, and why."""
        self._unreadable[str(file)] = str(reason)
        while len(self._unreadable) > (self._images.maxlen or len(self._unreadable)):
            self._unreadable.pop(next(iter(self._unreadable)))

    def _find_matches(self, X, results):
        """Return, by the index of each alarm, what its patches were compared with."""
        alarms = np.flatnonzero(np.asarray(results.labels) == -1).tolist()
        if "matches" in results:
            return {i: results.matches[i] for i in alarms}
        found = self._est.explain([X[i] for i in alarms]) if alarms else []
        return dict(zip(alarms, found, strict=True))

    def _describe(self, x, image, i, results, matches):
        """Return what the page knows of an image."""
        is_file, threshold = isinstance(x, str | Path), _as_threshold(self._est.offset_)
        size = results.maps[i].shape
        regions = results.regions[i][:N_REGIONS]
        fields = ["top", "left", "bottom", "right", "area"]
        # The first region, whose peak is the highest.
        pairs = self._pairs.show(matches[0], image, size) if len(matches) else []
        kinds = {}
        if "names" in results:
            names = results.names[i][:N_REGIONS]
            kinds["kinds"] = names["kind"].tolist()
            kinds["distances"] = names["distance"].round(4).tolist()
        return {
            "name": str(x) if is_file else f"image {self._n_seen + i}",
            "file": os.path.abspath(x) if is_file else None,
            "digest": _digest(x) if is_file else None,
            "size": list(size),
            "value": -float(results.scores[i]),
            "p": float(results.p_values[i]),
            "note": self._notes.find((*size, self._count_channels(x))),
            "thumb": encode_picture(image, _IMAGE_SIZE),
            "map": encode_map(results.maps[i] / np.float32(threshold)),
            "regions": [[int(region[name]) for name in fields] for region in regions],
            "matches": pairs,
            **kinds,
        }

    def _count_channels(self, x):
        """Return the channels that an image came with; arrays must have the model's."""
        n_channels = self._est.inspected_shape_[2]
        try:
            return read_shape(x)[2] if isinstance(x, str | Path) else n_channels
        except (OSError, ValueError):  # it has been moved away just now
            return n_channels

    def write(self, path):
        """Write the page; the file is whole, or what it was."""
        now = datetime.now().astimezone()
        n_images = f"{self._n_seen:,} image" + "s" * (self._n_seen != 1)
        if self._n_seen > len(self):
            n_images = f"the last {len(self):,} of {n_images}"
        content = {
            "title": self._title,
            "subtitle": f"{n_images}, {now:%d %B %Y, %H:%M}",
            "threshold": _as_threshold(self._est.offset_),
            "model_threshold": _as_threshold(self._model_offset),
            "model": self._model,
            **self._list_training(),
            **self._list_images(path),
            "unreadable": [
                {"file": x, "reason": reason} for x, reason in self._unreadable.items()
            ],
            "settings": self._list_settings(now),
            **self._test_drift(),
        }
        with replaced_when_whole(path) as partial:
            partial.write_text(_fill_in(content), "utf-8")

    def _list_images(self, path):
        """Return the images, and by what a review that a page saves is known again."""
        model, path = fingerprint(self._est), os.path.abspath(path)
        folder = _find_folder(x["file"] for x in self._images if x["file"] is not None)
        # Tells the page of this model, at its path, from others.
        key = hashlib.blake2b(os.fsencode(path) + b"/" + model.encode(), digest_size=12)
        return {
            "images": [_refer(x, os.path.dirname(path), folder) for x in self._images],
            "folder": folder or None,
            "fingerprint": model,
            "known_kinds": list(map(str, self._est.defect_kinds_)),
            "key": key.hexdigest(),
        }

    def _list_training(self):
        """Return the values of training images, their p-values, and the lowest."""
        est = self._est
        scores = est.calibration_scores_
        everyone = np.append(scores, -np.inf)
        p_values = p_values_from_scores(scores, everyone, est.calibration_groups_)
        return {
            "training": (-scores).tolist(),
            "training_p": p_values[:-1].tolist(),
            "least_p": float(p_values[-1]),
        }

    def _test_drift(self):
        """Test the images that may be normal: where it is known, those that are."""
        images = [x for x in self._images if x["label"] != -1]
        if not self._tells_drift:
            return {"drift": "", "drifted": False}
        if not images:
            what = "all are labelled defective" if self._images else "there are none"
            return {"drift": f"No images to tell drift by: {what}.", "drifted": False}
        scores = np.array([-x["value"] for x in images])
        all_good = all(x["label"] is not None for x in images)
        known, groups = self._est.calibration_scores_, self._est.calibration_groups_
        # Where all are known to be good, none is left out as possibly defective.
        options = {"defect_fraction": 0} if all_good else {}
        result = drift_test(known, scores, groups, **options)
        verdict = result.verdict
        if n_defective := len(self._images) - len(images):
            verdict += f" (Not counted, as labelled defective: {n_defective}.)"
        return {"drift": verdict, "drifted": bool(result.drifted)}

    def _list_settings(self, now):
        est = self._est
        height, width, channels = est.inspected_shape_
        defaults = type(est)().get_params(deep=False)
        given = est.get_params(deep=False)
        given = {k: v for k, v in given.items() if repr(v) != repr(defaults[k])}
        given.pop("roi", None)
        if est.roi_ is not None:
            given["roi"] = f"{np.mean(est.roi_):.0%} of the pixels are looked at"
        return [
            ("written", f"{now:%Y-%m-%d %H:%M:%S %Z}"),
            ("training images", f"{len(est.training_scores_)}"),
            ("inspected at", f"{height} x {width} pixels, {channels} channel(s)"),
            ("threshold", f"{-est.offset_ + 0.0:.6g}"),
            ("training steps", f"{est.n_iter_}, lambda {est.lam_:g}"),
            *((name, str(value)) for name, value in given.items()),
            ("skpatchsvdd", __version__),
            *((name, version(name)) for name in ("scikit-learn", "torch", "numpy")),
            ("Python", f"{platform.python_version()}, {platform.machine()}"),
        ]


def _refer(described, page_folder, image_folder):
    """Return what is known of an image with links and a path instead of its files.

    Links lead from the folder of the page; the path is below `image_folder`.
    """
    links = {name: _link(described[name], page_folder) for name in ("file", "picture")}
    path = described["file"]
    if path is not None:
        path = os.path.relpath(path, image_folder) if image_folder else path
        path = path.replace(os.sep, "/")
    return described | links | {"path": path}


def _find_folder(files):
    """Return the folder that all of some files are in, or "" if there is none."""
    try:
        return os.path.commonpath({os.path.dirname(file) for file in files})
    except ValueError:  # no files, or on several drives
        return ""


def _link(file, folder):
    if file is None:
        return None
    try:
        path = os.path.relpath(file, folder).replace(os.sep, "/")
        return quote(os.fsencode(path))  # a name need not be text
    except ValueError:  # on another drive
        return Path(file).as_uri()


def _as_threshold(offset):
    return max(-float(offset), _TINY)


def _digest(file):
    try:
        return digest_file(file)
    except OSError:  # it has been moved away just now
        return None


def _fill_in(content):
    """Return the page with all its parts; the data come last, as they may hold any."""
    folder = files("skpatchsvdd._report")
    text = folder.joinpath("page.html").read_text("utf-8")
    for place, kind in (("__STYLE__", "css"), ("__SCRIPT__", "js")):
        parts = [folder.joinpath(f"{x}.{kind}") for x in ("picture", "review")]
        text = text.replace(place, "".join(x.read_text("utf-8") for x in parts))
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return text.replace("__DATA__", data)


class Notes:
    """Notes on images that an estimator inspects, but was not made for."""

    def __init__(self, estimator):
        ratios = np.array([height / width for height, width in estimator._fitted.sizes])
        self._ratios = ratios.min(), ratios.max()
        self._n_channels = estimator.inspected_shape_[2]

    def find(self, shape):
        """Return what to know of an image of a shape in which it came, or ""."""
        height, width, n_channels = shape
        notes, (low, high) = [], self._ratios
        if not low / _RATIO <= height / width <= high * _RATIO:
            usual = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
            notes.append(
                f"distorted: height is {height / width:.2f} x width, and {usual} x in "
                "the training images"
            )
        if n_channels == 1 < self._n_channels:
            notes.append("grey, and the training images are in colour")
        return "; ".join(notes)
