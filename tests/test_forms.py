"""Images in every form, in all that takes images: what they give is the same."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from commands import save_images
from inputs import Table
from PIL import Image
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skpatchsvdd.model_selection import SyntheticDefectScorer
from skpatchsvdd.plotting import AnomalyMapDisplay
from skpatchsvdd.report import write_report

FORMS = {
    "array": lambda images, paths: images,
    "tensor": lambda images, paths: torch.tensor(images),
    "list of arrays": lambda images, paths: list(images),
    "tuple of tensors": lambda images, paths: tuple(map(torch.tensor, images)),
    "list of pillow's images": lambda images, paths: list(map(Image.fromarray, images)),
    "list of paths": lambda images, paths: paths.tolist(),
    "array of paths": lambda images, paths: paths.astype(str),
    "column of paths": lambda images, paths: Table(paths),
    "table of paths": lambda images, paths: Table(paths[:, None]),
}


@pytest.fixture(params=FORMS)
def given(request, tiny, tmp_path):
    """The same images, in one form after the other."""
    paths = np.array(save_images(tmp_path, tiny), dtype=object)
    return FORMS[request.param](tiny, paths)


def test_estimators_take_every_form(tiny_fitted, given):
    scores = tiny_fitted.score_samples(given)
    np.testing.assert_array_equal(scores, tiny_fitted.training_scores_)


def test_the_scorer_takes_every_form_and_leaves_out_abnormal_images(
    tiny_fitted, given, tiny
):
    scorer = SyntheticDefectScorer(n_copies=1)
    assert scorer(tiny_fitted, given) == scorer(tiny_fitted, tiny)
    expected = scorer(tiny_fitted, tiny[1:])
    assert scorer(tiny_fitted, given, [-1, 1, 1, 1]) == expected


def test_the_report_takes_every_form(tiny_fitted, given, tmp_path):
    write_report(tiny_fitted, given, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    values = [json.loads(x.split(",")[0]) for x in text.split('"value":')[1:]]
    np.testing.assert_allclose(values, -tiny_fitted.training_scores_)


def test_the_display_takes_every_form(tiny_fitted, given, tiny):
    display = AnomalyMapDisplay.from_estimator(tiny_fitted, given)
    for row, image in zip(display.axes_, tiny, strict=True):
        np.testing.assert_array_equal(row[0].images[0].get_array(), image)
    plt.close(display.figure_)


@pytest.mark.parametrize("form", [np.asarray, torch.tensor, Table])
def test_rows_are_refused_by_all(tiny_fitted, tiny, form, tmp_path):
    X = form(tiny.reshape(len(tiny), -1))
    calls = [
        lambda: clone(tiny_fitted).fit(X),
        lambda: tiny_fitted.score_samples(X),
        lambda: SyntheticDefectScorer(n_copies=1)(tiny_fitted, X),
        lambda: write_report(tiny_fitted, X, tmp_path / "page.html"),
        lambda: AnomalyMapDisplay.from_estimator(tiny_fitted, X),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"Reshape it to \(n_images, height"):
            call()


def test_a_pipeline_gets_tensors_back_as_tensors(untrained, tiny):
    scores = []
    for darken, X in (
        (lambda X: torch.div(X, 510), torch.tensor(tiny)),
        (lambda X: np.float32(X / 510), tiny),
    ):
        est = make_pipeline(FunctionTransformer(darken), clone(untrained)).fit(X)
        scores.append(SyntheticDefectScorer(n_copies=1)(est, X))
    assert scores[0] == pytest.approx(scores[1], abs=0.01)
