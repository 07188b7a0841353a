"""The search for the nearest row, as an operation that the graph of a file holds.

Rows lie in clusters, most of which can be skipped: each query looks at those that could
hold a row nearer than what it has found so far, by bounds that are certain. In a
cluster, the four nearest rows are found by expanded squares, and the nearest of these
by differences: a distance is that of a row, and no other row is nearer by more than the
rounding of expanded squares.
"""

import numpy as np
import torch

from skpatchsvdd._bank import ClusterBounds, Clusters, find_needed
from skpatchsvdd._utils import as_columns, expand, halve_squares

DOMAIN, NAME = "skpatchsvdd", "FindNearest"
# Version of the standard operations that the search is written in.
OPSET = 18
# Rows that all queries are compared with first, for a distance to begin with: so few
# take a tenth of the time of the rest, and most clusters can be skipped from there on.
_N_FIRST = 1024
_SEED = 0
# Rows of a cluster, about, of small and large banks, and how many clusters there should
# be between: smaller ones round less.
_FEWEST_ROWS, _MOST_ROWS, _N_CLUSTERS = 32, 1024, 128
# Rows of a cluster that are compared by differences.
_N_NEAREST = 4
# Coordinates are multiplied by this, so that squared distances are half squares.
_HALF = 0.5**0.5
_INPUTS = [
    *("queries", "bounds", "first", "rows", "centers"),
    *("starts", "stops", "tops", "counts"),
]
# The body of a loop over the clusters: what is computed, of what, and how.
_STEPS = [
    ("bound", "Gather", ["bounds", "i"], {}),
    ("is_open", "Less", ["bound", "found"], {}),
    ("open", "NonZero", ["is_open"], {}),
    ("which", "Transpose", ["open"], {"perm": [1, 0]}),
    ("some", "GatherND", ["queries", "which"], {}),
    ("center", "Gather", ["centers", "i"], {}),
    ("x", "Sub", ["some", "center"], {}),
    ("start", "Gather", ["starts", "i"], {}),
    ("stop", "Gather", ["stops", "i"], {}),
    ("own", "Slice", ["rows", "start", "stop", "zero"], {}),
    ("products", "Gemm", ["x", "own"], {"alpha": -2.0, "transB": 1}),
    ("top", "Gather", ["tops", "i"], {}),
    ("_, nearest", "TopK", ["products", "top"], {"largest": 0, "sorted": 0}),
    ("y", "Gather", ["own", "nearest"], {}),
    ("x1", "Unsqueeze", ["x", "one"], {}),
    ("away", "Sub", ["x1", "y"], {}),
    ("counted", "Mul", ["away", "counts"], {}),
    ("halves", "ReduceSumSquare", ["counted", "two"], {"keepdims": 0}),
    ("half", "ReduceMin", ["halves", "one"], {"keepdims": 0}),
    ("next", "ScatterND", ["found", "which", "half"], {"reduction": "min"}),
    ("goes_on", "Identity", ["is_going"], {}),
]


class GraphIndex:
    """An index of a `Bank` that a graph can hold, in place of `ExactIndex`.

    Nobody's features are ever left out.
    """

    def __init__(self, bank):
        is_needed = find_needed(bank.rows, np.zeros(len(bank.rows), dtype=int))
        rows = bank.rows if is_needed is None else bank.rows[is_needed]
        n_each = min(max(len(rows) // _N_CLUSTERS, _FEWEST_ROWS), _MOST_ROWS)
        clusters = Clusters(rows, _SEED, n_each=n_each)
        has_rows = np.diff(clusters.starts) > 0
        starts = clusters.starts[np.append(has_rows, True)]
        rows, centers = torch.from_numpy(clusters.rows), clusters.centers[has_rows]
        centers = torch.from_numpy(centers)
        self._bounds = ClusterBounds(rows, centers, starts)
        first = rows[:: -(-len(rows) // _N_FIRST)]
        self._origin = first.mean(dim=0)
        self._first = as_columns(first - self._origin)
        self._half_squares = halve_squares(first - self._origin)
        self._parts = _arrange(rows, centers, torch.from_numpy(starts))

    def __len__(self):
        return len(self._parts[0])

    def query(self, features, left_out=None):
        """Return the distance of each patch; see `ExactIndex.query`."""
        x = features.flatten(0, 1)
        _, bounds = self._bounds(x)
        last = x.new_ones(len(x), 1)
        half_squares = torch.onnx.ops.symbolic(
            f"{DOMAIN}::{NAME}",
            (
                torch.cat([x * _HALF, last], dim=1),
                as_columns(bounds),
                self._begin(x),
                *self._parts,
            ),
            dtype=x.dtype,
            shape=x.shape[:1],
            version=1,
        )
        return (2 * half_squares).sqrt().view(features.shape[:2])

    def _begin(self, x):
        """Return half squares that a row is below, for certain, (n,)."""
        x = x - self._origin
        of_x = halve_squares(x)
        half_squares = expand(self._half_squares, x, self._first).amin(dim=1) + of_x
        largest = 2 * (of_x + self._half_squares.max())
        return half_squares.clamp(min=0) + 4 * self._bounds.error * largest


def _arrange(rows, centers, starts):
    """Return what the search wants of the bank; see `_INPUTS`.

    With one more column, of rows -|y|^2 / 2 and of queries 1, so that -2 times the
    product is |y|^2 - 2 x y; last, by which columns count in distances.
    """
    # Each multiplied first, as queries are: what is the same stays the same.
    rows, centers = rows * _HALF, centers * _HALF
    rows = rows - centers.repeat_interleave(starts.diff(), dim=0)
    last = -rows.double().square().sum(dim=1) / 2
    counts = torch.ones(rows.shape[1] + 1)
    counts[-1] = 0
    return (
        torch.cat([rows, last.float()[:, None]], dim=1),
        torch.cat([centers, torch.zeros(len(centers), 1)], dim=1),
        starts[:-1, None].clone(),
        starts[1:, None].clone(),
        starts.diff()[:, None].clamp(max=_N_NEAREST),
        counts,
    )


def make_function():
    """Return the function, of the standard's operations, that a graph calls."""
    from onnx import TensorProto, helper

    def make_constant(name, value):
        tensor = helper.make_tensor(name, TensorProto.INT64, [1], [value])
        return helper.make_node("Constant", [], [name], value=tensor)

    scalar = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    flags, found = (
        [helper.make_tensor_value_info(x, kind, shape) for x in names]
        for names, kind, shape in (
            (("is_going", "goes_on"), TensorProto.BOOL, []),
            (("found", "next"), TensorProto.FLOAT, None),
        )
    )
    body = helper.make_graph(
        [helper.make_node(op, x, y.split(", "), **how) for y, op, x, how in _STEPS],
        "look_at_cluster",
        [scalar, flags[0], found[0]],
        [flags[1], found[1]],
    )
    nodes = [
        make_constant("zero", 0),
        make_constant("one", 1),
        make_constant("two", 2),
        helper.make_node("Shape", ["centers"], ["n_clusters"], start=0, end=1),
        helper.make_node("Squeeze", ["n_clusters"], ["n_looks"]),
        helper.make_node("Loop", ["n_looks", "", "first"], ["nearest_row"], body=body),
    ]
    return helper.make_function(
        DOMAIN, NAME, _INPUTS, ["nearest_row"], nodes, [helper.make_opsetid("", OPSET)]
    )
