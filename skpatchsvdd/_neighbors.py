"""The distance to the nearest normal patch, exact or approximate."""

import math
import pickle
import warnings
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from joblib import effective_n_jobs

from skpatchsvdd._clusters import Clusters, ClusterSearch
from skpatchsvdd._device import halve_without_memory

# Up to this many rows a CPU searches exactly, without pynndescent's compilation and
# index. From where on those would pay is an estimate.
EXACT_ROWS = 2**21
# On a GPU: rows of the bank whose smallest distance is looked at together, fewer where
# a row is so long that the differences would take longer than the products.
_BLOCK, _LONG_ROW_BLOCK = 128, 4
_LONG_ROW = 256
# Blocks, those with the smallest distances by the expanded square, that are decided
# by the difference.
_N_BLOCKS = 4
# Queries, products and differences held at a time.
_QUERIES = 2**14
_PRODUCTS = 2**28
_DIFFERENCES = 2**28
# How many neighbours pynndescent is asked for. It could be told to look more widely,
# but then takes many times as long where many patches are almost the same.
_N_NEIGHBORS = 15
# Share of an image's patches, those with the largest distances, that are decided by
# exact search.
_DECIDED = 1 / 20


def make_index(bank, method, device, n_jobs, seed):
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
    return ApproximateIndex(bank, n_jobs, seed)


class Bank(NamedTuple):
    """Features of normal patches of one scale.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Features, float32.
    owners : ndarray of shape (n_rows,)
        Which image each row is from, in ascending order.
    """

    rows: np.ndarray
    owners: np.ndarray


class ExactIndex:
    """Exact search in torch.

    On a CPU, from the first search on, the rows lie in clusters, most of which can be
    skipped. On a GPU all rows are looked at, in chunks that bound its memory:
    candidates are found by the expanded square, one matrix product a chunk, and decided
    by the norm of the difference in float32, so small distances keep their digits.

    Parameters
    ----------
    bank : Bank
        Normal features; centred in place.
    seed : int
        Seed of the clusters, which change how fast a search is, not what it finds.
    """

    def __init__(self, bank, seed=0):
        rows = bank.rows
        self.center = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        self.rows = np.subtract(rows, self.center, out=rows)
        self.owners = bank.owners
        # One cluster around the origin, for as long as there is no need for more.
        self.centers = np.zeros((1, rows.shape[1]), dtype=np.float32)
        self.starts = np.array([0, len(rows)])
        self._seed = seed
        self._is_clustered = False
        self._searches = {}

    def __len__(self):
        return len(self.rows)

    def bank(self):
        """Return a copy of the bank."""
        rows, owners = self._by_owner(torch.device("cpu"))
        return Bank(rows.numpy() + self.center, owners)

    def query(self, features, places=None):
        """Return the distance of each patch to the nearest row of the bank.

        Parameters
        ----------
        features : tensor of shape (n_images, n_patches, n_features)
            float32, on any device.
        places : list of int of length n_images, or None
            For each image, the image whose rows are left out, or -1. They are not if
            there are no others.

        Returns
        -------
        distances : tensor of shape (n_images, n_patches)
        """
        features = features - _as_tensor(self.center).to(features.device)
        if features.device.type != "cpu":
            return self._search_all(features, places)
        places = [-1] * len(features) if places is None else places
        # Image by image, so that no other image matters.
        return torch.stack(
            [
                self._search_clusters(image, place)
                for image, place in zip(features, places, strict=True)
            ]
        )

    def _search_clusters(self, features, place):
        if not self._is_clustered:
            self._cluster()
        if "cpu" not in self._searches:
            tensors = map(_as_tensor, (self.rows, self.centers))
            self._searches = {"cpu": ClusterSearch(*tensors, self.starts)}
        skipped = np.flatnonzero(self.owners == place) if place >= 0 else ()
        if len(skipped) in (0, len(self)):
            skipped = None
        return self._searches["cpu"].query(features, skipped)

    def _cluster(self):
        clusters = Clusters(self.rows, self._seed)
        self.rows, self.centers = clusters.rows, clusters.centers
        self.starts, self.owners = clusters.starts, self.owners[clusters.order]
        self._is_clustered = True

    def _search_all(self, features, places):
        n_images, n_patches, _ = features.shape
        device = features.device
        if device not in self._searches:
            rows, owners = self._by_owner(device)
            half_squares = torch.cat([x.square().sum(1) / 2 for x in rows.split(2**16)])
            self._searches = {device: (rows, half_squares, owners)}
        rows, half_squares, owners = self._searches[device]
        features = features.flatten(0, 1)
        skip = rows_of_images(owners, places)
        if skip is not None:
            skip = skip.to(device).repeat_interleave(n_patches, dim=0)

        def search(size):
            distances = []
            for start in range(0, len(features), size):
                chunk = features[start : start + size]
                out = None if skip is None else skip[start : start + size]
                blocks = _nearest_blocks(chunk, rows, half_squares, out)
                distances.append(_distances_in_blocks(chunk, rows, blocks, out))
            return torch.cat(distances)

        return halve_without_memory(search, _QUERIES).reshape(n_images, n_patches)

    def _by_owner(self, device):
        """Return the centred rows on a device and their owners, in ascending order."""
        cluster = np.arange(len(self.centers)).repeat(np.diff(self.starts))
        order = np.argsort(self.owners, kind="stable")
        rows = _as_tensor(self.rows).to(device)
        rows = rows + _as_tensor(self.centers).to(device)[torch.from_numpy(cluster)]
        return rows[torch.from_numpy(order).to(device)], self.owners[order]

    def __getstate__(self):
        return self.__dict__ | {"_searches": {}}


