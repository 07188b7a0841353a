"""The weight lam of the SVDD loss."""

import numpy as np
import pytest

from skpatchsvdd import PatchSVDD
from skpatchsvdd._training import loop


@pytest.mark.parametrize(
    ("training", "given", "used"),
    [
        ("dense", None, 0.3),
        ("paper", None, 1e-3),
        ("dense", 0.0, 0.0),
        ("paper", 0.3, 0.3),
    ],
)
def test_the_default_lam_is_that_of_the_training(
    quick, normal, monkeypatch, training, given, used
):
    weights = []
    descend = loop.descend

    def watched(encoder, objective, batch, adam):
        weights.append(objective.weights["svdd_32"])
        return descend(encoder, objective, batch, adam)

    monkeypatch.setattr(loop, "descend", watched)
    assert PatchSVDD(encoder="hierarchical").lam is None
    quick.set_params(training__method=training, lam=given, max_iter=1).fit(normal[:2])
    assert quick.lam_ == used
    assert weights == [used]


@pytest.mark.parametrize("lam", [1e-3, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_lambda_ties_scores(quick, normal, mixed, lam, seed):
    quick.set_params(lam=lam, max_iter=24, random_state=seed)
    scores = quick.fit(normal[..., :1]).score_samples(mixed.images[..., :1])
    assert len(np.unique(scores)) == len(scores)
