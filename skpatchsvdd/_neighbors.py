"""The distance to the nearest normal patch, exact or approximate."""

import pickle
import sys
import warnings
from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._clusters import Clusters, ClusterSearch
from skpatchsvdd._device import count_threads
from skpatchsvdd._tiles import TileSearch, WholeSearch

# Up to this many rows a CPU searches exactly, without pynndescent's compilation and
# index. From where on those would pay is an estimate.
EXACT_ROWS = 2**21
# Up to this many rows a GPU compares with all of them.
_WHOLE_ROWS = 2**16
# How many neighbours pynndescent is asked for. It could be told to look more widely,
# but then takes many times as long where many patches are almost the same.
_N_NEIGHBORS = 15


def make_index(bank, method, device, n_jobs, seed, log=None):
    """Index a bank of normal features.

    Parameters
    ----------
    bank : Bank
        Features of normal patches and the images they are from. The index takes it
        over.
    method : {"auto", "exact", "pynndescent"}
        "auto" is exact on a GPU and for banks of up to two million rows, and
        pynndescent for larger banks on a CPU.
    device : torch.device
        Where queries will come from.
    n_jobs : int or None
        Threads for building an approximate index.
    seed : int
        Seed of an index. An exact one gives the same distances for any.
    log : callable or None
        ``log(message)`` is told of compilations.

    Returns
    -------
    index : ExactIndex or ApproximateIndex
        ``index.query(features, places)`` gives distances.
    """
    if method == "auto":
        large = device.type == "cpu" and len(bank.rows) > EXACT_ROWS
        method = "pynndescent" if large else "exact"
    if method == "exact":
        return ExactIndex(bank, seed)
    if log is not None and "pynndescent" not in sys.modules:
        log("compiling pynndescent, about a minute once in a process")
    return ApproximateIndex(bank, n_jobs, seed)


class Bank(NamedTuple):
    """Features of normal patches of one scale.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Features, float32.
    owners : ndarray of shape (n_rows,)
        Whose each row is: the number of an image, or of a group of images.
    """

    rows: np.ndarray
    owners: np.ndarray


class ExactIndex:
    """Exact search in torch.

    From the first search on, the rows lie in clusters, most of which can be skipped.
    Candidates are found by the expanded square and decided by the difference: a
    distance is that of a row, and at most (1 + 1e-5) times that of the nearest one.

    Parameters
    ----------
    bank : Bank
        Normal features.
    seed : int
        Seed of the clusters, which change how fast a search is, not what it finds.
    """

    gives_bounds = False

    def __init__(self, bank, seed=0):
        self.rows, self.owners = bank
        self._has_others = bool((bank.owners != bank.owners[0]).any())
        self.centers = self.starts = None  # of clusters, as long as there is no need
        self._seed = seed
        self._searches = {}

    def __len__(self):
        return len(self.rows)

    def bank(self):
        """Return a copy of the bank."""
        order = np.argsort(self.owners, kind="stable")
        return Bank(self.rows[order], self.owners[order])

    def query(self, features, places=None):
        """Return the distance of each patch to the nearest row of the bank.

        Parameters
        ----------
        features : tensor of shape (n_images, n_patches, n_features)
            float32, on any device.
        places : list of int of length n_images, or None
            For each image, the owner whose rows are left out, or -1. They are not if
            there are no others.

        Returns
        -------
        distances : tensor of shape (n_images, n_patches)
        """
        if places is None or not self._has_others:
            places = [-1] * len(features)
        return self._search_on(features.device).query(features, places)

    def _search_on(self, device):
        """Return the search on a device; rows are clustered and moved there once."""
        if self.centers is None:
            clusters = Clusters(self.rows, self._seed, device)
            self.rows, self.centers = clusters.rows, clusters.centers
            self.starts, self.owners = clusters.starts, self.owners[clusters.order]
        if device not in self._searches:
            rows, centers = (
                _as_tensor(x).to(device) for x in (self.rows, self.centers)
            )
            search = _choose_search(device, len(rows))
            search = search(rows, centers, self.starts, self.owners)
            self._searches = {device: search}
        return self._searches[device]

    def __getstate__(self):
        return self.__dict__ | {"_searches": {}}


class ApproximateIndex:
    """pynndescent's search: its distances are never too small, but some are too large.

    Parameters
    ----------
    bank : Bank
        Normal features.
    n_jobs : int or None
        Threads for building.
    seed : int
        The same seed and number of threads give the same index.
    """

    gives_bounds = True

    def __init__(self, bank, n_jobs, seed):
        import numba  # slow to import: only for those who need it
        from pynndescent import NNDescent

        if n_jobs is not None:
            n_jobs = min(count_threads(n_jobs), numba.config.NUMBA_NUM_THREADS)
        index = NNDescent(
            bank.rows,
            metric="euclidean",
            n_neighbors=_N_NEIGHBORS,
            random_state=seed,
            n_jobs=n_jobs,
        )
        index.prepare()
        self._index = index
        self._owners = bank.owners
        self._exact = ExactIndex(bank._replace(rows=bank.rows.copy()), seed)

    def __len__(self):
        return len(self._exact)

    def bank(self):
        """Return a copy of the bank."""
        return self._exact.bank()

    def query(self, features, places=None):
        """Return the distance of each patch to about the nearest row of the bank.

        Parameters and return value are those of `ExactIndex.query`.
        """
        places = [-1] * len(features) if places is None else places
        # Image by image: pynndescent's random start depends on the place in a call.
        distances = [
            self._query_image(image.cpu(), place)
            for image, place in zip(features, places, strict=True)
        ]
        return torch.stack(distances).to(features.device)

    def _query_image(self, features, place):
        k = min(_N_NEIGHBORS, len(self))
        rows, distances = self._load().query(features.numpy(), k=k, epsilon=0.0)
        distances = torch.from_numpy(distances.astype(np.float32))
        distances[torch.from_numpy(self._owners[rows] == place)] = torch.inf
        distances = distances.amin(dim=1)
        # Where all neighbours found are left out there is no bound.
        lost = torch.isinf(distances)
        if lost.any():
            distances[lost] = self.decide(features[lost], place)
        return distances

    def decide(self, features, place):
        """Return the exact distances of some patches (n, n_features) of one image."""
        return self._exact.query(features[None], [place])[0]

    def _load(self):
        """Return pynndescent's index; a reloaded one is unpacked on first use."""
        if isinstance(self._index, bytes):
            self._index = pickle.loads(self._index)
        return self._index

    def __getstate__(self):
        # As bytes, since pynndescent writes into its arrays: memory-mapped for reading
        # only, as joblib would map them, they would crash the interpreter.
        packed = self._index
        if not isinstance(packed, bytes):
            packed = pickle.dumps(packed, protocol=pickle.HIGHEST_PROTOCOL)
        return self.__dict__ | {"_index": packed}


def _choose_search(device, n_rows):
    if device.type == "cpu":
        return ClusterSearch
    # Integers of 64 bits, of which tiles make use, are not for every kind of GPU.
    is_large = device.type == "cuda" and n_rows > _WHOLE_ROWS
    return TileSearch if is_large else WholeSearch


def _as_tensor(array):
    with warnings.catch_warnings():
        # A memory-mapped bank cannot be written to, and nothing here does.
        warnings.filterwarnings("ignore", message=".*not writ(e)?able")
        return torch.from_numpy(array)
