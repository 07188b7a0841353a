"""What the continuous integration does besides `make test`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "programs"
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


def test_programs_are_installed_where_they_can_be(tmp_path):
    text = 'file=$(dirname "$0")/${@: -1}\n'
    text += 'if [ "$2" = install ]; then : > "$file"; /bin/chmod +x "$file"; fi'
    dirname = f'exec {shutil.which("dirname")} "$@"'
    browser, broker = run(tmp_path, apt_get=text, dirname=dirname).splitlines()
    assert browser.endswith("chromium, installed for them")
    assert broker.startswith("MQTT tests: they run with")


@pytest.mark.parametrize(
    ("scripts", "start", "end"),
    [
        ({"chromium": "exit 1", "apt_get": "exit 1"}, "they run with", "/chromium"),
        ({"apt_get": "echo no net >&2; exit 100"}, "SKIPPED", "no net"),
        ({}, "SKIPPED", "there is no apt-get"),
    ],
)
def test_a_browser_that_is_there_or_cannot_be_is_said(tmp_path, scripts, start, end):
    said = run(tmp_path, **scripts).splitlines()[0]
    assert said.startswith(f"browser tests: {start}")
    assert said.endswith(end)
