"""Builds a wheel and an sdist, and installs one after the other where neither is.

python tests/check_dist.py [folder]

The environment is in a temporary folder, empty at first. With each the command line
answers and a small model is fitted, saved and loaded, away from the source. The files
are left in `folder`, dist/ if not given.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ["--quiet", "--constraint", str(ROOT / "constraints.txt")]
# What a wheel must not hold, and what is easily forgotten.
FOREIGN = ("tests", "benchmarks", "docs")
DATA = {f"skpatchsvdd/_report/{x}" for x in ("page.html", "review.css", "review.js")}
DATA |= {"skpatchsvdd/py.typed"}
TINY_FIT = """
import skpatchsvdd
from skpatchsvdd.datasets import make_textures
X = make_textures(4, image_size=48, random_state=0).images
est = skpatchsvdd.PatchSVDD(patch_size=32, embedding_dim=8, max_iter=1)
est.fit(X).save("tiny.model")
assert (skpatchsvdd.load("tiny.model").score_samples(X) == est.score_samples(X)).all()
from skpatchsvdd.report import write_report
write_report(est, X, "report.html")
print("fits, saves, loads and reports:", skpatchsvdd.__file__)
"""


def main():
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder, "build"))
        run(python, "-m", "pip", "install", *CONSTRAINTS, "build")
        run(python, "-m", "build", "--outdir", target, ROOT)
    [wheel], [sdist] = target.glob("*.whl"), target.glob("*.tar.gz")
    check_wheel(list_files(wheel))
    check_sdist(list_files(sdist))
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder, "venv"))
        check_installed(python, f"{wheel}[images,plot]")
        # What it needs besides is there: installing that again takes a minute.
        check_installed(python, "--force-reinstall", "--no-deps", sdist)
    print(f"{wheel.name} and {sdist.name} are in {target}")


def list_files(archive):
    """Return the names of all files in a wheel or an sdist."""
    if archive.suffix == ".whl":
        return zipfile.ZipFile(archive).namelist()
    with tarfile.open(archive) as opened:
        return [x.name.partition("/")[2] for x in opened if x.isfile()]


def check_wheel(names):
    """Check that a wheel holds the whole package, and nothing else."""
    assert set(names) >= DATA
    modules = {str(x.relative_to(ROOT)) for x in ROOT.glob("skpatchsvdd/**/*.py")}
    assert modules == {x for x in names if x.endswith(".py")}
    tops = {name.partition("/")[0] for name in names}
    assert not tops & set(FOREIGN)
    assert {top for top in tops if not top.endswith(".dist-info")} == {"skpatchsvdd"}
    assert any(name.endswith("LICENSE") for name in names)


def check_sdist(names):
    """Check that an sdist holds what it takes to build and to test."""
    assert {*DATA, "LICENSE", "README.md", "Makefile", "constraints.txt"} <= set(names)
    assert {"tests/conftest.py", "docs/api.rst", "benchmarks/_common.py"} <= set(names)
    assert not [x for x in names if "__pycache__" in x or x.startswith((".", "build"))]


def check_installed(python, *what):
    """Install a file into an environment, and use it."""
    folder = python.parent
    run(python, "-m", "pip", "install", *CONSTRAINTS, *what)
    run(folder / "skpatchsvdd", "--help", cwd=folder)
    run(python, "-c", TINY_FIT, cwd=folder)


def make_environment(folder):
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def run(*command, cwd=ROOT):
    subprocess.run([str(x) for x in command], check=True, cwd=cwd)


if __name__ == "__main__":
    main()
