"""Estimators that joblib and copies have carried elsewhere."""

import copy
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pytest

pytestmark = pytest.mark.wide


@pytest.mark.parametrize("mmap_mode", [None, "r"])
@pytest.mark.parametrize(
    "neighbors", ["exact", pytest.param("pynndescent", marks=pytest.mark.slow)]
)
def test_joblib_keeps_the_scores(quick, normal, mixed, tmp_path, neighbors, mmap_mode):
    quick.set_params(neighbors=neighbors).fit(normal)
    scores = quick.score_samples(mixed.images)
    joblib.dump(quick, tmp_path / "model.joblib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = joblib.load(tmp_path / "model.joblib", mmap_mode=mmap_mode)
        np.testing.assert_array_equal(loaded.score_samples(mixed.images), scores)
        np.testing.assert_array_equal(
            loaded.score_samples(normal), quick.training_scores_
        )
    assert repr(loaded) == repr(quick)


def test_model_file_loads_in_a_process_that_has_no_cuda(fitted, mixed, tmp_path):
    joblib.dump((fitted, mixed.images), tmp_path / "model.joblib")
    code = (
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "import joblib\n"
        f"est, X = joblib.load({str(tmp_path / 'model.joblib')!r})\n"
        "print(*est.score_samples(X))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    scores = np.array(result.stdout.split(), dtype=float)
    np.testing.assert_allclose(scores, fitted.score_samples(mixed.images), rtol=1e-4)


def test_model_for_an_absent_device_scores_on_the_cpu(fitted, mixed):
    moved = copy.deepcopy(fitted).set_params(device="cuda:99")
    with pytest.warns(UserWarning, match=r"'cuda:99' is not available.*on the CPU"):
        scores = moved.score_samples(mixed.images)
    np.testing.assert_array_equal(scores, fitted.score_samples(mixed.images))
