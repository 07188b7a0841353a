"""What the documentation shows, and in which order."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="there is no clone")


def test_every_example_of_the_gallery_draws_a_picture_of_its_own():
    settings = (DOCS / "conf.py").read_text("utf-8")
    assert "default_thumb_file" not in settings
    ignored = re.search(r'"ignore_pattern": r"(.*)"', settings)[1]
    for file in (DOCS / "examples").glob("*.py"):
        if not re.search(ignored, file.name):
            assert file.name.startswith("plot_")  # else it is not run
            assert re.search(r"Display\.from_|plt\.subplots", file.read_text("utf-8"))
