"""Choosing lambda by trial trainings, without labels."""

import functools
import time
from dataclasses import replace

import numpy as np

from skpatchsvdd._options import default_lam, list_trial_lams
from skpatchsvdd._synthetic import make_probes
from skpatchsvdd._training.trainer import train_once
from skpatchsvdd._training.validation import DefectCheck
from skpatchsvdd._utils import draw_seed

_MIN_TRIED = 4  # images; with fewer the default is taken
# A trial takes this fraction of the steps; half of them chose no better. So large a
# fraction of the images, at most so many, is held out, and each gets so many copies
# with a synthetic defect.
_TRIAL = 1 / 4
_SET_ASIDE, _MAX_SET_ASIDE = 1 / 4, 24
_N_PROBES = 8
# The smallest value whose score is within this of the best is taken: other seeds shift
# the differences by 0.02 to 0.05 (bench_selection.py, H200).
_CLEARLY = 0.05


def choose_lam(images, context, former, known=None, masked=None):
    """Return `lam` and, if it was chosen here, the table of trials.

    The parameters are those of `train_once`.
    """
    options, rng = context.options, context.rng
    if options.lam != "auto":
        return options.lam, None
    if former is not None and options.max_iter == 0:
        return former.lam, former.lam_results
    if count_trials(len(images), options) == 0:
        return default_lam(options.training), None
    n_aside = min(max(round(_SET_ASIDE * len(images)), 1), _MAX_SET_ASIDE)
    order = rng.permutation(len(images))
    aside, others = np.sort(order[:n_aside]), np.sort(order[n_aside:])
    draw_probes = functools.partial(make_probes, n_damaged=_N_PROBES, rng=rng)
    check = DefectCheck(images, aside, context.setting, options, draw_probes)
    n_steps = max(round(_TRIAL * options.max_iter), 1)
    options = replace(options, max_iter=n_steps, early_stopping=False)
    seed, shown, rows = draw_seed(rng), images.take(others), []
    for lam in list_trial_lams(options.training):
        start = time.perf_counter()
        own, rng = replace(options, lam=lam), np.random.RandomState(seed)
        trial = replace(context, options=own, rng=rng)
        encoder, *_ = train_once(
            shown, trial, known=known, masked=masked, is_trial=True
        )
        score = check(encoder)
        rows.append((lam, score, time.perf_counter() - start))
        context.report.log(
            f"lam={lam:g} finds synthetic defects with an AUROC of {score:.3f}"
        )
    lams, scores, times = map(np.array, zip(*rows, strict=True))
    chosen = lams[(scores >= scores.max() - _CLEARLY).argmax()]
    return float(chosen), {"lam": lams, "score": scores, "fit_time": times}


def count_trials(n_images, options):
    """Return how many values `choose_lam` tries."""
    matters = options.loss == "patch_svdd" and options.trains
    if options.lam != "auto" or not matters or n_images < _MIN_TRIED:
        return 0
    return len(list_trial_lams(options.training))
