"""The command fit where images are several pictures of one piece."""

import numpy as np
import pytest
from commands import save_images
from settings import SEED

from skpatchsvdd import load
from skpatchsvdd._cli import main
from skpatchsvdd.datasets import make_textures


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """A folder of 28 images: of the first six there are two shifted pictures more."""
    pieces = make_textures(16, image_size=54, random_state=SEED).images
    images = [x[:48, :48] for x in pieces]
    images += [x[k : k + 48, k : k + 48] for x in pieces[:6] for k in (1, 2)]
    folder = tmp_path_factory.mktemp("twins")
    save_images(folder, np.array(images))
    return folder


def fit(twins, path, *args):
    return main(["fit", str(twins), "-o", str(path), *args])


def test_pictures_of_one_piece_are_named_and_count_as_one(twins, tmp_path, capsys):
    assert fit(twins, tmp_path / "m") == 0
    captured = capsys.readouterr()
    assert "look like several pictures of one piece" in captured.out
    first = ", ".join(str(twins / f"{i:02d}.png") for i in (0, 16, 17))
    assert f"  {first}\n" in captured.out
    assert "--group-by" in captured.out
    assert "places in X" not in captured.err
    assert "calibrate on" not in captured.out
    assert load(tmp_path / "m").twins_ is not None


def test_each_image_can_count_by_itself(twins, tmp_path, capsys):
    assert fit(twins, tmp_path / "m", "--group-by", "none") == 0
    captured = capsys.readouterr()
    assert "one piece" not in captured.out + captured.err
    est = load(tmp_path / "m")
    assert est.twins_ is None
    assert est.groups_ is None
