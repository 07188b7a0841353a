"""What the package promises as a whole."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import skpatchsvdd

ROOT = Path(skpatchsvdd.__file__).parent
FLOORS = [
    {"_pipelines", "_warnings"},
    {
        "_device",
        "_files",
        "_images",
        "_defects",
        "_draws",
        "_labels",
        "_progress",
        "metrics",
    },
    {
        "_clusters",
        "_nearest",
        "_tiles",
        "_probes",
        "_encoder",
        "_sampling",
        "_maps",
        "_textures",
        "_light",
        "_damage",
        "_crops",
    },
    {
        "analysis",
        "datasets",
        "model_selection",
        "plotting",
        "_losses",
        "_training",
        "_neighbors",
        "_calibration",
        "_groups",
        "drift",
        "_checks",
        "_places",
        "_coreset",
        "_inspection",
    },
    {"_bank"},
    {"_watch"},
    {"_recipe"},
    {"_patch_svdd"},
    {"__init__"},
    {"__main__"},
]


def own_imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("skpatchsvdd"):
            _, _, module = node.module.partition(".")
            yield module or "__init__"


def test_import_is_light():
    code = (
        "import sys, skpatchsvdd, skpatchsvdd.datasets, skpatchsvdd.metrics\n"
        "import skpatchsvdd.analysis, skpatchsvdd.plotting\n"
        "import skpatchsvdd.model_selection\n"
        "heavy = {'numba', 'pynndescent', 'matplotlib', 'PIL'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda p: p.stem)
def test_imports_run_downwards(path):
    floor = next(i for i, names in enumerate(FLOORS) if path.stem in names)
    below = set().union(*FLOORS[:floor])
    same_floor = FLOORS[floor] - {path.stem}
    for module in own_imports(path):
        assert module in below | same_floor, f"{path.stem} imports {module}"
        if module in same_floor:
            assert path.stem not in own_imports(ROOT / f"{module}.py")


def test_public_names_are_documented():
    api = (ROOT.parent / "docs" / "api.rst").read_text()
    for module in (
        "analysis",
        "datasets",
        "drift",
        "metrics",
        "model_selection",
        "plotting",
    ):
        for name in __import__(f"skpatchsvdd.{module}", fromlist=["x"]).__all__:
            assert f"{module}.{name}" in api
    assert "PatchSVDD" in api


def test_version_is_in_the_change_log():
    changes = (ROOT.parent / "CHANGES.md").read_text()
    assert skpatchsvdd.__version__ in changes
