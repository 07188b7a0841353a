"""The command line: ``python -m skpatchsvdd``, or ``skpatchsvdd``."""

import sys

from skpatchsvdd._cli import main

if __name__ == "__main__":
    sys.exit(main())
