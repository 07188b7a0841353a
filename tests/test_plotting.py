import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.metrics import RocCurveDisplay
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from skpatchsvdd import PatchSVDD
from skpatchsvdd._cli import demo, main
from skpatchsvdd.metrics import detection_auroc
from skpatchsvdd.plotting import (
    AnomalyMapDisplay,
    LossCurveDisplay,
    ScoreHistogramDisplay,
)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def drawn_on(axis):
    return axis.images[-1].get_array()


def test_display_has_a_row_for_each_image(fitted, mixed):
    display = AnomalyMapDisplay.from_estimator(
        fitted, mixed.images, masks=mixed.masks, titles=list(mixed.defects)
    )
    heads = [axis.get_title() for axis in display.axes_[0]]
    assert heads == ["image", "true mask", "anomaly map"]
    assert [row[0].get_ylabel() for row in display.axes_] == list(mixed.defects)
    np.testing.assert_array_equal(drawn_on(display.axes_[5, 2]), display.maps[5])


def test_display_takes_a_pipeline(fitted, mixed):
    make = AnomalyMapDisplay.from_estimator
    plain = make(fitted, mixed.images[:2])
    piped = make(make_pipeline("passthrough", fitted), mixed.images[:2])
    np.testing.assert_array_equal(piped.maps, plain.maps)
    with pytest.raises(AttributeError, match="LocalOutlierFactor has no anomaly_map"):
        make(LocalOutlierFactor(), mixed.images[:2])


@pytest.mark.parametrize(("dtype", "white"), [("u1", 255), ("u2", 65535), ("f8", 1)])
def test_images_have_their_own_scale_and_maps_share_one(dtype, white):
    X, maps = np.full((2, 8, 8), white, dtype), np.arange(128.0).reshape(2, 8, 8)
    figure, axes = plt.subplots(2, 2)
    display = AnomalyMapDisplay.from_predictions(X, maps, axes=axes)
    assert (drawn_on(display.axes_[0, 0]) == 255).all()
    assert {row[1].images[0].get_clim() for row in display.axes_} == {(0, 127)}
    assert display.figure_ is figure
    with pytest.raises(ValueError, match=r"axes must be of shape \(2, 2\).*\(1, 3\)"):
        AnomalyMapDisplay.from_predictions(X, maps, axes=plt.subplots(1, 3)[1])
    with pytest.raises(ValueError, match="inconsistent"):
        AnomalyMapDisplay.from_predictions(X, maps[:1])


def test_demo_prints_figures_and_writes_a_picture(tmp_path, capsys, monkeypatch):
    small = {"_N_TRAIN": 12, "_N_GOOD": 6, "_N_DEFECTIVE": 10, "_IMAGE_SIZE": 96}
    for name, value in small.items():
        monkeypatch.setattr(demo, name, value)
    output = tmp_path / "demo.png"
    assert main(["demo", "--device", "cpu", "--output", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("kind "))
    rows = [line.split() for line in lines[head + 1 : head + 3]]
    assert [row[0] for row in rows] == ["gear", "fabric"]
    for row in rows:
        assert 0.6 <= float(row[1]) <= 1
        assert 0.6 <= float(row[2]) <= 1
    assert "2% of good images may raise a false alarm" in "\n".join(lines)
    assert plt.imread(output).std() > 0.1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("from skpatchsvdd._cli import main; sys.exit(main(['demo']))", "error"),
        (
            "from skpatchsvdd.plotting import ScoreHistogramDisplay as D\n"
            "D.from_predictions([-1, -2], [-1, -2])",
            "ImportError",
        ),
    ],
)
def test_missing_matplotlib_is_named(code, kind):
    code = f"import sys; sys.modules['matplotlib'] = None\n{code}"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.returncode == 1
    message = f"{kind}: drawing needs matplotlib: pip install matplotlib"
    assert result.stderr.strip().splitlines()[-1] == message


def test_the_threshold_is_the_middle_of_the_colours(fitted, mixed):
    for estimator in (fitted, make_pipeline(fitted)):
        display = AnomalyMapDisplay.from_estimator(estimator, mixed.images[:2])
        picture, drawn = display.axes_[0, -1].images
        np.testing.assert_array_equal(picture.get_array(), mixed.images[0])
        assert drawn.get_clim() == (0, pytest.approx(-2 * fitted.offset_))
        assert drawn.cmap(0.24)[3] == 0  # clear up to half the threshold
        red, green, blue, _ = drawn.cmap(0.5)
        assert red > 0.9 > green > 0.7 > blue
        bar = display.figure_.axes[-1]
        assert bar.get_xlabel() == "times the threshold"
        assert [x.get_text() for x in bar.get_xticklabels()] == ["0.5", "1", "2"]
    for options in ({"vmax": 3}, {"cmap": "gray"}):
        display = AnomalyMapDisplay.from_estimator(fitted, mixed.images[:2], **options)
        [drawn] = display.axes_[0, -1].images
        top = options.get("vmax", -2 * fitted.offset_)
        assert drawn.get_clim() == (0, pytest.approx(top))


