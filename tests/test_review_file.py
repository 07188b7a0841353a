"""Files of reviews: what a page saves is read, and nothing else."""

import copy
import json

import pytest
from commands import read_page, save_images
from sklearn.base import clone

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._report import digest_file, fingerprint, read_review
from skpatchsvdd.report import write_report

GOOD = {"file": "a/1.png", "verdict": "good", "digest": "00ff"}
BAD = {
    "file": "2.png",
    "verdict": "defective",
    "kind": "scratch",
    "boxes": [[0, 1, 5, 9], [2, 2, 3, 3]],
    "digest": None,
}
REVIEW = {
    "format": "skpatchsvdd-review",
    "version": 1,
    "model": "3-ab",
    "folder": "/parts",
    "images": [GOOD, BAD],
}


def change(*keys, to):
    """Return a review with one value changed, or removed if it is None of its key."""
    review = copy.deepcopy(REVIEW)
    inner = review
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    return json.dumps(review)


def test_a_review_is_read(tmp_path):
    path = tmp_path / "review.json"
    path.write_text(json.dumps(REVIEW))
    review = read_review(path)
    assert (review.model, review.folder) == ("3-ab", "/parts")
    assert review.images[0] == ("a/1.png", "good", None, [], "00ff", False)
    boxes = [(0, 1, 5, 9), (2, 2, 3, 3)]
    assert review.images[1] == ("2.png", "defective", "scratch", boxes, None, False)
    path.write_text(change("images", 0, "file", to="caf\udce9.png"))  # no text
    assert read_review(path).images[0].file == "caf\udce9.png"


DAMAGED = {
    "empty": ("", "not a whole JSON file"),
    "cut": (json.dumps(REVIEW)[:-9], "not a whole JSON file"),
    "bytes": ("\x00\x01", "not a whole JSON file"),
    "nested": ("[" * 100_000, "not a whole JSON file"),
    "list": ("[]", "is not a review"),
    "foreign": ('{"images": []}', 'its "format" must be "skpatchsvdd-review"'),
    "format": (change("format", to="coco"), 'its "format" must be'),
    "version": (change("version", to=2), "is a review of version 2"),
    "truth": (change("version", to=True), "is a review of version True"),
    "none": (change("images", to=[]), "at least one image"),
    "object": (change("images", to={}), "must be a list"),
    "number": (change("images", to=[3]), "image 0 must be an object"),
    "key": (change("note", to=""), "has 'note', which no page writes"),
    "image key": (change("images", 0, "box", to=[]), "has 'box', which no page"),
    "model": (change("model", to=3), '"model" must be text or null'),
    "folder": (change("folder", to=["/"]), '"folder" must be text or null'),
    "verdict": (change("images", 0, "verdict", to="fine"), "got 'fine'"),
    "no verdict": (change("images", 0, "verdict", to=None), "the verdict of a/1.png"),
    "list verdict": (change("images", 0, "verdict", to=[]), "the verdict of a/1.png"),
    "no file": (change("images", 0, "file", to=""), 'the "file" of image 0'),
    "null": (change("images", 0, "file", to="a\0b"), 'the "file" of image 0'),
    "root": (change("images", 0, "file", to="/etc/a.png"), "outside of the folder"),
    "up": (change("images", 0, "file", to="../a.png"), "outside of the folder"),
    "inner up": (change("images", 0, "file", to="a/../../b.png"), "outside of the"),
    "twice": (change("images", 0, to=BAD), "more than one verdict"),
    "twice, written otherwise": (
        json.dumps(REVIEW | {"images": [BAD, GOOD | {"file": ".//2.png"}]}),
        "2.png has more than one verdict. Save the review again",
    ),
    "kind": (change("images", 1, "kind", to=7), "the kind of 2.png must be text"),
    "blank": (change("images", 1, "kind", to=" "), "the kind of 2.png must be a name"),
    "lines": (change("images", 1, "kind", to="a\nb"), "the kind of 2.png must be a"),
    "good name": (change("images", 1, "kind", to="Good"), "none of good, normal"),
    "ok": (change("images", 1, "kind", to="OK"), "none of good, normal, ok"),
    "unknown": (change("images", 1, "kind", to="unknown"), "none of good, normal"),
    "digits": (change("images", 1, "kind", to="12"), "a name with a letter"),
    "exponent": (change("images", 1, "kind", to="1e5"), "a name with a letter"),
    "long": (change("images", 1, "kind", to="a" * 81), "at most 80 characters"),
    "good kind": (change("images", 0, "kind", to="dent"), "a/1.png is good, and has"),
    "good box": (change("images", 0, "boxes", to=[[0, 0, 1, 1]]), "is good, and has"),
    "boxes": (change("images", 1, "boxes", to="all"), "the boxes of 2.png"),
    "three": (change("images", 1, "boxes", to=[[0, 0, 1]]), "a box of 2.png"),
    "turned": (change("images", 1, "boxes", to=[[5, 0, 1, 9]]), "a box of 2.png"),
    "flat": (change("images", 1, "boxes", to=[[0, 3, 1, 3]]), "a box of 2.png"),
    "minus": (change("images", 1, "boxes", to=[[-1, 0, 1, 9]]), "a box of 2.png"),
    "half": (change("images", 1, "boxes", to=[[0.5, 0, 1, 9]]), "a box of 2.png"),
    "nan": (change("images", 1, "boxes", to=[[float("nan")] * 4]), "a box of 2.png"),
    "true": (change("images", 1, "boxes", to=[[0, 0, True, 9]]), "a box of 2.png"),
    "digest": (change("images", 1, "digest", to=5), "the digest of 2.png"),
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.values(), ids=DAMAGED)
def test_what_no_page_saves_is_refused(tmp_path, text, message):
    path = tmp_path / "review.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_review(path)
    assert str(path) in str(caught.value)


