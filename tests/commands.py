"""What the tests of commands share: images in a folder, a model, and the table."""

import csv
import io
import shutil
from pathlib import Path

from PIL import Image


def save_images(folder, images):
    """Save images as 00.png, 01.png, ... and return their paths as text."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(folder / f"{i:02d}.png") for i in range(len(images))]
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
