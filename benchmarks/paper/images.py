"""The images of a category, read when asked for, and a digest of their files."""

import hashlib
import sys
from pathlib import Path

import numpy as np

from skpatchsvdd.datasets import load_mvtec_ad

QUICK_IMAGES = 20


class Images:
    """The images of one category, read when they are first asked for.

    Parameters
    ----------
    root : str or path
        Folder of the data set.
    category : str
        Folder below it.
    image_size : int
        Size to which images are resized.
    quick : bool
        Whether to take a few, spread over all.
    """

    def __init__(self, root, category, image_size, quick):
        self.root, self.category, self.image_size = root, category, image_size
        # The last part of the path, by which the paper knows it.
        self.class_name = Path(root, category).absolute().name
        n_train, labels = check_category(root, category)
        self.digest = digest_files(Path(root, category))
        self.train_places = np.arange(n_train)
        self.test_places = np.arange(len(labels))
        if quick:
            self.train_places = spread(self.train_places, QUICK_IMAGES)
            kinds = [np.flatnonzero(labels == label) for label in (1, -1)]
            kinds = [spread(places, QUICK_IMAGES // 2) for places in kinds]
            self.test_places = np.concatenate(kinds)
        self._arrays = None

    def arrays(self):
        """Return the training images, and images, labels and masks to test on."""
        if self._arrays is None:
            parts = self.root, self.category
            size = {"image_size": self.image_size}
            train = load_mvtec_ad(*parts, **size).images[self.train_places]
            test = load_mvtec_ad(*parts, split="test", **size)
            for name in ("images", "labels", "masks"):
                if test[name] is not None:
                    test[name] = test[name][self.test_places]
            self._arrays = train, test
        return self._arrays

    def forget(self):
        """Free the memory."""
        self._arrays = None


def check_category(root, category):
    """Count training images and list the labels of test images, or say what lacks."""
    try:
        train = load_mvtec_ad(root, category, as_paths=True)
        labels = load_mvtec_ad(root, category, split="test", as_paths=True).labels
    except FileNotFoundError as error:
        sys.exit(f"category {category}: {error}")
    if len(np.unique(labels)) < 2:
        sys.exit(
            f"category {category}: {Path(root, category, 'test')} needs both a folder "
            "'good' and one of abnormal images. Leave it out with --categories."
        )
    return len(train.images), labels


def digest_files(folder):
    """Digest the names and sizes of all files: other images have other figures."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(folder)} {path.stat().st_size}" for path in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def spread(places, n):
    """Choose at most n places, evenly."""
    return places[np.linspace(0, len(places) - 1, min(n, len(places))).astype(int)]
