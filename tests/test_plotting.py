import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from PIL import Image
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from skpatchsvdd._cli import demo, main
from skpatchsvdd.plotting import AnomalyMapDisplay


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_display_has_a_row_for_each_image(fitted, mixed):
    display = AnomalyMapDisplay.from_estimator(
        fitted, mixed.images, masks=mixed.masks, titles=list(mixed.defects)
    )
    assert display.axes_.shape == (8, 3)
    assert display.axes_[0, 0].get_title() == "image"
    assert display.axes_[0, 1].get_title() == "true mask"
    assert display.axes_[5, 0].get_ylabel() == mixed.defects[5]
    np.testing.assert_array_equal(
        display.axes_[5, 2].images[0].get_array(), display.maps[5]
    )


def test_display_takes_a_pipeline(fitted, mixed):
    make = AnomalyMapDisplay.from_estimator
    plain = make(fitted, mixed.images[:2])
    piped = make(make_pipeline("passthrough", fitted), mixed.images[:2])
    np.testing.assert_array_equal(piped.maps, plain.maps)
    with pytest.raises(AttributeError, match="LocalOutlierFactor has no anomaly_map"):
        make(LocalOutlierFactor(), mixed.images[:2])


def test_maps_share_one_colour_scale(fitted, mixed):
    maps = fitted.anomaly_map(mixed.images)
    display = AnomalyMapDisplay.from_predictions(mixed.images, maps)
    limits = {row[-1].images[0].get_clim() for row in display.axes_}
    assert limits == {(0, float(display.maps.max()))}
    assert display.axes_.shape == (8, 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float64])
def test_images_are_drawn_on_their_own_scale(dtype):
    top = {np.uint8: 255, np.uint16: 65535}.get(dtype, 1)
    X = np.full((1, 8, 8), top, dtype=dtype)
    display = AnomalyMapDisplay.from_predictions(X, np.zeros((1, 8, 8)))
    assert (display.axes_[0, 0].images[0].get_array() == 1).all()


def test_display_draws_on_given_axes(fitted, mixed):
    figure, axes = plt.subplots(1, 2)
    display = AnomalyMapDisplay.from_estimator(fitted, mixed.images[:1], axes=axes)
    assert display.figure_ is figure


def test_unequal_lengths_are_refused(mixed):
    with pytest.raises(ValueError, match="inconsistent"):
        AnomalyMapDisplay.from_predictions(mixed.images, np.zeros((3, 48, 48)))


def test_demo_prints_figures_and_writes_a_picture(tmp_path, capsys, monkeypatch):
    for name, value in (("_N_TRAIN", 20), ("_N_TEST", 20), ("_IMAGE_SIZE", 96)):
        monkeypatch.setattr(demo, name, value)
    output = tmp_path / "demo.png"
    assert main(["demo", "--max-iter", "1", "--output", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("kind "))
    rows = [line.split() for line in lines[head + 1 : head + 5]]
    assert [row[:2] for row in rows] == [
        [kind, weights]
        for kind in ("gear", "fabric")
        for weights in ("random", "trained")
    ]
    for row in rows:
        assert 0 <= float(row[2]) <= 1
        assert 0.6 < float(row[3]) <= 1
        assert float(row[4]) < 0
    height, width, _ = plt.imread(output).shape
    assert height > 500
    assert width > 800


def test_missing_matplotlib_is_named():
    code = "import sys; sys.modules['matplotlib'] = None; sys.argv = ['x', 'demo']\n"
    code += "import runpy; runpy.run_module('skpatchsvdd', run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr.strip() == (
        "error: the demo draws with matplotlib: pip install skpatchsvdd[plot]"
    )


def test_paths_are_drawn(fitted, mixed, tmp_path):
    paths = [str(tmp_path / f"{i}.png") for i in range(2)]
    for path, image in zip(paths, mixed.images, strict=False):
        Image.fromarray(image).save(path)
    display = AnomalyMapDisplay.from_estimator(fitted, paths)
    drawn = display.axes_[0, 0].images[0].get_array()
    np.testing.assert_allclose(drawn, mixed.images[0] / 255)


def test_the_threshold_is_the_middle_of_the_colours(fitted, mixed):
    for estimator in (fitted, make_pipeline(fitted)):
        display = AnomalyMapDisplay.from_estimator(estimator, mixed.images[:2])
        low, high = display.axes_[0, -1].images[0].get_clim()
        assert (low, high) == (0, pytest.approx(-2 * fitted.offset_))
    display = AnomalyMapDisplay.from_estimator(fitted, mixed.images[:2], vmax=3)
    assert display.axes_[0, -1].images[0].get_clim() == (0, 3)
