"""Search that begins with pynndescent, of which exact search has the last word."""

import os
import pickle

import numpy as np
import torch

from skpatchsvdd._bank.exact import ExactIndex, find_needed
from skpatchsvdd._utils import Saved, count_threads, make_lock

# How many neighbours pynndescent is asked for. It could be told to look more widely,
# but then takes many times as long where many patches are almost the same.
_N_NEIGHBORS = 15
# pynndescent keeps what a query works with in its index: one at a time.
_QUERYING = make_lock()
_built_in = None  # the process in which an index was built first


class ApproximateIndex(Saved):
    """Exact search that begins with the distances that pynndescent finds.

    Some of those are too large. The comparison looks at the distances of all patches
    together, so that none of them may be. The same seed and number of threads, for
    building, give the same index.
    """

    # In a model file, which must not run code, there is the exact index alone.
    _saved = ("_exact", "_owners", "_index")

    def __init__(self, bank, n_jobs, seed):
        import numba  # slow to import: only for those who need it
        from pynndescent import NNDescent

        _check_process()
        if n_jobs is not None:
            n_jobs = min(count_threads(n_jobs), numba.config.NUMBA_NUM_THREADS)
        needed = find_needed(bank.rows, bank.owners)
        needed = slice(None) if needed is None else needed
        self._owners = bank.owners[needed]
        n_threads = numba.get_num_threads()
        try:
            index = NNDescent(
                bank.rows[needed],
                metric="euclidean",
                n_neighbors=_N_NEIGHBORS,
                random_state=seed,
                n_jobs=n_jobs,
            )
            index.prepare()
        finally:  # pynndescent does so only if all goes well
            numba.set_num_threads(n_threads)
        self._index = index
        self._exact = ExactIndex(bank._replace(rows=bank.rows.copy()), seed)

    def check_file(self):
        """Raise if the file that the rows are mapped from has been cut off."""
        self._exact.check_file()

    def __len__(self):
        return len(self._exact)

    def bank(self):
        """Return a copy of the bank, owner by owner."""
        return self._exact.bank()

    def view_bank(self):
        """Return the bank as it lies, in any order. Nothing may write to it."""
        return self._exact.view_bank()

    def query(self, features, left_out=None):
        """Return distances to the nearest rows; see `ExactIndex.query`."""
        if features.device.type != "cpu":
            return self._exact.query(features, left_out)
        left_out = [-1] * len(features) if left_out is None else left_out
        # Image by image: pynndescent's random start depends on the order in a call.
        proposed = [
            self._propose(image, owner)
            for image, owner in zip(features, left_out, strict=True)
        ]
        return self._exact.query(features, left_out, torch.stack(proposed))

    def _propose(self, features, owner):
        """Return distances to rows that are near, or infinite ones, (n_patches,)."""
        k = min(_N_NEIGHBORS, len(self._owners))
        with _QUERYING:
            rows, distances = self._load().query(features.numpy(), k=k, epsilon=0.0)
        distances = torch.from_numpy(distances.astype(np.float32))
        distances[torch.from_numpy(self._owners[rows] == owner)] = torch.inf
        return distances.amin(dim=1)

    def find_nearest(self, features, owner):
        """Find the nearest rows of a few patches; see `ExactIndex.find_nearest`."""
        return self._exact.find_nearest(features, owner)

    def search_on(self, device):
        """Return the exact search on a device; see `ExactIndex.search_on`."""
        return self._exact.search_on(device)

    def _load(self):
        """Return pynndescent's index; a reloaded one is unpacked on first use."""
        if isinstance(self._index, bytes):
            self._index = pickle.loads(self._index)
        return self._index

    def __getstate__(self):
        # As bytes, since pynndescent writes into its arrays: memory-mapped for reading
        # only, as joblib would map them, they would crash the interpreter.
        state = super().__getstate__()
        if not isinstance(state["_index"], bytes):
            packed = pickle.dumps(state["_index"], protocol=pickle.HIGHEST_PROTOCOL)
            state["_index"] = packed
        return state


def _check_process():
    """Raise where numba would end the process instead of building an index."""
    global _built_in
    if _built_in not in (None, os.getpid()):
        raise RuntimeError(
            "pynndescent cannot build an index here: this process was forked from one "
            "in which it has built one. Start processes by spawn, as joblib's loky "
            "does, or pass neighbors='exact'."
        )
    _built_in = os.getpid()
