"""Sizes of images that no memory is enough for."""

import numpy as np
import pytest
from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd._images import arrays, check_images, files, stack
from skpatchsvdd._utils import computing, memory_size


@pytest.fixture
def little(monkeypatch):
    """A machine of 16 GiB, and images that must not be resized."""
    monkeypatch.setattr(arrays, "memory_size", lambda: 2**34)
    monkeypatch.setattr(stack, "resize_image", None)


@pytest.mark.parametrize("image_size", [100_000, (32, 10**9)])
def test_sizes_beyond_memory_are_refused_before_any_work(little, image_size):
    X = np.zeros((2, 40, 40), dtype=np.uint8)
    message = r"image_size=\(.*GiB each.*there are 16\.0 GiB.*a smaller image_size"
    for given in (X, list(X)):
        with pytest.raises(ValueError, match=message):
            PatchSVDD(image_size=image_size, max_iter=0).fit(given)


def test_files_are_refused_before_they_are_read(little, tmp_path, monkeypatch):
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    monkeypatch.setattr(files, "read_image", None)
    with pytest.raises(ValueError, match=r"take 447\.0 GiB each"):
        check_images([tmp_path / "x.png"] * 2, image_size=100_000)


def test_channels_count(little):
    grey, colour = np.zeros((2, 8, 8, 1)), np.zeros((2, 8, 8, 3))
    assert check_images(grey, image_size=30_000).image_shape == (30_000, 30_000, 1)
    with pytest.raises(ValueError, match="makes images that take"):
        check_images(colour, image_size=30_000)


def test_where_memory_is_unknown_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(arrays, "memory_size", lambda: None)
    images = check_images(np.zeros((2, 8, 8)), image_size=10**6)
    assert images.image_shape == (10**6, 10**6, 1)


def test_memory_is_what_the_machine_or_its_container_has(monkeypatch, tmp_path):
    assert memory_size() is None or memory_size() > 2**26
    (tmp_path / "limit").write_text("4096\n")
    (tmp_path / "none").write_text("max\n")
    names = [str(tmp_path / x) for x in ("limit", "none", "absent")]
    monkeypatch.setattr(computing, "_LIMITS", names)
    assert memory_size() == 4096
    monkeypatch.setattr(computing, "_LIMITS", names[1:])
    monkeypatch.delattr(computing.os, "sysconf")
    assert memory_size() is None
