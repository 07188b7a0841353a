"""Draw report.jpg, the picture of a report: synthetic images, inspected and shown.

Needs chromium, and pillow. Example: python docs/make_screenshot.py
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.report import write_report

OUTPUT = Path(__file__).absolute().with_name("report.jpg")
SIZE = 1400, 970  # of the window: the head of the page and two rows of images


def main():
    """Write a page, let a browser draw it, and keep the picture."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("a screenshot needs chromium. Install it, and call again.")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that names are short
        write_page(Path("report.html"))
        take_screenshot(browser, Path(folder))
        with Image.open("screenshot.png") as picture:
            picture.convert("RGB").save(OUTPUT, quality=75, optimize=True)
        os.chdir(OUTPUT.parent)
    print(f"wrote {OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} KB")


def write_page(path):
    """Learn from synthetic images and report on others."""
    made = {"kind": "gear", "image_size": 192}
    train = make_textures(30, random_state=0, **made).images
    test = make_textures(24, anomaly_fraction=0.4, random_state=1, **made).images
    good, today = save(train, "good"), save(test, "today")
    est = PatchSVDD(max_iter=0, false_alarm_rate=0.05, random_state=0).fit(good)
    write_report(est, today, path, title="Inspection by part.model")


def save(images, folder):
    """Write images as files, and return their names."""
    Path(folder).mkdir()
    files = [f"{folder}/part_{i:03d}.png" for i in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    return files


def take_screenshot(browser, folder):
    """Let a browser draw the page."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-background-networking", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000"]
    command += [f"--window-size={SIZE[0]},{SIZE[1]}", "--screenshot=screenshot.png"]
    page = (folder / "report.html").as_uri()
    subprocess.run([*command, page], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
