"""What a line has seen, in a file of SQLite: nothing is lost or doubled by a kill."""

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager, suppress

from skpatchsvdd._cli import printable

# Written into the file, and checked when it is opened.
_VERSION = 2
_TABLES = """
CREATE TABLE IF NOT EXISTS images (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    state TEXT UNIQUE, file BLOB NOT NULL, digest TEXT, time REAL NOT NULL,
    verdict TEXT NOT NULL, score REAL, threshold REAL, p_value REAL, kind TEXT,
    reason TEXT, model TEXT, pictures TEXT,
    seen_by TEXT, seen_at REAL,
    said TEXT, said_by TEXT, said_at REAL, applied INTEGER,
    revision INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS images_time ON images (time);
CREATE INDEX IF NOT EXISTS images_revision ON images (revision);
CREATE INDEX IF NOT EXISTS images_seen ON images (seen_at)
    WHERE verdict = 'abnormal';
CREATE INDEX IF NOT EXISTS images_abnormal ON images (id) WHERE verdict = 'abnormal';
CREATE INDEX IF NOT EXISTS images_reviewed ON images (id) WHERE said IS NOT NULL;
CREATE INDEX IF NOT EXISTS images_said ON images (id)
    WHERE said IS NOT NULL AND applied IS NULL;
CREATE TABLE IF NOT EXISTS pictures (
    image INTEGER PRIMARY KEY, thumb BLOB, overlay BLOB, details TEXT);
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL, error TEXT);
"""
_SELECT = """
SELECT id, file, time, verdict, score, threshold, p_value, kind, reason, model,
    pictures, seen_by, seen_at, said, said_by, applied, revision, digest, state
    FROM images
"""
_IS_WAITING = "verdict = 'abnormal' AND seen_at IS NULL"
_IS_SAID = "said IS NOT NULL AND applied IS NULL"
ONLY = {x: f"verdict = '{x}'" for x in ("normal", "abnormal", "unreadable")}
ONLY |= {"waiting": _IS_WAITING, "said": "said IS NOT NULL"}
# What images can be chosen by, besides these; see `choose`.
_CHOICES = {
    "name": "holds(file, ?)",
    "kind": "holds(IFNULL(json_extract(said, '$.kind'), kind), ?)",
    "from": "time >= ?",
    "until": "time < ?",
    "times": "score / threshold >= ?",
}
# Signals that wait, at most: those of weeks ago are of no use.
_MOST_WAITING = 10_000