def test_what_was_found_is_outlined_and_numbered():
    found = np.zeros((2, 40, 40), dtype=bool)
    found[0, 30:, 5:10] = found[0, 0:5, 10:20] = True
    maps = np.where(found, 2.0, 0.5)
    maps[0, 2, 12] = 3
    display = AnomalyMapDisplay.from_predictions(
        np.zeros((2, 40, 40), np.uint8), maps, found=found, threshold=1.0
    )
    marked, clear = display.axes_[:, 0]
    assert len(marked.collections) >= 2  # a light line over a dark one
    places = {text.get_text(): text.get_position() for text in marked.texts}
    assert places == {"1": (9, 0), "2": (4, 29)}  # the highest peak first
    assert not clear.collections
    assert not clear.texts


@pytest.fixture(scope="module")
def two_scales(large):
    est = PatchSVDD(encoder="hierarchical", embedding_dim=4, max_iter=0, random_state=0)
    return est.fit(large)


@pytest.fixture(scope="module")
def large():
    return np.random.default_rng(0).integers(256, size=(3, 80, 80), dtype=np.uint8)


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_scales_have_columns_beside_the_joined_map(two_scales, large):
    display = AnomalyMapDisplay.from_estimator(two_scales, large, scales="all")
    heads = [axis.get_title() for axis in display.axes_[0]]
    assert heads == ["image", "anomaly map", "patches of 32", "patches of 64"]
    for column, scale in ((2, 32), (3, 64)):
        maps = two_scales.anomaly_map(large, scale=scale)
        for axis, one_map in zip(display.axes_[:, column], maps, strict=True):
            np.testing.assert_array_equal(drawn_on(axis), one_map)
            assert axis.images[0].get_clim() == (0, maps.max())
    joined = display.axes_[0, 1].images[-1]
    assert joined.get_clim() == (0, pytest.approx(-2 * two_scales.offset_))


def test_scales_are_chosen_and_masks_outlined_on_them(two_scales, large):
    masks = np.zeros((3, 80, 80), dtype=bool)
    masks[0, 20:40, 20:40] = True
    display = AnomalyMapDisplay.from_estimator(
        two_scales, large, masks=masks, scales=[64], vmax=5
    )
    assert display.axes_.shape == (3, 4)
    assert list(display.scale_maps) == [64]
    assert [len(axis.collections) for axis in display.axes_[0, 1:]] == [0, 1, 1]
    assert display.axes_[0, 2].images[0].get_clim() == (0, 5)
    assert display.axes_[0, 3].images[0].get_clim() != (0, 5)


def test_scales_go_through_the_steps_of_a_pipeline(two_scales, large):
    invert = FunctionTransformer(lambda X: 255 - X)
    pipeline = make_pipeline(invert, two_scales)
    display = AnomalyMapDisplay.from_estimator(pipeline, 255 - large, scales="all")
    for scale in (32, 64):
        np.testing.assert_array_equal(
            display.scale_maps[scale], two_scales.anomaly_map(large, scale=scale)
        )


@pytest.mark.parametrize("scales", [[128], 32, "some", [32, 48]])
def test_unknown_scales_are_refused(two_scales, large, scales):
    with pytest.raises(ValueError, match=r"scales must be .* some of \(32, 64\)"):
        AnomalyMapDisplay.from_estimator(two_scales, large, scales=scales)


