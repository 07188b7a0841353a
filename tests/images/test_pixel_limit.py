"""Files of more pixels than are allowed."""

import numpy as np
import pytest
from PIL import Image
from settings import SEED

from skpatchsvdd._cli import main
from skpatchsvdd._images import check_images, limited_pixels, read_display, read_image
from skpatchsvdd.datasets import load_images, load_mvtec_ad, make_textures


@pytest.fixture
def large(tmp_path):
    """A PNG and a JPEG of 320 x 240 pixels, in a folder of their own."""
    folder = tmp_path / "large"
    folder.mkdir()
    image = make_textures(1, image_size=80, random_state=SEED).images[0]
    picture = Image.fromarray(image).resize((320, 240))
    for name in ("a.png", "b.jpg"):
        picture.save(folder / name)
    return folder


def test_a_file_of_too_many_pixels_is_refused_before_it_is_decoded(large, monkeypatch):
    def fail(self):
        raise AssertionError("it was decoded")

    Image.init()  # which loads images of its own
    monkeypatch.setattr(Image.Image, "load", fail)
    message = "a.png cannot be read.*240 x 320 pixels.*0.05 million.*--max-pixels"
    with pytest.raises(ValueError, match=message):
        read_image(large / "a.png", max_pixels=50_000)
    with limited_pixels(50_000), pytest.raises(ValueError, match=message):
        check_images([large / "a.png"], image_size=80).pixels.sum()


def test_the_limit_is_a_hundred_million_unless_pillow_is_told_another(tmp_path, large):
    file = tmp_path / "wide.png"
    Image.new("1", (11_000, 10_000)).save(file)
    refused = pytest.raises(ValueError, match=r"110 million .* limit of 100 million")
    with pytest.warns(Image.DecompressionBombWarning), refused:
        read_image(file)
    before = Image.MAX_IMAGE_PIXELS
    with limited_pixels(120_000_000):
        assert read_image(file).shape == (10_000, 11_000)
    with limited_pixels(None):
        assert read_image(large / "a.png").shape == (240, 320, 3)
    assert before == Image.MAX_IMAGE_PIXELS


def test_commands_do_not_tell_what_pillow_warns_of(large, recwarn):
    file = large / "cut.tif"
    Image.open(large / "a.png").save(file, compression="tiff_lzw")
    file.write_bytes(file.read_bytes()[:-100])
    with limited_pixels(50_000_000), pytest.raises(ValueError, match=r"cut\.tif"):
        read_image(file)
    assert not list(recwarn)


def test_a_jpeg_above_the_limit_is_decoded_at_a_part_of_its_size(large):
    whole = check_images([large / "b.jpg"], image_size=40).pixels
    with limited_pixels(50_000):
        images = check_images([large / "b.jpg"], image_size=40)
        assert images.sizes == [(240, 320)]  # maps are of this size
        np.testing.assert_allclose(images.pixels, whole, atol=0.1)
        with pytest.raises(ValueError, match="240 x 320 pixels"):
            check_images([large / "b.jpg"]).pixels.sum()
    reduced = read_image(large / "b.jpg", max_pixels=50_000, size=(40, 40))
    assert reduced.shape == (120, 160, 3)
    assert read_image(large / "b.jpg", size=(40, 40)).shape == (240, 320, 3)


def test_an_image_of_pillow_has_the_limit_of_its_file(large, monkeypatch):
    with Image.open(large / "a.png") as opened, limited_pixels(50_000):
        monkeypatch.setattr(opened, "load", None)  # it is not decoded
        with pytest.raises(ValueError, match=r"240 x 320 pixels.*MAX_IMAGE_PIXELS"):
            check_images([opened])


def test_loaders_take_a_limit(large):
    data = load_images(large, max_pixels=80_000)
    assert len(data.images) == 2
    with pytest.warns(UserWarning, match="1 of 2 files"):
        data = load_images(large, max_pixels=50_000, image_size=40, on_error="skip")
    assert [reason for _, reason in data.skipped if "the limit of" in reason]
    with pytest.raises(ValueError, match="the limit of"):
        load_mvtec_ad(large, max_pixels=50_000)


def test_files_are_looked_at_smaller_than_they_are(large):
    for name in ("a.png", "b.jpg"):
        small = read_display(large / name, 100)
        assert small.shape == (75, 100, 3)
        assert small.dtype == np.uint8
        whole = read_display(large / name)
        assert abs(small.mean() - whole.mean()) < 3
    grey = np.zeros((300, 30), dtype=np.uint16)
    assert read_display(grey, 100).shape == (100, 10, 3)


def test_the_command_takes_a_limit(large, tmp_path, capsys):
    fit = ["fit", str(large), "-o", str(tmp_path / "m"), "--max-iter", "0"]
    assert main([*fit, "--max-pixels", "50000", "--strict"]) == 1
    assert "a.png cannot be read as an image: it has 240 x" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*fit, "--max-pixels", "0"])
    assert "must be a number above 0" in capsys.readouterr().err
