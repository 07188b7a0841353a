"""What the documentation shows, and in which order."""

import re
from pathlib import Path

import pytest
from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="there is no clone")


def list_pages(page):
    """Return the pages that a page's toctree names."""
    text = (DOCS / page).read_text("utf-8")
    tree = re.search(r"\.\. toctree::\n((?:   .*\n|\n)+)", text)[1]
    return [x.strip() for x in tree.splitlines() if x.strip() and ":" not in x]


def test_the_command_line_is_second_under_its_own_name():
    assert list_pages("index.rst")[:2] == ["getting_started", "command_line"]
    assert not any("command_line" in x for x in list_pages("user_guide.rst"))
    title = (DOCS / "command_line.rst").read_text("utf-8").splitlines()[2]
    assert title == "The command line"
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    assert f"[{title}](docs/command_line.rst)" in readme


def test_the_first_page_and_the_readme_show_a_report():
    assert ".. figure:: report.jpg" in (DOCS / "index.rst").read_text("utf-8")
    assert "(docs/report.jpg)" in (DOCS.parent / "README.md").read_text("utf-8")
    assert (DOCS / "report.jpg").stat().st_size <= 200_000
    with Image.open(DOCS / "report.jpg") as picture:
        assert picture.width == 1400


def test_every_example_of_the_gallery_draws_a_picture_of_its_own():
    settings = (DOCS / "conf.py").read_text("utf-8")
    assert "default_thumb_file" not in settings
    ignored = re.search(r'"ignore_pattern": r"(.*)"', settings)[1]
    for file in (DOCS / "examples").glob("*.py"):
        if not re.search(ignored, str(file)):
            assert file.name.startswith("plot_")  # else it is not run
            assert re.search(r"Display\.from_|plt\.subplots", file.read_text("utf-8"))
