"""What the features of patches are like."""

from skpatchsvdd._analysis.dimension import intrinsic_dimension
from skpatchsvdd._analysis.embedding import PatchEmbeddingDisplay

__all__ = ["PatchEmbeddingDisplay", "intrinsic_dimension"]
