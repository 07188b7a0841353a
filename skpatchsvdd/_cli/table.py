"""The table of an inspection: results.csv, written row by row, and results.parquet."""

import csv
import errno
import io
import os
from contextlib import contextmanager, suppress
from datetime import datetime, timezone

from skpatchsvdd._cli.terminal import printable
from skpatchsvdd._utils import replaced_when_whole

TABLE = "results.csv"
COLUMNS = (
    *("file", "verdict", "score", "p_value", "n_regions", "regions", "kind"),
    *("kind_distance", "map", "note", "reason", "time"),
    "state",  # by which files are known, and so the last
)
BOX = ("top", "left", "bottom", "right", "area")  # of a region
_TEXTS = {"file", "kind", "map", "reason"}  # what somebody has named
# How text begins that a spreadsheet would compute; or that would be taken for such.
_COMPUTED = ("=", "+", "-", "@", "'")
_NAMES = ",".join(COLUMNS).encode() + b"\n"
_FIRST = b"file,verdict,score,p_value"  # by which a table is known


def is_table(path):
    """Whether a file is the table of an inspection."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_FIRST)) == _FIRST


class OutputError(OSError):
    """What is found cannot be written, as when a disk is full; it names the file."""


@contextmanager
def writing(path):
    """Let an error of the disk be an `OutputError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(error.errno or errno.EIO, reason, str(path)) from error


def as_cell(text):
    """Return text as a spreadsheet and a terminal can show it, without obeying it.

    What begins as a formula does gets an apostrophe before it; so does an apostrophe.
    """
    text = printable(text)
    return f"'{text}" if text.startswith(_COMPUTED) else text


class Table:
    """A table to which rows are added, each flushed, so that none is lost or torn.

    A former table stays until `begin` is called; then it `goes_on`, or is replaced.
    `known` holds the states of the files that have a row; see `files.find_state`.
    """

    def __init__(self, path, goes_on):
        self._path = path
        self.has_begun = False
        self._length = self.n_rows = 0
        self.known = set()
        if goes_on and path.exists():
            self._take_up()

    def _take_up(self):
        """Go on with a former table, up to its last whole row."""
        with self._path.open("rb") as stream:
            head = stream.readline().replace(b"\r", b"")  # or the beginning of it
            if not _NAMES.startswith(head):
                raise ValueError(
                    f"{self._path} is not a table of an inspection to which rows can "
                    "be added. Pass another folder to -o."
                )
            stream.seek(0)
            rows = list(_list_rows(stream))
        if rows:  # the first one names the columns
            self._length = rows[-1][0]
            self.n_rows = len(rows) - 1
            self.known = {state for _, state in rows if state is not None}

    def begin(self):
        """Write the names of the columns, or drop what is not a whole row."""
        if self.has_begun:
            return
        self.has_begun = True
        with writing(self._path):
            if self._path.exists() and self._path.stat().st_size > self._length:
                os.truncate(self._path, self._length)
        self._append(b"")

    def add(self, **values):
        """Write a row: the values of some columns, and the time."""
        self.begin()
        state = values.get("state")
        if state is not None:
            self.known.add(state)
            values["state"] = f"{state:016x}"
        values["time"] = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        for name in _TEXTS & values.keys():
            values[name] = as_cell(values[name])
        self._append(make_row([values.get(name, "") for name in COLUMNS]))
        self.n_rows += 1

    def _append(self, row):
        """Write all of a row, or none of it."""
        # Opened each time: a table that was moved away is followed by a new one.
        with writing(self._path), self._path.open("ab", buffering=0) as stream:
            length = stream.tell()
            row = row if length else make_row(COLUMNS) + row
            try:
                while row:
                    row = row[stream.write(row) :]
            except OSError:
                stream.truncate(length)
                raise


def make_row(values):
    """Return a row as bytes, in UTF-8."""
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow(values)
    return stream.getvalue().encode("utf-8")


def _list_rows(stream):
    """Yield where each whole row ends, and its last value, a state or None."""
    position, is_quoted = 0, False
    for line in stream:
        position += len(line)
        is_quoted ^= line.count(b'"') % 2 == 1
        if is_quoted or not line.endswith(b"\n"):
            continue
        state = None
        with suppress(ValueError):  # of a file that was not there, or edited by hand
            state = int(line.rpartition(b",")[2].strip(b' "\r\n'), 16)
        yield position, state


def import_parquet():
    """Return pyarrow and its module of Parquet, or say how to install them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        reason = "--export parquet needs pyarrow: pip install pyarrow"
        raise ImportError(reason) from error
    return pyarrow, pyarrow.parquet


def write_parquet(table):
    """Write results.parquet beside results.csv: the same rows and columns, typed."""
    arrow, parquet = import_parquet()
    with table.open(encoding="utf-8", newline="") as stream:
        rows = [_convert(row) for row in csv.DictReader(stream)]
    file = table.with_suffix(".parquet")
    with writing(file), replaced_when_whole(file) as partial:
        typed = arrow.Table.from_pylist(rows, schema=_make_schema(arrow))
        parquet.write_table(typed, partial)


def _make_schema(arrow):
    box = arrow.struct([(name, arrow.int64()) for name in BOX])
    types = dict.fromkeys(COLUMNS, arrow.string())
    types |= dict.fromkeys(("score", "p_value", "kind_distance"), arrow.float64())
    types |= {"n_regions": arrow.int64(), "regions": arrow.list_(box)}
    types |= {"time": arrow.timestamp("s", "UTC"), "state": arrow.uint64()}
    return arrow.schema(list(types.items()))


def _convert(row):
    """Return the values of a row of text; see the schema."""
    # Without the apostrophe of `as_cell`.
    values = {x: text.removeprefix("'") or None for x, text in row.items()}
    for name in ("score", "p_value", "kind_distance"):
        values[name] = float(row[name]) if row[name] else None
    if row["verdict"] != "unreadable":
        values["n_regions"] = int(row["n_regions"])
        boxes = [x.split() for x in row["regions"].split(";") if x]
        values["regions"] = [dict(zip(BOX, map(int, x), strict=True)) for x in boxes]
    values["time"] = datetime.fromisoformat(row["time"].replace("Z", "+00:00"))
    values["state"] = int(row["state"], 16) if row["state"] else None
    return values
