"""`Training` and `Inspection`, and what the parameters mean on a device, `Options`."""

from dataclasses import dataclass, fields
from numbers import Integral, Real

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import (
    Interval,
    StrOptions,
    validate_parameter_constraints,
)

from skpatchsvdd._encoding import ENCODERS, check_encoder

_AUTO = StrOptions({"auto"})
_FRACTION = Interval(Real, 0, 1, closed="both")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_POSITIVE = Interval(Integral, 1, None, closed="left")


class _Settings(BaseEstimator):
    """Values that belong together, with names that `set_params` and searches know."""

    def check(self):
        """Raise a ValueError that names the first value that is not allowed."""
        for name, value in self.get_params(deep=False).items():
            validate_parameter_constraints(
                {name: self._parameter_constraints[name]},
                {name: value},
                caller_name=f"{type(self).__name__}({name}=...)",
            )


class Training(_Settings):
    r"""How the encoder is trained: for those who study training.

    Passed to `PatchSVDD` as `training`, in place of "dense", which is ``Training()``,
    or "paper", which is ``Training(method="paper")``. The values are checked by `fit`.

    Parameters
    ----------
    method : {"dense", "paper"}, default="dense"
        "dense" encodes crops of 128 x 128 pixels as whole maps and draws all pairs from
        them; each crop is seen in two views under different light, of which the second
        has synthetic defects and may be shifted. "paper" is the paper's training, on
        pairs of patches cut out one by one, in float32, of which the neighbours lie
        3K/4 to K - 1 pixels apart; of "procedural" some lie nearer, see
        :ref:`embedding`. It needs many more steps, and collapses on some images. The
        :ref:`user guide <paper_training>` lists what differs from the authors' code.
    damage_weight : "auto" or float, default="auto"
        Weight of the term that, in dense training, pushes patches with synthetic
        defects away from all patches without them. 0 leaves it out: no defects are
        drawn, and a step takes less time. "auto" is 3 for the embedding of
        "procedural", and 1 for other encoders.
    batch_size : "auto" or int, default="auto"
        Of "procedural", pairs of patches per step for each scale; of other encoders,
        crops per step; with ``method="paper"``, pairs for each loss and scale. "auto"
        is 512 pairs, 16 crops on a GPU and 6 on a CPU, or 64 pairs.
    learning_rate : "auto" or float, default="auto"
        Step size of Adam. In dense training this is its peak: it rises over the first
        twentieth of the steps and falls to 0 along half a cosine. With
        ``method="paper"`` it is constant. "auto" is 1e-3; 1.5e-3 for "hierarchical" on
        a CPU, which takes fewer steps; 1e-4 with ``method="paper"``.
    validation_fraction : float in (0, 1), default=0.1
        Fraction of the images held out for early stopping, at least 2; of more than 100
        a random 100 are looked at. They are in the bank nevertheless.

    See Also
    --------
    Inspection : How scores are read.

    Examples
    --------
    >>> from skpatchsvdd import PatchSVDD, Training
    >>> est = PatchSVDD(training=Training(batch_size=8, damage_weight=0))
    >>> est.set_params(training__learning_rate=5e-4).training
    Training(batch_size=8, damage_weight=0, learning_rate=0.0005)
    """

    _parameter_constraints = {  # noqa: RUF012
        "method": [StrOptions({"dense", "paper"})],
        "damage_weight": [_AUTO, _NOT_NEGATIVE],
        "batch_size": [_AUTO, _POSITIVE],
        "learning_rate": [_AUTO, Interval(Real, 0, None, closed="neither")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    }

    def __init__(
        self,
        *,
        method="dense",
        damage_weight="auto",
        batch_size="auto",
        learning_rate="auto",
        validation_fraction=0.1,
    ):
        self.method = method
        self.damage_weight = damage_weight
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction


class Inspection(_Settings):
    r"""How scores are read off the distances of patches.

    Passed to `PatchSVDD` as `inspection`, in place of "default", which is
    ``Inspection()``, or "paper", which is the paper's: images as they are, positions
    that do not count, distances as they are, and the largest pixel alone. With
    ``training="paper"`` "auto" means the paper's, too. The values are checked by `fit`.

    Parameters
    ----------
    light : "auto" or float in [0, 1], default="auto"
        Fraction of slow changes of brightness across an image, over more than about 16
        pixels, that the encoder sees. 1 leaves images as they are, as the paper does; 0
        removes all of them, and with them every smooth change of light, but also the
        colour of large even areas. "auto" is 0.3.
    position_weight : "auto" or float, default="auto"
        How much the position of a patch counts in the search for its nearest neighbour:
        the distance between opposite edges of an image, in units of the median distance
        from a normal patch to the nearest patch of another image. 0 compares features
        alone, as the paper does. "auto" looks at where nearest neighbours lie: if for
        three quarters of the patches they lie in the same position, the images are
        aligned, as pictures of parts in a mount are, and the weight is 10; if for a
        quarter or less, as in pictures of materials, it is 0; and it is interpolated
        linearly in between.
    relative_weight : "auto" or float in [0, 1], default="auto"
        How much distances count relative to local normal variation. There are two maps:
        D, of distances as they are, and R, of distances divided by those that normal
        patches which look alike have to normal patches of other images. With the
        weight w, a pixel of the anomaly map is D\ :sup:`1-w` R\ :sup:`w`. The score
        of an image comes from R alone, whatever w is; with w = 0, the paper's, there
        is D alone. "auto" is 1/3.
    comparison_weight : "auto" or float, default="auto"
        How much the comparison counts that was learnt on procedural images: a network
        that sees how patches compare with normal ones, and the image, and gives logits
        of damage for every pixel. With the weight w and the logit l, a pixel of the map
        of each scale is multiplied by exp(w l), the score is the geometric mean of that
        without it and that of this map, and masks are where l > 0. 0 leaves it out, as
        the paper does. "auto" is 0.07 with features learnt on procedural images, on
        whose distances it was trained, and 0 with other encoders alone.
    score_pixels : "auto" or int, default="auto"
        How many of the largest pixels of a map the score of an image is the mean of; no
        more than a quarter of the image. 1 is the maximum, as in the paper. "auto" is
        400, which is 20 x 20 pixels.

    See Also
    --------
    Training : How the encoder is trained.

    Examples
    --------
    >>> from skpatchsvdd import Inspection, PatchSVDD
    >>> est = PatchSVDD(inspection=Inspection(relative_weight=0.5))
    >>> est.set_params(inspection__score_pixels=1).inspection
    Inspection(relative_weight=0.5, score_pixels=1)
    """

    _parameter_constraints = {  # noqa: RUF012
        "light": [_AUTO, _FRACTION],
        "position_weight": [_AUTO, _NOT_NEGATIVE],
        "relative_weight": [_AUTO, _FRACTION],
        "comparison_weight": [_AUTO, _NOT_NEGATIVE],
        "score_pixels": [_AUTO, _POSITIVE],
    }

    def __init__(
        self,
        *,
        light="auto",
        position_weight="auto",
        relative_weight="auto",
        comparison_weight="auto",
        score_pixels="auto",
    ):
        self.light = light
        self.position_weight = position_weight
        self.relative_weight = relative_weight
        self.comparison_weight = comparison_weight
        self.score_pixels = score_pixels


# See `Inspection`.
_PAPER_INSPECTION = {
    "light": 1.0,
    "position_weight": 0.0,
    "relative_weight": 0.0,
    "comparison_weight": 0.0,
    "score_pixels": 1,
}
# What `training` and `inspection` may be called by name.
_TRAININGS = {"dense": {}, "paper": {"method": "paper"}}
_INSPECTIONS = {"default": {}, "paper": _PAPER_INSPECTION}
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
_PAPER |= {"damage_weight": 0.0, **_PAPER_INSPECTION}
# An embedding of pretrained features is trained alike on all devices.
_EMBEDDING = {"max_iter": 200, "batch_size": 512, "learning_rate": 1e-3}
_EMBEDDING |= {"damage_weight": 3.0}
_DENSE_STEPS = {
    "gpu": {"max_iter": 1000, "batch_size": 16, "learning_rate": 1e-3},
    "cpu": {"max_iter": 240, "batch_size": 6, "learning_rate": 1.5e-3},
}


def make_training(training):
    """Return the `Training` that the parameter `training` names or is."""
    return _make("training", training, Training, _TRAININGS)


def make_inspection(inspection):
    """Return the `Inspection` that the parameter `inspection` names or is."""
    return _make("inspection", inspection, Inspection, _INSPECTIONS)


def _make(name, value, cls, named):
    if isinstance(value, cls):
        return value
    if isinstance(value, str) and value in named:
        return cls(**named[value])
    names = ", ".join(map(repr, named))
    raise ValueError(
        f"{name} must be one of {names}, or a skpatchsvdd.{cls.__name__}(...), got "
        f"{value!r}."
    )


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
