"""What each table compares: its lines, their fits and their columns."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from paper import published

PATCH_SVDD = "PatchSVDD"
JOINED, SUMMED = "joined", "summed"
QUALITY = ("det", "seg")
DIMENSIONS = ("ID of K=32", "ID of K=64")
TIMES = ("s an image", "s in batches", "fit s", "patches")
# Steps of every training with --quick, and PatchSVDD's batches; steps of the
# baselines' networks without.
QUICK_STEPS = 20
QUICK_BATCH = 4
BASELINE_STEPS = 1000
# The weight of the SVDD' term where none is given.
DEFAULT_LAM = {"dense": 0.3, "paper": 1e-3}
LAMS = {
    "dense": (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "paper": (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
}
QUICK_LAMS = {"dense": (0.03, 0.3, 3.0), "paper": (1e-4, 1e-3, 1e-2)}
DIMS = (4, 8, 16, 32, 64, 128)
QUICK_DIMS = (8, 32, 64)
# A raw patch of 64 takes 49 kB. Kept are so many of each scale that cover all.
RAW = {"encoder": "raw", "strides": (16, 16), "bank_size": 8000, "inspection": "paper"}


@dataclass(frozen=True)
class Line:
    """One line of a table: what is fitted, what of it is shown, the paper's figures.

    Parameters
    ----------
    label : str
        What the table calls it.
    model : str
        "PatchSVDD" or a name of `paper.baselines.BASELINES`.
    params : dict
        Parameters of the model, as `set_params` takes them, and the "loss" of an
        ablation. Lines of the same model and parameters share a fit.
    part : {"joined", "summed", "32", "64"}
        Which map is rated.
    paper : dict of str to dict
        The paper's figures by class, and "mean".
    x : float or None
        Where the line stands on the axis of a sweep.
    is_seeded : bool
        Whether a seed matters much. Otherwise one fit stands for all.
    is_timed : bool
        Whether its times matter, so that no fit of another table may stand for it.
    """

    label: str
    model: str = PATCH_SVDD
    params: dict = field(default_factory=dict)
    part: str = JOINED
    paper: dict = field(default_factory=dict)
    x: float | None = None
    is_seeded: bool = True
    is_timed: bool = False


@dataclass(frozen=True)
class Table:
    """A table: how its lines are made, and the columns it has."""

    make_lines: Callable
    columns: tuple = QUALITY


@dataclass(frozen=True)
class Choice:
    """What the command line says about the fits: training, quick and swept values."""

    training: str = "dense"
    quick: bool = False
    values: tuple | None = None

    def params(self, **own):
        """Join the parameters of all fits and a line's own."""
        params = {"training": self.training}
        if self.quick:
            params |= {"max_iter": QUICK_STEPS, "training__batch_size": QUICK_BATCH}
        return params | own

    @property
    def n_steps(self):
        """Return the training steps of a baseline's network."""
        return QUICK_STEPS if self.quick else BASELINE_STEPS


def table1_lines(choice):
    return [Line("Patch SVDD", params=choice.params(), paper=published.PATCH_SVDD)]


def losses_lines(choice):
    both = "svdd' + ssl"
    lines = [
        Line(
            "svdd",
            params=choice.params(loss="svdd"),
            paper=published.SVDD_LOSS,
        ),
        Line(
            "svdd'",
            params=choice.params(loss="svdd_prime"),
            paper=published.SVDD_PRIME_LOSS,
        ),
    ]
    own = Line(both, params=choice.params(), paper=published.PATCH_SVDD)
    if choice.training == "paper":
        return [*lines, own]
    bare = choice.params(training__damage_weight=0.0)
    lines.append(replace(own, params=bare))
    return [*lines, replace(own, label=f"{both} + defects", paper={})]


def hierarchy_lines(choice):
    own = choice.params()
    return [
        Line(
            "flat, K=64",
            params=choice.params(encoder="flat"),
            part="64",
            paper=published.FLAT_64,
        ),
        Line(
            "hierarchical, K=64", params=own, part="64", paper=published.HIERARCHICAL_64
        ),
        Line("hierarchical, joined", params=own, paper=published.PATCH_SVDD),
    ]


def scales_lines(choice):
    own = choice.params()
    return [
        Line("K=32", params=own, part="32", paper=published.HIERARCHICAL_32),
        Line("K=64", params=own, part="64", paper=published.HIERARCHICAL_64),
        Line("joined", params=own, paper=published.PATCH_SVDD),
        Line("summed", params=own, part=SUMMED),
    ]


def lambda_lines(choice):
    default = DEFAULT_LAM[choice.training]
    lams = (QUICK_LAMS if choice.quick else LAMS)[choice.training]
    return [
        Line(
            f"lambda={lam:g}",
            params=choice.params(**_unless(lam, default, "lam")),
            x=lam,
        )
        for lam in choice.values or lams
    ]


def dimension_lines(choice):
    dims = choice.values or (QUICK_DIMS if choice.quick else DIMS)
    return [
        Line(
            f"D={dim:g}",
            params=choice.params(**_unless(int(dim), 64, "embedding_dim")),
            paper=published.PATCH_SVDD if dim == 64 else {},
            x=dim,
        )
        for dim in dims
    ]


def random_lines(choice):
    as_paper = {"training": "paper", "max_iter": 0}
    lines = [
        Line("random encoder", params=as_paper, paper=published.RANDOM_ENCODER),
        Line("raw patches", params=RAW, paper=published.RAW_PATCHES, is_seeded=False),
    ]
    if choice.training == "dense":
        own = {"training": "dense", "max_iter": 0}
        lines.insert(1, Line("random, our inspection", params=own))
    return lines + [Line("trained", params=choice.params(), paper=published.PATCH_SVDD)]


def time_lines(choice):
    own = choice.params()
    return [Line("Patch SVDD", params=own, paper=published.INSPECTION, is_timed=True)]


def baselines_lines(choice):
    steps = {"n_steps": choice.n_steps}
    lines = [
        Line("IsolationForest on PCA", "isolation_forest"),
        Line("OneClassSVM (SVDD) on PCA", "one_class_svm", is_seeded=False),
        Line("LocalOutlierFactor on PCA", "local_outlier_factor", is_seeded=False),
        Line("Deep SVDD", "deep_svdd", steps, paper=published.DEEP_SVDD),
        Line("L2 autoencoder", "autoencoder", steps, paper=published.AUTOENCODER),
    ]
    if importlib.util.find_spec("pyod"):
        lines.append(Line("PyOD DeepSVDD on PCA", "pyod_deep_svdd"))
    return lines + [
        Line("Patch SVDD", params=choice.params(), paper=published.PATCH_SVDD)
    ]


def _unless(value, default, name):
    """Return a parameter, or nothing where it is the default."""
    return {} if value == default else {name: value}


TABLES = {
    "table1": Table(table1_lines),
    "losses": Table(losses_lines, (*QUALITY, "undone", *DIMENSIONS)),
    "hierarchy": Table(hierarchy_lines),
    "scales": Table(scales_lines),
    "lambda": Table(lambda_lines, (*QUALITY, "undone")),
    "dimension": Table(dimension_lines, (*QUALITY, "undone", *DIMENSIONS)),
    "random": Table(random_lines),
    "time": Table(time_lines, (*TIMES, *QUALITY)),
    "baselines": Table(baselines_lines, (*QUALITY, "fit s", "s in batches")),
}
SWEEPS = ("lambda", "dimension")
