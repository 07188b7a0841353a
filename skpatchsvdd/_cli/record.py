"""What an inspection finds, written as it goes: a table, maps, a page."""

import math
import time

from skpatchsvdd._cli.annotations import Annotations
from skpatchsvdd._cli.files import find_state
from skpatchsvdd._cli.maps import name_maps, remove_maps, save_maps
from skpatchsvdd._cli.table import (
    BOX,
    TABLE,
    OutputError,
    Table,
    is_table,
    write_parquet,
)
from skpatchsvdd._cli.terminal import (
    ABNORMAL,
    OK,
    UNREADABLE,
    ListedError,
    count,
    printable,
    tell,
)
from skpatchsvdd._cli.watch import RetrySchedule
from skpatchsvdd._images import read_display
from skpatchsvdd._report import OVERLAY_SIZE

PAGE = "report.html"
# Seconds between two times that a page is written, at least, and as a multiple of what
# it takes: a large one, written for each image, would wear out a disk.
_PAGE_SECONDS, _PAGE_REST = 5.0, 20


class Record:
    """Takes in what is found of each file, and writes it to a folder.

    `kinds` are of `maps.KINDS`, and `exports` of `values.EXPORTS`. The folder's former
    table `goes_on`, or is replaced.
    """

    def __init__(self, est, folder, kinds, page, goes_on, strict, exports=()):
        self._est, self._folder = est, folder
        self._kinds, self._page = kinds, page
        self.explains = page is not None  # what alarms were compared with
        self._goes_on, self._strict = goes_on, strict
        formats = [x for x in exports if x != "parquet"]
        self._annotations = Annotations(est, folder, formats) if formats else None
        self._writes_parquet = "parquet" in exports
        self.retries = RetrySchedule()
        self._n_taken = self._n_images = self._n_abnormal = 0
        self._unreadable = set()
        # Outcomes on the page as it was last written, when that was, and for how long.
        self._n_written, self._written, self._took = 0, -math.inf, 0.0
        self.table = Table(folder / TABLE, goes_on)

    def add(self, outcome):
        """Take in the outcome of a file.

        Where the table goes on, a file that has failed while it changed is left for
        later, when it is whole, and so is one that has failed by no fault of its own.
        """
        if outcome.reason is None:
            outcome = self._add_inspected(outcome)
        if outcome.reason is None:
            return
        if self._goes_on and find_state(outcome.file) != outcome.state:
            tell(f"skipped: {outcome.reason}")
        elif self._strict:
            raise ListedError("--strict ends at what fails:", [outcome.reason])
        elif self._goes_on and outcome.may_pass:
            self.retries.put_off(outcome)
            self._unreadable.add(outcome.file)
        else:
            self._add_unreadable(outcome)

    def _begin(self):
        """Make room for rows and maps; what is left of others goes."""
        if self.table.has_begun:
            return
        if is_table(self._folder / TABLE):
            remove_maps(self._folder, first=self.table.n_rows)
        self.table.begin()  # before there are maps, which are known by it

    def _add_inspected(self, outcome):
        """Write what was found; where an image makes that fail, the outcome says so."""
        self._begin()
        try:
            described = self._write(outcome)
        except OutputError:  # of the disk, not of the image
            raise
        except Exception as error:
            remove_maps(self._folder, first=self.table.n_rows)
            return outcome.fail(error)
        verdict, p_value = _find_verdict(outcome), outcome.results.p_values[0]
        note = f"  ({outcome.note})" if outcome.note else ""
        line = f"{verdict:8}  p {p_value:.3f}  {printable(outcome.file)}{note}"
        print(line, flush=True)
        self._n_taken += 1
        self._n_images += 1
        self._n_abnormal += verdict == "abnormal"
        self._unreadable.discard(outcome.file)
        self.retries.forget(outcome.state)
        if self._page is not None:
            self._page.keep(described)
        return outcome

    def _write(self, outcome):
        """Write maps and, when nothing else can fail, a row; return a page's part."""
        results = outcome.results
        regions = results.regions[0]
        image = self._read_image(outcome)
        # Only this kind shows the image.
        kinds = [x for x in self._kinds if x != "overlay" or image is not None]
        files = name_maps(self._folder, self.table.n_rows, outcome.file, kinds)
        described = []
        if self._page is not None and image is not None:
            drawn = files.get("overlay")
            described = self._page.describe(
                [outcome.file], results, maps=[drawn], pictures=[image]
            )
        pairs = described[0]["matches"] if described else ()
        save_maps(files, results, self._est, image, pairs)
        maps = [x.relative_to(self._folder) for x in files.values()]
        if self._annotations is not None:
            self._annotations.add(self.table.n_rows, outcome)
        self.table.add(
            file=outcome.file,
            verdict=_find_verdict(outcome),
            score=f"{results.scores[0] + 0.0:.6g}",
            p_value=f"{results.p_values[0]:.4g}",
            n_regions=len(regions),
            regions=";".join(" ".join(str(x[k]) for k in BOX) for x in regions),
            **_find_kind(results),
            map=";".join(x.as_posix() for x in maps),
            note=outcome.note,
            state=outcome.state,
        )
        return described

    def has(self, state):
        """Whether there is a row of a file of a state; see `files.find_state`."""
        return state in self.table.known

    def _add_unreadable(self, outcome):
        self._begin()
        file, state, reason = outcome.file, outcome.state, outcome.reason
        self.table.add(file=file, verdict="unreadable", reason=reason, state=state)
        tell(f"unreadable: {reason}")
        self._n_taken += 1
        self._unreadable.add(file)
        if self._page is not None:
            self._page.add_unreadable(file, reason)

    def _read_image(self, outcome):
        """Return an image to look at, or None if it is another one by now."""
        if self._page is None and "overlay" not in self._kinds:
            return None
        try:
            image = read_display(outcome.file, OVERLAY_SIZE)
            if find_state(outcome.file) == outcome.state:
                return image
        except Exception:  # half of another file makes decoders raise anything
            if find_state(outcome.file) == outcome.state:
                raise
        tell(
            f"no picture of {outcome.file}: it was moved or written to after it was "
            "inspected. Its verdict is of what it was."
        )
        return None

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

    def write_exports(self):
        """Write what was inspected for other programs, as was asked for."""
        if self._annotations is not None:
            self._annotations.write()
        if self._writes_parquet and self.table.has_begun:
            write_parquet(self._folder / TABLE)

    def print_summary(self):
        """Print how many images are abnormal, and where to look."""
        n_failed = len(self._unreadable)
        more = f", {n_failed} could not be inspected" if n_failed else ""
        n_images = count(self._n_images, "image")
        verb = "is" if self._n_abnormal == 1 else "are"
        print(
            f"{self._n_abnormal} of {n_images} {verb} abnormal{more}; wrote "
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


def _find_verdict(outcome):
    return "abnormal" if outcome.results.labels[0] == -1 else "normal"


def _find_kind(results):
    """Return what the highest region of an alarm resembles, by column."""
    names = results.get("names", [()])[0]
    if not len(names):
        return {}
    kind, distance = names[0]
    return {"kind": str(kind), "kind_distance": f"{distance:.4g}"}
