"""What the parameters of training and inspection mean on a device."""

from dataclasses import dataclass, fields

from skpatchsvdd._encoding import ENCODERS, check_encoder
from skpatchsvdd._parameters import PAPER_INSPECTION, make_inspection, make_training

# Dense training is as bench_quality.py found it best on a GPU, and on a CPU so that it
# takes minutes: 21 instead of 230 TFLOP, as bench_training.py counts them. The paper's
# training is the paper's, but for its 300 epochs, which are more steps.
_DENSE = {
    "lam": 0.3,
    "damage_weight": 1.0,
    "light": 0.3,
    "position_weight": "auto",
    # More helps parts whose edges vary and harms materials: a compromise, with which
    # none of nine categories loses more than 0.008 of its AUROC.
    "relative_weight": 1 / 3,
    # More gives sharper maps, and scores that tell images apart less: RESULTS.md.
    "comparison_weight": 0.07,
    # 20 x 20 pixels: what a defect smaller than a patch lights up in a map.
    "score_pixels": 400,
}
_PAPER = {"max_iter": 12000, "batch_size": 64, "learning_rate": 1e-4, "lam": 1e-3}
_PAPER |= {"damage_weight": 0.0, **PAPER_INSPECTION}
# An embedding of pretrained features is trained alike on all devices.
_EMBEDDING = {"max_iter": 200, "batch_size": 512, "learning_rate": 1e-3}
_EMBEDDING |= {"damage_weight": 3.0}
_DENSE_STEPS = {
    "gpu": {"max_iter": 1000, "batch_size": 16, "learning_rate": 1e-3},
    "cpu": {"max_iter": 240, "batch_size": 6, "learning_rate": 1.5e-3},
}


@dataclass(frozen=True)
class Options:
    """Parameters of the estimator with what "auto" means filled in.

    See `PatchSVDD`, `Training` and `Inspection`; `training` is the `method`. Still
    "auto" can be `position_weight`, which depends on the features of training images,
    and `neighbors`, which then means "exact".
    """

    lam: float
    embedding_dim: int
    patch_size: int
    bank_size: int | float | None
    max_iter: int
    batch_size: int
    learning_rate: float
    early_stopping: bool
    validation_fraction: float
    damage_weight: float
    light: float
    position_weight: float | str
    relative_weight: float
    comparison_weight: float
    score_pixels: int
    neighbors: str
    n_jobs: int | None
    training: str
    encoder: str | None
    pretrained: tuple = ()

    @property
    def embeds(self):
        """Whether features are embedded: those of "procedural", alone."""
        is_alone = self.encoder is None and self.pretrained == ("procedural",)
        return is_alone and self.training == "dense"

    @property
    def trains(self):
        """Whether there is anything to train."""
        has_weights = self.encoder and ENCODERS[self.encoder].is_trainable
        return self.max_iter > 0 and (self.embeds or bool(has_weights))

    @property
    def damages(self):
        """Whether training draws synthetic defects."""
        return self.trains and self.training == "dense" and self.damage_weight > 0


def resolve_options(parameters, device):
    """Return the `Options` that all parameters of an estimator mean on a device."""
    training = make_training(parameters["training"])
    inspection = make_inspection(parameters["inspection"])
    parts = (training.get_params(deep=False), inspection.get_params(deep=False))
    all_given = parameters | parts[0] | parts[1] | {"training": training.method}
    names = [field.name for field in fields(Options)]
    given = {name: all_given[name] for name in names if name in all_given}
    kind = "cpu" if device.type == "cpu" else "gpu"
    auto = _PAPER if training.method == "paper" else _DENSE | _DENSE_STEPS[kind]
    encoder = given["encoder"]
    if isinstance(encoder, str) and encoder == "auto":
        encoder = "hierarchical" if training.method == "paper" else "procedural"
    given["encoder"], given["pretrained"] = check_encoder(encoder)
    if "procedural" not in given["pretrained"]:  # whose distances it was trained on
        auto = auto | {"comparison_weight": 0.0}
    if given["encoder"] is None:
        auto = auto | _EMBEDDING
    for name, value in auto.items():
        is_auto = given[name] is None if name == "lam" else given[name] == "auto"
        given[name] = value if is_auto else given[name]
    if given["training"] == "paper" and given["comparison_weight"] > 0:
        raise ValueError(
            "inspection__comparison_weight must be 'auto' or 0 with training='paper', "
            f"which subtracts a mean image, got {given['comparison_weight']!r}."
        )
    return Options(**given)
