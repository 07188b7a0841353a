"""The command inspect."""

import csv
import sys
from pathlib import Path

from skpatchsvdd._cli.files import (
    COLUMNS,
    MAPS,
    TABLE,
    TEXT,
    find_images,
    is_table,
    watch_folder,
)
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.status import ABNORMAL, OK
from skpatchsvdd._images import read_display
from skpatchsvdd._report import Page, save_overlay

# Images inspected, and written about, at a time: an interrupt loses no more.
_BATCH = 16
# Images that a page shows, the last ones: of a watched folder, whose page is written
# again and again, and of others, as many as a browser can open.
_N_WATCHED, _N_SHOWN = 500, 5000
# Bytes of an image's name in that of its map.
_LONGEST_NAME = 200


def run(args):
    """Inspect images; write a table and pictures, and print what is abnormal."""
    if bool(args.images) == bool(args.watch):
        raise ValueError("pass images to inspect, or --watch and a folder, not both.")
    est = load_model(args.model, args.device)
    folder = Path(args.output)
    if args.watch:
        batches = watch_folder(args.watch, est)
    else:
        files = find_images(args.images, args.strict, est)
        batches = (files[i : i + _BATCH] for i in range(0, len(files), _BATCH))
    folder.mkdir(parents=True, exist_ok=True)
    table = _Table(folder / TABLE, goes_on=bool(args.watch))
    n_images = n_abnormal = 0
    page = None
    if not args.no_report:
        limit = _N_WATCHED if args.watch else _N_SHOWN
        page = Page(est, f"Inspection by {Path(args.model).name}", limit)
    maps = None if args.no_maps else folder
    try:
        for some, results in _inspect_batches(est, batches, bool(args.watch)):
            rows = list(_tell_results(est, some, results, table.n_rows, maps))
            table.add(rows)
            n_images += len(rows)
            n_abnormal += sum(row[1] == "abnormal" for row in rows)
            if page is not None:
                page.add(some, results)
                if args.watch:
                    page.write(folder / "report.html")
    finally:  # also of what was inspected before an interrupt
        if page:
            page.write(folder / "report.html")
    print(f"{n_abnormal} of {n_images} images are abnormal; wrote {folder}")
    if page:
        print(f"open {folder / 'report.html'} in a browser")
    return ABNORMAL if n_abnormal else OK


def _inspect_batches(est, batches, goes_on):
    """Yield files and their results; with `goes_on` what fails is told and skipped."""
    for files in batches:
        try:
            results = est.inspect(files)
        except (OSError, ValueError) as error:
            if not goes_on:
                raise
            print(f"skipped: {error}", file=sys.stderr)
        else:
            yield files, results


class _Table:
    """The table of an inspection.

    A former one stays until there is something to write, and with `goes_on` rows are
    added to it.
    """

    def __init__(self, path, goes_on):
        self._path = path
        self._mode = "w"
        self.n_rows = 0
        if goes_on and path.exists():
            self.n_rows = self._count_rows()
            self._mode = "a"

    def _count_rows(self):
        if not is_table(self._path):
            raise ValueError(
                f"{self._path} is no table of an inspection that rows could be added "
                "to. Pass another folder to -o."
            )
        with self._path.open(newline="", **TEXT) as stream:
            return sum(1 for _ in csv.reader(stream)) - 1

    def add(self, rows):
        """Write rows."""
        with self._path.open(self._mode, newline="", **TEXT) as stream:
            writer = csv.writer(stream)
            if self._mode == "w":
                writer.writerow(COLUMNS)
            writer.writerows(rows)
        self._mode = "a"
        self.n_rows += len(rows)


def _tell_results(est, files, results, start, folder):
    """Yield a row of the table for each image; draw maps if there is a folder."""
    for i, file in enumerate(files):
        regions, drawn = results.regions[i], ""
        if folder is not None:
            drawn = f"{MAPS}/{start + i:05d}_{_shorten(Path(file).stem)}.png"
            one_map = results.maps[i] / -est.offset_
            save_overlay(read_display(file), one_map, folder / drawn)
        verdict = "abnormal" if results.labels[i] == -1 else "normal"
        score, p_value = results.scores[i], results.p_values[i]
        print(f"{verdict:8}  p {p_value:.3f}  {file}", flush=True)
        boxes = ";".join(
            "{top} {left} {bottom} {right} {area}".format(
                **{name: region[name] for name in regions.dtype.names}
            )
            for region in regions
        )
        row = (file, verdict, f"{score:.6g}", f"{p_value:.4g}", len(regions))
        yield (*row, boxes, drawn)


def _shorten(name):
    """Return as much of a name as leaves room for more, as text that can be encoded."""
    name = name.encode("utf-8", "backslashreplace")[:_LONGEST_NAME]
    return name.decode("utf-8", "ignore")
