"""The table of an inspection as a file of Parquet, which has types."""

import csv
from datetime import datetime

from skpatchsvdd._cli.table import BOX, COLUMNS, as_text, writing
from skpatchsvdd._utils import replaced_when_whole


def import_parquet():
    """Return pyarrow and its module of Parquet, or say how to install them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("--export parquet needs pyarrow: pip install pyarrow") from (
            error
        )
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
    values = {name: as_text(text) or None for name, text in row.items()}
    for name in ("score", "p_value", "kind_distance"):
        values[name] = float(row[name]) if row[name] else None
    if row["verdict"] != "unreadable":
        values["n_regions"] = int(row["n_regions"])
        boxes = [x.split() for x in row["regions"].split(";") if x]
        values["regions"] = [dict(zip(BOX, map(int, x), strict=True)) for x in boxes]
    values["time"] = datetime.fromisoformat(row["time"].replace("Z", "+00:00"))
    values["state"] = int(row["state"], 16) if row["state"] else None
    return values
