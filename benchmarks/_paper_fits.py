"""The fits behind paper.py's tables: their images and their figures."""

import hashlib
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from _baselines import make_baseline
from _common import machine_name, stopwatch
from _paper_tables import JOINED, PATCH_SVDD
from sklearn.exceptions import ConvergenceWarning

from skpatchsvdd import PatchSVDD
from skpatchsvdd.analysis import intrinsic_dimension
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

QUICK_IMAGES = 20
# Images inspected together, and one by one, for the times of one.
N_BATCHED, N_TIMED = 64, 10
# Images from whose patches an intrinsic dimension is estimated, at most.
N_EMBEDDED = 100


class Images:
    """The images of one category, read when they are first asked for.

    Parameters
    ----------
    root : str or path
        Folder of the data set.
    category : str
        Folder below it.
    image_size : int
        Size to which images are resized.
    quick : bool
        Whether to take a few, spread over all.
    """

    def __init__(self, root, category, image_size, quick):
        self.root, self.category, self.image_size = root, category, image_size
        # The last part of the path, by which the paper knows it.
        self.class_name = Path(root, category).absolute().name
        n_train, labels = check_category(root, category)
        self.digest = digest_files(Path(root, category))
        self.train_places = np.arange(n_train)
        self.test_places = np.arange(len(labels))
        if quick:
            self.train_places = spread(self.train_places, QUICK_IMAGES)
            kinds = [np.flatnonzero(labels == label) for label in (1, -1)]
            kinds = [spread(places, QUICK_IMAGES // 2) for places in kinds]
            self.test_places = np.concatenate(kinds)
        self._arrays = None

    def arrays(self):
        """Return the training images, and images, labels and masks to test on."""
        if self._arrays is None:
            parts = self.root, self.category
            size = {"image_size": self.image_size}
            train = load_mvtec_ad(*parts, **size).images[self.train_places]
            test = load_mvtec_ad(*parts, split="test", **size)
            for name in ("images", "labels", "masks"):
                if test[name] is not None:
                    test[name] = test[name][self.test_places]
            self._arrays = train, test
        return self._arrays

    def forget(self):
        """Free the memory."""
        self._arrays = None


def check_category(root, category):
    """Count training images and list the labels of test images, or say what lacks."""
    try:
        train = load_mvtec_ad(root, category, as_paths=True)
        labels = load_mvtec_ad(root, category, split="test", as_paths=True).labels
    except FileNotFoundError as error:
        sys.exit(f"category {category}: {error}")
    if len(np.unique(labels)) < 2:
        sys.exit(
            f"category {category}: {Path(root, category, 'test')} needs both a folder "
            "'good' and one of abnormal images. Leave it out with --categories."
        )
    return len(train.images), labels


def digest_files(folder):
    """Digest the names and sizes of all files: other images have other figures."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(folder)} {path.stat().st_size}" for path in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def spread(places, n):
    """Choose at most n places, evenly."""
    return places[np.linspace(0, len(places) - 1, min(n, len(places))).astype(int)]


def run_fit(images, line, seed, device):
    """Fit a line's model and return its figures, those of maps by part."""
    train, test = images.arrays()
    measure = measure_patch_svdd if line.model == PATCH_SVDD else measure_baseline
    start = time.perf_counter()
    figures = measure(line, seed, train, test, device)
    figures["seconds"] = time.perf_counter() - start
    figures["machine"] = machine_name(device)
    return figures


def fit_patch_svdd(line, seed, train, device):
    """Fit a line's PatchSVDD; return it, whether its training was undone, seconds."""
    est = PatchSVDD(random_state=seed, device=str(device), **line.params)
    with warnings.catch_warnings(record=True) as caught, stopwatch(device) as seconds:
        warnings.simplefilter("always")
        # Half-trained figures must not be kept.
        warnings.filterwarnings("error", message="training was interrupted")
        try:
            est.fit(train)
        except UserWarning as interrupt:
            raise KeyboardInterrupt from interrupt
    undone = any(issubclass(w.category, ConvergenceWarning) for w in caught)
    return est, undone, seconds[0]


def measure_patch_svdd(line, seed, train, test, device):
    est, undone, fit_s = fit_patch_svdd(line, seed, train, device)
    sizes = est.patch_sizes_
    maps = {str(size): est.anomaly_map(test.images, scale=size) for size in sizes}
    maps[JOINED] = np.prod(list(maps.values()), axis=0)  # as the estimator joins them
    batch, ones = test.images[:N_BATCHED], test.images[:N_TIMED]
    with stopwatch(device) as batch_s:
        est.anomaly_map(batch)
    est.anomaly_map(ones[:1])  # the first of its shape may take longer
    with stopwatch(device) as one_s:
        for image in ones:
            est.anomaly_map(image[None])
    return {
        "parts": {part: rate(test, x, -x.max(axis=(1, 2))) for part, x in maps.items()},
        "undone": float(undone),
        "fit s": fit_s,
        "s in batches": batch_s[0] / len(batch),
        "s an image": one_s[0] / len(ones),
        "patches": sum(est.bank_size_.values()),
        **estimate_dimensions(est, train, seed),
    }


def measure_baseline(line, seed, train, test, device):
    model = make_baseline(line.model, seed, device, **line.params)
    with stopwatch(device) as fit_s:
        model.fit(train)
    with stopwatch(device) as all_s:
        scores = model.score_samples(test.images)
    maps = None
    if hasattr(model, "anomaly_map"):
        maps = model.anomaly_map(test.images)
    return {
        "parts": {JOINED: rate(test, maps, scores)},
        "fit s": fit_s[0],
        "s in batches": all_s[0] / len(test.images),
    }


def rate(test, maps, scores):
    """Return det, and seg where there are maps and masks; scores high for normal."""
    figures = {"det": detection_auroc(test.labels, scores)}
    if maps is not None and test.masks is not None:
        figures["seg"] = segmentation_auroc(test.masks, maps)
    return figures


def estimate_dimensions(est, train, seed):
    """Return the intrinsic dimension of the features of each scale, None for none."""
    if est.encoder == "raw":
        return {}
    chosen = train[spread(np.arange(len(train)), N_EMBEDDED)]
    result = {}
    for size in est.patch_sizes_:
        features = est.embed(chosen, size)  # (n, rows, cols, D)
        try:
            value = intrinsic_dimension(features, random_state=seed)
        except ValueError:  # all the same: they have collapsed
            value = None
        result[f"ID of K={size}"] = value
    return result
