import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from skpatchsvdd._images import (
    KnownImages,
    check_images,
    digest_images,
    list_digests,
    pixels_to_float,
    stack,
)
from skpatchsvdd._images import files as image_files
from skpatchsvdd._utils.threads import torch_threads


def make_bytes(rng, *shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


def test_bytes_stay_bytes_and_mean_a_255th(rng):
    X = make_bytes(rng, 3, 8, 6, 2)
    images = check_images(X)
    assert np.shares_memory(images.pixels, X)
    np.testing.assert_array_equal(next(images.batches(9))[1], X)
    tensor = pixels_to_float(torch.from_numpy(X))
    np.testing.assert_array_equal(tensor, np.float32(X) / 255)


def test_sixteen_bits_and_booleans_are_scaled():
    X = np.zeros((1, 5, 5), dtype=np.uint16)
    X[0, 0, :2] = 65535, 13107
    np.testing.assert_allclose(check_images(X).pixels.ravel()[:3], [1, 0.2, 0])
    pixels = check_images(X > 0).pixels
    assert pixels.dtype == np.float32
    assert pixels.ravel()[:3].tolist() == [1, 1, 0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_taken_as_they_are(rng, dtype):
    X = rng.random((2, 5, 5)).astype(dtype)
    pixels = check_images(X).pixels
    assert pixels.dtype == np.float32
    np.testing.assert_array_equal(pixels[..., 0], X.astype(np.float32))
    assert warnings_of(X) == []


def test_resizing_is_anti_aliased():
    stripes = np.zeros((1, 64, 64), dtype=np.uint8)
    stripes[:, :, ::2] = 255
    small = check_images(stripes, image_size=16).pixels
    assert small.shape == (1, 16, 16, 1)
    np.testing.assert_allclose(small[0, :, 2:-2], 0.5, atol=0.03)


def test_mean_image_is_on_the_unit_scale(rng):
    X = make_bytes(rng, 40, 5, 4, 3)
    mean = check_images(X).mean_image()
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, X.mean(axis=0) / 255, rtol=1e-6)


def test_batches_are_of_about_the_same_length():
    images = check_images(np.arange(10, dtype=np.uint8).repeat(64).reshape(10, 8, 8))
    found = [(start, x[:, 0, 0, 0].tolist()) for start, x in images.batches(9)]
    assert found == [(0, [0, 1, 2, 3, 4]), (5, [5, 6, 7, 8, 9])]
    assert [len(x) for _, x in images.batches(4)] == [4, 4, 2]
    assert list(images.take([]).batches(4)) == []


def test_taken_and_cropped_images_are_a_stack(rng):
    X = make_bytes(rng, 4, 9, 7, 3)
    taken = check_images(X).take([3, 1, 1])
    np.testing.assert_array_equal(taken.pixels, X[[3, 1, 1]])
    crop = taken.take([0, 2]).crop((slice(2, 6), slice(None)))
    assert (len(crop), crop.image_shape, crop.sizes) == (2, (4, 7, 3), [(9, 7)] * 2)
    np.testing.assert_array_equal(crop.pixels, X[[3, 1], 2:6])
    np.testing.assert_array_equal(list(crop.batches(1))[1][1], X[[1], 2:6])


def test_known_images_are_found_in_any_dtype(rng):
    X = make_bytes(rng, 5, 40, 20, 3)
    known = KnownImages(list_digests(check_images(X[:3])))
    assert known.find(X) == [0, 1, 2, -1, -1]
    assert known.find(np.float32(X / 255)) == [0, 1, 2, -1, -1]
    X[1, 1, 1, 1] ^= 1  # a pixel that the quick look does not see
    assert known.find(X[1:2]) == [-1]
    assert KnownImages().find(X[:1]) == [-1]


def test_copies_are_named_by_their_index(tiny):
    images = check_images(tiny[[0, 1, 0, 2, 1]])
    with pytest.warns(UserWarning, match="2 copies of other images") as caught:
        digests = digest_images(images)
    assert "normal image 2 is the same as normal image 0," in str(caught[0].message)
    assert len(set(digests)) == 3
    with pytest.warns(UserWarning, match=r"7 copies.*image 5 is .*, and 2 more\."):
        digest_images(check_images(np.repeat(tiny[:1], 8, axis=0)))


def test_copies_are_named_by_their_file(tiny, tmp_path):
    files = [str(tmp_path / f"{name}.png") for name in "abc"]
    for file, i in zip(files, (0, 1, 0), strict=True):
        Image.fromarray(tiny[i]).save(file)
    with pytest.warns(UserWarning, match=f"{files[2]} is the same as {files[0]}"):
        digest_images(check_images(files))


@pytest.fixture
def files(rng, tmp_path):
    """Three files of one size: colour, grey, and colour turned by the camera."""
    X = make_bytes(rng, 3, 9, 7, 3)
    X[1] = X[1, :, :, :1]
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    Image.fromarray(X[0]).save(paths[0])
    Image.fromarray(X[1, :, :, 0]).save(paths[1])
    turned = Image.fromarray(np.rot90(X[2]).copy())
    exif = turned.getexif()
    exif[0x0112] = 6  # turn clockwise to see it upright
    turned.save(paths[2], exif=exif)
    return paths, X


@pytest.fixture
def read(monkeypatch):
    """The files that have been read, in order."""
    read, original = [], image_files.read_image
    monkeypatch.setattr(
        image_files,
        "read_image",
        lambda file, **options: read.append(file) or original(file, **options),
    )
    return read


def test_files_are_read_batch_by_batch(files, read):
    paths, X = files
    batches = check_images(paths).batches(2)
    assert read == []
    np.testing.assert_array_equal(next(batches)[1], X[:2])
    assert read == paths[:2]


def test_files_read_ahead_are_the_same(files):
    paths, X = files
    starts, ahead = zip(*check_images(paths).batches(2, is_ahead=True), strict=True)
    assert starts == (0, 2)
    np.testing.assert_array_equal(np.concatenate(ahead), X)


def test_files_that_are_held_are_read_once(files, read):
    paths, X = files
    images = check_images(paths).hold()
    batches = [batch for _, batch in images.batches(2)]
    np.testing.assert_array_equal(np.concatenate(batches), X)
    np.testing.assert_array_equal(images.take([2, 0]).pixels, X[[2, 0]])
    np.testing.assert_array_equal(images.pixels, X)
    assert sorted(read) == paths
    assert images.files == check_images(paths).files


def test_bytes_and_floats_are_held_together(files, tmp_path):
    paths, _ = files
    deep = np.arange(63, dtype=np.uint16).reshape(9, 7) * 1000
    Image.fromarray(deep).save(tmp_path / "deep.png")
    images = check_images([*paths, tmp_path / "deep.png"])
    held = images.hold()
    assert [x.dtype for _, x in held.batches(1)] == [np.uint8] * 3 + [np.float32]
    np.testing.assert_array_equal(held.pixels, images.pixels)


def test_what_is_large_or_there_is_not_held(files, rng, monkeypatch):
    paths, _ = files
    X = make_bytes(rng, 4, 9, 7, 3)
    assert (images := check_images(X)).hold() is images
    resized = check_images(X, image_size=6)
    assert resized.hold() is not resized
    np.testing.assert_array_equal(resized.hold().pixels, resized.pixels)
    monkeypatch.setattr(stack, "_HELD_BYTES", 4 * 3 * 9 * 7 * 3 - 1)
    assert (images := check_images(paths)).hold() is images
    monkeypatch.setattr(stack, "_HELD_BYTES", 4 * 3 * 9 * 7 * 3)
    assert images.hold() is not images


def test_files_resized_beside_each_other_are_the_same(rng, tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for i, path in enumerate(paths):
        Image.fromarray(make_bytes(rng, 200 + i, 230, 3)).save(path)
    expected = [check_images([path], image_size=(50, 60)).pixels for path in paths]
    with torch_threads(2):
        pixels = check_images(paths, image_size=(50, 60)).pixels
        assert torch.get_num_threads() == 2
    np.testing.assert_array_equal(pixels, np.concatenate(expected))


def test_files_of_unequal_size_need_image_size(files, tmp_path):
    paths, _ = files
    odd = tmp_path / "odd.png"
    Image.new("RGB", (5, 5)).save(odd)
    with pytest.raises(ValueError, match=r"odd\.png has size 5 x 5 and .*0\.png has"):
        check_images([*paths, odd])
    assert check_images([*paths, odd], image_size=6).pixels.shape == (4, 6, 6, 3)


@pytest.mark.parametrize(
    ("highest", "dtype", "message"),
    [
        (255, np.float32, "floats up to 255, which are taken as they are"),
        (1, np.float32, None),
        (4095, np.uint16, "are taken for nearly black: 65535 is white"),
        (65535, np.uint16, None),
    ],
)
def test_files_on_another_scale_are_warned_about(tmp_path, highest, dtype, message):
    pixels = np.linspace(0, highest, 20 * 30).reshape(20, 30).astype(dtype)
    Image.fromarray(pixels).save(tmp_path / "x.tiff")
    found = warnings_of([tmp_path / "x.tiff"] * 20)
    assert len(found) == (message is not None)
    assert all(message in text for text in found)


def test_files_of_floats_on_no_scale_are_refused(tmp_path):
    Image.fromarray(np.full((20, 30), 1e7, dtype=np.float32)).save(tmp_path / "x.tiff")
    with pytest.raises(ValueError, match=r"x\.tiff holds floats from 1e\+07 to 1e\+07"):
        check_images([tmp_path / "x.tiff"])


# What each type of numbers means, and a word where it cannot mean that.


def warnings_of(X):
    """Return what is said about the scale of images."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_images(X)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
@pytest.mark.parametrize("highest", [1, 100, 255])
def test_bytes_in_sixteen_bits_are_warned_about(dtype, highest):
    X = np.linspace(0, highest, 128).reshape(2, 8, 8).astype(dtype)
    tensor = torch.from_numpy(X.astype(np.uint16))
    for given in (X, list(X), np.asfortranarray(X), tensor):
        [message] = warnings_of(given)
        assert f"16-bit integers up to {highest}, which are taken for" in message
        assert "Pass X.astype(np.uint8) if white is 255" in message


@pytest.mark.parametrize("white", [0, 5000, 65535])
def test_what_is_black_or_has_sixteen_bits_is_not(white):
    assert warnings_of(np.full((2, 8, 8), white, dtype=np.uint16)) == []


def test_standardized_images_are_warned_about():
    X = np.random.default_rng(0).normal(size=(2, 16, 16))
    [message] = warnings_of(X)
    assert "0 is black and 1 is white. If they were standardized" in message
    assert warnings_of(np.clip(X, -0.05, 1.05)) == []  # as after resizing


def test_one_bright_image_is_enough():
    X = np.full((3, 8, 8), 200, dtype=np.uint16)
    X[1, 2, 3] = 60000
    assert warnings_of(X) == warnings_of(list(X)) == []


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_bytes_among_other_types_hide_nothing(dtype):
    X = np.full((2, 8, 8), 200, dtype=np.uint8)
    [message] = warnings_of([X[0], X[1].astype(dtype)])
    assert "200, which are taken" in message
