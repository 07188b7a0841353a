"""The recipe for MLflow of docs/serving.rst, as it stands there."""

from pathlib import Path

import numpy as np
import pytest
from pages import read_block
from PIL import Image

pytest.importorskip("pandas")  # mlflow-skinny does without, but not with models
pytest.importorskip("mlflow.pyfunc")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # MLflow's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_recipe_keeps_no_pickle(fitted, normal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "runs"))
    fitted.save("part.model")
    Path("photos").mkdir()
    for i, image in enumerate(normal):
        Image.fromarray(image).save(f"photos/{i:02}.png")
    Path("detector.py").write_text(read_block("serving.rst", "set_model"))
    names = {}
    exec(read_block("serving.rst", "pyfunc.save_model"), names)
    np.testing.assert_array_equal(names["scores"], fitted.score_samples(normal))
    kept = sorted(x.name for x in Path("part").rglob("*") if x.is_file())
    assert "part.model" in kept
    assert not [x for x in kept if x.endswith((".pkl", ".joblib"))]
