"""Regions that an inspection has found, as other programs for labelling read them."""

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from scipy import ndimage

from skpatchsvdd._cli.maps import MASKS, in_thresholds, name_mask
from skpatchsvdd._cli.polygons import trace_polygons
from skpatchsvdd._cli.table import as_cell, make_row, writing
from skpatchsvdd._cli.terminal import printable
from skpatchsvdd._images import UNKNOWN_KIND
from skpatchsvdd._scoring import find_regions
from skpatchsvdd._utils import replaced_when_whole
from skpatchsvdd._version import __version__

_ABNORMAL = "abnormal"  # what regions are called where no kinds are known
_TOUCHING = np.ones((3, 3))
_MOST = np.iinfo(np.uint16).max  # values of a mask: regions beyond share the last one
_MASK_COLUMNS = ("mask", "value", "file", "kind", "score")
_MASK_COLUMNS += ("top", "left", "bottom", "right", "area")


class Region(NamedTuple):
    """A region of an image, in the pixels of its file, turned upright."""

    kind: str
    score: float  # from 0 to 1, one half at the threshold
    box: tuple  # top, left, bottom and right
    area: int
    pixels: np.ndarray  # bool, those of the box
    polygons: list  # see `trace_polygons`


class Image(NamedTuple):
    """An inspected image; its regions, the highest peak first, without pixels."""

    file: str
    mask: str  # its name, if there are masks
    size: tuple  # height and width
    score: float
    regions: list


class Annotations:
    """Collects what is found of each image, and writes it in some `formats`."""

    def __init__(self, est, folder, formats):
        self._est = est
        self._folder = folder
        self._formats = formats
        self._images = []
        self._names = sorted({*map(str, est.defect_kinds_), UNKNOWN_KIND})
        if not len(est.defect_kinds_):
            self._names = [_ABNORMAL]

    def add(self, number, outcome):
        """Take in the results of a file, which has a number in the table."""
        results = outcome.results
        regions = list(list_regions(results, self._est))
        size = results.masks[0].shape
        mask = name_mask(self._folder, number, outcome.file)
        if "masks" in self._formats:
            _save_mask(mask, size, regions)
        score = _bound(-results.scores[0], self._est)
        regions = [x._replace(pixels=None) for x in regions]
        self._images.append(Image(outcome.file, mask.name, size, score, regions))

    def write(self):
        """Write all that was taken in, each file as a whole."""
        writers = {
            "coco": ("coco.json", make_coco),
            "label-studio": ("label-studio.json", make_tasks),
            "cvat": ("cvat.xml", make_cvat),
            "masks": (f"{MASKS}/regions.csv", _make_list),
        }
        for name, make in map(writers.get, self._formats):
            file = self._folder / name
            with writing(file), replaced_when_whole(file) as partial:
                text = make(self._images, self._names)
                partial.write_text(text, encoding="utf-8", newline="")


def list_regions(results, est):
    """Yield the regions of one image, the highest peak first; see `Region`."""
    mask, one_map = results.masks[0], results.maps[0]
    labels, _ = ndimage.label(mask, _TOUCHING)
    for found in find_regions(mask, one_map):
        top, left, bottom, right = box = tuple(int(x) for x in list(found)[:4])
        label = labels[found["row"], found["col"]]
        pixels = labels[top:bottom, left:right] == label
        polygons = [x + (left, top) for x in trace_polygons(pixels)]
        score = _bound(found["peak"], est)
        kind = _find_kind(found, results)
        yield Region(kind, score, box, int(found["area"]), pixels, polygons)


def _find_kind(found, results):
    """Return what the nearest region, as it was inspected, was said to resemble."""
    if not len(results.get("names", [()])[0]):
        return _ABNORMAL
    regions = results.regions[0]  # in whole pixels of the inspection
    row, col = found["row"], found["col"]
    down = np.maximum(regions["top"] - row, row - regions["bottom"] + 1).clip(0)
    across = np.maximum(regions["left"] - col, col - regions["right"] + 1).clip(0)
    to_peak = np.hypot(regions["row"] - row, regions["col"] - col)
    nearest = np.lexsort((to_peak, np.maximum(down, across)))[0]
    return str(results.names[0][nearest]["kind"])


def _bound(value, est):
    """Bring a score or a value of a map to 0..1, one half at the threshold."""
    relative = float(in_thresholds(value, est))
    return round(relative / (1 + relative), 6)


def _save_mask(file, size, regions):
    from PIL import Image

    values = np.zeros(size, dtype=np.uint16)
    for i, region in enumerate(regions, 1):
        top, left, bottom, right = region.box
        values[top:bottom, left:right][region.pixels] = min(i, _MOST)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(file)


