"""The fits behind the tables, and their figures."""

import time
import warnings

import numpy as np
from _common import machine_name, stopwatch
from sklearn.exceptions import ConvergenceWarning

from paper.ablations import ablate
from paper.baselines import make_baseline
from paper.dimension import intrinsic_dimension
from paper.images import spread
from paper.tables import JOINED, PATCH_SVDD, SUMMED
from skpatchsvdd import PatchSVDD
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

# Images inspected together, and one by one, for the times of one.
N_BATCHED, N_TIMED = 64, 10
# Images from whose patches an intrinsic dimension is estimated, at most.
N_EMBEDDED = 100


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
    params = {"encoder": "hierarchical"} | line.params
    loss = params.pop("loss", None)
    est = PatchSVDD(random_state=seed, device=str(device)).set_params(**params)
    with warnings.catch_warnings(record=True) as caught, stopwatch(device) as seconds:
        warnings.simplefilter("always")
        # Half-trained figures must not be kept.
        warnings.filterwarnings("error", message="training was interrupted")
        try:
            with ablate(loss):
                est.fit(train)
        except UserWarning as interrupt:
            raise KeyboardInterrupt from interrupt
    undone = any(issubclass(w.category, ConvergenceWarning) for w in caught)
    return est, undone, seconds[0]


def measure_patch_svdd(line, seed, train, test, device):
    est, undone, fit_s = fit_patch_svdd(line, seed, train, device)
    sizes = est.patch_sizes_
    maps = {str(size): est.anomaly_map(test.images, scale=size) for size in sizes}
    summed = np.sum(list(maps.values()), axis=0)
    maps[JOINED] = np.prod(list(maps.values()), axis=0)  # as the estimator joins them
    maps[SUMMED] = summed
    batch, ones = test.images[:N_BATCHED], test.images[:N_TIMED]
    with stopwatch(device) as batch_s:
        est.anomaly_map(batch)
    est.anomaly_map(ones[:1])  # the first of its shape may take longer
    with stopwatch(device) as one_s:
        for image in ones:
            est.anomaly_map(image[None])
    parts = {part: rate(test, x, -x.max(axis=(1, 2))) for part, x in maps.items()}
    parts[JOINED] = rate(test, maps[JOINED], est.score_samples(test.images))
    return {
        "parts": parts,
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
