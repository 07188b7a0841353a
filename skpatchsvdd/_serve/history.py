"""Every model that a file has been, and what made it another, kept beside it."""

import json
import os
import shutil
from collections import defaultdict
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from skpatchsvdd._report import digest_file
from skpatchsvdd._serve.answers import RefusedError
from skpatchsvdd._utils import replaced_when_whole

_LOG, _INTENDED = "history.jsonl", "intended.json"


class History:
    """A folder beside a model, part.model.history: models, images, reviews, a log.

    Models and images are named by the digests of their bytes. The log has a line for
    each change: who, when, what, from and to which model. Reviews can be applied again
    by ``skpatchsvdd update --review``. Only the holder of the log's lock may change it.
    """

    def __init__(self, model):
        self._model = Path(model)
        self.folder = self._model.with_name(f"{self._model.name}.history")
        self.log = self.folder / _LOG
        self.images = self.folder / "images"  # that were reviewed

    def begin(self):
        """Keep the model as it is; note it if it is not what the log ends with."""
        digest = self.keep_model(lambda file: shutil.copyfile(self._model, file))
        entries = self.list_entries()
        last = entries[-1]["to"] if entries else None
        if digest != last:
            entry = {"what": "elsewhere" if entries else "begin", "who": None}
            with suppress(OSError, ValueError):  # what a kill has kept from the log
                intended = json.loads((self.folder / _INTENDED).read_text("utf-8"))
                if (intended["from"], intended["to"]) == (last, digest):
                    entry = intended
            self.append({**entry, "from": last, "to": digest})
        (self.folder / _INTENDED).unlink(missing_ok=True)
        return digest

    def keep_model(self, write):
        """Keep the model that a function writes to a file; return its digest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        written = self.folder / f"written{self._model.suffix}"
        try:
            write(written)
            _put_on_disk(written)
            digest = digest_file(written)
            written.replace(self.find_model(digest))  # named after what was written
        finally:
            written.unlink(missing_ok=True)
        return digest

    def use(self, what, who, former, digest, **more):
        """Replace the model by one that is kept, and note it; return the entry.

        If a kill comes between, `begin` notes it.
        """
        entry = {"what": what, "who": who, "from": former, "to": digest, **more}
        self.write_json(_INTENDED, entry)
        with replaced_when_whole(self._model) as partial:
            shutil.copyfile(self.find_model(digest), partial)
            if digest_file(partial) != digest:
                name = self.find_model(digest).name
                raise RefusedError(f"{name} is damaged: it is not used.")
            _put_on_disk(partial)
        entry = self.append(entry)
        (self.folder / _INTENDED).unlink()
        return entry

    def write_json(self, name, content, indent=None):
        """Write a file into the folder, as a whole; return its path."""
        with replaced_when_whole(self.folder / name) as partial:
            partial.write_text(json.dumps(content, indent=indent), "utf-8")
        return self.folder / name

    def find_model(self, digest):
        """Return where the model of a digest is, or would be."""
        return self.folder / f"{digest}{self._model.suffix}"

    def keep_image(self, image):
        """Copy the file of an image that is reviewed."""
        with replaced_when_whole(self.images / name_image(image)) as partial:
            shutil.copyfile(image["file"], partial)
            if digest_file(partial) != image["digest"]:
                raise RefusedError("its file has changed while it was copied.")
            _put_on_disk(partial)

    def list_entries(self):
        """Return the log, the oldest first; a line that a kill has torn is left out."""
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        entries = []
        for line in lines:
            with suppress(ValueError):
                entries.append(json.loads(line))
        return entries

    def find_learnt(self, digest):
        """Return, by image, what a model has learnt of it, and by which entry."""
        made, known = self._find_makers(), defaultdict(list)
        for entry in self.list_entries():
            if entry["what"] == "known":
                known[entry["to"]].append(entry)
        learnt = {}
        while (maker := made.pop(digest, None)) is not None:
            for entry in (maker, *known[digest]):
                images, said = entry.get("images", ()), entry.get("said", ())
                for image, of_image in zip(images, said, strict=True):
                    learnt.setdefault(image, (of_image, entry["number"]))
            digest = maker["from"]
        return learnt

    def find_former(self, digest):
        """Return the model of which another was first made, or None."""
        return self._find_makers().get(digest, {}).get("from")

    def _find_makers(self):
        """Return the entries by which models were first made, by model."""
        made = {}
        for entry in self.list_entries():
            if entry["what"] not in ("restore", "known"):
                made.setdefault(entry["to"], entry)
        return made

    def append(self, entry):
        """Add a line to the log, on the disk when this returns; return it."""
        head = {
            "number": len(self.list_entries()) + 1,
            "time": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        }
        with self.log.open("ab") as stream:
            if self.log.read_bytes()[-1:] not in (b"\n", b""):  # of a torn line
                stream.write(b"\n")
            stream.write(json.dumps(head | entry).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        return head | entry


def _put_on_disk(file):
    with open(file, "rb") as stream:
        os.fsync(stream.fileno())


def name_image(image):
    """Return the name of an image among those kept: its digest, and what it is."""
    suffix = os.path.splitext(image["file"])[1].lower()
    return f"{image['digest']}{suffix if suffix.isascii() else ''}"
