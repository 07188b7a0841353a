"""How an encoder is trained: what is drawn, minimised and checked."""

from skpatchsvdd._training.embedding import whiten
from skpatchsvdd._training.training import (
    describe_training,
    resume_from,
    train_encoder,
    undo_training,
)
