"""Photographs as cameras make them: time and memory of the commands fit and inspect.

Pictures are scaled up to the size of a camera's, with noise, as JPEG: synthetic ones,
or those of --images. Each command is a process of its own, and the best of several runs
counts; inspections of one image and of several tell what each takes. Other jobs change
time and processor time severalfold: the load before and after is printed, too.

Example: python benchmarks/bench_camera.py
Example: python benchmarks/bench_camera.py --images data/bottle/train/good
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _common import machine_name, make_parser, print_json, print_table
from PIL import Image

from skpatchsvdd.datasets import make_textures

NOISE = 4.0  # standard deviation, in 1/255
COMMAND = [sys.executable, "-m", "skpatchsvdd"]
_START = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds = time.perf_counter() - start
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({
    "status": status,
    "s": seconds,
    "processor s": usage.ru_utime + usage.ru_stime,
    "peak GB": usage.ru_maxrss * 1024 / 1e9,
}))
"""


def main():
    args = parse_arguments()
    n_all = args.fitted + args.inspected
    with tempfile.TemporaryDirectory() as root:
        files = write_photographs(Path(root), load_pictures(args.images, n_all), args)
        good, new = files[: args.fitted], files[args.fitted :]
        size = [] if args.image_size is None else ["--image-size", args.image_size]
        model, out = f"{root}/part.model", f"{root}/out"
        commands = {
            "fit": ["fit", *good, "-o", model, *size],
            "inspect 1": ["inspect", model, new[0], "-o", f"{out}1"],
            f"inspect {len(new)}": ["inspect", model, *new, "-o", f"{out}2"],
        }
        load = os.getloadavg()[0]
        rows = [measure(*item, args.repeats) for item in commands.items()]
        loads = load, os.getloadavg()[0]
    each = {
        name: (rows[2][name] - rows[1][name]) / (len(new) - 1)
        for name in ("s", "processor s")
    }
    rows.append({"command": "each more", **each, "peak GB": rows[2]["peak GB"]})
    shape = f"{args.height} x {args.width}"
    print(f"{machine_name('cpu')}\n{args.fitted} photographs of {shape} fitted")
    print(f"load before and after: {loads[0]:.1f}, {loads[1]:.1f}\n")
    print_table(rows)
    facts = {"fitted": args.fitted, "size": shape, "loads": loads}
    print_json(machine=machine_name("cpu"), **facts, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--fitted", type=int, default=12, help="photographs to fit to")
    parser.add_argument("--inspected", type=int, default=4, help="others, at least two")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--height", type=int, default=3000)
    parser.add_argument("--width", type=int, default=4000)
    parser.add_argument("--images", help="folder of pictures to scale up")
    parser.add_argument("--image-size", help="that of fit, such as 1024 or original")
    return parser.parse_args()


def load_pictures(folder, n_images):
    """Return pictures of a folder, or synthetic ones."""
    if folder is None:
        return make_textures(n_images, image_size=256, random_state=0).images
    files = sorted(x for x in Path(folder).iterdir() if x.is_file())[:n_images]
    if len(files) < n_images:
        sys.exit(f"{folder} must hold at least {n_images} pictures, has {len(files)}")
    return [np.asarray(Image.open(file).convert("RGB")) for file in files]


def write_photographs(folder, pictures, args):
    """Write pictures as a camera would; return the files."""
    rng, files = np.random.default_rng(0), []
    for i, picture in enumerate(pictures):
        large = Image.fromarray(picture).resize((args.width, args.height))
        noise = rng.standard_normal((args.height, args.width, 1), dtype=np.float32)
        pixels = (np.asarray(large) + NOISE * noise).clip(0, 255).astype(np.uint8)
        files.append(str(folder / f"{i:03}.jpg"))
        Image.fromarray(pixels).save(files[-1], quality=92)
    return files


def measure(name, args, n_repeats):
    """Run a command several times; return the row of the fastest."""
    return min((run(name, args) for _ in range(n_repeats)), key=lambda row: row["s"])


def run(name, args):
    """Run a command; return its time, processor time and memory, as a row.

    A small process starts it: one that a large process starts would count that one's
    memory as its own.
    """
    start = [sys.executable, "-c", _START, *COMMAND, *args]
    found = json.loads(subprocess.run(start, capture_output=True, check=True).stdout)
    if found.pop("status") not in (0, 3):  # all normal, or some are not
        sys.exit(f"{name} failed")
    return {"command": name, **found}


if __name__ == "__main__":
    main()
