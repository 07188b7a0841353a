"""What the tests of commands share: images in a folder, a model, table and page."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

from conftest import make_untrained
from PIL import Image

from skpatchsvdd._cli import main


def call(*args):
    """Run a command and return its status."""
    return main(list(map(str, args)))


def save_images(folder, images, names=None):
    """Save images as 00.png, 01.png, ... or by names; return their paths as text."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{i:02d}" for i in range(len(images))] if names is None else names
    files = [str(folder / f"{name}.png") for name in names]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    return files


def copy_model(photos, folder):
    """Copy part.model into a folder, for a test that changes it; return its path."""
    return Path(shutil.copy(photos / "part.model", folder))


def read_rows(folder):
    """Read results.csv, which is UTF-8 and nothing else; no rows if there is none."""
    table = folder / "results.csv"
    text = table.read_bytes().decode("utf-8") if table.exists() else ""
    return list(csv.DictReader(io.StringIO(text, newline="")))


def read_page(path):
    """Return the data of a page."""
    text = path.read_text("utf-8")
    return json.loads(re.search(r'type="application/json">(.*?)</script>', text)[1])


def save_untrained(path, X, is_lenient=False, **params):
    """Fit random weights and save the model; if lenient, no good image is abnormal."""
    est = make_untrained().set_params(**params).fit(X)
    if is_lenient:
        est.offset_ = float(2 * est.training_scores_.min())
    est.save(path)
    return est