class Store:
    """Images, their pictures, what people said of them, and signals not yet sent.

    All threads share one connection. The last `n_pictures` images keep their pictures,
    and so do alarms that wait.
    """

    def __init__(self, path, n_pictures=5000):
        self._lock = threading.RLock()
        self._path, self._n_pictures = path, n_pictures
        try:
            self._open(path)
        except sqlite3.OperationalError as error:
            raise OSError(
                f"{path} cannot be written to: {error}. Make room, or let its folder "
                "be written to."
            ) from error
        except sqlite3.DatabaseError as error:
            raise ValueError(
                f"{path} is not a file of this command ({error}). Move it away, or "
                "pass another folder to -o."
            ) from error

    def _open(self, path):
        self._base = self._connect(path)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=FULL")
        version = self._value("PRAGMA user_version")
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"version {version}, expected {_VERSION}")
        self._base.executescript(_TABLES)
        self._base.execute(f"PRAGMA user_version={_VERSION}")
        # A number that grows with every change of an image.
        self.revision = self._value("SELECT IFNULL(MAX(revision), 0) FROM images")
        counts = "SELECT verdict, COUNT(*) FROM images GROUP BY verdict"
        self._counts = Counter(dict(self._all(counts)))

    @staticmethod
    def _connect(path):
        base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        base.row_factory = sqlite3.Row
        base.create_function("holds", 2, _holds, deterministic=True)
        return base

    def close(self):
        """Close the file; what was written stays."""
        with self._lock:
            self._base.close()

    @contextmanager
    def _writing(self):
        """Hold the lock and a transaction: all of it is written, or nothing."""
        with self._lock:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:  # a full disk may have ended it
                    self._base.execute("ROLLBACK")
                raise

    def _all(self, query, *values):
        with self._lock:
            return self._base.execute(query, values).fetchall()

    def _value(self, query, *values):
        """Return the first value of the first row, or None where there is none."""
        return next(iter(self._column(query, *values)), None)

    def _column(self, query, *values):
        return [row[0] for row in self._all(query, *values)]

    def _images(self, condition, *values):
        rows = self._all(f"{_SELECT} WHERE {condition}", *values)
        return [*map(_read_row, rows)]

    def knows(self, state):
        """Whether a file of a state was taken in; see `_cli.find_state`."""
        return bool(self._all("SELECT 1 FROM images WHERE state = ?", f"{state:016x}"))

    def add(self, image, pictures=None, event=None, targets=()):
        """Take in an image; return its number, or None if its state is known."""
        if pictures is not None:
            image = image | {"pictures": _digest(pictures)}
        columns = [*image, "revision"]
        marks = ", ".join("?" * len(columns))
        with self._writing() as base:
            self.revision += 1
            added = base.execute(
                f"INSERT OR IGNORE INTO images ({', '.join(columns)}) VALUES ({marks})",
                [*image.values(), self.revision],
            )
            if added.rowcount == 0:
                return None
            number = added.lastrowid
            if pictures is not None:
                base.execute(
                    "INSERT INTO pictures VALUES (?, ?, ?, ?)", (number, *pictures)
                )
            for target in targets:
                base.execute(
                    "INSERT INTO outbox (target, body, due) VALUES (?, ?, ?)",
                    (target, json.dumps(event | {"image": number}), time.time()),
                )
        self._counts[image["verdict"]] += 1
        if number % 100 == 0:
            with suppress(sqlite3.Error):  # there will be another time
                self._forget(number - self._n_pictures)
        return number

    def _forget(self, number):
        """Remove pictures up to a number, but of alarms that wait or were reviewed."""
        with self._writing() as base:
            base.execute(
                "DELETE FROM pictures WHERE image <= ? AND image NOT IN (SELECT id "
                f"FROM images WHERE ({_IS_WAITING} AND id > ?) OR said IS NOT NULL)",
                (number, number - self._n_pictures),
            )
            base.execute(
                "DELETE FROM outbox WHERE id <= (SELECT MAX(id) FROM outbox) - ?",
                (_MOST_WAITING,),
            )

    def find(self, number):
        """Return an image by its number, or None."""
        return next(iter(self._images("id = ?", number)), None)

    def list_images(self, before=None, chosen=None, limit=60):
        """Return images, the newest first, of those that are `chosen`; see `choose`."""
        before = 2**62 if before is None else before
        if not chosen:
            return self._images("id < ? ORDER BY id DESC LIMIT ?", before, limit)
        return [*self.choose(chosen, f"id < {before}", "id DESC", limit)]

    def choose(self, chosen, condition="1", order="id", limit=-1):
        """Yield images by `only`, a key of `ONLY`, and by values for `_CHOICES`.

        A search may look at all that there ever was: it holds up nobody.
        """
        rest = dict(chosen or {})
        only = rest.pop("only", None)
        conditions = [condition, *([ONLY[only]] if only else [])]
        conditions += [_CHOICES[name] for name in rest]
        query = f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?"
        with closing(self._connect(self._path)) as base:
            for row in base.execute(query, [*rest.values(), limit]):
                yield _read_row(row)

    def list_times(self, limit):
        """Return when the last images were judged, the newest first."""
        query = "SELECT time FROM images ORDER BY id DESC LIMIT ?"
        return self._column(query, limit)

    def list_old_files(self, verdict, n_newest, limit=50):
        """Return files of a verdict that are older than the newest ones of it."""
        condition = "verdict = ? ORDER BY id DESC LIMIT ? OFFSET ?"
        query = f"SELECT file FROM images WHERE {condition}"
        return [*map(os.fsdecode, self._column(query, verdict, limit, n_newest))]

    def list_changes(self, since, chosen=None, limit=200):
        """Return images that changed since a revision, and whether each `is_chosen`."""
        images = self._images("revision > ? ORDER BY revision LIMIT ?", since, limit)
        last = images[-1]["revision"] if images else since
        condition = f"revision > {since} AND revision <= {last}"
        ids = {x["id"] for x in self.choose(chosen, condition)} if chosen else None
        return [x | {"is_chosen": ids is None or x["id"] in ids} for x in images]

    def list_said(self):
        """Return the images of which something was said that is not applied."""
        return self._images(f"{_IS_SAID} ORDER BY id")

    def read_details(self, image):
        """Return the size, regions and so on of an image; nothing if they are gone."""
        text = self._read(image["id"], image["pictures"], "details")
        return json.loads(text or "{}")

    def read_picture(self, number, digest, name):
        """Return "thumb" or "overlay" as bytes, or None if it is gone.

        The digest is that of an image's pictures: numbers begin anew in another file.
        """
        is_picture = name in ("thumb", "overlay")
        return self._read(number, digest, name) if is_picture else None

    def _read(self, number, digest, name):
        return self._value(
            f"SELECT {name} FROM pictures JOIN images ON image = id "
            "WHERE image = ? AND images.pictures = ?",
            *(number, digest),
        )

    def count(self):
        """Return how many images there are, by verdict."""
        return dict(self._counts)

    def count_said(self):
        """Return of how many images something was said that is not applied."""
        return self._value(f"SELECT COUNT(*) FROM images WHERE {_IS_SAID}")

    def count_waiting(self):
        """Return how many alarms nobody has looked at, and signals are not sent."""
        alarms = self._value(f"SELECT COUNT(*) FROM images WHERE {_IS_WAITING}")
        return alarms, self._value("SELECT COUNT(*) FROM outbox")

    def list_buckets(self, start, length):
        """Return number, alarms and mean of score / threshold in spans of time."""
        return self._all(
            "SELECT CAST((time - ?) / ? AS INTEGER), COUNT(*), "
            "SUM(verdict = 'abnormal'), AVG(score / threshold) FROM images "
            "WHERE time >= ? AND verdict != 'unreadable' GROUP BY 1",
            *(start, length, start),
        )

    def list_scores(self, since, model, limit):
        """Return the last scores by a model since a time."""
        condition = "time >= ? AND model = ? AND score IS NOT NULL"
        query = f"SELECT score FROM images WHERE {condition} ORDER BY time DESC LIMIT ?"
        return self._column(query, since, model, limit)

    def _update(self, base, number, condition, *known, **values):
        """Change an image, if a condition holds; return how many were changed."""
        columns = ", ".join(f"{name} = ?" for name in values)
        done = base.execute(
            f"UPDATE images SET {columns}, revision = ? WHERE id = ? AND {condition}",
            [*values.values(), self.revision + 1, number, *known],
        )
        self.revision += done.rowcount
        return done.rowcount

    def see(self, numbers, who):
        """Let alarms wait no longer: somebody has looked at them; return how many."""
        seen = {"seen_by": who, "seen_at": time.time()}
        with self._writing() as base:
            return sum(
                self._update(base, x, "seen_at IS NULL", **seen) for x in numbers
            )

    def say(self, number, said, who):
        """Keep what somebody says of an image, to be applied; None takes it back."""
        text, now = None if said is None else json.dumps(said), time.time()
        said = {"said": text, "said_by": who, "said_at": now, "applied": None}
        with self._writing() as base:
            seen = {"seen_by": who, "seen_at": now}
            self._update(base, number, "seen_at IS NULL", **seen)
            self._update(base, number, "1", **said)

    def mark_applied(self, entries):
        """Say by which entry of the history images were applied, or None, by number."""
        with self._writing() as base:
            for number, entry in entries.items():
                condition = "said IS NOT NULL AND applied IS NOT ?"
                self._update(base, number, condition, entry, applied=entry)

    def take_signal(self, target):
        """Return the next signal for a target, or None; it may not be due yet."""
        rows = self._all(
            "SELECT * FROM outbox WHERE target = ? ORDER BY due, id LIMIT 1", target
        )
        return dict(rows[0]) if rows else None

    def drop_signal(self, number):
        """Remove a signal that was sent, or given up."""
        with self._writing() as base:
            base.execute("DELETE FROM outbox WHERE id = ?", (number,))

    def put_off_signal(self, number, due, error):
        """Leave a signal for later, with what went wrong."""
        with self._writing() as base:
            base.execute(
                "UPDATE outbox SET tries = tries + 1, due = ?, error = ? WHERE id = ?",
                (due, error, number),
            )


def _read_row(row):
    said = json.loads(row["said"] or "null")
    return dict(row) | {"file": os.fsdecode(row["file"]), "said": said}


def _holds(text, part):
    """Whether a text, or the name of a file, has a part, in whatever case."""
    if isinstance(text, bytes):
        text = printable(os.path.basename(os.fsdecode(text)))
    return part.casefold() in (text or "").casefold()


def _digest(pictures):
    """Return text that tells the pictures of an image from those of any other."""
    parts = [x.encode() if isinstance(x, str) else x for x in pictures]
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()
