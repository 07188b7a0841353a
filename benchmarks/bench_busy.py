"""A fit on a machine that is idle, and on one that other processes keep busy.

Fits to the same images, each in a new process: by the command line, with all that it
takes to start, and by the estimator in Python, `fit` alone. Without and beside
processes that compute without end, --busy of them, in turns. For each the seconds, the
medians of --repeats, those of the CPU, and how much longer the fit takes beside them:
with as many busy processes as cores half of the machine is left, and 2 is what nothing
can do better than.

Variables of OpenMP (OMP_..., GOMP_...) are not passed on, but those of --set, by which
other settings can be compared. What else runs meanwhile counts, too: "idle" is what it
is called only where nothing does.

Example: python benchmarks/bench_busy.py --data DATA/mvtec/bottle/train/good
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from _common import machine_name, make_parser, print_json, print_table

BUSY = "while True: pass"
FIT = """
import json, resource, sys, time
from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_images
images = load_images(sys.argv[1]).images
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
before, start = cpu(), time.perf_counter()
est = PatchSVDD(random_state=0, device="cpu").fit(images)
seconds = time.perf_counter() - start
print(json.dumps([seconds, cpu() - before, est.offset_]))
"""


def main():
    args = parse_arguments()
    environment = make_environment(args.set)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_images(args, Path(folder) / "good")
        for name in args.ways:
            measure = WAYS[name]
            found = {0: [], args.busy: []}
            for _ in range(args.repeats):
                for n_busy, runs in found.items():
                    with busy_processes(n_busy):
                        runs.append(measure(folder, environment))
            rows.append(describe(name, found[0], found[args.busy]))
    print_table(rows)
    print_json(
        machine=machine_name("cpu"),
        load=os.getloadavg()[0],
        n_images=args.images,
        n_busy=args.busy,
        set=args.set,
        results=rows,
    )


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", help="a folder of images; else synthetic ones")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--busy", type=int, default=2, help="busy processes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="environment"
    )
    return parser.parse_args()


def make_environment(given):
    """Return the environment without variables of OpenMP but those that are given."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_"))
    }
    return kept | dict(x.split("=", 1) for x in given)


def write_images(args, folder):
    """Write the images that are learnt from, as files of PNG."""
    from PIL import Image

    from skpatchsvdd.datasets import load_images, make_textures

    folder.mkdir()
    if args.data:
        images = load_images(args.data, image_size=args.image_size).images
    else:
        images = make_textures(
            args.images, image_size=args.image_size, random_state=0
        ).images
    for i, image in enumerate(images[: args.images]):
        Image.fromarray(np.asarray(image)).save(folder / f"{i}.png")


@contextmanager
def busy_processes(n):
    """Keep as many processes busy meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_command(folder, environment):
    """Fit by the command line; return its seconds and those of the CPU."""
    command = [sys.executable, "-m", "skpatchsvdd", "fit", f"{folder}/good"]
    command += ["-o", f"{folder}/part.model", "--random-state", "0"]
    before, start = os.times(), time.perf_counter()
    subprocess.run(
        [*command, "--device", "cpu"],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seconds, after = time.perf_counter() - start, os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    os.remove(f"{folder}/part.model")
    return seconds, cpu


def run_library(folder, environment):
    """Fit by the estimator; return the seconds of `fit` and those of the CPU."""
    command = [sys.executable, "-c", FIT, f"{folder}/good"]
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    )
    seconds, cpu, _ = json.loads(done.stdout.splitlines()[-1])
    return seconds, cpu


WAYS = {"command": run_command, "library": run_library}


def describe(name, idle, busy):
    """Return a row of the table: medians, and their ratio."""
    idle, idle_cpu = np.median(idle, axis=0).tolist()
    busy, busy_cpu = np.median(busy, axis=0).tolist()
    return {
        "way": name,
        "idle s": idle,
        "CPU s": idle_cpu,
        "busy s": busy,
        "busy CPU s": busy_cpu,
        "ratio": busy / idle,
    }


if __name__ == "__main__":
    main()
