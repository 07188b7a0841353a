"""The command evaluate."""

from pathlib import Path

import numpy as np

from skpatchsvdd._cli.files import check_sizes, load_model
from skpatchsvdd._cli.status import OK
from skpatchsvdd._cli.text import printable
from skpatchsvdd._report import Page
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import (
    best_f1,
    detection_auroc,
    pro_score,
    segmentation_auroc,
)


def run(args):
    """Print how well a model separates images, and pixels, that are labelled."""
    est = load_model(args.model, args.device)
    test = load_mvtec_ad(args.folder, split="test")
    check_sizes(test.filenames, est)
    results = est.inspect(test.images)
    good = test.labels == 1
    alarms = results.labels == -1
    if good.all() or not good.any():
        raise ValueError(
            f"{args.folder} must hold good and defective images, in test/good and "
            "test/DEFECT."
        )
    print(f"{len(good)} images, {np.sum(~good)} of them defective")
    print(f"image AUROC   {detection_auroc(test.labels, results.scores):.3f}")
    print(f"best F1       {best_f1(test.labels, results.scores):.3f}")
    if test.masks is not None:
        print(f"pixel AUROC   {segmentation_auroc(test.masks, results.maps):.3f}")
        print(f"PRO           {pro_score(test.masks, results.maps):.3f}")
    print(f"false alarms  {alarms[good].sum()} of {good.sum()}")
    for kind in sorted(set(test.defects[~good])):
        found = alarms[test.defects == kind]
        print(f"found         {found.sum()} of {len(found)} {printable(kind)}")
    if args.output:
        page = Page(est, f"Evaluation of {Path(args.model).name}")
        page.add(test.filenames, results, test.labels)
        page.write(Path(args.output) / "report.html")
        print(f"open {Path(args.output) / 'report.html'} in a browser")
    return OK
