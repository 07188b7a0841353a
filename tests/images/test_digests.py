"""Images that come twice, and what is said of them."""

import numpy as np
import pytest
from PIL import Image

from skpatchsvdd._images import check_images, digest_images


def test_copies_are_named_by_their_index(tiny):
    images = check_images(tiny[[0, 1, 0, 2, 1]])
    with pytest.warns(UserWarning, match="2 copies of other images") as caught:
        digests = digest_images(images)
    assert "normal image 2 is the same as normal image 0," in str(caught[0].message)
    assert len(set(digests)) == 3


def test_copies_are_named_by_their_file(tiny, tmp_path):
    files = [str(tmp_path / f"{name}.png") for name in "abc"]
    for file, i in zip(files, (0, 1, 0), strict=True):
        Image.fromarray(tiny[i]).save(file)
    with pytest.warns(UserWarning, match=f"{files[2]} is the same as {files[0]}"):
        digest_images(check_images(files))


def test_many_copies_are_counted(tiny):
    with pytest.warns(
        UserWarning, match=r"7 copies.*normal image 5 is .*, and 2 more\."
    ):
        digest_images(check_images(np.repeat(tiny[:1], 8, axis=0)))
