"""What the package is built from, and what is built of it."""

import configparser
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from check_dist import check_wheel, list_files

packaging = pytest.importorskip("packaging")
from packaging.requirements import Requirement  # noqa: E402
from packaging.version import Version  # noqa: E402

ROOT = Path(__file__).parents[1]
USED = (
    "",
    "images",
    "plot",
    "serve",
    "camera",
    "table",
    "dask",
    "onnx",
)  # extras that users install
PAGE = (ROOT / "docs" / "dependencies.rst").read_text()
# Builds of torch for GPUs bring these, under licences of their own.
OF_NVIDIA = re.compile(r"^(nvidia|cuda)-|^triton$")
# Kinds of licences, as metadata name them.
COPYLEFT = {"GPL", "MPL|Mozilla", "SSPL"}
KINDS = ("BSD", "MIT", "Apache", "PSF|Python Software", *COPYLEFT)


def as_name(text):
    return re.sub(r"[-_.]+", "-", text).lower()


def read_setup(extra=""):
    """Return the requirements of setup.cfg, without or of an extra."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    text = extras[extra] if extra else setup["options"]["install_requires"]
    return [Requirement(line) for line in text.split("\n") if line]


def read_lock(name):
    lines = (ROOT / name).read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {as_name(name): Version(version) for name, version in pairs}


def find_installed(requirements):
    """Return what is installed of requirements, and of what these require, by name."""
    found, waiting = {}, list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = as_name(requirement.name)
        extras = ["", *requirement.extras]
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for text in found[name].requires or []:
            needed = Requirement(text)
            marker = needed.marker
            if as_name(needed.name) not in found and (
                marker is None or any(marker.evaluate({"extra": x}) for x in extras)
            ):
                waiting.append(needed)
    return found


def read_licences():
    rows = re.findall(r"   \* - (\S+)\n     - (.*(?:\n       .*)*)\n", PAGE)
    return {name: " ".join(text.split()) for name, text in rows if name != "package"}


def kinds_of(text):
    return {kind for kind in KINDS if re.search(kind, text)}


def stated_licence(found):
    """Return what a package says of its licence, and its kinds."""
    said = found.metadata
    if expression := said.get("License-Expression"):
        return expression, kinds_of(expression)
    classifiers = [x for x in said.get_all("Classifier", []) if "License ::" in x]
    return None, kinds_of(" ".join(classifiers) or said.get("License", "")[:100])


@pytest.mark.parametrize("extra", USED)
def test_lowest_versions_are_those_of_the_oldest_tests(extra):
    lock = read_lock("constraints-oldest.txt")
    for requirement in read_setup(extra):
        [lowest] = requirement.specifier
        assert lowest.operator == ">="
        assert Version(lowest.version) == lock[as_name(requirement.name)]


def test_the_page_names_the_lowest_versions():
    for requirement in read_setup():
        [lowest] = requirement.specifier
        assert f"{requirement.name} {lowest.version}" in " ".join(PAGE.split())


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_lock_holds_all_that_tests_install(name):
    lock = read_lock(name)
    needed = [*read_setup(), *read_setup("test")]
    assert {as_name(x.name) for x in needed} <= set(lock)
    installed = find_installed(needed)
    if installed["numpy"].version == str(lock["numpy"]):  # this is what it locks
        names = {x for x in installed if not OF_NVIDIA.search(x)}
        assert names - {"setuptools"} <= set(lock)


def test_licences_are_listed():
    listed, lock = read_licences(), read_lock("constraints.txt")
    needed = [x for extra in USED for x in read_setup(extra)]
    installed = find_installed(needed)
    names = {x for x in installed if not OF_NVIDIA.search(x)}
    assert names <= set(listed)
    assert set(listed) <= {*lock, *read_lock("constraints-oldest.txt")}
    for name in names:
        expression, kinds = stated_licence(installed[name])
        assert not kinds & COPYLEFT, name
        if Version(installed[name].version).public == str(lock.get(name)):
            assert kinds <= kinds_of(listed[name]), name
            assert expression in (None, listed[name])
    assert not any(kinds_of(text) & COPYLEFT for text in listed.values())


def test_wheel_holds_the_package_and_nothing_else(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("skpatchsvdd", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    code = "import setuptools.build_meta as x; print(x.build_wheel('..'))"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True)
    [wheel] = tmp_path.glob("*.whl")
    check_wheel(list_files(wheel))
