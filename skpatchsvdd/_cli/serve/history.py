"""Every model that a file has been, and what made it another, kept beside it."""

import json
import os
import shutil
from datetime import datetime, timezone
from pathlib import Path

from skpatchsvdd._report import digest_file
from skpatchsvdd._utils import replaced_when_whole

_LOG = "history.jsonl"


class History:
    """A folder beside a model, part.model.history: models, images, reviews, a log.

    Models and images have the digests of their bytes as names, so that each is kept
    once. The log has a line for each change: who, when, what, from and to which model.
    A review is kept as the file that ``skpatchsvdd update --review`` reads, with the
    images that it is about, so that it can be applied again.
    """

    def __init__(self, model):
        self._model = Path(model)
        self.folder = self._model.with_name(f"{self._model.name}.history")

    def begin(self):
        """Keep the model as it is; note it if it is not what the log ends with."""
        digest = self.keep_model()
        entries = self.list_entries()
        last = entries[-1]["to"] if entries else None
        if digest != last:
            self.append("elsewhere" if entries else "begin", None, last, digest)
        return digest

    def keep_model(self):
        """Copy the model of the moment, unless it is there; return its digest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        copied = self.folder / f"copied{self._model.suffix}"
        shutil.copyfile(self._model, copied)  # and named after what was copied
        digest = digest_file(copied)
        copied.replace(self.find_model(digest))
        return digest

    def find_model(self, digest):
        """Return where the model of a digest is, or would be."""
        return self.folder / f"{digest}{self._model.suffix}"

    def keep_image(self, image):
        """Copy an image that is reviewed, unless it is there."""
        target = self.images / name_image(image)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with replaced_when_whole(target) as partial:
                shutil.copyfile(image["file"], partial)

    @property
    def images(self):
        """The folder of images that were reviewed."""
        return self.folder / "images"

    def list_entries(self):
        """Return the log, the oldest first; a line that a kill has torn is left out."""
        try:
            lines = (self.folder / _LOG).read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        entries = []
        for line in lines:
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
        return entries

    def find_learnt(self, digest):
        """Return the images that a model has learnt by reviews, with their entries."""
        made = {}
        for entry in self.list_entries():
            if entry["what"] != "restore":
                made.setdefault(entry["to"], entry)
        learnt = {}
        while (entry := made.pop(digest, None)) is not None:
            for image in entry.get("images", ()):
                learnt.setdefault(image, entry["number"])
            digest = entry["from"]
        return learnt

    def append(self, what, who, former, new, **more):
        """Add a line to the log, on the disk when this returns; return it."""
        entry = {
            "number": len(self.list_entries()) + 1,
            "time": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
            "who": who,
            "what": what,
            "from": former,
            "to": new,
            **more,
        }
        path = self.folder / _LOG
        with path.open("ab") as stream:
            if stream.tell() and not _ends_a_line(path):
                stream.write(b"\n")
            stream.write(json.dumps(entry).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        return entry


def name_image(image):
    """Return the name of an image among those kept: its digest, and what it is."""
    suffix = os.path.splitext(image["file"])[1].lower()
    return f"{image['digest']}{suffix if suffix.isascii() else ''}"


def _ends_a_line(path):
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"
