"""Rows that are copies of others, which a search need not look at."""

import numpy as np

# Rows hashed or compared at a time: as many as stay in the cache of a core.
_AT_A_TIME = 2**12


def find_needed(rows, owners):
    """Tell which rows a search needs: not all of those that are the same, bit by bit.

    Identical images make for them, and so do backgrounds that are all black. A search
    that leaves out one owner at most finds one of two copies of different owners in any
    case: of rows that are the same it needs the first one, and the first one that
    another owner has. Without the rest every distance is what it is with them.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        float32.
    owners : ndarray of shape (n_rows,)
        The owner, image or group, of each row.

    Returns
    -------
    is_needed : ndarray of bool of shape (n_rows,), or None
        None if all rows are.
    """
    hashes = _hash_rows(rows)
    order = hashes.argsort(kind="stable")
    hashes = hashes[order]
    is_new = np.append(True, hashes[1:] != hashes[:-1])
    if is_new.all():
        return None
    first = np.empty_like(order)
    first[order] = order[is_new][is_new.cumsum() - 1]
    # Different rows may have the same hash by chance: they are no copies.
    for chunk in _split((~is_new).nonzero()[0]):
        chunk = order[chunk]
        is_other = (rows[chunk] != rows[first[chunk]]).any(axis=1)
        first[chunk[is_other]] = chunk[is_other]
    is_needed = _keep_two_owners(first, owners)
    return None if is_needed.all() else is_needed


def _hash_rows(rows):
    """Return a number of 64 bits for each row, the same for the same bits."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rng = np.random.RandomState(0)
    factors = rng.randint(2**63, size=bits.shape[1], dtype=np.uint64) | np.uint64(1)
    return np.concatenate([(chunk * factors).sum(axis=1) for chunk in _split(bits)])


def _split(rows):
    """Split rows into chunks of about `_AT_A_TIME`."""
    return np.array_split(rows, max(len(rows) // _AT_A_TIME, 1))


def _keep_two_owners(first, owners):
    """Tell which rows are needed, from the first that each is a copy of, or itself."""
    rows = np.arange(len(first))
    is_needed = first == rows
    others = rows[owners != owners[first]]  # ascending
    _, places = np.unique(first[others], return_index=True)
    is_needed[others[places]] = True
    return is_needed
