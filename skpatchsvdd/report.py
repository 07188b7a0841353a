"""A page that shows what an inspection has found."""

from skpatchsvdd._report import write_report

__all__ = ["write_report"]
