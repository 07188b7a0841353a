"""Run a command: python benchmarks/paper TABLE ..."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The folder above in the place of this one: it has what all benchmarks share, and
    # none of the names here hides a library.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from paper.commands import main

    main()
