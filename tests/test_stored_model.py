"""Model files of this release and of former ones can be loaded, and score the same."""

import json
from pathlib import Path

import numpy as np
import pytest

import skpatchsvdd
from skpatchsvdd._utils import read_tensors, write_tensors

MODELS = sorted((Path(__file__).parent / "data").glob("part-*.model"))


def test_there_is_a_file_of_this_release():
    assert f"part-{skpatchsvdd.__version__}.model" in [path.name for path in MODELS]


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_stored_models_score_as_they_did(path, mmap):
    est = skpatchsvdd.load(path, mmap=mmap)
    stored = np.load(path.with_suffix(".npz"))
    images = stored["images"]
    np.testing.assert_allclose(est.score_samples(images), stored["scores"], rtol=1e-3)
    maps = est.anomaly_map(images)
    np.testing.assert_allclose(maps, stored["maps"], rtol=5e-3, atol=1e-3)
    np.testing.assert_allclose(est.p_values(images), stored["p_values"])


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_stored_models_can_be_gone_on_from(path):
    est = skpatchsvdd.load(path)
    images = np.load(path.with_suffix(".npz"))["images"][:2]
    n_former = len(est.training_scores_)
    est.partial_fit(images, groups=["d", "d"])
    assert len(est.training_scores_) == n_former + 2


def test_a_file_of_a_newer_format_says_so(tmp_path):
    arrays, text = read_tensors(MODELS[-1])
    number = int(text["format"].split()[1])
    newer = {"format": f"skpatchsvdd {number + 1}", "version": "7.0"}
    write_tensors(tmp_path / "newer", arrays, text | newer)
    with pytest.raises(ValueError, match=r"skpatchsvdd 7\.0, which is newer"):
        skpatchsvdd.load(tmp_path / "newer")


def test_what_a_file_says_of_itself_does_not_change():
    """The head of the first release's file, as another program would read it."""
    data = MODELS[0].read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + length])["__metadata__"]
    assert text["format"] == "skpatchsvdd 1"
    assert set(text) == {"format", "version", "content", "checksums"}
