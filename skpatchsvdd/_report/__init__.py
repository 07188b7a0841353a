"""The report: a page that shows what an inspection has found, and its reviews."""

from skpatchsvdd._report.page import Page, write_report
from skpatchsvdd._report.pictures import OVERLAY_SIZE, save_overlay
from skpatchsvdd._report.review import (
    DEFECTIVE,
    GOOD,
    digest_file,
    fingerprint,
    is_of_model,
    read_review,
)

__all__ = [
    "DEFECTIVE",
    "GOOD",
    "OVERLAY_SIZE",
    "Page",
    "digest_file",
    "fingerprint",
    "is_of_model",
    "read_review",
    "save_overlay",
    "write_report",
]
