"""Runs a benchmark again with parts of the processor masked: a table of formats.

A number format is decided when torch is imported, so that each row is a process of its
own. Masking makes one x86 processor compute like an older one; on other processors
there is one row, for the processor as it is.
"""

import json
import os
import platform
import subprocess
import sys

from _common import print_table

# What each row masks, for oneDNN, torch's own kernels and MKL.
_MASKS = {
    "all the processor has": {},
    "AVX-512, float32": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "ATEN_CPU_CAPABILITY": "avx512",
    },
    "AVX2, float32": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
_FORMAT = "SKPATCHSVDD_BENCHMARK_FORMAT"


def is_one_format():
    """Whether this process measures one row of a table of formats."""
    return _FORMAT in os.environ


def measure_formats(*arguments):
    """Run this script in every format, print and return one row for each.

    It gets the arguments it had, and these. In a process for which `is_one_format` is
    true, the script prints the figures of its row as JSON, in its last line.
    """
    rows = []
    for name in _list_formats():
        environment = os.environ | _MASKS[name] | {_FORMAT: name}
        run = subprocess.run(
            [sys.executable, *sys.argv, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows.append({"format": name} | json.loads(run.stdout.splitlines()[-1]))
    print()
    print_table(rows)
    return rows


def _list_formats():
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return list(_MASKS) if is_x86 else list(_MASKS)[:1]
