"""One page that holds all it shows: images, maps, scores, and what was compared."""

import json
import platform
from collections import deque
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from skpatchsvdd._images import list_images, read_display
from skpatchsvdd._report.pictures import encode_map, encode_picture
from skpatchsvdd._utils import replaced_when_whole
from skpatchsvdd._version import __version__
from skpatchsvdd.drift import drift_test

# Longest side of the pictures of images and of patches.
_IMAGE_SIZE, _PATCH_SIZE = 256, 96
# Images inspected at a time, and regions of an image that are listed.
_BATCH = 16
_N_REGIONS = 10
# Fraction of a batch that may be defective, when it is asked whether it has drifted: as
# many as there are alarms, but no less and no more than this.
_DEFECTS = 0.2, 0.5
_TINY = 1e-12  # instead of a threshold of 0
_PACKAGES = ("scikit-learn", "torch", "numpy")


def write_report(estimator, X, path, *, y=None, title="Inspection report"):
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
    X = list_images(X, estimator.image_shape)
    if y is not None:
        y = np.asarray(y)
        check_consistent_length(X, y)
        if not np.isin(y, (1, -1)).all():
            raise ValueError("y must be 1 for good images and -1 for defective ones.")
    page = Page(estimator, title)
    for start in range(0, len(X), _BATCH):
        some = slice(start, start + _BATCH)
        labels = None if y is None else y[some]
        page.add(X[some], estimator.inspect(X[some]), labels)
    page.write(path)


