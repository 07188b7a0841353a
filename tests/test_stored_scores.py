import json

import numpy as np
import pytest
from stored_scores import EVERYWHERE, STORED, compute

pytestmark = pytest.mark.wide


@pytest.mark.parametrize("way", EVERYWHERE)
def test_scores_are_the_stored_ones(way):
    stored = json.loads(STORED.read_text())[way]
    np.testing.assert_allclose(compute(way), stored, rtol=0.01)
