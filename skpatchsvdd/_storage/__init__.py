"""Model files that hold numbers and text, and nothing that could run."""

from skpatchsvdd._storage.content import check_content
from skpatchsvdd._storage.model import read_model, write_model
from skpatchsvdd._storage.tensors import is_model_file

__all__ = ["check_content", "is_model_file", "read_model", "write_model"]
