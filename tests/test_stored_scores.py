import json

import numpy as np
import pytest
from stored_scores import STORED, WAYS, compute


@pytest.mark.filterwarnings("ignore:training has failed")
@pytest.mark.parametrize("way", [way for way in WAYS if way != "pynndescent"])
def test_scores_are_the_stored_ones(way):
    stored = json.loads(STORED.read_text())[way]
    # Rounding differs from one kind of processor to the other, and a few steps of
    # training carry it on.
    trains = WAYS[way].get("max_iter", 0) > 0
    np.testing.assert_allclose(compute(way), stored, rtol=0.2 if trains else 1e-3)
