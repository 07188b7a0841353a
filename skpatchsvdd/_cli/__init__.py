"""The command line, a thin layer over the public interface."""

from skpatchsvdd._cli.parser import main

__all__ = ["main"]