class Page:
    """Collects what an inspection finds, and writes a page about it.

    Parameters
    ----------
    estimator : PatchSVDD
        Fitted.
    title : str
        The page's heading.
    limit : int or None
        How many images to keep, the last ones; None keeps all.
    model_offset : float or None
        The model's own `offset_`, where `estimator` was given another one.
    """

    def __init__(self, estimator, title, limit=None, model_offset=None):
        self._est = estimator
        self._title = title
        self._model_offset = estimator.offset_ if model_offset is None else model_offset
        self._images = deque(maxlen=limit)
        self._unreadable = {}
        self._n_seen = 0
        # The same normal image is near to many others.
        self._read_training = lru_cache(maxsize=16)(read_display)

    def __len__(self):
        return len(self._images)

    def add(self, X, results, labels=None):
        """Take in some images, files or arrays, and what `inspect` says of them."""
        alarms = [i for i, label in enumerate(results.labels) if label == -1]
        matches = {}
        if alarms:
            explained = self._est.explain([X[i] for i in alarms])
            matches = dict(zip(alarms, explained, strict=True))
        for i, x in enumerate(X):
            name = str(x) if isinstance(x, str | Path) else f"image {self._n_seen}"
            label = None if labels is None else int(labels[i])
            image = read_display(x)
            described = self._describe(name, image, results, i, label)
            described["matches"] = (
                self._show(matches[i][0], image) if i in matches else []
            )
            self._images.append(described)
            self._unreadable.pop(name, None)
            self._n_seen += 1

    def add_unreadable(self, file, reason):
        """Take in a file that could not be inspected, and why."""
        self._unreadable[str(file)] = str(reason)
        while len(self._unreadable) > (self._images.maxlen or len(self._unreadable)):
            self._unreadable.pop(next(iter(self._unreadable)))

    def _describe(self, name, image, results, i, label):
        """Return what the page knows of an image."""
        regions = results.regions[i][:_N_REGIONS]
        fields = ["top", "left", "bottom", "right", "area"]
        return {
            "name": name,
            "value": -float(results.scores[i]),
            "p": float(results.p_values[i]),
            "label": label,
            "thumb": encode_picture(image, _IMAGE_SIZE),
            "map": encode_map(results.maps[i] / self._threshold),
            "regions": [[int(region[name]) for name in fields] for region in regions],
        }

    @property
    def _threshold(self):
        return _as_threshold(self._est.offset_)

    def _show(self, matches, image):
        """Return pictures of patches, by scale, and what they were compared with."""
        pairs = zip(matches, self._est.patch_sizes_, strict=True)
        return [self._show_one(match, size, image) for match, size in pairs]

    def _show_one(self, match, size, image):
        number = int(match["image"])
        file = self._est.training_files_[number]
        origin, normal = f"training image {number}", None
        if file is not None:
            origin = f"training image {'/'.join(Path(file).parts[-2:])}"
            try:
                normal = _cut(self._read_training(file), match, "image_")
            except (OSError, ValueError):
                origin += ", which can no longer be read"
        return {
            "size": size,
            "patch": _cut(image, match, ""),
            "normal": normal,
            "from": origin,
        }

    def write(self, path):
        """Write the page; the file is whole, or what it was."""
        est = self._est
        text = files("skpatchsvdd._report").joinpath("page.html").read_text("utf-8")
        now = datetime.now().astimezone()
        n_images = f"{self._n_seen:,} image" + "s" * (self._n_seen != 1)
        if self._n_seen > len(self):
            n_images = f"the last {len(self):,} of {n_images}"
        content = {
            "title": self._title,
            "subtitle": f"{n_images}, {now:%d %B %Y, %H:%M}",
            "threshold": self._threshold,
            "model_threshold": _as_threshold(self._model_offset),
            "unreadable": [
                {"file": file, "reason": reason}
                for file, reason in self._unreadable.items()
            ],
            "training": (-est.training_scores_[est.calibrates_]).tolist(),
            "images": list(self._images),
            "settings": self._list_settings(now),
            **self._test_drift(),
        }
        data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
        with replaced_when_whole(path) as partial:
            partial.write_text(text.replace("__DATA__", data), "utf-8")

    def _test_drift(self):
        """Test the images that may be normal: where it is known, those that are."""
        est = self._est
        images = [x for x in self._images if x["label"] != -1]
        if not images:
            what = "all are labelled defective" if self._images else "there are none"
            return {"drift": f"No images to tell drift by: {what}.", "drifted": False}
        scores = np.array([-x["value"] for x in images])
        share = 0.0
        if any(x["label"] is None for x in images):
            # A batch of many defects is no drift, but one of nothing else is.
            share = float(np.clip(np.mean(scores < est.offset_), *_DEFECTS))
        groups = None if est.groups_ is None else est.groups_[est.calibrates_]
        training_scores = est.training_scores_[est.calibrates_]
        result = drift_test(training_scores, scores, groups, defect_fraction=share)
        verdict = result.verdict
        if n_left_out := int(share * len(scores)):
            verdict += f" (Not counted, as possibly defective: {n_left_out}.)"
        if n_defective := len(self._images) - len(images):
            verdict += f" (Not counted, as labelled defective: {n_defective}.)"
        return {"drift": verdict, "drifted": bool(result.drifted)}

    def _list_settings(self, now):
        est = self._est
        height, width, channels = est.inspected_shape_
        defaults = type(est)().get_params()
        given = {
            name: value
            for name, value in est.get_params().items()
            if name != "roi" and repr(value) != repr(defaults[name])
        }
        if est.roi_ is not None:
            given["roi"] = f"{np.mean(est.roi_):.0%} of the pixels are looked at"
        return [
            ("written", f"{now:%Y-%m-%d %H:%M:%S %Z}"),
            ("training images", f"{len(est.training_scores_)}"),
            ("inspected at", f"{height} x {width} pixels, {channels} channel(s)"),
            ("threshold", f"{-est.offset_:.6g}"),
            ("training steps", f"{est.n_iter_}, lambda {est.lam_:g}"),
            *((name, str(value)) for name, value in given.items()),
            ("skpatchsvdd", __version__),
            *((name, version(name)) for name in _PACKAGES),
            ("Python", f"{platform.python_version()}, {platform.machine()}"),
        ]


def _as_threshold(offset):
    return max(-float(offset), _TINY)


def _cut(image, match, prefix):
    top, left, bottom, right = (
        int(match[f"{prefix}{name}"]) for name in ("top", "left", "bottom", "right")
    )
    return encode_picture(image[top:bottom, left:right], _PATCH_SIZE)
