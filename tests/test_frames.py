"""What is shown in notebooks: data frames, and HTML of a fitted estimator."""

import re
import sys

import numpy as np
import pytest
import sklearn
from commands import save_images
from conftest import make_untrained

BOX = ["top", "left", "bottom", "right", "area", "row", "col", "peak", "mean"]


@pytest.fixture(scope="module")
def taught(normal):
    """An estimator that knows a kind of defect, and an image of one more."""
    defect = normal[7].copy()
    defect[10:30, 10:30] = 0
    est = make_untrained().fit(normal[:6]).partial_fit(defect[None], ["dent"])
    return est, np.maximum(defect, 3)


def test_frames_hold_what_was_found(taught, normal, tmp_path):
    pytest.importorskip("pandas")
    est, defect = taught
    files = save_images(tmp_path, [normal[0], defect])
    results = est.inspect(files, as_frame=True)
    expected = est.inspect(files)
    assert results.frame["file"].tolist() == files
    assert results.frame["verdict"].tolist() == ["normal", "abnormal"]
    np.testing.assert_array_equal(results.frame["score"], expected.scores)
    np.testing.assert_array_equal(results.frame["p_value"], expected.p_values)
    assert results.frame["n_regions"].tolist() == list(map(len, expected.regions))
    assert results.regions.columns.tolist() == ["image", *BOX]
    assert set(results.regions["image"]) == {1}
    for name in BOX:
        np.testing.assert_array_equal(results.regions[name], expected.regions[1][name])


def test_frames_name_kinds(taught, normal):
    pytest.importorskip("pandas")
    est, defect = taught
    results = est.inspect(np.stack([defect, normal[0]]), names=True, as_frame=True)
    assert results.regions["kind"].tolist() == results.names[0]["kind"].tolist()
    assert results.frame["kind"][0] == results.names[0]["kind"][0]
    assert results.frame["kind"].isna().tolist() == [False, True]
    assert results.frame["file"].isna().all()


def test_frames_need_pandas(fitted, normal, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "frame" not in fitted.inspect(normal[:1])
    with pytest.raises(ImportError, match="needs pandas: pip install pandas"):
        fitted.inspect(normal[:1], as_frame=True)


def test_notebooks_show_what_is_fitted(taught):
    est, _ = taught
    bundle = est._repr_mimebundle_()
    assert bundle["text/plain"] == repr(est)
    for html in (bundle["text/html"], est._repr_html_()):
        table = html.partition("class='skpatchsvdd-fitted'")[2]
        facts = dict(re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", table))
        assert facts == {
            "fitted to": "6 images",
            "inspected at": "48 x 48 pixels, channels: 3",
            "patches": "32",
            "abnormal": f"below a score of {est.offset_:.4g}",
            "false alarms": "about 1 in 7 new normal images",
            "known defects": "1 of dent",
        }
    with sklearn.config_context(display="text"):
        assert "text/html" not in est._repr_mimebundle_()
        assert not hasattr(est, "_repr_html_")


def test_notebooks_show_nothing_of_what_is_not_fitted():
    assert "skpatchsvdd-fitted" not in make_untrained()._repr_html_()
