"""The report: a page that shows what an inspection has found, and its reviews."""

from skpatchsvdd._report.page import Notes, Page, write_report
from skpatchsvdd._report.pictures import OVERLAY_SIZE, draw_outlined, save_sheet
from skpatchsvdd._report.review import (
    GOOD,
    check_reviewed,
    digest_file,
    fingerprint,
    make_review,
    read_review,
    read_unchanged,
)
