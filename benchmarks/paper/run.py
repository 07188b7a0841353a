"""The run of all fits behind a table, and the cache it goes on from."""

import hashlib
import json
import math
import os
import time
from pathlib import Path

from _common import machine_name

import skpatchsvdd
from paper.fits import run_fit

BAR = 20  # characters


def run_all(images, lines, device, args):
    """Fit all that is not in the cache; return figures by line, and what failed."""
    pairs = [
        (shared, seed)
        for shared in group_lines(lines)
        for seed in (args.seeds if shared[0].is_seeded else args.seeds[:1])
    ]
    n_fits = len(images) * len(pairs)
    run = Run(Cache(args.cache), n_fits, device, args.quick)
    for one in images:
        for shared, seed in pairs:
            run.add(one, shared, seed)
        one.forget()
    return run.fits, run.failures


def group_lines(lines):
    """Group lines that share a fit."""
    groups = {}
    for line in lines:
        groups.setdefault((line.model, str(line.params)), []).append(line)
    return list(groups.values())


class Run:
    """Fits, one after the other, that are not in the cache, and a line about each.

    Parameters
    ----------
    cache : Cache
        Where figures are kept.
    n_fits : int
        How many there will be, with those from the cache.
    device : torch.device
        Where to compute.
    quick : bool
        Whether the images are few.

    Attributes
    ----------
    fits : list of dict
        Figures, one for each line of each fit.
    failures : list of str
        Which fits raised what.
    """

    def __init__(self, cache, n_fits, device, quick):
        self.cache, self.n_fits = cache, n_fits
        self.device, self.quick = device, quick
        self.fits, self.failures = [], []
        self._n_begun = 0
        self._fit_seconds = []

    def add(self, images, lines, seed):
        """Fit once for lines that share a fit, or take figures from the cache."""
        self._n_begun += 1
        labels = " + ".join(line.label for line in lines)
        name = f"{images.category}, {labels}, seed {seed}"
        try:
            figures, source = self._find(images, lines[0], seed)
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
            self._tell(f"FAILED {self.failures[-1]}")
            return
        own = [make_fit(line, images, seed, figures) for line in lines]
        self.fits += own
        self._tell(f"{name}: {describe(own)}, {source}")

    def _find(self, images, line, seed):
        key = make_key(images, line, seed, self.device, self.quick)
        figures = self.cache.load(key)
        if figures is not None:
            return figures, "cached"
        start = time.perf_counter()
        figures = run_fit(images, line, seed, self.device)
        self._fit_seconds.append(time.perf_counter() - start)
        self.cache.save(key, figures)
        return figures, f"in {self._fit_seconds[-1]:.1f} s"

    def _tell(self, text):
        print(f"{self._bar()} {text}", flush=True)

    def _bar(self):
        """Say how far the run is, and, judged by its fits, what is left."""
        done = BAR * self._n_begun // self.n_fits
        bar = f"{'#' * done}{'.' * (BAR - done)} {self._n_begun}/{self.n_fits}"
        if not self._fit_seconds:
            return bar
        mean = sum(self._fit_seconds) / len(self._fit_seconds)
        n_left = self.n_fits - self._n_begun
        if n_left == 0:
            return f"{bar}:"
        return f"{bar}, about {math.ceil(mean * n_left / 60)} min left:"


class Cache:
    """One JSON file a fit, in a folder.

    Parameters
    ----------
    folder : str or path
        Where the files are.
    """

    def __init__(self, folder):
        self.folder = Path(folder)

    def load(self, key):
        """Return what was kept under a key, or None if it is not there or damaged."""
        try:
            figures = json.loads(self._path(key).read_text())["figures"]
            rated = [part["det"] for part in figures["parts"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return figures if rated else None

    def save(self, key, figures):
        """Keep figures under a key; the file is there whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(json.dumps({"key": key, "figures": figures}, indent=1))
        unfinished.replace(path)

    def _path(self, key):
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        name = key["category"].replace("/", "_").strip(".") or "root"
        return self.folder / f"{name}-{key['model']}-{key['seed']}-{digest[:12]}.json"


def make_key(images, line, seed, device, quick):
    """Return all that a fit's figures depend on."""
    key = {
        "version": skpatchsvdd.__version__,
        "data": str(Path(images.root).resolve()),
        "category": images.category,
        "model": line.model,
        "params": line.params,
        "seed": seed,
        "machine": machine_name(device),
        "quick": quick,
        "n_train": len(images.train_places),
        "n_test": len(images.test_places),
        "image_size": images.image_size,
        "files": images.digest,
    }
    return key | {"timed": True} if line.is_timed else key


def make_fit(line, images, seed, figures):
    """Return one line's figures of a fit."""
    common = {name: x for name, x in figures.items() if name != "parts"}
    names = {"category": images.category, "class": images.class_name}
    names |= {"label": line.label, "seed": seed}
    return names | figures["parts"][line.part] | common


def describe(fits):
    """Write det/seg of each line, or det where there are no maps."""
    names = [name for name in ("det", "seg") if fits[0].get(name) is not None]
    texts = ["/".join(f"{fit[name]:.3f}" for name in names) for fit in fits]
    return f"{'/'.join(names)} {', '.join(texts)}"
