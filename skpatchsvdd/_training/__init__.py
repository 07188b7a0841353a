"""How an encoder is trained: what is drawn, minimised and checked."""

from skpatchsvdd._training.trainer import go_on_from, train_encoder

__all__ = [
    "go_on_from",
    "train_encoder",
]
