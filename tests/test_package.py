"""What the package promises as a whole."""

import ast
import configparser
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import skpatchsvdd

ROOT = Path(skpatchsvdd.__file__).parent
# Rooms (packages) and modules by floor; imports run downwards or along a floor.
FLOORS = """
_gpu _images _synthetic _utils _version drift encoders metrics
_bank _comparison _encoding
_parameters _scoring _training
_calibration _screening
_feedback
_export _learnt _storage
_patch_svdd _plotting _report datasets model_selection plotting report
_cli _serve
__init__ __main__
"""
FLOORS = [set(line.split()) for line in FLOORS.strip().splitlines()]
MODULES = sorted(ROOT.rglob("*.py"))


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def room_of(module):
    return module.partition(".")[0]


def own_imports(path):
    """Yield the modules of the package that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("skpatchsvdd"):
            _, _, module = node.module.partition(".")
            is_room = (ROOT / module.replace(".", "/")).is_dir() and module
            yield f"{module}.__init__" if is_room else module or "__init__"


def find_circle(graph):
    """Return the nodes of a circle in {node: nodes}, or None."""
    done = set()

    def walk(node, path):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for other in graph.get(node, ()):
            if circle := walk(other, [*path, node]):
                return circle
        done.add(node)
        return None

    return next(filter(None, (walk(node, []) for node in graph)), None)


def run(code):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout.split()


def test_import_is_light():
    code = (
        "import sys, skpatchsvdd, skpatchsvdd.datasets, skpatchsvdd.metrics\n"
        "import skpatchsvdd.plotting, skpatchsvdd.model_selection\n"
        "heavy = {'numba', 'pynndescent', 'matplotlib', 'PIL', 'onnx'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    assert run(code) == []


def test_it_works_without_callbacks_in_scikit_learn():
    """As before scikit-learn 1.9, whose own modules are imported first here."""
    code = (
        "import sys\n"
        "import numpy as np, sklearn.model_selection, sklearn.pipeline\n"
        "sys.modules['sklearn.callback'] = None\n"
        "from skpatchsvdd import PatchSVDD\n"
        "est = PatchSVDD(encoder='hierarchical', patch_size=32, max_iter=0)\n"
        "est.fit(np.random.default_rng(0).random((2, 36, 36)))\n"
        "print(est.offset_ < 0, hasattr(est, 'set_callbacks'))"
    )
    assert run(code) == ["True", "False"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_run_downwards_and_through_doors(path):
    room = room_of(name_of(path))
    floor = next(i for i, names in enumerate(FLOORS) if room in names)
    reachable = set().union(*FLOORS[: floor + 1])
    for module in own_imports(path):
        assert room_of(module) in reachable, f"{name_of(path)} imports {module}"
        is_inside = room_of(module) == room
        assert is_inside or "." not in module or module.endswith(".__init__")
    # There is no package of this name to download: a clone is installed.
    assert "pip install skpatchsvdd" not in path.read_text()


def test_no_imports_run_in_circles():
    modules = {name_of(path): set(own_imports(path)) for path in MODULES}
    assert find_circle(modules) is None
    rooms = {}
    for name, imported in modules.items():
        others = {room_of(x) for x in imported} - {room_of(name)}
        rooms[room_of(name)] = rooms.get(room_of(name), set()) | others
    assert find_circle(rooms) is None


def test_circles_are_found():
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_public_names_and_the_version_are_documented():
    api = (ROOT.parent / "docs" / "api.rst").read_text()
    modules = "datasets drift encoders metrics model_selection plotting"
    for module in modules.split():
        for name in importlib.import_module(f"skpatchsvdd.{module}").__all__:
            assert f"{module}.{name}" in api
    assert "PatchSVDD" in api
    changes = (ROOT.parent / "CHANGES.md").read_text()
    assert skpatchsvdd.__version__ in changes


def test_public_functions_and_methods_say_what_they_return():
    """As py.typed, which setup.cfg puts into a wheel, promises to type checkers."""
    assert (ROOT / "py.typed").is_file()
    setup = configparser.ConfigParser()
    setup.read(ROOT.parent / "setup.cfg")
    assert setup["options.package_data"]["skpatchsvdd"] == "py.typed"
    public = [skpatchsvdd.load, skpatchsvdd.clear_cache]
    public += [x for name, x in vars(skpatchsvdd.PatchSVDD).items() if name[0] != "_"]
    for module in map(skpatchsvdd.__getattr__, skpatchsvdd._MODULES):
        public += [getattr(module, x) for x in module.__all__]
    for function in filter(inspect.isfunction, public):
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty, function
