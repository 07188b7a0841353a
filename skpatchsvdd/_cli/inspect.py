"""The command inspect."""

import math
import time
from pathlib import Path

from skpatchsvdd._cli.batches import Outcome, cut_batches, inspect_batch
from skpatchsvdd._cli.files import (
    check_data_set,
    find_images,
    list_files,
    make_folder,
    tell_others,
)
from skpatchsvdd._cli.models import choose_offset, load_model
from skpatchsvdd._cli.record import Record
from skpatchsvdd._cli.table import TABLE, import_parquet
from skpatchsvdd._cli.terminal import count, finish_first, tell
from skpatchsvdd._cli.watch import FolderWatcher
from skpatchsvdd._report import Page
from skpatchsvdd._utils import hold_lock, say_time_left

# The last images on a page; that of a watched folder is written again and again.
_N_WATCHED, _N_SHOWN = 500, 5000
# Seconds between two lines that say how many images are done.
_SECONDS = 5.0


def run(args):
    """Inspect images; write a table and pictures, and print what is abnormal."""
    if args.images and args.watch:
        raise ValueError("pass images to inspect, or --watch and a folder, not both.")
    if args.export and args.watch:
        raise ValueError(
            "--export writes when all images are inspected: pass images, not --watch."
        )
    if "parquet" in args.export:
        import_parquet()  # before anything is inspected
    harm = "training images and masks would be inspected like any others"
    check_data_set(args.images or [args.watch], harm, ["test"])
    est = load_model(args.model, args.device, args.encoder)
    model_offset = est.offset_
    est.offset_ = _choose_offset(est, args)
    files, unreadable = (None, []) if args.watch else _list_files(args, est)
    folder, page = make_folder(args.output), None
    if not args.no_report:
        limit = _N_WATCHED if args.watch else _N_SHOWN
        title = f"Inspection by {Path(args.model).name}"
        page = Page(est, title, limit, model_offset, model=args.model)
    with hold_lock(folder / TABLE):
        kinds, goes_on = [] if args.no_maps else args.maps, bool(args.watch)
        record = Record(est, folder, kinds, page, goes_on, args.strict, args.export)
        for file, reason in unreadable:
            record.add(Outcome(file, None, reason))
        inspect = _watch if args.watch else _inspect_once
        try:
            inspect(args.watch or files, est, record)
        finally:  # also of what was inspected before an interrupt
            record.write_page()
            record.write_exports()
            record.print_summary()
    return record.status


def _list_files(args, est):
    """Return the files to inspect, and what cannot be looked at, with reasons."""
    if args.strict:
        return find_images(args.images, args.strict, est), []
    files, unreadable, others = list_files(args.images)
    tell_others(others)
    return files, unreadable


def _watch(folder, est, record):
    """Inspect what arrives in a folder, until Ctrl-C."""
    try:
        for files in FolderWatcher(folder, record.has, record.retries):
            for batch in cut_batches(files, est):
                _inspect_batch(batch, est, record)
                record.write_page_now_and_then()
            record.write_page_now_and_then()  # what there was no time for
    except KeyboardInterrupt:
        print()


def _inspect_once(files, est, record):
    """Inspect files; say how many are done, and how long the others will take."""
    n_done, start, last_line = 0, time.monotonic(), -math.inf
    n_images = count(len(files), "image")
    tell(f"inspecting {n_images}")
    # Of a first image alone it is soon known how long all will take.
    for part in (files[:1], files[1:]):
        for batch in cut_batches(part, est):
            _inspect_batch(batch, est, record)
            n_done, now = n_done + len(batch), time.monotonic()
            if n_done < len(files) and now - last_line >= _SECONDS:
                last_line = now
                left = say_time_left(now - start, n_done, len(files))
                tell(f"{n_done:,} of {n_images} done{left}")


def _inspect_batch(batch, est, record):
    with finish_first():
        for outcome in inspect_batch(batch, est, record.explains):
            record.add(outcome)


def _choose_offset(est, args):
    """Return the score below which an image is abnormal; say so if it was chosen."""
    offset = choose_offset(est, args.false_alarm_rate, args.threshold)
    if args.false_alarm_rate is not None or args.threshold is not None:
        times = f", {offset / est.offset_:.2f} x the model's" if est.offset_ else ""
        print(f"an image is abnormal below a score of {offset:.4g}{times}")
    return offset
