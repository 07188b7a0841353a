"""Scores and maps do not depend on how the nearest patches are found."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from settings import SEED

from skpatchsvdd import Inspection, PatchSVDD
from skpatchsvdd.datasets import make_textures


class PoorDescent:
    """Stands in for pynndescent: of every third patch it misses the nearest rows."""

    def __init__(self, rows, **kwargs):
        self.rows = rows

    def prepare(self):
        pass

    def query(self, queries, k, epsilon):
        distances = cdist(queries, self.rows)
        order = np.argsort(distances, axis=1)
        order[::3] = np.roll(order[::3], -40, axis=1)
        return order[:, :k], np.take_along_axis(distances, order[:, :k], axis=1)


@pytest.fixture(params=["poor", pytest.param("compiled", marks=pytest.mark.slow)])
def pynndescent(request, monkeypatch):
    if request.param == "poor":
        poor = SimpleNamespace(NNDescent=PoorDescent)
        monkeypatch.setitem(sys.modules, "pynndescent", poor)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"inspection": Inspection(comparison_weight=0)},
        {"inspection": Inspection(score_pixels=1, relative_weight=0)},
    ],
    ids=["default", "without comparison", "largest pixel"],
)
def test_pynndescent_gives_what_exact_search_gives(pynndescent, params):
    X = make_textures(9, image_size=64, kind="gear", random_state=SEED).images
    new = make_textures(
        4, image_size=64, kind="gear", anomaly_fraction=0.5, random_state=SEED + 1
    )
    defect, found = new.images[new.labels == -1][:1], []
    for neighbors in ("exact", "pynndescent"):
        est = PatchSVDD(
            neighbors=neighbors, max_iter=3, random_state=SEED, device="cpu", **params
        )
        est.fit(X)
        both = [est.training_scores_, est.score_samples(new.images)]
        both.append(est.anomaly_map(new.images))
        est.partial_fit(defect, [-1])
        both += [est.training_scores_, est.score_samples(new.images)]
        found.append(both)
    for exact, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, exact, rtol=1e-5)
