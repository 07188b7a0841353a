"""Which values of `lam` are tried."""

import pytest
import torch

from skpatchsvdd import PatchSVDD
from skpatchsvdd._options import default_lam, list_trial_lams, resolve_options


@pytest.mark.parametrize(
    ("training", "lams"),
    [("dense", (0.03, 0.3, 3.0)), ("paper", (1e-4, 1e-3, 1e-2))],
)
def test_the_default_is_in_the_middle_of_the_trials(training, lams):
    assert list_trial_lams(training) == lams
    parameters = PatchSVDD(training=training).get_params()
    options = resolve_options(parameters, torch.device("cpu"))
    assert options.lam == default_lam(training) == lams[1]
