"""The command inspect with --export: what other programs read of it."""

import csv
import json
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from commands import call, read_rows, save_images
from conftest import make_untrained
from PIL import Image
from scipy import ndimage
from settings import SEED

from skpatchsvdd._cli.polygons import trace_polygons
from skpatchsvdd._cli.values import EXPORTS
from skpatchsvdd.datasets import make_textures

FEW = ["--no-maps", "--no-report", "--threshold", "0.4"]
FORMATS = ",".join(EXPORTS[:4])


def fill(polygons, size):
    """Count the polygons over the centre of each pixel, by crossings to its left."""
    counts = np.zeros(size, dtype=int)
    row, col = np.indices(size) + 0.5
    for polygon in polygons:
        is_inside = np.zeros(size, dtype=bool)
        for (x, start), (_, stop) in zip(polygon, np.roll(polygon, -1, 0), strict=True):
            is_inside ^= ((start > row) != (stop > row)) & (x < col)
        counts += is_inside
    return counts


def make_mask(rng):
    size = rng.integers(1, 24, 2)
    noise = ndimage.gaussian_filter(rng.random(size), rng.choice([0, 1, 2]))
    return noise >= np.quantile(noise, rng.choice([0, 0.2, 0.5, 0.9]))


@pytest.mark.parametrize("seed", range(20))
def test_polygons_cover_exactly_a_mask(seed):
    mask = make_mask(np.random.default_rng(seed))
    polygons = trace_polygons(mask)
    np.testing.assert_array_equal(fill(polygons, mask.shape), mask)
    for polygon in polygons:  # simple ones, of corners alone
        assert len(np.unique(polygon, axis=0)) == len(polygon)
        steps = np.roll(polygon, -1, 0) - polygon
        assert ((steps != 0).sum(1) == 1).all()
        assert (np.sign(steps) != np.sign(np.roll(steps, 1, 0))).any(1).all()


