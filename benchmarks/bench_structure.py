"""The house in figures: lines by room, files that a call enters, longest functions.

Lines are all of a file, with docstrings and blank ones. A file is entered if any of its
code runs in the call; what is imported or computed once in a process does not count, as
each call is made once before.

Example: python benchmarks/bench_structure.py
Example: python benchmarks/bench_structure.py --longest 20 --files
"""

import ast
import sys
from collections import Counter
from pathlib import Path

from _common import make_parser, print_json, print_table

import skpatchsvdd
from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

PACKAGE = Path(skpatchsvdd.__file__).parent


def count_lines():
    """Return the lines of each room, a subpackage or a module, most first."""
    lines = Counter()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        lines[room] += len(path.read_text().splitlines())
    return lines.most_common()


def find_longest(n_functions):
    """Return the longest functions by their lines without the docstring."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            n_lines = node.end_lineno - node.lineno + 1
            first = node.body[0]
            has_text = ast.get_docstring(node) is not None
            n_text = first.end_lineno - first.lineno + 1 if has_text else 0
            file = str(path.relative_to(PACKAGE))
            row = {"function": node.name, "file": file, "lines": n_lines - n_text}
            found.append(row)
    return sorted(found, key=lambda x: -x["lines"])[:n_functions]


def list_entered(call):
    """Return the files of the package that a second call enters."""
    call()
    entered = set()

    def note(frame, event, arg):
        if event == "call":
            entered.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    paths = (Path(x) for x in entered)
    return sorted(
        str(x.relative_to(PACKAGE)) for x in paths if x.is_relative_to(PACKAGE)
    )


def list_calls():
    """Return a score of one new image and a fit, by name, both on the CPU."""
    images = make_textures(5, image_size=64, random_state=0).images

    def make():
        return PatchSVDD(max_iter=3, device="cpu", random_state=0)

    est = make().fit(images[:4])
    return {
        "score_samples": lambda: est.score_samples(images[4:]),
        "fit": lambda: make().fit(images[:4]),
    }


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--longest", type=int, default=10, help="functions to list")
    parser.add_argument("--files", action="store_true", help="name the files entered")
    args = parser.parse_args()
    lines = dict(count_lines())
    print_table([{"room": room, "lines": n} for room, n in lines.items()])
    entered = {name: list_entered(call) for name, call in list_calls().items()}
    for name, files in entered.items():
        print(f"\n{name} enters {len(files)} files")
        if args.files:
            print("\n".join(files))
    print()
    print_table(find_longest(args.longest))
    n_entered = {name: len(files) for name, files in entered.items()}
    print_json(lines=sum(lines.values()), entered=n_entered)


if __name__ == "__main__":
    main()