def test_files_that_are_no_text_or_not_there_are_refused(tmp_path):
    path = tmp_path / "review.json"
    path.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ValueError, match="not a whole JSON file"):
        read_review(path)
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk, and more than all memory
    with pytest.raises(ValueError, match=r"not a review: .*bytes.*Save review"):
        read_review(path)
    with pytest.raises(FileNotFoundError, match=r"there is no review .*downloads"):
        read_review(tmp_path / "other.json")
    with pytest.raises(IsADirectoryError, match=r"is a folder.*Save review"):
        read_review(tmp_path)


def test_a_model_is_known_again_when_it_has_grown_or_forgotten(normal, tmp_path):
    est = PatchSVDD(encoder="procedural", max_iter=0, random_state=0)
    name = fingerprint(est.fit(normal[:5]))
    assert name != fingerprint(clone(est).fit(normal[3:]))
    est.partial_fit(255 - normal[5:6], ["dent"])
    assert fingerprint(est) == name
    est.partial_fit(normal[6:])
    assert fingerprint(est) == name
    est.forget([1])
    assert fingerprint(est) == name
    est.save(tmp_path / "part.model")
    assert fingerprint(load(tmp_path / "part.model")) == name


def test_a_page_knows_what_a_review_needs(tmp_path, fitted, mixed):
    def write_page(files, name):
        write_report(fitted, files, tmp_path / name)
        return read_page(tmp_path / name)

    parts = tmp_path / "parts"
    files = save_images(parts / "a", mixed.images[:1], ["1"])
    files += save_images(parts, mixed.images[1:2], ["2 é"])
    data = write_page(files, "page.html")
    assert data["folder"] == str(parts)
    assert data["fingerprint"] == fingerprint(fitted)
    assert [x["path"] for x in data["images"]] == ["a/1.png", "2 é.png"]
    assert [x["digest"] for x in data["images"]] == list(map(digest_file, files))
    assert [x["size"] for x in data["images"]] == [[48, 48]] * 2
    assert data["key"] == write_page(files[:1], "page.html")["key"]
    # Verdicts are kept for each page.
    assert data["key"] != write_page(files, "other.html")["key"]