def _name_files(images):
    """Return the names of images as seen from the folder that holds all of them."""
    files = [os.path.abspath(x.file) for x in images]
    try:
        root = os.path.commonpath(map(os.path.dirname, files))
    except ValueError:  # no images, or several drives
        root = ""
    names = [Path(x.removeprefix(root)).as_posix().lstrip("/") for x in files]
    return [printable(x) for x in names]


def make_coco(images, names):
    """Return annotations in COCO's format, as JSON."""
    numbers = {name: i for i, name in enumerate(names, 1)}
    listed = [
        {"id": i, "file_name": name, "height": x.size[0], "width": x.size[1]}
        for i, (name, x) in enumerate(zip(_name_files(images), images, strict=True), 1)
    ]
    found = [(i, x) for i, image in enumerate(images, 1) for x in image.regions]
    content = {
        "info": {"description": f"found by skpatchsvdd {__version__}"},
        "licenses": [],
        "images": listed,
        "annotations": [
            {"id": i, "image_id": image, **_describe_coco(x, numbers)}
            for i, (image, x) in enumerate(found, 1)
        ],
        "categories": [
            {"id": i, "name": x, "supercategory": _ABNORMAL} for x, i in numbers.items()
        ],
    }
    return json.dumps(content)


def _describe_coco(region, numbers):
    top, left, bottom, right = region.box
    return {
        "category_id": numbers[region.kind],
        "segmentation": [x.ravel().tolist() for x in region.polygons],
        "area": region.area,
        "bbox": [left, top, right - left, bottom - top],
        "iscrowd": 0,
        "score": region.score,
    }


def make_tasks(images, names):
    """Return tasks of Label Studio with predictions, as JSON."""
    return json.dumps([_make_task(x) for x in images])


def _make_task(image):
    file = Path(os.path.abspath(image.file))
    path = printable(file.relative_to(file.anchor).as_posix())
    result = [
        _describe_polygon(f"{i}-{k}", polygon, x, image.size)
        for i, x in enumerate(image.regions, 1)
        for k, polygon in enumerate(x.polygons, 1)
    ]
    model = f"skpatchsvdd {__version__}"
    return {
        "data": {"image": f"/data/local-files/?d={quote(path)}"},
        "predictions": [
            {"model_version": model, "score": image.score, "result": result}
        ],
    }


def _describe_polygon(name, polygon, region, size):
    height, width = size
    return {
        "id": name,
        "type": "polygonlabels",
        "from_name": "label",
        "to_name": "image",
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "score": region.score,
        "value": {
            "points": (100 * polygon / (width, height)).tolist(),
            "closed": True,
            "polygonlabels": [region.kind],
        },
    }


def make_cvat(images, names):
    """Return annotations of images in CVAT's format, version 1.1, as XML."""
    root = ET.Element("annotations")
    _add(root, "version", "1.1")
    task = _add(_add(root, "meta"), "task")
    _add(task, "name", "skpatchsvdd")
    _add(task, "size", len(images))
    _add(task, "mode", "annotation")
    labels = _add(task, "labels")
    for name in names:
        label = _add(labels, "label")
        _add(label, "name", printable(name))
        attribute = _add(_add(label, "attributes"), "attribute")
        texts = {"name": "score", "mutable": "False", "input_type": "text"}
        for tag, text in {**texts, "default_value": "", "values": ""}.items():
            _add(attribute, tag, text)
    for i, (name, image) in enumerate(zip(_name_files(images), images, strict=True)):
        height, width = image.size
        element = _add(root, "image", id=i, name=name, width=width, height=height)
        for group, region in enumerate(image.regions, 1):
            _add_polygons(element, region, group)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}'


def _add_polygons(element, region, group):
    for polygon in region.polygons:
        points = ";".join(f"{x:.2f},{y:.2f}" for x, y in polygon)
        shape = {"label": printable(region.kind), "source": "auto", "occluded": 0}
        more = {"points": points, "z_order": 0, "group_id": group}
        drawn = _add(element, "polygon", **shape, **more)
        _add(drawn, "attribute", f"{region.score:.6f}", name="score")


def _add(parent, tag, text=None, **attributes):
    element = ET.SubElement(parent, tag, {k: str(x) for k, x in attributes.items()})
    element.text = None if text is None else str(text)
    return element


def _make_list(images, names):
    """Return what the values of masks mean, as CSV."""
    rows = [_MASK_COLUMNS]
    for x in images:
        for i, region in enumerate(x.regions, 1):
            named = x.mask, min(i, _MOST), as_cell(x.file), as_cell(region.kind)
            rows.append((*named, region.score, *region.box, region.area))
    return b"".join(map(make_row, rows)).decode("utf-8")
