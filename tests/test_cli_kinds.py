"""The command inspect and the report of a model that knows kinds of defects."""

import numpy as np
import pytest
from commands import call, read_page, read_rows, save_images
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.report import write_report


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder with two models, one that knows dents, and images: good, dent, noise."""
    root = tmp_path_factory.mktemp("photos")
    images = make_textures(10, image_size=64, random_state=SEED).images
    dents, masks = images[6:9].copy(), np.zeros((3, 64, 64), dtype=bool)
    dents[:, 20:36, 20:36], masks[:, 20:36, 20:36] = 0, True
    noise = np.random.default_rng(SEED).integers(0, 256, (64, 64, 3), np.uint8)
    save_images(root / "new", [images[9], dents[2], noise])
    est = PatchSVDD(encoder="procedural", random_state=0, device="cpu").fit(images[:6])
    est.offset_ = float(2 * est.training_scores_.min())  # no good image is beyond it
    est.save(root / "plain.model")
    est.partial_fit(dents[:2], ["dent", "dent"], masks=masks[:2])
    est.offset_ = float(2 * est.training_scores_.min())
    est.save(root / "taught.model")
    return root, est


def test_alarms_are_named(photos, tmp_path):
    root, _ = photos
    assert call("inspect", root / "taught.model", root / "new", "-o", tmp_path) == 3
    images = read_page(tmp_path / "report.html")["images"]
    good, dent, noise = read_rows(tmp_path)
    assert (good["verdict"], good["kind"]) == ("normal", "")
    assert (dent["verdict"], dent["kind"]) == ("abnormal", "dent")
    assert (noise["verdict"], noise["kind"]) == ("abnormal", "unknown")
    assert good["kind_distance"] == ""
    assert float(dent["kind_distance"]) < 1 <= float(noise["kind_distance"])
    kinds = {x["name"][-6:-4]: x["kinds"] for x in images}
    assert kinds["00"] == []
    assert (kinds["01"][0], kinds["02"][0]) == ("dent", "unknown")
    for x in images:
        assert len(x["kinds"]) == len(x["distances"]) == len(x["regions"])


def test_without_kinds_nothing_is_named(photos, tmp_path):
    root, _ = photos
    assert call("inspect", root / "plain.model", root / "new", "-o", tmp_path) == 3
    assert {row["kind"] for row in read_rows(tmp_path)} == {""}
    assert all("kinds" not in x for x in read_page(tmp_path / "report.html")["images"])


def test_names_come_with_an_inspection(photos, tmp_path):
    root, est = photos
    files = sorted(map(str, (root / "new").iterdir()))
    results = est.inspect(files, names=True)
    for own, other in zip(results.names, est.name_regions(files), strict=True):
        np.testing.assert_array_equal(own, other)
    assert "names" not in est.inspect(files)
    write_report(est, files, tmp_path / "page.html")
    assert any(
        x["kinds"] == ["dent"] for x in read_page(tmp_path / "page.html")["images"]
    )
