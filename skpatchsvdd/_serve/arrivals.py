"""What arrives at a line: the images of a folder."""

import os

from skpatchsvdd._cli import FolderWatcher, tell


class FolderArrivals:
    """The images that other programs write into a folder."""

    def __init__(self, folder):
        self._folder = folder

    def list_looks(self, is_inspected, retries):
        """Return an endless iterable of what has arrived; see `FolderWatcher`."""
        return FolderWatcher(self._folder, is_inspected, retries, tell)

    def find_trouble(self):
        """Return why nothing can arrive, or None."""
        if os.path.isdir(self._folder):
            return None
        return f"the folder {self._folder} is gone. Images are seen when it is back."

    def close(self):
        """End nothing: other programs write, and the line itself looks."""
