"""The command demo: its promise, and a threshold of 0."""

import re

import numpy as np
import pytest
from commands import call

from skpatchsvdd._cli import demo
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
    for name in ("_N_GOOD", "_N_DEFECTIVE"):
        monkeypatch.setattr(demo, name, 2)
    monkeypatch.setattr(demo, "_N_TRAIN", 3)
    monkeypatch.setattr(demo, "_IMAGE_SIZE", 96)
    with np.errstate(divide="raise", invalid="raise"):
        assert call("demo") == 0
    assert len(drawn) == 2
    for _, test, results, maps in drawn:
        assert np.isfinite(maps).all()
        assert (maps >= 0).all()
        assert (results.labels[test.labels == -1] == -1).all()


@pytest.mark.slow
def test_false_alarms_are_about_as_many_as_the_table_allows(tmp_path, capsys):
    assert call("demo", "--device", "cpu", "--output", tmp_path / "x.png") == 0
    head, *rows = capsys.readouterr().out.partition("\nkind ")[2].splitlines()[:3]
    assert "false alarms (about 2% allowed)" in head
    for row in rows:
        n_alarms, n_good = map(int, re.search(r"(\d+) of (\d+)", row).groups())
        assert n_good == 46
        assert n_alarms <= 4
