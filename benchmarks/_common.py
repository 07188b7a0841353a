"""What the benchmarks share: the machine's name, tables, and the closing JSON."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch


def make_parser(doc):
    """Make a parser whose --help begins with the script's own description."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_encoder(parser):
    """Add the argument that names the encoders of an estimator."""
    parser.add_argument(
        "--encoder",
        nargs="+",
        default=["hierarchical"],
        help="hierarchical (by default), procedural, or both",
    )


def find_categories(root, chosen=None):
    """List the folders below `root` that hold train/good, as paths relative to it."""
    root = Path(root)
    found = sorted(
        str(path.parent.parent.relative_to(root)) for path in root.glob("**/train/good")
    )
    if not found:
        sys.exit(f"{root} holds no category: no folder below it has train/good in it")
    chosen = list(dict.fromkeys(name.rstrip("/") for name in chosen or found))
    missing = sorted(set(chosen) - set(found))
    if missing:
        sys.exit(f"{root} holds the categories {found}; not {missing}")
    return chosen


def machine_name(device):
    """Name the processor that computes, and how many cores or which GPU."""
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    cores = min(len(os.sched_getaffinity(0)), torch.get_num_threads())
    return f"{processor_name()}, {cores} cores, torch {torch.__version__}"


def processor_name():
    """Name the processor as lscpu does, or else its kind."""
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
    except OSError:
        lines = ""
    names = re.findall(r"Model name:\s*(.*)", lines)
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


@contextmanager
def stopwatch(device="cpu"):
    """Time a block; the result is in the yielded list once it has ended."""
    _synchronize(device)
    seconds = []
    start = time.perf_counter()
    yield seconds
    _synchronize(device)
    seconds.append(time.perf_counter() - start)


def print_table(rows):
    """Print dicts of equal keys as a table, numbers to the right."""
    cells = [[_text(value) for value in row.values()] for row in rows]
    head = list(rows[0])
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for line in [head, *cells]:
        first, *rest = [
            text.rjust(width) for text, width in zip(line, widths, strict=True)
        ]
        print("  ".join([first.strip().ljust(widths[0]), *rest]))


def print_json(**figures):
    """Print the figures as the last line."""
    print(json.dumps(figures))


def _synchronize(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _text(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)
