import errno
import os
import subprocess
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
    for name in ("001", "000"):
        save(nut / "train" / "good" / f"{name}.png", pixels)
    save(nut / "test" / "good" / "000.png", pixels)
    save(nut / "test" / "scratch" / "000.png", 255 - pixels)
    mask = np.zeros((12, 10), dtype=np.uint8)
    mask[2:4, 5] = 255
    save(nut / "ground_truth" / "scratch" / "000_mask.png", mask)
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
    assert data.images.shape == (2, 24, 20, 3)
    assert data.images.dtype == np.uint8
    assert data.masks.shape == (2, 24, 20)
    assert data.masks[1].sum() == 8
    assert load_mvtec_ad(root, "nut", image_size=7).images.shape == (2, 7, 7, 3)


def test_resizing_is_anti_aliased(tmp_path):
    stripes = np.zeros((64, 64), dtype=np.uint8)
    stripes[:, ::2] = 255
    save(tmp_path / "a.png", stripes)
    image = load_mvtec_ad(tmp_path, image_size=16).images[0]
    assert np.abs(image[:, 2:-2].astype(int) - 127).max() < 8


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


def test_data_without_masks(root):
    for path in sorted((root / "nut" / "ground_truth").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (root / "nut" / "ground_truth").rmdir()
    data = load_mvtec_ad(root, "nut", "test")
    assert data.masks is None
    assert data.labels.tolist() == [1, -1]


@pytest.mark.parametrize(
    ("mode", "shape", "dtype"),
    [
        ("L", (12, 10), np.uint8),
        ("1", (12, 10), np.uint8),
        ("LA", (12, 10), np.uint8),
        ("P", (12, 10, 3), np.uint8),
        ("RGBA", (12, 10, 3), np.uint8),
        ("I;16", (12, 10), np.uint16),
    ],
)
def test_kinds_of_files(tmp_path, pixels, mode, shape, dtype):
    if mode == "I;16":
        grey = pixels[:, :, 0].astype(np.uint16) * 257
        save(tmp_path / "a.png", grey)
    else:
        save(tmp_path / "a.png", Image.fromarray(pixels).convert(mode))
    image = load_mvtec_ad(tmp_path).images[0]
    assert image.shape == shape
    assert image.dtype == dtype
    if mode == "I;16":
        np.testing.assert_array_equal(image, grey)
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


def test_photographs_are_turned_upright(tmp_path, pixels):
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera turned by a quarter
    save(tmp_path / "a.png", pixels, exif=exif)
    image = load_mvtec_ad(tmp_path).images[0]
    np.testing.assert_array_equal(image, np.rot90(pixels, -1))


def test_errors_name_the_file_or_folder(root, tmp_path, pixels):
    nut = root / "nut"
    with pytest.raises(FileNotFoundError, match=r"no folder .*bolt.*holds nut"):
        load_mvtec_ad(root, "bolt")
    with pytest.raises(ValueError, match="split must be 'train' or 'test'"):
        load_mvtec_ad(root, "nut", "validation")
    (nut / "test" / "scratch" / "001.png").write_bytes(b"\x89PNG broken")
    save(nut / "ground_truth" / "scratch" / "001_mask.png", pixels)
    with pytest.raises(
        ValueError, match=r"scratch.001\.png cannot be read as an image"
    ):
        load_mvtec_ad(root, "nut", "test")
    (nut / "ground_truth" / "scratch" / "001_mask.png").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"001\.png has no mask .*001_mask\.png"
    ):
        load_mvtec_ad(root, "nut", "test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty holds no images"):
        load_mvtec_ad(tmp_path / "empty")
    (tmp_path / "odd" / "train").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="train/good is expected"):
        load_mvtec_ad(tmp_path, "odd")
    with pytest.raises(FileNotFoundError, match="odd has no folder 'test'"):
        load_mvtec_ad(tmp_path, "odd", "test")


def test_truncated_file_is_named(tmp_path, pixels):
    save(tmp_path / "a.png", np.tile(pixels, (20, 20, 1)))
    content = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"a\.png cannot be read as an image"):
        load_mvtec_ad(tmp_path)


def test_missing_pillow_is_named(tmp_path, pixels):
    save(tmp_path / "a.png", pixels)
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from skpatchsvdd.datasets import load_mvtec_ad\n"
        f"load_mvtec_ad({str(tmp_path)!r})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "pip install pillow" in result.stderr


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


def test_load_images_names_all_broken_files(photos):
    with pytest.raises(ValueError, match="2 of 8 files cannot be read") as caught:
        load_images(photos)
    assert "broken.png" in str(caught.value)
    assert "empty.jpg" in str(caught.value)
    assert "on_error='skip'" in str(caught.value)


@pytest.mark.parametrize("as_paths", [False, True])
def test_load_images_skips_on_request(photos, as_paths):
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
