"""The command demo, where a threshold is 0."""

import numpy as np
import pytest

from skpatchsvdd._cli import demo, main
from skpatchsvdd.datasets import make_textures


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_threshold_of_0_is_no_divisor(tmp_path, monkeypatch):
    """Copies of one image all score 0, and so the threshold is."""

    def make(n, anomaly_fraction=0.0, **options):
        made = make_textures(n, anomaly_fraction=anomaly_fraction, **options)
        made.images[made.labels == 1] = made.images[0]
        return made

    drawn = []
    monkeypatch.setattr(demo, "make_textures", make)
    monkeypatch.setattr(demo, "draw", lambda panels, output: drawn.extend(panels))
    for name, value in {"_N_TRAIN": 3, "_N_TEST": 4, "_IMAGE_SIZE": 96}.items():
        monkeypatch.setattr(demo, name, value)
    with np.errstate(divide="raise", invalid="raise"):
        assert main(["demo", "--device", "cpu"]) == 0
    assert len(drawn) == 2
    for _, test, results, maps in drawn:
        assert np.isfinite(maps).all()
        assert (maps >= 0).all()
        assert (results.labels[test.labels == -1] == -1).all()
