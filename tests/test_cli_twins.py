"""The command fit where images are several pictures of one piece."""

import numpy as np
import pytest
from commands import save_images
from scipy.ndimage import gaussian_filter
from settings import SEED

from skpatchsvdd import load
from skpatchsvdd._cli import main


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """A folder of 26 images: of the first six there are shifted pictures, too."""
    noise = np.random.default_rng(SEED).normal(size=(20, 49, 49, 3))
    noise = gaussian_filter(noise, (0, 2, 2, 0))
    pieces = np.clip(128 + 50 * noise / noise.std(), 0, 255).astype(np.uint8)
    folder = tmp_path_factory.mktemp("twins")
    save_images(folder, np.concatenate([pieces[:, 1:, 1:], pieces[:6, :48, :48]]))
    return folder


def fit(twins, path, *args):
    return main(["fit", str(twins), "-o", str(path), *args])


def test_pictures_of_one_piece_are_named_and_count_as_one(twins, tmp_path, capsys):
    assert fit(twins, tmp_path / "m") == 0
    captured = capsys.readouterr()
    assert "look like several pictures of one piece" in captured.out
    first = ", ".join(str(twins / f"{i:02d}.png") for i in (0, 20))
    assert f"  {first}\n" in captured.out
    assert "--group-by" in captured.out
    assert "places in X" not in captured.err
    assert load(tmp_path / "m").twins_ is not None


def test_each_image_can_count_by_itself(twins, tmp_path, capsys):
    assert fit(twins, tmp_path / "m", "--group-by", "none") == 0
    captured = capsys.readouterr()
    assert "one piece" not in captured.out + captured.err
    est = load(tmp_path / "m")
    assert est.twins_ is None
    assert est.groups_ is None
