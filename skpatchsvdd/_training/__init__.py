"""How an encoder is trained: what is drawn, minimised and checked."""

from skpatchsvdd._training.trainer import (
    count_trainings,
    go_on_from,
    train_encoder,
    undo_training,
)

__all__ = [
    "count_trainings",
    "go_on_from",
    "train_encoder",
    "undo_training",
]
