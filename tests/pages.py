"""Code that stands in the documentation, to be run."""

import re
from pathlib import Path
from textwrap import dedent

DOCS = Path(__file__).parents[1] / "docs"


def read_blocks(page):
    """Return all blocks of Python of a page, by its name."""
    text = (DOCS / page).read_text()
    pattern = r"^\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)"
    return [dedent(block) for block in re.findall(pattern, text, re.M)]


def read_block(page, marker):
    """Return the one block of a page that holds `marker`."""
    [block] = (block for block in read_blocks(page) if marker in block)
    return block
