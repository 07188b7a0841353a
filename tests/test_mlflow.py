"""The recipe for MLflow of docs/serving.rst, as it stands there."""

import re
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

pytest.importorskip("pandas")  # mlflow-skinny does without, but not with models
pytest.importorskip("mlflow.pyfunc")

PAGE = Path(__file__).parents[1] / "docs" / "serving.rst"

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # MLflow's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def read_block(marker):
    """Return the one block of code of the page that holds `marker`."""
    blocks = re.findall(
        r"^\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)", PAGE.read_text(), re.M
    )
    [block] = (dedent(block) for block in blocks if marker in block)
    return block


def test_recipe_keeps_no_pickle(fitted, normal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "runs"))
    Path("detector.py").write_text(read_block("set_model"))
    names = {"est": fitted, "X": normal}
    exec(read_block("pyfunc.save_model"), names)
    np.testing.assert_array_equal(names["scores"], fitted.score_samples(normal))
    kept = sorted(x.name for x in Path("part").rglob("*") if x.is_file())
    assert "part.model" in kept
    assert not [x for x in kept if x.endswith((".pkl", ".joblib"))]
