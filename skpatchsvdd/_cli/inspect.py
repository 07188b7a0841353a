"""The command inspect."""

from pathlib import Path

from skpatchsvdd._calibration import threshold_from_scores
from skpatchsvdd._cli.batches import Outcome, cut_batches, inspect_batch
from skpatchsvdd._cli.countdown import Countdown
from skpatchsvdd._cli.files import find_images, list_files, make_folder, tell_others
from skpatchsvdd._cli.interrupts import finish_first
from skpatchsvdd._cli.learning import check_data_set
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.record import Record
from skpatchsvdd._cli.table import TABLE
from skpatchsvdd._cli.watch import FolderWatcher
from skpatchsvdd._report import Page
from skpatchsvdd._utils import hold_lock

# Images that a page shows, the last ones: of a watched folder, whose page is written
# again and again, and of others, as many as a browser can open.
_N_WATCHED, _N_SHOWN = 500, 5000


def run(args):
    """Inspect images; write a table and pictures, and print what is abnormal."""
    if bool(args.images) == bool(args.watch):
        raise ValueError("pass images to inspect, or --watch and a folder, not both.")
    check_data_set(
        args.images or [args.watch],
        "training images and masks would be inspected like any others",
        ("test",),
    )
    est = load_model(args.model, args.device, args.encoder)
    model_offset = est.offset_
    est.offset_ = _choose_offset(est, args.false_alarm_rate, args.threshold)
    files, unreadable = (None, []) if args.watch else _list_files(args, est)
    folder = make_folder(args.output)
    page = None
    if not args.no_report:
        limit = _N_WATCHED if args.watch else _N_SHOWN
        title = f"Inspection by {Path(args.model).name}"
        page = Page(est, title, limit, model_offset, model=args.model)
    with hold_lock(folder / TABLE):
        kinds = [] if args.no_maps else args.maps
        record = Record(est, folder, kinds, page, bool(args.watch), args.strict)
        for file, reason in unreadable:
            record.add(Outcome(file, None, reason))
        looks = [files]
        if args.watch:
            looks = FolderWatcher(args.watch, record.has, record.retries)
        _inspect_looks(looks, est, record, is_watch=bool(args.watch))
    return record.status


def _list_files(args, est):
    """Return the files to inspect, and what cannot be looked at, with reasons."""
    if args.strict:
        return find_images(args.images, args.strict, est), []
    files, unreadable, others = list_files(args.images)
    tell_others(others)
    return files, unreadable


def _inspect_looks(looks, est, record, is_watch):
    """Inspect lists of files, and write about them; Ctrl-C ends a watch."""
    try:
        for files in looks:
            n_done, say_progress = 0, None if is_watch else Countdown(len(files))
            # Of a first image alone it is soon known how long all will take.
            parts = [files] if is_watch else [files[:1], files[1:]]
            for batch in (x for part in parts for x in cut_batches(part, est)):
                with finish_first():
                    for outcome in inspect_batch(batch, est, record.explains):
                        record.add(outcome)
                if is_watch:
                    record.write_page_now_and_then()
                else:
                    n_done += len(batch)
                    say_progress(n_done)
            if is_watch:  # what there was no time for
                record.write_page_now_and_then()
    except KeyboardInterrupt:
        if not is_watch:
            raise
        print()
    finally:  # also of what was inspected before an interrupt
        record.write_page()
        record.print_summary()


def _choose_offset(est, rate, factor):
    """Return the score below which an image is abnormal: a model's own, or another."""
    if rate is not None:
        known = est.calibration_scores_, rate, est.calibration_groups_
        offset = threshold_from_scores(*known, name="false_alarm_rate")
    elif factor is not None:
        if est.offset_ >= 0:
            raise ValueError(
                "the model's threshold is 0, and so is any multiple of it. Pass "
                "--false-alarm-rate instead of --threshold."
            )
        offset = factor * est.offset_
    else:
        return est.offset_
    times = f", {offset / est.offset_:.2f} x the model's" if est.offset_ else ""
    print(f"an image is abnormal below a score of {offset:.4g}{times}")
    return offset
