import errno
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skpatchsvdd.datasets import load_images, load_mvtec_ad


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path, pixels):
    """A small data set with one category, "nut"."""
    nut = tmp_path / "nut"
    for name in ("train/good/001", "train/good/000", "test/good/000"):
        save(nut / f"{name}.png", pixels)
    save(nut / "test/scratch/000.png", 255 - pixels)
    mask = np.zeros((12, 10), dtype=np.uint8)
    mask[2:4, 5] = 255
    save(nut / "ground_truth/scratch/000_mask.png", mask)
    return tmp_path


def test_training_images_are_normal(root, pixels):
    data = load_mvtec_ad(root, "nut")
    np.testing.assert_array_equal(data.images, [pixels, pixels])
    assert data.images.dtype == np.uint8
    assert data.labels.tolist() == [1, 1]
    assert not data.masks.any()
    assert [name[-7:] for name in data.filenames] == ["000.png", "001.png"]


def test_test_images_have_labels_masks_and_names(root, pixels):
    data = load_mvtec_ad(root, "nut", "test")
    np.testing.assert_array_equal(data.images, [pixels, 255 - pixels])
    assert data.labels.tolist() == [1, -1]
    assert data.defects.tolist() == ["good", "scratch"]
    assert np.argwhere(data.masks).tolist() == [[1, 2, 5], [1, 3, 5]]


def test_images_and_masks_are_resized(root):
    data = load_mvtec_ad(root, "nut", "test", image_size=(24, 20))
    assert (data.images.shape, data.images.dtype) == ((2, 24, 20, 3), np.uint8)
    assert data.masks[1].sum() == 8
    assert load_mvtec_ad(root, "nut", image_size=7).images.shape == (2, 7, 7, 3)


def test_data_without_masks(root):
    shutil.rmtree(root / "nut" / "ground_truth")
    data = load_mvtec_ad(root, "nut", "test")
    assert data.masks is None
    assert data.labels.tolist() == [1, -1]


def test_as_paths_reads_no_file(root):
    (root / "nut" / "train" / "good" / "002.png").write_text("not an image")
    data = load_mvtec_ad(root, "nut", as_paths=True)
    assert data.images == data.filenames
    assert data.masks == [None] * 3
    masks = load_mvtec_ad(root, "nut", "test", as_paths=True).masks
    assert masks[0] is None
    assert masks[1].endswith("000_mask.png")


def test_plain_folder_holds_normal_images(tmp_path, pixels):
    for name in ("b.jpg", "a.bmp", "c.TIFF", "d.png"):
        save(tmp_path / name, pixels)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "._d.png").write_bytes(b"left by another system")
    data = load_mvtec_ad(tmp_path)
    assert data.images.shape == (4, 12, 10, 3)
    assert data.labels.tolist() == [1] * 4
    np.testing.assert_array_equal(data.images[0], pixels)


@pytest.mark.parametrize("mode", ["L", "1", "LA", "P", "RGBA"])
def test_kinds_of_files(tmp_path, pixels, mode):
    picture = Image.fromarray(pixels).convert(mode)
    save(tmp_path / "a.png", picture)
    expected = picture.convert("RGB" if mode in ("P", "RGBA") else "L")
    np.testing.assert_array_equal(load_mvtec_ad(tmp_path).images, [expected])


def test_sixteen_bits_stay(tmp_path, pixels):
    grey = pixels[:, :, 0].astype(np.uint16) * 257
    save(tmp_path / "a.png", grey)
    images = load_mvtec_ad(tmp_path).images
    assert images.dtype == np.uint16
    np.testing.assert_array_equal(images, [grey])
    assert load_mvtec_ad(tmp_path, image_size=6).images.max() > 10_000


def test_grey_among_colour_becomes_colour(tmp_path, pixels):
    save(tmp_path / "a.png", pixels)
    save(tmp_path / "b.png", pixels[:, :, 0])
    images = load_mvtec_ad(tmp_path).images
    assert images.shape == (2, 12, 10, 3)
    np.testing.assert_array_equal(images[1, :, :, 2], pixels[:, :, 0])


def test_images_of_unequal_size_are_a_list(tmp_path, pixels):
    save(tmp_path / "a.png", pixels)
    save(tmp_path / "b.png", pixels[:5])
    data = load_mvtec_ad(tmp_path)
    assert [image.shape for image in data.images] == [(12, 10, 3), (5, 10, 3)]
    assert [mask.shape for mask in data.masks] == [(12, 10), (5, 10)]


