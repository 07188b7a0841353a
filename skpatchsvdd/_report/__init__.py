"""The report: a page that shows what an inspection has found."""

from skpatchsvdd._report.page import Page, write_report
from skpatchsvdd._report.pictures import OVERLAY_SIZE, save_overlay

__all__ = ["OVERLAY_SIZE", "Page", "save_overlay", "write_report"]
