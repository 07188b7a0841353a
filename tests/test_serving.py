"""The programs of docs/serving.rst, as they stand there, run as a user would."""

import os
import runpy
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from pages import read_block, read_blocks
from PIL import Image

import skpatchsvdd

pytestmark = pytest.mark.wide

ROOT = Path(skpatchsvdd.__file__).parents[1]
# Programs import the package of this clone.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, fitted, normal):
    """A folder with a model, some photographs and the programs of the page."""
    folder = tmp_path_factory.mktemp("serving")
    fitted.save(folder / "part.model")
    (folder / "photos").mkdir()
    for i, image in enumerate(normal[:3]):
        Image.fromarray(image).save(folder / "photos" / f"{i}.png")
    program = read_block("serving.rst", "python score_folder.py")
    (folder / "score_folder.py").write_text(program)
    (folder / "detector.py").write_text(read_block("serving.rst", "set_model"))
    return folder


@pytest.mark.slow
def test_a_folder_is_scored_by_processes(folder, fitted, normal):
    command = [sys.executable, "score_folder.py", "part.model", "photos"]
    result = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    scores = [float(line.split()[0]) for line in result.stdout.splitlines()]
    np.testing.assert_allclose(scores, fitted.score_samples(normal[:3]), rtol=1e-4)


def test_the_recipe_for_mlflow_is_complete(folder, fitted, normal, monkeypatch):
    """With a stand-in for MLflow, which is seldom installed; test_mlflow.py has it."""
    monkeypatch.chdir(folder)
    models, saved = [], {}
    mlflow = types.ModuleType("mlflow")
    mlflow.models = types.SimpleNamespace(set_model=models.append)

    def save_model(path, *, python_model, artifacts, pip_requirements):
        runpy.run_path(python_model)
        context = types.SimpleNamespace(artifacts=artifacts)
        models[-1].load_context(context)
        saved[path] = lambda X: models[-1].predict(context, X)

    mlflow.pyfunc = types.SimpleNamespace(
        PythonModel=object,
        save_model=save_model,
        load_model=lambda path: types.SimpleNamespace(predict=saved[path]),
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    names = {}
    exec(read_block("serving.rst", "pyfunc.save_model"), names)
    np.testing.assert_array_equal(names["scores"], fitted.score_samples(normal[:3]))


def test_all_code_of_the_page_is_run():
    run = ("python score_folder.py", "set_model", "save_model(")
    blocks = read_blocks("serving.rst")
    assert len(blocks) == len(run)
    for block, marker in zip(blocks, run, strict=True):
        assert marker in block
