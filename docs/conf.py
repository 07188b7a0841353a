"""Configuration of the documentation."""

import skpatchsvdd

project = "skpatchsvdd"
author = "the skpatchsvdd developers"
copyright = f"2026, {author}"
version = release = skpatchsvdd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
]
autosummary_generate = True
numpydoc_show_class_members = False
# scikit-learn writes these, and their text refers to pages of its own documentation.
_REQUESTS = ("set_fit_request", "set_partial_fit_request", "set_split_request")
autodoc_default_options = {"exclude-members": ",".join(_REQUESTS)}
templates_path = ["_templates"]
exclude_patterns = ["_build"]

html_theme = "pydata_sphinx_theme"
html_title = f"skpatchsvdd {version}"
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}
_PAGES = ("index", "api", "user_guide", "dask", "how_it_is_built")
html_sidebars = {page: [] for page in _PAGES}
