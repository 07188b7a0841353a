"""The command line, a thin layer over the public interface."""

from skpatchsvdd._cli.start import main