def test_errors_name_the_file_or_folder(root, tmp_path, pixels):
    nut = root / "nut"
    with pytest.raises(FileNotFoundError, match=r"no folder .*bolt.*holds nut"):
        load_mvtec_ad(root, "bolt")
    with pytest.raises(ValueError, match="split must be 'train' or 'test'"):
        load_mvtec_ad(root, "nut", "validation")
    (nut / "test/scratch/001.png").write_bytes(b"\x89PNG broken")
    mask = nut / "ground_truth/scratch/001_mask.png"
    save(mask, pixels)
    with pytest.raises(ValueError, match=r"scratch.001\.png cannot be read as an im"):
        load_mvtec_ad(root, "nut", "test")
    mask.unlink()
    with pytest.raises(FileNotFoundError, match=r"001\.png has no mask .*001_mask\.p"):
        load_mvtec_ad(root, "nut", "test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty holds no images"):
        load_mvtec_ad(tmp_path / "empty")
    (tmp_path / "odd" / "train").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="train/good is expected"):
        load_mvtec_ad(tmp_path, "odd")
    with pytest.raises(FileNotFoundError, match="odd has no folder 'test'"):
        load_mvtec_ad(tmp_path, "odd", "test")


def test_missing_pillow_is_named(tmp_path, pixels, monkeypatch):
    save(tmp_path / "a.png", pixels)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        load_mvtec_ad(tmp_path)


@pytest.fixture
def photos(tmp_path, rng):
    """Folders of photographs of several formats and sizes, two of them broken."""
    (tmp_path / "more").mkdir()
    names = ["a.png", "b.JPG", "c.webp", "d.bmp", "more/e.tif", "more/f.png"]
    for i, name in enumerate(names):
        pixels = rng.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "more" / "empty.jpg").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden.png").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("as_paths", [False, True])
def test_broken_files_are_named_and_skipped_on_request(photos, as_paths):
    message = r"(?s)2 of 8 files cannot.*on_error='skip'.*broken\.png.*empty\.jpg"
    with pytest.raises(ValueError, match=message):
        load_images(photos, as_paths=as_paths)
    with pytest.warns(UserWarning, match=r"2 of 8 files .* were skipped"):
        data = load_images(photos, on_error="skip", as_paths=as_paths)
    names = [Path(name).name for name in data.filenames]
    assert names == ["a.png", "b.JPG", "c.webp", "d.bmp", "e.tif", "f.png"]
    skipped = {Path(name).name for name, _ in data.skipped}
    assert skipped == {"broken.png", "empty.jpg", "notes.txt"}
    if as_paths:
        assert data.images == data.filenames
    else:
        assert [x.shape for x in data.images] == [(20 + i, 30, 3) for i in range(6)]


def test_folders_that_cannot_be_looked_into_are_named(photos, monkeypatch):
    look = os.scandir

    def refuse(folder):
        if Path(folder).name == "more":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return look(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    message = "more is a folder that cannot be looked into: Permission denied. Allow"
    with pytest.raises(ValueError, match=message):
        load_images(photos)
    with pytest.warns(UserWarning, match=message):
        data = load_images(photos, on_error="skip")
    assert len(data.images) == 4
    with pytest.raises(ValueError, match=r"there are no others:\n.*more is a"):
        load_images(photos / "more", on_error="skip")


def test_load_images_from_a_list_and_resized(photos):
    some = [photos / "c.webp", str(photos / "a.png")]
    data = load_images(some, image_size=(16, 24))
    assert data.images.shape == (2, 16, 24, 3)
    assert data.filenames == [str(x) for x in some]
    one = load_images(photos / "a.png")
    assert one.images.shape == (1, 20, 30, 3)
    assert one.skipped == []


def test_mixed_bits_become_floats(tmp_path):
    Image.fromarray(np.full((8, 8), 51, dtype=np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(np.full((8, 8), 13107, dtype=np.uint16)).save(tmp_path / "b.png")
    for data in (load_images(tmp_path), load_mvtec_ad(tmp_path)):
        assert data.images.dtype == np.float32
        np.testing.assert_allclose(data.images, 0.2, rtol=1e-6)


def test_load_images_refuses_nonsense(photos):
    with pytest.raises(FileNotFoundError, match="no file or folder nowhere"):
        load_images("nowhere")
    (photos / "none").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no images \(.*\.webp\) in .*none"):
        load_images(photos / "none")
    with pytest.raises(ValueError, match="source is empty"):
        load_images([])
    with pytest.raises(TypeError, match="source must be a folder, a file or a list"):
        load_images(5)
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip'"):
        load_images(photos, on_error="ignore")
    for load in (load_images, load_mvtec_ad):
        with pytest.raises(ValueError, match="image_size has no effect with as_paths"):
            load(photos, image_size=64, as_paths=True)