def test_a_ring_is_cut_once():
    mask = np.zeros((9, 9), dtype=bool)
    mask[1:8, 1:8] = True
    mask[2:4, 2:4] = mask[3:6, 5:7] = False  # two holes that one row goes through
    assert len(trace_polygons(mask)) == 2
    assert trace_polygons(np.zeros((3, 3), dtype=bool)) == []


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Images larger than a model inspects them, kinds known, and what is exported."""
    root = tmp_path_factory.mktemp("found")
    images = make_textures(9, image_size=96, random_state=SEED).images[:, :72]
    dents, masks = images[6:8].copy(), np.zeros((2, 72, 96), dtype=bool)
    dents[:, 20:40, 20:50], masks[:, 20:40, 20:50] = 0, True
    est = make_untrained().set_params(image_size=(48, 64)).fit(images[:6])
    est.partial_fit(dents[:1], ["dent"], masks=masks[:1])
    est.save(root / "part.model")
    names = ["=1", "a/good ü", "a/dent\x1b"]
    (root / "new" / "a").mkdir(parents=True)
    save_images(root / "new", [images[5], images[8], dents[1]], names)
    est.offset_ = 0.4 * est.offset_
    args = [root / "new", "-o", root / "out", *FEW, "--export", FORMATS]
    assert call("inspect", root / "part.model", *args) == 3
    files = [row["file"].removeprefix("'") for row in read_rows(root / "out")]
    files = [x.replace("\\x1b", "\x1b") for x in files]
    return root / "out", est.inspect(files, names=True), -est.offset_


def read_masks(out):
    return [np.asarray(Image.open(x)) for x in sorted((out / "masks").glob("*.png"))]


def test_masks_number_the_regions(found):
    out, results, threshold = found
    masks = read_masks(out)
    for mask, expected in zip(masks, results.masks, strict=True):
        np.testing.assert_array_equal(mask > 0, expected)
    with open(out / "masks" / "regions.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert sum(int(x.max()) for x in masks) == len(rows) > 0
    for row in rows:
        i = int(row["mask"].partition("_")[0])
        is_region = masks[i] == int(row["value"])
        ys, xs = np.nonzero(is_region)
        box = [int(row[x]) for x in ("top", "left", "bottom", "right", "area")]
        assert box == [ys.min(), xs.min(), ys.max() + 1, xs.max() + 1, len(ys)]
        peak = results.maps[i][is_region].max()
        assert float(row["score"]) == pytest.approx(peak / (peak + threshold), abs=1e-5)
        assert peak >= results.maps[i][masks[i] > int(row["value"])].max(initial=0)


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # its own
def test_coco_is_read_back_by_its_own_tools(found):
    coco = pytest.importorskip("pycocotools.coco").COCO(found[0] / "coco.json")
    results, masks = found[1], read_masks(found[0])
    images = coco.loadImgs(sorted(coco.imgs))
    names = sorted(x["file_name"] for x in images)
    assert names == ["=1.png", "a/dent\\x1b.png", "a/good ü.png"]
    kinds = {x["id"]: x["name"] for x in coco.loadCats(coco.getCatIds())}
    assert sorted(kinds.values()) == ["dent", "unknown"]
    for image, mask, named in zip(images, masks, results.names, strict=True):
        regions = coco.loadAnns(coco.getAnnIds(image["id"]))
        assert (image["height"], image["width"]) == mask.shape
        assert len(regions) == mask.max()
        for k, region in enumerate(regions, 1):
            np.testing.assert_array_equal(coco.annToMask(region), mask == k)
            assert region["area"] == (mask == k).sum()
            left, top, width, height = region["bbox"]
            inside = mask[top : top + height, left : left + width] == k
            assert inside.sum() == region["area"]
            assert inside[[0, -1]].any(1).all()
            assert inside[:, [0, -1]].any(0).all()
        if regions:
            assert kinds[regions[0]["category_id"]] == named["kind"][0]


def test_tasks_of_label_studio_hold_predictions(found):
    out = found[0]
    tasks = json.loads((out / "label-studio.json").read_text("utf-8"))
    for task, mask in zip(tasks, read_masks(out), strict=True):
        assert set(task) == {"data", "predictions"}
        assert task["data"]["image"].startswith("/data/local-files/?d=")
        assert " " not in task["data"]["image"]
        (prediction,) = task["predictions"]
        assert 0 <= prediction["score"] <= 1
        assert (prediction["score"] > 0.5) == mask.any()
        polygons, ids = [], set()
        for x in prediction["result"]:
            names = [x[k] for k in ("type", "from_name", "to_name")]
            assert names == ["polygonlabels", "label", "image"]
            assert (x["original_height"], x["original_width"]) == mask.shape
            assert 0 < x["score"] <= 1
            assert x["value"]["polygonlabels"][0] in ("dent", "unknown")
            points = np.array(x["value"]["points"]) * mask.shape[::-1] / 100
            polygons.append(points.round(6))
            ids.add(x["id"])
        assert len(ids) == len(polygons)
        np.testing.assert_array_equal(fill(polygons, mask.shape), mask > 0)


CVAT = {  # of version 1.1, for images: what may be in what, and with which attributes
    "annotations": ((), {"version", "meta", "image"}),
    "meta": ((), {"task"}),
    "task": ((), {"name", "size", "mode", "labels"}),
    "labels": ((), {"label"}),
    "label": ((), {"name", "attributes"}),
    "attributes": ((), {"attribute"}),
    "image": (("id", "name", "width", "height"), {"polygon"}),
    "polygon": (
        ("label", "source", "occluded", "points", "z_order", "group_id"),
        {"attribute"},
    ),
}


def test_cvat_follows_its_schema(found):
    out = found[0]
    root = ET.parse(out / "cvat.xml").getroot()
    assert root.tag == "annotations"
    for element in root.iter():
        attributes, children = CVAT.get(element.tag, (tuple(element.attrib), set()))
        assert tuple(element.attrib) == attributes
        if element.tag != "attribute":
            assert {x.tag for x in element} <= children
    assert root.findtext("version") == "1.1"
    assert root.findtext("meta/task/mode") == "annotation"
    assert root.findtext("meta/task/size") == "3"
    labels = {x.findtext("name") for x in root.findall("meta/task/labels/label")}
    assert labels == {"dent", "unknown"}
    masks = read_masks(out)
    for i, (image, mask) in enumerate(zip(root.findall("image"), masks, strict=True)):
        assert image.get("id") == str(i)
        assert (int(image.get("height")), int(image.get("width"))) == mask.shape
        regions = {}
        for x in image.findall("polygon"):
            assert x.get("label") in labels
            assert 0 < float(x.findtext("attribute[@name='score']")) <= 1
            points = [p.split(",") for p in x.get("points").split(";")]
            own = regions.setdefault(int(x.get("group_id")), [])
            own.append(np.array(points, dtype=float))
        for k, polygons in regions.items():
            np.testing.assert_array_equal(fill(polygons, mask.shape), mask == k)
        assert len(regions) == mask.max()


def test_without_kinds_regions_are_abnormal(model, normal, tmp_path):
    save_images(tmp_path / "new", normal[:2, ..., 0])
    out = tmp_path / "out"
    args = [model, tmp_path / "new", "-o", out, "--export", "coco", *FEW]
    assert call("inspect", *args) == 3
    found = json.loads((out / "coco.json").read_text())
    assert [x["name"] for x in found["categories"]] == ["abnormal"]
    assert found["annotations"]
    assert not (out / "masks").exists()


def test_masks_of_a_former_inspection_go(model, normal, tmp_path):
    save_images(tmp_path / "new", normal[:3, ..., 0])
    args = [model, tmp_path / "new", "-o", tmp_path / "new" / "out", *FEW]
    call("inspect", *args, "--export", "masks")
    assert len(list((tmp_path / "new" / "out" / "masks").glob("*.png"))) == 3
    (tmp_path / "new" / "02.png").unlink()
    call("inspect", *args, "--export", "masks")  # and masks are not inspected
    assert len(list((tmp_path / "new" / "out" / "masks").glob("*.png"))) == 2


def test_parquet_is_the_table_with_types(model, normal, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    save_images(tmp_path / "new", normal[:3, ..., 0], ["=1", "1", "2"])
    (tmp_path / "new" / "cut.png").write_bytes(b"no image")
    out = tmp_path / "out"
    args = [model, tmp_path / "new", "-o", out, "--export", "parquet", *FEW]
    assert call("inspect", *args) == 3
    rows, typed = (
        read_rows(out),
        parquet.read_table(out / "results.parquet").to_pylist(),
    )
    assert [list(x) for x in typed] == [list(x) for x in rows]
    for row, values in zip(rows, typed, strict=True):
        for name in ("score", "p_value"):
            assert values[name] == (float(row[name]) if row[name] else None)
        boxes = [" ".join(map(str, x.values())) for x in values["regions"] or ()]
        assert ";".join(boxes) == row["regions"]
        assert f"{values['time']:%Y-%m-%dT%H:%M:%SZ}" == row["time"]
        assert f"{values['state']:016x}" == row["state"]
    assert {x["verdict"] for x in typed} >= {"abnormal", "unreadable"}
    assert any(x["regions"] for x in typed)


def test_parquet_says_what_it_needs(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    args = [model, tmp_path, "-o", tmp_path / "out", "--export", "parquet"]
    assert call("inspect", *args) == 1
    assert "needs pyarrow: pip install pyarrow" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_watch_exports_nothing(model, tmp_path, capsys):
    args = [model, "--watch", tmp_path, "-o", tmp_path / "out", "--export", "coco"]
    assert call("inspect", *args) == 1
    assert "pass images, not --watch" in capsys.readouterr().err


def test_unknown_formats_are_refused(model, tmp_path, capsys):
    with pytest.raises(SystemExit):
        call("inspect", model, tmp_path, "-o", tmp_path, "--export", "voc")
    assert "coco, label-studio, cvat, masks, parquet" in capsys.readouterr().err
