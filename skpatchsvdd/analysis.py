"""What the features of patches are like: their dimension, and pictures of them."""

from skpatchsvdd._analysis import PatchEmbeddingDisplay, intrinsic_dimension

__all__ = ["PatchEmbeddingDisplay", "intrinsic_dimension"]
