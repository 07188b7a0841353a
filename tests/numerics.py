"""The tests under other arithmetic: none may lean on the last bits of a machine.

Runs the suite once for each setting, prints what each took, and fails if any fails.
Left out are tests that compute nothing: of arguments, files, pictures and documents.
The quick setting, several at once, also leaves out the slowest, and those marked slow.

Example: python tests/numerics.py
Example: python tests/numerics.py quick
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from settings import PREFIX

TESTS = Path(__file__).parent
SETTINGS = {
    "float32": {"BF16": 0},
    "bf16": {"BF16": 1},
    "no oneDNN": {"ONEDNN": 0},
    "one thread": {"THREADS": 1},
    "two threads": {"THREADS": 2},
    "seed 1": {"SEED": 1},
    "seed 2": {"SEED": 2},
    "plain kernels": {},
}
# Several at once, for every change of the code.
QUICK = {"quick": {"ONEDNN": 0, "THREADS": 1, "SEED": 1}}
QUICK_LEFT_OUT = (
    "bank/test_exact_search.py",
    "benchmarks",
    "calibration",
    "export",
    "scoring",
    "synthetic",
    "test_concurrency.py",
    "test_dask.py",
    "test_faults.py",
    "test_feedback.py",
    "test_global_state.py",
    "test_model_selection.py",
    "test_promise.py",
    "test_sklearn.py",
    "test_storage.py",
)
# torch's own name for "use no instructions beyond those that all processors have".
PLAIN = {"ATEN_CPU_CAPABILITY": "default"}
LEFT_OUT = (
    "benchmarks/test_scripts.py",
    "images",
    "scoring/test_regions.py",
    "calibration/test_threshold.py",
    "test_any_input.py",
    "test_bad_input.py",
    "test_bad_parameters.py",
    "test_callbacks.py",
    "test_ci.py",
    "test_cli.py",
    "test_cli_evaluate.py",
    "test_cli_fit.py",
    "test_cli_inspect.py",
    "test_cli_start.py",
    "test_cli_update.py",
    "test_cli_watch.py",
    "test_contributing.py",
    "test_datasets.py",
    "test_demo.py",
    "test_docs.py",
    "test_files.py",
    "test_forged_models.py",
    "test_forms.py",
    "test_good_input.py",
    "test_metrics.py",
    "test_mlflow.py",
    "test_package.py",
    "test_plotting.py",
    "test_report.py",
    "test_serving.py",
    "test_supply.py",
    "utils",
)


def main():
    names = parse_arguments()
    rows = [run(name) for name in names]
    print()
    for name, seconds, is_passed in rows:
        print(f"{name:14}{seconds:7.0f} s  {'passed' if is_passed else 'FAILED'}")
    sys.exit(not all(is_passed for _, _, is_passed in rows))


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*SETTINGS, *QUICK]
    parser.add_argument("names", nargs="*", metavar="SETTING", help=", ".join(known))
    names = parser.parse_args().names or list(SETTINGS)
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"SETTING must be one of {known}, got {unknown}")
    return names


def run(name):
    """Run the tests under one setting; return its name, its seconds and the outcome."""
    given = {f"{PREFIX}{key}": str(x) for key, x in (SETTINGS | QUICK)[name].items()}
    given |= PLAIN if name == "plain kernels" else {}
    print(f"\n{name}: {given}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", str(TESTS)]
    command += ["--numprocesses", "auto", "--dist", "worksteal"]
    left_out = LEFT_OUT + (QUICK_LEFT_OUT if name in QUICK else ())
    command += ["-m", "not slow"] if name in QUICK else []
    command += [f"--ignore={TESTS / file}" for file in left_out]
    start = time.perf_counter()
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | given
    code = subprocess.run(command, env=environment, check=False).returncode
    return name, time.perf_counter() - start, code == 0


if __name__ == "__main__":
    main()
