"""What the continuous integration does besides `make test`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "browser"
TOOLS = ("bash", "env", "id", "tail", "timeout")

pytestmark = pytest.mark.skipif(
    not SCRIPT.exists() or any(shutil.which(x) is None for x in TOOLS),
    reason="there is no clone, or no bash",
)


def run(tmp_path, **scripts):
    """Run the script where there is nothing but a few tools and some scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name))
    for name, text in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!{shutil.which('bash')}\n{text}\n")
        file.chmod(0o755)
    (folder / "sudo").write_text(f'#!{shutil.which("bash")}\nshift; "$@"\n')
    (folder / "sudo").chmod(0o755)
    env = os.environ | {"PATH": str(folder)}
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    return done.stdout


def test_a_browser_is_installed_where_it_can_be(tmp_path):
    target = tmp_path / "bin" / "chromium"
    text = f'if [ "$2" = install ]; then : > {target}; /bin/chmod +x {target}; fi'
    assert run(tmp_path, apt_get=text).endswith("chromium, installed for them\n")


@pytest.mark.parametrize(
    ("scripts", "start", "end"),
    [
        ({"chromium": "exit 1", "apt_get": "exit 1"}, "they run in", "/chromium\n"),
        ({"apt_get": "echo no net >&2; exit 100"}, "SKIPPED", "no net\n"),
        ({}, "SKIPPED", "there is no apt-get\n"),
    ],
)
def test_a_browser_that_is_there_or_cannot_be_is_said(tmp_path, scripts, start, end):
    said = run(tmp_path, **scripts)
    assert said.startswith(f"browser tests: {start}")
    assert said.endswith(end)