class ApproximateIndex:
    """pynndescent's search, with the largest distances of each image made exact.

    Distances of pynndescent are never too small, but some are too large, and an image's
    score is a maximum: a few lost patches would become false alarms.

    Parameters
    ----------
    bank : Bank
        Normal features.
    n_jobs : int or None
        Threads for building.
    seed : int
        The same seed and number of threads give the same index.
    """

    def __init__(self, bank, n_jobs, seed):
        import numba  # slow to import: only for those who need it
        from pynndescent import NNDescent

        if n_jobs is not None:
            n_jobs = min(effective_n_jobs(n_jobs), numba.config.NUMBA_NUM_THREADS)
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
        # Patches all of whose neighbours are left out count among the largest.
        n_lost = int(torch.isinf(distances).sum())
        n_decided = max(math.ceil(_DECIDED * len(distances)), n_lost)
        largest = distances.topk(n_decided).indices
        distances[largest] = self._exact.query(features[None, largest], [place])[0]
        return distances

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


def rows_of_images(owners, places):
    """For each image, the first of its rows and the one after the last, (n, 2).

    None of its rows if the bank holds no others.
    """
    if places is None or max(places) < 0:
        return None
    ends = np.searchsorted(owners, np.stack([places, np.add(places, 1)], axis=1))
    ends[ends[:, 1] - ends[:, 0] == len(owners)] = 0
    return torch.from_numpy(ends)


def _nearest_blocks(features, bank, half_squares, skip):
    """Find the blocks of the bank that hold the smallest distances, (n, k)."""
    block = _block_size(bank)
    n_rows = max(_PRODUCTS // len(features) // block, 1) * block
    if skip is not None:
        first, last = int(skip[:, 0].min()), int(skip[:, 1].max())
    negative = -features  # a sum, unlike a difference, is one kernel on a GPU
    minima = []
    for start in range(0, len(bank), n_rows):
        rows = slice(start, start + n_rows)
        # |q - b|^2 / 2 less |q|^2 / 2, which is the same for all rows
        x = torch.addmm(half_squares[rows], negative, bank[rows].T)
        if skip is not None and start < last and start + n_rows > first:
            row = torch.arange(start, start + x.shape[1], device=x.device)
            x.masked_fill_(_is_skipped(row, skip), torch.inf)
        if missing := -x.shape[1] % block:
            x = F.pad(x, (0, missing), value=torch.inf)
        minima.append(x.view(len(x), -1, block).amin(dim=2))
    minima = torch.cat(minima, dim=1)  # (n, n_blocks)
    n_blocks = min(_N_BLOCKS, minima.shape[1])
    return minima.topk(n_blocks, dim=1, largest=False, sorted=False).indices


def _distances_in_blocks(features, bank, blocks, skip):
    """Return the smallest distance to the rows of each query's blocks, (n,)."""
    n_differences = blocks.shape[1] * _block_size(bank) * bank.shape[1]
    size = max(_DIFFERENCES // n_differences, 1)
    parts = range(0, len(features), size)
    skips = [None if skip is None else skip[i : i + size] for i in parts]
    return torch.cat(
        [
            _smallest_distances(features[i : i + size], bank, blocks[i : i + size], out)
            for i, out in zip(parts, skips, strict=True)
        ]
    )


def _smallest_distances(features, bank, blocks, skip):
    block = _block_size(bank)
    rows = blocks[:, :, None] * block + torch.arange(block, device=blocks.device)
    rows = rows.flatten(1).clamp_(max=len(bank) - 1)  # (n, k * block)
    difference = bank[rows].sub_(features[:, None])  # (n, k * block, n_features)
    squares = difference.square_().sum(dim=2)
    if skip is not None:
        squares.masked_fill_(_is_skipped(rows, skip), torch.inf)
    return squares.amin(dim=1).sqrt()


def _block_size(bank):
    return _LONG_ROW_BLOCK if bank.shape[1] > _LONG_ROW else _BLOCK


def _is_skipped(rows, skip):
    return (rows >= skip[:, :1]) & (rows < skip[:, 1:])


def _as_tensor(array):
    with warnings.catch_warnings():
        # A memory-mapped bank cannot be written to, and nothing here does.
        warnings.filterwarnings("ignore", message=".*not writ(e)?able")
        return torch.from_numpy(array)
