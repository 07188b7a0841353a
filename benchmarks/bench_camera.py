"""Photographs as cameras make them: time and memory of the commands fit and inspect.

Pictures are scaled up to the size of a camera's, with noise, as JPEG: synthetic ones,
or those of --images. Each command is a process of its own; of one image and of several,
so that what each takes is known. Processor time says more on a busy machine.

Example: python benchmarks/bench_camera.py
Example: python benchmarks/bench_camera.py --images data/bottle/train/good
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import machine_name, make_parser, print_json, print_table
from PIL import Image

from skpatchsvdd.datasets import make_textures

NOISE = 4.0  # standard deviation, in 1/255
COMMAND = [sys.executable, "-m", "skpatchsvdd"]


def main():
    args = parse_arguments()
    n_all = args.fitted + args.inspected
    with tempfile.TemporaryDirectory() as root:
        files = write_photographs(Path(root), load_pictures(args.images, n_all), args)
        good, new = files[: args.fitted], files[args.fitted :]
        size = [] if args.image_size is None else ["--image-size", args.image_size]
        model, out = f"{root}/part.model", f"{root}/out"
        rows = [
            measure("fit", ["fit", *good, "-o", model, *size]),
            measure("inspect 1", ["inspect", model, new[0], "-o", f"{out}1"]),
            measure(f"inspect {len(new)}", ["inspect", model, *new, "-o", f"{out}2"]),
        ]
    each = {
        name: (rows[2][name] - rows[1][name]) / (len(new) - 1)
        for name in ("s", "processor s")
    }
    rows.append({"command": "each more", **each, "peak GB": rows[2]["peak GB"]})
    shape = f"{args.height} x {args.width}"
    print(f"{machine_name('cpu')}\n{args.fitted} photographs of {shape} fitted\n")
    print_table(rows)
    print_json(machine=machine_name("cpu"), fitted=args.fitted, size=shape, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--fitted", type=int, default=12, help="photographs to fit to")
    parser.add_argument("--inspected", type=int, default=4, help="others, at least two")
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


def measure(name, args):
    """Run a command; return its time, processor time and memory, as a row."""
    start = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *args], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 3):  # all normal, or some are not
        sys.exit(f"{name} failed")
    return {
        "command": name,
        "s": time.perf_counter() - start,
        "processor s": usage.ru_utime + usage.ru_stime,
        "peak GB": usage.ru_maxrss * 1024 / 1e9,
    }


if __name__ == "__main__":
    main()
