"""How wrong expanded squares can be, and distances that hold in spite of it."""

import torch

from skpatchsvdd._utils import halve_without_memory

# A row that is nearer by less than this fraction of the distance may be missed: far
# below what a score is read to, and above the rounding of a float32 sum.
_TOLERANCE = 1e-5
# Numbers of differences held at a time: on a CPU as many as stay in a core's cache.
_CPU_NUMBERS, _GPU_NUMBERS = 2**17, 2**24
# Added where errors are none, so that a number is below its sum with one.
TINY = torch.finfo(torch.float32).tiny


def product_error(n_features):
    """Bound the rounding error of an expanded half square, |x|^2/2 + |y|^2/2 - xy.

    As a factor of ``|x|^2 + |y|^2``: each of the sums of products is wrong by at most
    `n_features` roundings in whichever order it is taken. A few more are for x and y,
    which are rounded differences, and for adding up.
    """
    return (n_features + 16) * 2.0**-24


class Nearest:
    """Distances to the nearest rows found so far: always those of rows.

    They come from differences, which have all their digits. Expanded squares only tell
    which rows to look at. `half_squares` of distances are infinite as long as there are
    none.
    """

    def __init__(self, queries, rows):
        self.queries, self._rows = queries, rows
        self.half_squares = torch.full_like(queries[:, 0], torch.inf)
        is_cpu = queries.device.type == "cpu"
        numbers = _CPU_NUMBERS if is_cpu else _GPU_NUMBERS
        self._n_pairs = max(numbers // queries.shape[1], 1)

    def offer(self, queries, rows):
        """Look at pairs of a query and a row, given by their indices."""
        parts = zip(*(x.split(self._n_pairs) for x in (queries, rows)), strict=True)
        for i, (query, row) in enumerate(parts):
            if i > 0:  # Copies of a row would make for pairs without end.
                is_open = self.half_squares[query] > 0
                query, row = query[is_open], row[is_open]
                if len(query) == 0:
                    continue
            difference = self.queries.index_select(0, query)
            difference -= self._rows.index_select(0, row)
            half_squares = torch.linalg.vecdot(difference, difference) / 2
            self.half_squares.scatter_reduce_(0, query, half_squares, "amin")

    def limits(self, queries, query_squares, errors):
        """Return what products must fall below for their rows to be looked at.

        `queries` are indices, `query_squares` half their squares, which products leave
        out, and `errors` a bound of the rounding error of the sum of both.
        """
        nearer = self.half_squares[queries] * (1 - 2 * _TOLERANCE)
        # A distance of zero cannot improve.
        return torch.where(nearer > 0, nearer - query_squares + errors, -torch.inf)

    def distances(self):
        """Return the distances found, (n_queries,)."""
        return (2 * self.half_squares).sqrt()


def query_chunks(query, features, left_out, size):
    """Query the patches of images in chunks, smaller ones where memory runs out.

    ``query(queries, left_out)`` returns distances, (n,), of queries (n, n_features)
    without the rows of an owner for each, (n,); None where all rows count. The rest is
    that of `ClusterSearch.query`; chunks have `size` queries.
    """
    queries = features.flatten(0, 1)
    owners = None
    if max(left_out) >= 0:
        owners = torch.tensor(left_out, device=queries.device)
        owners = owners.repeat_interleave(features.shape[1])

    def search(size):
        starts = range(0, len(queries), size)
        chunks = [None if owners is None else owners[i : i + size] for i in starts]
        pairs = zip(queries.split(size), chunks, strict=True)
        return torch.cat([query(*pair) for pair in pairs])

    return halve_without_memory(search, size).view(features.shape[:2])
