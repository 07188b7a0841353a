"""The report: a page that shows what an inspection has found."""

from skpatchsvdd._report.page import Page, write_report
from skpatchsvdd._report.pictures import save_overlay

__all__ = ["Page", "save_overlay", "write_report"]
