"""Configuration of the documentation."""

import sys
from pathlib import Path

import skpatchsvdd

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "skpatchsvdd"
author = "the skpatchsvdd developers"
copyright = f"2026, {author}"
version = release = skpatchsvdd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
    "numpydoc",
    "mathml",
]
# MathJax would be fetched from elsewhere by every page that has a formula.
html_math_renderer = "mathml"
autosummary_generate = True
numpydoc_show_class_members = False
# scikit-learn writes these, and their text refers to pages of its own documentation.
_REQUESTS = ("set_fit_request", "set_partial_fit_request", "set_split_request")
autodoc_default_options = {"exclude-members": ",".join(_REQUESTS)}
templates_path = ["_templates"]
exclude_patterns = ["_build", "examples"]

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "auto_examples",
    # Others are shown and not run.
    "filename_pattern": r"[\\/]plot_",
    "within_subsection_order": "FileNameSortKey",
    "doc_module": ("skpatchsvdd",),
    "backreferences_dir": "generated/examples_of",
    # In a gallery every example has a picture of its own: one that draws none is shown
    # on a page about its subject.
    "ignore_pattern": r"[\\/]run_",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_signature": False,
    "write_computation_times": False,  # a page that fetches scripts from elsewhere
}
suppress_warnings = ["config.cache"]

html_theme = "pydata_sphinx_theme"
html_title = f"skpatchsvdd {version}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_theme_options = {
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 6,
}
# Pages with nothing below them.
_PAGES = (
    "index",
    "getting_started",
    "command_line",
    "faq",
    "how_it_is_built",
    "citing",
)
html_sidebars = {page: [] for page in _PAGES}
