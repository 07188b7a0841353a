"""`Training` and `Inspection`, the two parameters that are objects."""

import copy
import inspect
import json
import pickle

import numpy as np
import pytest
import torch
from settings import SEED
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from test_contributing import ROOT

from skpatchsvdd import Inspection, PatchSVDD, Training, load
from skpatchsvdd._parameters import resolve_options
from skpatchsvdd._utils import read_tensors, write_tensors

CPU = torch.device("cpu")
INSPECTION = ["light", "position_weight", "relative_weight", "score_pixels"]
PAPER = [1.0, 0.0, 0.0, 1]
OURS = [0.3, "auto", 1 / 3, 400]


def resolve(**params):
    return resolve_options(PatchSVDD(**params).get_params(deep=False), CPU)


def as_values(settings):
    return settings.get_params(deep=False)


@pytest.fixture
def est():
    return PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        embedding_dim=4,
        max_iter=1,
        training=Training(batch_size=1, damage_weight=0.5),
        inspection=Inspection(relative_weight=0.5, score_pixels=np.int64(9)),
        random_state=SEED,
    )


def test_every_parameter_is_in_the_table_of_the_guide():
    page = ROOT / "docs" / "user_guide" / "parameters.rst"
    if not page.exists():
        pytest.skip("there is no clone")
    text = page.read_text("utf-8")
    for cls in (PatchSVDD, Training, Inspection):
        for name, parameter in inspect.signature(cls).parameters.items():
            default = json.dumps(parameter.default)
            shown = {"null": "None", "false": "False"}.get(default, default)
            assert f"- ``{name}``\n     - ``{shown}``\n" in text, name


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, OURS),
        ({"inspection": Inspection()}, OURS),
        ({"inspection": "paper"}, PAPER),
        ({"inspection": Inspection(light=0.5)}, [0.5, *OURS[1:]]),
        ({"training": "paper"}, PAPER),
        ({"encoder": ["hierarchical", "procedural"]}, OURS),
        ({"training": "paper", "inspection": Inspection(light=0.5)}, [0.5, *PAPER[1:]]),
    ],
)
def test_what_an_inspection_means(params, expected):
    options = resolve(**params)
    assert [getattr(options, name) for name in INSPECTION] == expected


def test_names_of_trainings_are_objects():
    assert resolve(training="paper") == resolve(training=Training(method="paper"))
    assert resolve(training="dense") == resolve(training=Training()) == resolve()
    assert resolve(training="paper").encoder == "hierarchical"
    assert resolve(training=Training(batch_size=3)).encoder is None


def test_values_are_set_by_name(est):
    est.set_params(training__damage_weight=2, inspection__light=0)
    assert est.training.damage_weight == 2
    assert est.training.batch_size == 1
    plain = PatchSVDD().set_params(inspection__light=0, training__learning_rate=0.1)
    assert str(plain.inspection) == "Inspection(light=0)"
    assert str(plain.training) == "Training(learning_rate=0.1)"
    plain.set_params(training="paper", training__batch_size=2)
    assert str(plain.training) == "Training(batch_size=2, method='paper')"
    assert PatchSVDD().training == "dense"
    with pytest.raises(ValueError, match="Invalid parameter 'dark'"):
        plain.set_params(inspection__dark=1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"inspection": Inspection(score_pixels=0)}, r"Inspection\(score_pixels=\.\."),
        ({"training": Training(method="fast")}, r"Training\(method=\.\.\.\) must be a"),
        (
            {"inspection": "ours"},
            r"inspection must be one of 'default', 'paper', or a ",
        ),
        ({"training": Inspection()}, r"training must be .*\.Training\(\.\.\.\), got I"),
    ],
)
def test_values_are_checked_by_every_fit(tiny_fitted, tiny, params, message):
    est = copy.deepcopy(tiny_fitted).set_params(**params)  # nothing is said yet
    for fit in (clone(est).fit, est.partial_fit):
        with pytest.raises(ValueError, match=message):
            fit(tiny)


def test_copies_share_nothing(est):
    for other in (clone(est), copy.deepcopy(est), pickle.loads(pickle.dumps(est))):
        assert str(other) == str(est)
        other.set_params(training__batch_size=7)
        assert est.training.batch_size == 1


def test_model_files_hold_values_alone(est, tiny, tmp_path):
    est.fit(tiny).save(tmp_path / "part.model")
    loaded = load(tmp_path / "part.model")
    assert as_values(loaded.training) == as_values(est.training)
    assert as_values(loaded.inspection) == as_values(est.inspection)
    np.testing.assert_array_equal(loaded.score_samples(tiny), est.score_samples(tiny))
    arrays, text = read_tensors(tmp_path / "part.model")
    parameters = dict(json.loads(text["content"])["parameters"]["dict"])
    assert parameters["inspection"]["settings"] == "Inspection"
    assert ["score_pixels", 9] in parameters["inspection"]["of"]["dict"]
    for old, new in (("score_pixels", "pixels"), ('"Training"', '"Trap"')):
        forged = text | {"content": text["content"].replace(old, new)}
        write_tensors(tmp_path / "forged.model", arrays, forged)
        with pytest.raises(ValueError, match=r"forged\.model cannot be loaded"):
            load(tmp_path / "forged.model")


def test_a_search_goes_over_their_values(tiny):
    grid = {"inspection__relative_weight": [0, 0.5], "training__learning_rate": [1e-3]}
    est = PatchSVDD(patch_size=32, embedding_dim=4, max_iter=1, random_state=SEED)
    search = GridSearchCV(
        est.set_params(encoder="hierarchical"),
        grid,
        scoring=lambda est, X, y=None: est.score_samples(X).mean(),
        cv=KFold(2),
        error_score="raise",
    ).fit(tiny)
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] != scores[1]
    assert search.best_estimator_.training.learning_rate == 1e-3


def test_what_get_params_lists_can_be_set_and_nothing_else():
    est = PatchSVDD()
    listed = est.get_params()
    assert {"lam", "training__learning_rate", "inspection__light"} <= set(listed)
    for name, value in listed.items():
        assert PatchSVDD().set_params(**{name: value}).get_params()[name] == value
    for name in ("training__no", "inspection__no", "encoder__patch_size", "no"):
        with pytest.raises(ValueError, match="Invalid parameter"):
            est.set_params(**{name: 1})
    assert set(est.get_params(deep=False)) == {x for x in listed if "__" not in x}
    # Those of a name that fit refuses are listed without it.
    assert "training__method" not in PatchSVDD(training="sparse").get_params()
