"""Model files that hold numbers and text, and nothing that could run."""

from skpatchsvdd._storage.estimator import load_estimator, save_estimator
