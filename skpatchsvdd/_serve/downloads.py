"""What is chosen on the page, as files: the table, and regions for other programs."""

import io
import os
import tempfile
import zipfile
from datetime import datetime, timezone
from pathlib import Path

from skpatchsvdd._cli import (
    COLUMNS,
    EXPORTS,
    Annotations,
    as_cell,
    find_state,
    make_row,
    printable,
)
from skpatchsvdd._serve.answers import RefusedError

FORMATS = [x for x in EXPORTS if x != "parquet"]
# Images of one export: they are inspected again.
MOST_EXPORTED = 1000
# Images whose rows are sent together.
_ROWS = 200


def _name(image):
    return printable(os.path.basename(image["file"]))


def write_table(images, store):
    """Yield the table of some images as CSV, a part at a time; see `Table`."""
    rows = [make_row(COLUMNS)]
    for image in images:
        row = _describe(image, store.read_details(image))
        rows.append(make_row([row.get(x, "") for x in COLUMNS]))
        if len(rows) == _ROWS:
            yield b"".join(rows)
            rows = []
    yield b"".join(rows)


def _describe(image, details):
    row = {x: image[x] for x in ("verdict", "state")} | {"file": as_cell(_name(image))}
    when = datetime.fromtimestamp(image["time"], timezone.utc)
    row["time"] = f"{when:%Y-%m-%dT%H:%M:%SZ}"
    row["note"] = details.get("note", "")
    row |= {x: as_cell(image[x]) for x in ("kind", "reason") if image[x]}
    if image["score"] is not None:
        row["score"] = f"{image['score'] + 0.0:.6g}"
        row["p_value"] = f"{image['p_value']:.4g}"
    if "regions" in details:  # or the pictures of the image are gone, and they with it
        row["n_regions"] = details.get("n_regions", len(details["regions"]))
        row["regions"] = ";".join(" ".join(map(str, x)) for x in details["regions"])
    if distances := details.get("distances"):
        row["kind_distance"] = f"{distances[0]:.4g}"
    return row


def export(images, line, kind):
    """Return a zip file of what `inspect --export` writes of some images.

    Their files are inspected again; of those that have gone or changed there is a list.
    """
    if len(images) > MOST_EXPORTED:
        raise RefusedError(
            f"more than {MOST_EXPORTED:,} images are chosen. Choose fewer of them, as "
            "by their time."
        )
    there, left_out = [], []
    for image in images:
        if _is_same(image):
            there.append(image["file"])
        else:
            left_out.append(f"{_name(image)}: its file is gone, or has changed since")
    with tempfile.TemporaryDirectory() as folder:
        est, folder, n_added = line.model.est, Path(folder), 0
        found = Annotations(est, folder, [kind])
        for outcome in line.inspect_again(there, est):
            if outcome.reason is None:
                found.add(n_added, outcome)
                n_added += 1
            else:
                left_out.append(printable(outcome.reason))
        if n_added == 0:
            reasons = "; ".join(left_out[:3]) or "no image is chosen"
            raise RefusedError(f"there is nothing to export: {reasons}.")
        found.write()
        if left_out:
            text = "\n".join([*left_out, ""])
            (folder / "left_out.txt").write_text(text, "utf-8")
        return _zip(folder)


def _is_same(image):
    state = find_state(image["file"])
    return state is not None and f"{state:016x}" == image["state"]


def _zip(folder):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted(x for x in folder.rglob("*") if x.is_file()):
            target.write(file, file.relative_to(folder))
    return stream.getvalue()
