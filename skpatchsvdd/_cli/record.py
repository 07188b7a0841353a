"""What an inspection finds, written as it goes: a table, maps, a page."""

import math
import time
from contextlib import contextmanager

from skpatchsvdd._cli.maps import name_maps, remove_maps, save_maps
from skpatchsvdd._cli.states import find_state
from skpatchsvdd._cli.status import ABNORMAL, OK, UNREADABLE
from skpatchsvdd._cli.table import (
    COLUMNS,
    COLUMNS_WITH_KIND,
    TABLE,
    Table,
    is_table,
)
from skpatchsvdd._cli.text import printable, tell
from skpatchsvdd._images import read_display, read_shape
from skpatchsvdd._report import OVERLAY_SIZE

PAGE = "report.html"
# Seconds between two times that a page is written, at least, and as a multiple of what
# it takes: a large one, written for each image, would wear out a disk.
_PAGE_SECONDS, _PAGE_REST = 5.0, 20


class Record:
    """Takes in what is found of each file, and writes it.

    Parameters
    ----------
    est : PatchSVDD
        Fitted.
    folder : Path
        Where to write to.
    kinds : list of str
        What is saved of maps, of `maps.KINDS`.
    page : Page or None
        The page, if there is to be one.
    goes_on : bool
        Whether the folder's former table goes on, or is replaced.

    Attributes
    ----------
    table : Table
        The table.
    """

    def __init__(self, est, folder, kinds, page, goes_on):
        self._est = est
        self._folder = folder
        self._kinds = kinds
        self._page = page
        self._goes_on = goes_on
        self._has_begun = False
        self._n_taken = self._n_images = self._n_abnormal = 0
        self._unreadable = set()
        # Outcomes on the page as it was last written, when that was, and for how long.
        self._n_written, self._written, self._took = 0, -math.inf, 0.0
        columns = COLUMNS_WITH_KIND if len(est.defect_kinds_) else COLUMNS
        self.table = Table(folder / TABLE, goes_on, columns)

    def add(self, outcome):
        """Take in the outcome of a file.

        Where the table goes on, a file that has failed while it changed is left for
        later, when it is whole.
        """
        failed = outcome.reason is not None
        if failed and self._goes_on and find_state(outcome.file) != outcome.state:
            tell(f"skipped: {outcome.reason}")
            return
        self._begin()
        (self._add_unreadable if failed else self._add_inspected)(outcome)
        self._n_taken += 1

    def _begin(self):
        """Make room for rows and maps; what is left of others goes."""
        if self._has_begun:
            return
        self._has_begun = True
        if is_table(self._folder / TABLE):
            remove_maps(self._folder, first=self.table.n_rows)
        self.table.begin()  # before there are maps, which are known by it

    def _add_inspected(self, outcome):
        results = outcome.results
        regions = results.regions[0]
        image = self._read_image(outcome)
        saved = self._save_maps(outcome, image)
        maps = [x.relative_to(self._folder) for x in saved]
        verdict = "abnormal" if results.labels[0] == -1 else "normal"
        self.table.add(
            file=outcome.file,
            verdict=verdict,
            score=f"{results.scores[0]:.6g}",
            p_value=f"{results.p_values[0]:.4g}",
            n_regions=len(regions),
            regions=";".join(map(_describe_region, regions)),
            **_find_kind(results),
            map=";".join(x.as_posix() for x in maps),
            state=outcome.state,
        )
        name = printable(outcome.file)
        print(f"{verdict:8}  p {results.p_values[0]:.3f}  {name}", flush=True)
        self._n_images += 1
        self._n_abnormal += verdict == "abnormal"
        self._unreadable.discard(outcome.file)
        if self._page is not None and image is not None:
            drawn = saved[0] if "overlay" in self._kinds else None
            self._page.add([outcome.file], results, maps=[drawn], pictures=[image])

    def _add_unreadable(self, outcome):
        file, reason = outcome.file, outcome.reason
        self.table.add(
            file=file, verdict="unreadable", reason=reason, state=outcome.state
        )
        tell(f"unreadable: {reason}")
        self._unreadable.add(file)
        if self._page is not None:
            self._page.add_unreadable(file, reason)

    def _read_image(self, outcome):
        """Return an image to look at, or None if it is another one by now."""
        if self._page is None and "overlay" not in self._kinds:
            return None
        with _unless_changed(outcome):
            size = read_shape(outcome.file)[:2]
            if size == outcome.results.maps[0].shape:
                return read_display(outcome.file, OVERLAY_SIZE)
        return None

    def _save_maps(self, outcome, image):
        """Save maps; return their files."""
        one_map, mask = outcome.results.maps[0], outcome.results.masks[0]
        start = name_maps(self._folder, self.table.n_rows, outcome.file)
        return save_maps(start, self._kinds, image, one_map, mask, self._est)

    @property
    def explains(self):
        """Whether it matters what alarms were compared with."""
        return self._page is not None

    def write_page_now_and_then(self):
        """Write the page if something is new, unless that was done just now."""
        rest = max(_PAGE_SECONDS, _PAGE_REST * self._took)
        if time.monotonic() - self._written >= rest:
            self.write_page()

    def write_page(self):
        """Write the page, if there is to be one and something is new."""
        if self._page is None or self._n_written == self._n_taken:
            return
        start = time.monotonic()
        self._page.write(self._folder / PAGE)
        self._n_written, self._written = self._n_taken, time.monotonic()
        self._took = self._written - start

    def print_summary(self):
        """Print how many images are abnormal, and where to look."""
        more = ""
        if self._unreadable:
            more = f", {len(self._unreadable)} could not be inspected"
        print(
            f"{self._n_abnormal} of {self._n_images} images are abnormal{more}; wrote "
            f"{printable(self._folder)}"
        )
        if self._n_written:
            print(f"open {printable(self._folder / PAGE)} in a browser")

    @property
    def status(self):
        """The exit status: alarms count for more than what could not be inspected."""
        if self._n_abnormal:
            return ABNORMAL
        return UNREADABLE if self._unreadable else OK


def _describe_region(region):
    fields = ("top", "left", "bottom", "right", "area")
    return " ".join(str(region[name]) for name in fields)


def _find_kind(results):
    """Return what the highest region of an alarm resembles, by column."""
    names = results.get("names", [()])[0]
    if not len(names):
        return {}
    kind, distance = names[0]
    return {"kind": str(kind), "kind_distance": f"{distance:.4g}"}


@contextmanager
def _unless_changed(outcome):
    """Leave out what fails as a file has changed, or is gone, meanwhile."""
    try:
        yield
    except Exception as error:  # half of another file makes decoders raise anything
        if find_state(outcome.file) == outcome.state:
            raise
        tell(f"skipped: no picture, the file is another one by now: {error}")
