"""Model files that hold numbers and text, and nothing that could run."""

from skpatchsvdd._storage.model import is_model_file, read_model, write_model

__all__ = ["is_model_file", "read_model", "write_model"]
