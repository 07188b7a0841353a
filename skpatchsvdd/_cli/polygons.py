"""Outlines of masks: simple polygons that cover exactly their pixels."""

import numpy as np
from scipy import ndimage


def trace_polygons(mask):
    """Return polygons that cover the pixels of a mask, and nothing else.

    Each is (n_corners, 2), the x and y of corners of pixels, clockwise as seen. No
    polygon has a hole or touches itself, and no two overlap: parts with holes are cut
    along rows.
    """
    return [
        _trace(piece) + corner
        for part, corner in _part(mask, np.zeros(2, dtype=int))
        for piece, corner in _open_holes(part, corner)
    ]


def _part(mask, corner):
    """Yield the connected parts of a mask in a frame, and the x and y of the frame."""
    labels, _ = ndimage.label(mask)
    for i, (rows, cols) in enumerate(ndimage.find_objects(labels), 1):
        part = np.pad(labels[rows, cols] == i, 1)
        yield part, corner + (cols.start - 1, rows.start - 1)


def _open_holes(part, corner):
    """Yield pieces of a part without holes, cut along as few rows as will do."""
    outside_first = ndimage.find_objects(ndimage.label(~part)[0])
    spans = sorted((rows.stop, rows.start) for rows, _ in outside_first[1:])
    if not spans:
        yield part, corner
        return
    cuts = [0]
    for stop, start in spans:
        if cuts[-1] < start:
            cuts.append(stop)
    bounds = zip(cuts, [*cuts[1:], len(part)], strict=True)
    for start, stop in bounds:
        yield from _part(part[start:stop], corner + (0, start))


def _trace(piece):
    """Return the corners of the outline of a piece without holes, in a frame."""
    width = piece.shape[1]
    corners = np.arange(piece.size).reshape(piece.shape)  # the upper left of each pixel
    following = np.full(piece.size, -1)
    # By the pixel on the other side of an edge: where the edge begins, and its step.
    edges = (((-1, 0), (0, 0), 1), ((1, 0), (1, 1), -1))
    edges += (((0, -1), (1, 0), -width), ((0, 1), (0, 1), width))
    for side, begin, step in edges:
        is_edge = piece & ~np.roll(piece, np.negative(side), (0, 1))
        starts = corners[is_edge] + begin[0] * width + begin[1]
        following[starts] = starts + step
    path = [int(np.flatnonzero(following >= 0)[0])]
    while (after := int(following[path[-1]])) != path[0]:
        path.append(after)
    steps = np.diff(path, append=path[0])
    y, x = np.divmod(np.array(path)[steps != np.roll(steps, 1)], width)
    return np.stack([x, y], axis=1)
