"""Image files of every kind: read as they should look, or refused by name."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from unchanged import check_stays_unfitted, refused, unchanged

from skpatchsvdd.datasets import load_images

ORIENTATION = 0x0112


def save(image, path, **options):
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    image.save(path, **options)


def write_cut(X, path):
    save(X[0], path)
    path.write_bytes(path.read_bytes()[:-2000])


def write_damaged(X, path):
    save(X[0], path)
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(40) + content[140:])


def write_animation(X, path):
    first, *others = map(Image.fromarray, X)
    first.save(path, save_all=True, append_images=others)


def write_bomb(X, path):
    """Write a file of a few bytes that claims 400 million pixels."""
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in chunks:
        check = struct.pack(">I", zlib.crc32(kind + data))
        parts.append(struct.pack(">I", len(data)) + kind + data + check)
    path.write_bytes(b"".join(parts))


def write_float(value):
    def write(X, path):
        pixels = X[0, :, :, 0] / np.float32(255)
        pixels[3, 4] = value
        save(pixels, path)

    return write


def write_program(X, path):
    """An EPS, for which pillow would run Ghostscript."""
    Image.fromarray(X[0]).save(path, "EPS")


NO_IMAGE, SO = "cannot be read as an image: ", "Leave it out, or save it again"
BAD_FILES = [
    ("empty.png", lambda X, path: path.touch(), "it is empty.*0 bytes"),
    ("text.png", lambda X, path: path.write_text("no image"), SO),
    ("program.png", write_program, "of no format that is known"),
    ("program.eps", write_program, "of no format that is known"),
    ("text.txt", lambda X, path: path.write_text("no image"), SO),
    ("head.ppm", lambda X, path: path.write_text("P6 3x 4 255 "), SO),
    ("cut.png", write_cut, SO),
    ("cut.jpg", lambda X, path: path.write_bytes(b"\xff\xd8\xff\xe0"), SO),
    ("cut.bmp", write_cut, SO),
    ("cut.tiff", write_cut, SO),
    ("damaged.png", write_damaged, SO),
    ("moving.gif", write_animation, "it has 4 frames or pages. Save each"),
    ("moving.png", write_animation, "it has 4 frames or pages. Save each"),
    ("moving.webp", write_animation, "it has 4 frames or pages. Save each"),
    ("pages.tiff", write_animation, "it has 4 frames or pages. Save each"),
    ("bomb.png", write_bomb, "the limit of .*PIL.Image.MAX_IMAGE_PIXELS"),
    ("folder", lambda X, path: path.mkdir(), "it is a folder. Pass the files.*load_im"),
    ("nan.tiff", write_float(np.nan), "it holds NaN or infinity"),
    ("infinity.tiff", write_float(-np.inf), "it holds NaN or infinity"),
    (
        "deep.tiff",
        lambda X, path: save(np.full((34, 34), 2**20, dtype=np.int32), path),
        "it has more than 16 bits a pixel",
    ),
]


@pytest.fixture
def good(tiny, tmp_path):
    """The tiny images as files."""
    files = [tmp_path / f"good {i}.png" for i in range(len(tiny))]
    for image, file in zip(tiny, files, strict=True):
        save(image, file)
    return files


@pytest.mark.parametrize(("name", "write", "match"), BAD_FILES)
def test_bad_files(tiny_fitted, tiny, good, tmp_path, name, write, match):
    write(tiny, tmp_path / name)
    files = [*good, tmp_path / name]
    if name in ("nan.tiff", "infinity.tiff", "deep.tiff"):  # grey as they are
        files = files[-1:] * 2
    for method in ("fit", "partial_fit", "score_samples"):
        with refused(tiny_fitted, tiny, f"{name} {NO_IMAGE}.*{match}"):
            getattr(tiny_fitted, method)(files)
    check_stays_unfitted(tiny_fitted, files)
    if name != "folder":
        named = f"(?s)(Remove|no others).*{name} {NO_IMAGE}.*{match}"
        with pytest.raises(ValueError, match=named):
            load_images(files)


def test_a_missing_file(tiny_fitted, tiny, good, tmp_path):
    files = [*good, tmp_path / "gone.png"]
    for method in ("fit", "score_samples"):
        with refused(tiny_fitted, tiny, r"no file .*gone\.png", FileNotFoundError):
            getattr(tiny_fitted, method)(files)


def turn(orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def transparent(X):
    image = Image.fromarray(X).convert("RGBA")
    image.putalpha(Image.fromarray(X[:, :, 0]))
    return image


def cmyk(X):
    return Image.fromarray(X).convert("CMYK")


def palette(X):
    return Image.fromarray(X).quantize(255)


def saved(change=lambda X: X, **options):
    return lambda X, path: save(change(X), path, **options)


def with_previews(X, path):
    first = Image.fromarray(X)
    first.save(path, format="MPO", save_all=True, append_images=[first.resize((8, 8))])


def same(X):
    return X


# How a file is written, and what is read: None if it is what was written.
GOOD_FILES = [
    ("a.png", save, same),
    ("a.bmp", save, same),
    ("a.tiff", save, same),
    ("a.ppm", save, same),
    ("no ending", saved(format="PNG"), same),
    ("wrong ending.jpg", saved(format="PNG"), same),
    ("ä ö.png", save, same),
    ("still.gif", saved(palette), palette),
    ("palette.png", saved(palette), palette),
    ("alpha.png", saved(transparent), same),
    ("cmyk.tiff", saved(cmyk), cmyk),
    ("right.png", saved(exif=turn(6)), lambda X: np.rot90(X, -1)),
    ("left.png", saved(exif=turn(8)), np.rot90),
    ("over.png", saved(exif=turn(3)), lambda X: np.rot90(X, 2)),
    ("mirror.png", saved(exif=turn(2)), lambda X: X[:, ::-1]),
    ("odd.png", saved(exif=turn(77)), same),
    ("phone.jpg", with_previews, None),
]


@pytest.mark.parametrize(("name", "write", "read"), GOOD_FILES)
def test_good_files_score_as_their_pixels(
    tiny_fitted, tiny, tmp_path, name, write, read
):
    files = [tmp_path / f"{i} {name}" for i in range(2)]
    for X, file in zip(tiny, files, strict=False):
        write(X, file)
    if read is None:  # JPEG loses a little
        expected = [np.asarray(Image.open(file)) for file in files]
    else:
        expected = [read(X) for X in tiny[:2]]
        expected = [x.convert("RGB") if hasattr(x, "convert") else x for x in expected]
    with unchanged(tiny_fitted, tiny):
        scores = tiny_fitted.score_samples(files)
    plain = np.stack([np.asarray(x) for x in expected])
    np.testing.assert_array_equal(scores, tiny_fitted.score_samples(plain))
    # One of pillow's images is taken as its file would be.
    opened = [Image.open(file) for file in files]
    np.testing.assert_array_equal(tiny_fitted.score_samples(opened), scores)
    np.testing.assert_array_equal(load_images(files).images, plain)


@pytest.mark.parametrize(
    "kind",
    [
        tuple,
        np.array,
        pytest.param(
            lambda files: np.array(list(map(str, files)), np.dtypes.StringDType()),
            marks=pytest.mark.skipif(np.__version__ < "2", reason="needs numpy 2"),
        ),
    ],
)
def test_paths_in_any_list(tiny_fitted, tiny, good, kind):
    expected = tiny_fitted.score_samples(tiny)
    np.testing.assert_array_equal(tiny_fitted.score_samples(kind(good)), expected)
