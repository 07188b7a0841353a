"""How the command line starts: at once, with all defaults shown, and interruptible."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skpatchsvdd._cli.start import make_parser

COMMANDS = (
    *("fit", "inspect", "evaluate", "update", "forget", "calibrate", "threshold"),
    "demo",
)


def run_python(code):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout.split()


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["fit", "--help"]])
def test_help_and_version_import_nothing_large(args):
    code = (
        "import sys\n"
        "from skpatchsvdd._cli import main\n"
        "sys.stdout = open(__import__('os').devnull, 'w')\n"
        "try:\n"
        f"    main({args!r})\n"
        "except SystemExit:\n"
        "    sys.stdout = sys.__stdout__\n"
        "large = {'torch', 'numpy', 'scipy', 'sklearn', 'joblib', 'PIL'}\n"
        "print('done', *sorted(large & set(sys.modules)))"
    )
    assert run_python(code) == ["done"]


@pytest.mark.slow
def test_names_are_there_though_they_are_imported_late():
    code = (
        "import sys, skpatchsvdd\n"
        "print('torch' in sys.modules, 'PatchSVDD' in dir(skpatchsvdd))\n"
        "print(all(getattr(skpatchsvdd, x).__all__ for x in skpatchsvdd._MODULES))\n"
        "from skpatchsvdd import PatchSVDD, load\n"
        "print(PatchSVDD.__name__, load.__name__, hasattr(skpatchsvdd, 'nothing'))"
    )
    words = ["False", "True", "True", "PatchSVDD", "load", "False"]
    assert run_python(code) == words


def list_options(command):
    """Return what --help says of each option of a command."""
    (commands,) = (x for x in make_parser()._actions if x.dest == "command")
    own = commands.choices[command]
    formatter = own._get_formatter()
    return {
        action.option_strings[-1]: formatter._expand_help(action)
        for action in own._actions
        if action.option_strings and not action.required and action.dest != "help"
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_default(command):
    texts = list_options(command)
    assert "--device" in texts
    assert ("--max-pixels" in texts) == (command != "demo")  # where images are read
    for name, text in texts.items():
        assert "default" in text, name
    if command == "fit":
        assert texts["--random-state"].endswith("(default: 0)")


def test_strict_is_an_option_where_it_does_something():
    texts = {x: list_options(x).get("--strict") for x in (*COMMANDS, "serve")}
    assert "each has a row" in texts.pop("inspect")
    assert [texts.pop(x) for x in ("forget", "demo", "serve")] == [None] * 3
    assert all("cannot be read; by default" in x for x in texts.values())


def test_help_of_update_shows_images_or_a_review(capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(["update", "--help"])
    usage = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert [line.split("[options] ")[1] for line in usage] == [
        "model images [images ...]",
        "model --review FILE",
    ]


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_while_modules_are_imported_takes_one_line(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "skpatchsvdd"]
    process = subprocess.Popen(
        [*command, "inspect", "none.model", "x", "-o", "y"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    lines = iter(process.stderr.readline, "")
    next(line for line in lines if "numpy" in line)
    process.send_signal(signal.SIGINT)
    rest = [line for line in lines if not line.startswith("import time:")]
    assert process.wait() == 130
    assert rest == ["interrupted\n"]


def ignore_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.slow
def test_tests_of_interrupts_pass_where_these_are_ignored():
    """As in the background of a script, such as `nohup make test &`."""
    files = [f"tests/test_cli_{name}.py" for name in ("fit", "inspect", "start")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not slow", "-k", "interrupt", *files],
        cwd=Path(__file__).parents[1],
        preexec_fn=ignore_interrupts,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
