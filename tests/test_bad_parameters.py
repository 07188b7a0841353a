"""Parameters and arguments that make no sense: named, and nothing is changed."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from unchanged import check_stays_unfitted, refused

from skpatchsvdd import PatchSVDD, Training

nan, inf = float("nan"), float("inf")

# Parameters: a value, and what the message says besides the name.
BAD_PARAMETERS = [
    *(("lam", x, r"\[0.0, inf\) or None") for x in (-1, nan, inf, "x", [1], 1j)),
    *(("embedding_dim", x, r"\[1, inf\)") for x in (0, 1.5, "4", None)),
    *(("patch_size", x, "among {32, 64, 128}") for x in (16, "32", 32.0, None, (32,))),
    ("patch_size", 64, "image height 34 is smaller than.*or patch_size=32"),
    *(("image_size", x, "an array-like or None. Got") for x in (0, -3, 1.5, "large")),
    *(
        ("image_size", x, r"must be None, a positive integer or a pair \(height")
        for x in ((34,), (34, 34, 3), (34, 0), (34.0, 34), {}, True, [[34], [34, 34]])
    ),
    ("image_size", np.ones((2, 2)), "must be None, a positive integer or a pair"),
    ("image_size", 8, "image height 8 is smaller than patch_size=32"),
    *(("false_alarm_rate", x, r"\(0.0, 0.5\]") for x in (0, 0.6, nan, "x", None)),
    *(("bank_size", x, r"\(0.0, 1.0\] or None") for x in (0, 0.0, 1.5, -1, "all", nan)),
    *(("max_iter", x, r"\[0, inf\)") for x in (-1, 1.5, "x", None)),
    *(("device", x, "must be 'auto', 'cpu', 'cuda'") for x in ("tpu", "", "cuda:x")),
    *(("device", x, "Pass device='auto'") for x in ("cuda", "cuda:9")),
    *(("device", x, "instance of 'str'") for x in (5, None, torch.device("cpu"))),
    *(("random_state", x, "must be an int") for x in (-1, 1.5, "x", 2**40)),
    *(("verbose", x, "must be an int") for x in (-1, 1.5, "x", None)),
    ("n_jobs", 0, "has no meaning. Pass None, -1 or a positive"),
    ("n_jobs", 10**6, "threads are more than can be started. Pass -1"),
    *(("n_jobs", x, "an instance of 'int' or None") for x in (1.5, "x")),
    *(("training__batch_size", x, r"\[1, inf\)") for x in (0, 1.5, "x")),
    *(("training__learning_rate", x, r"\(0.0, inf\)") for x in (0, -1, nan, inf, "x")),
    *(("early_stopping", x, "instance of 'bool'") for x in ("yes", None, 2)),
    *(("training__validation_fraction", x, r"\(0.0, 1.0\)") for x in (0, 1, nan, "x")),
    ("warm_start", "x", "instance of 'bool'"),
    *(("strides", x, "positive integers, one for") for x in ((0,), (4, 4), (1.5,), {})),
    *(("strides", x, "an array-like or None") for x in (5, "abc")),
    *(("neighbors", x, "must be a str among") for x in ("x", None)),
    *(("inspection__light", x, r"\[0.0, 1.0\]") for x in (-0.1, 1.1, nan, "x")),
    *(("inspection__position_weight", x, r"\[0.0, inf\)") for x in (-1, nan, inf, "x")),
    *(("inspection__relative_weight", x, r"\[0.0, 1.0\]") for x in (2, nan, "x")),
    *(("inspection__score_pixels", x, r"\[1, inf\)") for x in (0, 1.5, "x")),
    *(("training__damage_weight", x, r"\[0.0, inf\)") for x in (-1, nan, inf, "x")),
    *(("roi", x, "an array-like or None") for x in ("abc", 5)),
    ("roi", np.ones((3, 3)), "images have 34 x 34. Pass a mask of that size"),
    ("roi", np.zeros((34, 34)), "leaves no pixel to look at"),
    ("roi", np.full((34, 34), nan), "Pass a mask of 0 and 1"),
    ("roi", np.ones((34, 34, 3)), r"have the shape \(height, width\)"),
    ("roi", [[1, 2], [3]], "cannot be read as an array of numbers"),
    ("roi", np.full((34, 34), "a"), "has dtype <U1"),
    ("roi", np.ma.masked_equal(np.eye(34), 0), "is a masked array that hides"),
    *(("training", x, "must be one of 'dense', 'paper', or") for x in ("x", None, 5)),
    *(("inspection", x, "one of 'default', 'paper'") for x in ("x", None, Training())),
    ("training__method", "x", "must be a str among"),
    # Impossible together, or with these images
    ("encoder", "x", "encoder must be 'auto', one of"),
    ({"early_stopping": True, "max_iter": 1}, None, "sets 2 of 2 images aside.*small"),
    ({"warm_start": True, "embedding_dim": 8}, None, "cannot go on.*warm_start=False"),
]


@pytest.mark.parametrize(("name", "value", "match"), BAD_PARAMETERS)
def test_bad_parameters(tiny_fitted, tiny, name, value, match, monkeypatch):
    est, X = tiny_fitted, tiny
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    params = name if isinstance(name, dict) else {name: value}
    X = X[:2] if "early_stopping" in params else X
    changed = copy.deepcopy(est)
    before = pickle.dumps(est)
    changed.set_params(**params)
    given = pickle.dumps(vars(changed))
    with pytest.raises(ValueError, match=f"(?s){match}") as caught:
        changed.fit(X)
    owner, _, parameter = next(iter(params)).rpartition("__")
    name = f"{owner.capitalize()}({parameter}=...)" if owner else parameter
    assert name in str(caught.value)
    assert (pickle.dumps(est), pickle.dumps(vars(changed))) == (before, given)
    if "warm_start" not in params:
        check_stays_unfitted(clone(est).set_params(**params), X)


BAD_CALLS = [
    (lambda est, X: est.predict_mask(X, 0), r"rate must be in \(0, 0.5\], got 0"),
    (lambda est, X: est.predict_regions(X, false_alarm_rate="x"), "false_alarm_rate"),
    (lambda est, X: est.explain(X, false_alarm_rate=nan), "false_alarm_rate must be"),
    (lambda est, X: est.anomaly_map(X, scale=64), r"scale must be one of \(32"),
    (lambda est, X: est.anomaly_map(X, scale=np.array([32, 64])), "scale must"),
    (lambda est, X: est.embed(X, None), r"patch_size must be one of \(32,\)"),
    (lambda est, X: est.check_drift(X, 2), "defect_fraction must be in"),
    (lambda est, X: est.check_drift(X, level="x"), "level must be in"),
    (lambda est, X: est.set_params(stride=3), "Invalid parameter 'stride'"),
    (lambda est, X: est.partial_fit(X, groups=X[:, 0, 0, 0]), "fit was not"),
    (lambda est, X: est.partial_fit(X, corrections="alike"), "True, False or 'similar"),
]


@pytest.mark.parametrize(("call", "match"), BAD_CALLS)
def test_bad_calls(tiny_fitted, tiny, call, match):
    with refused(tiny_fitted, tiny, match):
        call(tiny_fitted, tiny)


METHODS = ["score_samples", "predict", "decision_function", "anomaly_map", "p_values"]
METHODS += ["predict_mask", "predict_regions", "inspect", "explain", "check_drift"]


@pytest.mark.parametrize("method", METHODS)
def test_an_unfitted_estimator_says_so_first(tiny, method):
    for images in (tiny, None):
        with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
            getattr(PatchSVDD(encoder="hierarchical"), method)(images)
