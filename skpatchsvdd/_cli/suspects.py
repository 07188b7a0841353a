"""Training images that may be defective: a list, and a page for people's answers."""

import numpy as np

from skpatchsvdd._cli.files import make_folder
from skpatchsvdd._cli.learning import call_on_files
from skpatchsvdd._cli.terminal import count, printable, say_p
from skpatchsvdd._report import Page

PAGE = "suspects.html"
_N_LISTED = 10


def tell_suspects(suspects, model, folder):
    """List images that look defective, the least plausible ones first."""
    n_aside = int(suspects.is_set_aside.sum())
    print(
        f"{count(len(suspects.files), 'image')} may be defective, or unlike all "
        f"others, of which {n_aside} were set aside and not learnt from; with p-values:"
    )
    rows = list(zip(*suspects[1:], strict=True))
    for p_value, is_set_aside, file in rows[:_N_LISTED]:
        done = "set aside" if is_set_aside else "learnt"
        print(f"  {say_p(p_value):>7}  {done:9}  {printable(file)}")
    if len(rows) > _N_LISTED:
        print(f"  and {len(rows) - _N_LISTED} more")
    if folder is None:
        print(
            "look at them: --review FOLDER writes a page on which to say what they "
            f"are, skpatchsvdd forget {printable(model)} takes out what is defective"
        )


def write_suspects(est, model, folder):
    """Write a page of the images that look defective, with outlines in all of them."""
    suspects, offset = est.suspects_, est.offset_
    if not suspects.files:
        print(f"no image looks defective: there is no {PAGE}")
        return
    scores = call_on_files(est.score_samples, suspects.files, "scoring images")
    est.offset_ = max(offset, float(np.nextafter(scores.max(), np.inf)))
    title = f"Images for {model} that may be defective"
    page = Page(est, title, None, offset, str(model), tells_drift=False)
    for file, p_value, is_set_aside in zip(
        suspects.files, suspects.p_values, suspects.is_set_aside, strict=True
    ):
        done = "set aside" if is_set_aside else "learnt from"
        described = page.describe([file], est.inspect([file], explain=True))
        described[0]["note"] = f"{done}, p-value {say_p(p_value)}"
        page.keep(described)
    est.offset_ = offset
    path = make_folder(folder) / PAGE
    page.write(path)
    print(
        f"open {printable(path)} in a browser, say which images are really defective, "
        "and save the review, which skpatchsvdd update learns"
    )
