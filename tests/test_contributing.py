"""CONTRIBUTING.md: what it names is there, and what it advises works."""

import ast
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from test_package import FLOORS

import skpatchsvdd

PACKAGE = Path(skpatchsvdd.__file__).parent
ROOT = PACKAGE.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
FILES = (".py", ".md", ".txt", ".cfg", ".rst", ".html", ".css", ".js", ".model")
# What is made by commands, and commands and settings of others.
OTHERS = {".venv", ".venv-oldest", ".venv-peers", "pip freeze", "TRITON_INTERPRET=1"}


def read_names():
    """Yield (section, name) of all in backticks, and the make targets of examples."""
    section = ""
    for line in TEXT.splitlines():
        if line.startswith("#"):
            section = line.strip("# `")
        is_example = line.startswith("    ")
        pattern = r"^ +(make [\w-]+)" if is_example else r"`([^`]+)`"
        yield from ((section, x) for x in re.findall(pattern, line))


def names_in(node):
    """Return all names that a piece of code defines: also fields and parameters."""
    names = set()
    for x in ast.walk(node):
        if isinstance(x, ast.FunctionDef | ast.ClassDef):
            names.add(x.name)
        elif isinstance(x, ast.arg):
            names.add(x.arg)
        elif isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
            names.add(x.id)
        elif isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store):
            names.add(x.attr)
    return names


TREES = {x: ast.parse(x.read_text()) for x in PACKAGE.rglob("*.py")}
NAMES = set().union(*map(names_in, TREES.values()))
MODULES = {x.stem for x in TREES} | {x.parent.name for x in TREES}
CLASSES = {
    node.name: names_in(node)
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


def is_there(name, section=""):
    """Whether a file, folder, module, class, function, parameter or field is there."""
    if name.startswith("make "):
        return f"\n{name[5:]}:" in (ROOT / "Makefile").read_text()
    if " " in name:  # a command: the files and programs that it names
        words = [x for x in name.split() if x.endswith(FILES) or x == "skpatchsvdd"]
        return bool(words) and all(is_there(x) for x in words)
    if name.endswith(FILES) or "/" in name:
        return is_file(name, section)
    name = name.partition("=")[0]  # a parameter with a value
    if name.endswith(("_", "*")) and name not in NAMES | MODULES:  # beginnings
        pattern = f"{name.rstrip('*')}*"
        files = {x.stem for x in (ROOT / "docs" / "examples").iterdir()}
        return any(fnmatchcase(x, pattern) for x in NAMES | files)
    *owners, last = name.split(".")
    if not owners:
        return last in NAMES | MODULES or last == PACKAGE.name
    [owner] = owners
    if owner in CLASSES:
        return last in CLASSES[owner]
    rooms = [x for x in TREES if owner in (x.stem, x.parent.name)]
    return any(last in names_in(TREES[x]) for x in rooms)


def is_file(name, section):
    room = PACKAGE / section
    if section.endswith("/") and "/" not in name:
        return (room / name).exists()
    name = name.replace("VERSION", "*").rstrip("/")
    found = [*ROOT.glob(name), *PACKAGE.glob(name)]
    return bool(found) or ("/" not in name and any(PACKAGE.rglob(name)))


@pytest.mark.parametrize(("section", "name"), sorted(set(read_names())))
def test_what_is_named_is_there(section, name):
    assert name in OTHERS or is_there(name, section), f"{name}, in {section!r}"


@pytest.mark.parametrize(
    "name",
    ["_pieces", "make_no_loss", "DenseLoss.no", "_bank/no.py", "absent_*", "make no"],
)
def test_what_is_not_there_is_missed(name):
    assert not is_there(name)


def test_the_map_holds_every_module_of_the_rooms_it_lists():
    listed = {}
    for section, name in read_names():
        listed.setdefault(section, set()).add(name)
    rooms = [x for x in listed if x.endswith("/") and (PACKAGE / x).is_dir()]
    assert len(rooms) >= 8
    for room in rooms:
        modules = {x.name for x in (PACKAGE / room).glob("*.py")} - {"__init__.py"}
        assert modules <= listed[room], room


def test_floors_are_those_that_imports_are_held_to():
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", TEXT, re.M)
    found = {}
    for floor, rooms in rows:
        names = re.findall(r"`([^`/]+)/?`", rooms)
        found |= dict.fromkeys(names, int(floor))
    expected = {x: i for i, floor in enumerate(FLOORS, 1) for x in floor}
    hidden = {"_plotting", "_report"}  # behind their modules
    assert found == {x: i for x, i in expected.items() if x not in hidden}