def test_histograms_count_the_scores_of_each_kind():
    display = ScoreHistogramDisplay.from_predictions(
        [-1, -1, -2, -2.5], [-1, -3, -4, -5], [1, -1, -1, -1], offset=-2.5, bins=4
    )
    heights = {name: x.get_data().values for name, x in display.steps_.items()}
    # The bins are -5..-4, -4..-3, -3..-2 and -2..-1, closed on the left.
    np.testing.assert_allclose(heights["training"], [0, 0, 0.25, 0.75])
    np.testing.assert_allclose(heights["normal"], [0, 0, 0, 1])
    np.testing.assert_allclose(heights["abnormal"], [1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_array_equal(display.line_.get_xdata(), [-2.5, -2.5])
    heads = ["training (4)", "new, normal (1)", "new, abnormal (3)"]
    assert legend_of(display.ax_) == [*heads, "threshold, -2.5"]


def test_a_far_defect_does_not_squeeze_normal_scores_into_one_bin():
    training = -np.linspace(1, 3, 20)
    display = ScoreHistogramDisplay.from_predictions(training, [-300.0, -2.0])
    values, edges, _ = display.steps_["training"].get_data()
    assert np.sum(values > 0) >= 4
    assert (edges[0], edges[-1]) == (-300, -1)
    assert display.ax_.get_xscale() == "symlog"


def test_histograms_of_an_estimator_are_of_its_own_scores(fitted, mixed):
    for estimator in (fitted, make_pipeline("passthrough", fitted)):
        display = ScoreHistogramDisplay.from_estimator(estimator, mixed.images)
        np.testing.assert_array_equal(display.training_scores, fitted.training_scores_)
        scores = fitted.score_samples(mixed.images)
        np.testing.assert_array_equal(display.scores, scores)
        assert display.line_.get_xdata()[0] == fitted.offset_
        assert list(display.steps_) == ["training", "new"]
        assert display.steps_["new"].get_data().values.sum() == pytest.approx(1)


def test_histograms_take_masks_and_one_kind_alone(fitted, mixed):
    draw = ScoreHistogramDisplay.from_estimator
    of_masks = draw(fitted, mixed.images, mixed.masks)
    np.testing.assert_array_equal(of_masks.labels, mixed.labels)
    figure, ax = plt.subplots()
    of_normal = draw(fitted, mixed.images[:4], mixed.labels[:4], ax=ax)
    assert list(of_normal.steps_) == ["training", "normal"]
    assert of_normal.figure_ is figure


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [1, 0]}, "y must hold 1 for normal and -1"),
        ({"y": [1]}, "inconsistent"),
        ({"scores": [-1, np.nan]}, "^scores must hold finite"),
        ({"training_scores": []}, "^training_scores must hold"),
    ],
)
def test_histograms_refuse_bad_input(change, message):
    given = {"training_scores": [-1, -2], "scores": [-1, -2]} | change
    with pytest.raises(ValueError, match=message):
        ScoreHistogramDisplay.from_predictions(**given)


def test_offset_must_be_a_number():
    with pytest.raises(TypeError, match="offset must be an instance of"):
        ScoreHistogramDisplay.from_predictions([-1, -2], [-1, -2], offset="auto")


def test_pictures_of_training_need_a_trained_patch_svdd(mixed, two_scales):
    forest = IsolationForest(n_estimators=2).fit(mixed.images.reshape(8, -1))
    with pytest.raises(TypeError, match="training_scores_, as PatchSVDD has; Isola"):
        ScoreHistogramDisplay.from_estimator(forest, mixed.images)
    with pytest.raises(NotFittedError):
        LossCurveDisplay.from_estimator(PatchSVDD(encoder="hierarchical"))
    with pytest.raises(TypeError, match="estimator must have"):
        LossCurveDisplay.from_estimator(make_pipeline(forest))
    with pytest.raises(ValueError, match=r"without training.*max_iter above 0"):
        LossCurveDisplay.from_estimator(two_scales)


def test_curves_of_scikit_learn_take_scores_as_the_docs_say(fitted, mixed):
    scores = fitted.score_samples(mixed.images)
    display = RocCurveDisplay.from_predictions(mixed.labels, -scores, pos_label=-1)
    assert display.roc_auc == pytest.approx(detection_auroc(mixed.labels, scores))
    alarms = fitted.predict(mixed.images) == -1
    rates = [alarms[mixed.labels == x].mean() for x in (1, -1)]
    # The curve leaves out points on straight lines.
    assert np.interp(rates[0], display.fpr, display.tpr) >= rates[1] - 1e-9


def test_loss_curve_smooths_every_term():
    spike = np.zeros(60)
    spike[30] = 3.0
    curve = {"svdd_32": spike, "svdd_64": np.ones(60), "position_32": np.ones(60)}
    display = LossCurveDisplay(curve).plot()
    raw, (smooth, large, position) = display.ax_.lines[0], display.lines_.values()
    np.testing.assert_array_equal(raw.get_xydata(), np.c_[np.arange(1, 61), spike])
    # The mean over three steps, a twentieth of sixty.
    np.testing.assert_allclose(smooth.get_ydata()[28:34], [0, 1, 1, 1, 0, 0], atol=1e-9)
    assert raw.get_color() == smooth.get_color() == large.get_color()
    assert smooth.get_color() != position.get_color()
    assert smooth.get_linestyle() == position.get_linestyle()
    assert smooth.get_linestyle() != large.get_linestyle()
    assert display.validation_ax_ is None
    assert legend_of(display.ax_) == list(curve)


def test_loss_curve_of_an_estimator_shows_its_checks(fitted):
    display = LossCurveDisplay.from_estimator(make_pipeline("passthrough", fitted))
    assert list(display.lines_) == list(fitted.loss_curve_)
    for name, line in display.lines_.items():
        np.testing.assert_allclose(line.get_ydata(), fitted.loss_curve_[name])
    checks = display.validation_line_
    np.testing.assert_array_equal(checks.get_xdata(), fitted.validation_steps_)
    np.testing.assert_array_equal(checks.get_ydata(), fitted.validation_scores_)
    assert checks.axes is display.validation_ax_
    assert display.best_line_.get_xdata() == [fitted.best_iter_] * 2
    kept = f"weights kept, step {fitted.best_iter_}"
    assert legend_of(display.ax_)[-2:] == [kept, "checks"]
