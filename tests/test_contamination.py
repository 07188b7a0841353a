import re
import warnings

import numpy as np
import pytest

import skpatchsvdd
from skpatchsvdd import PatchSVDD
from skpatchsvdd._calibration import threshold_from_scores
from skpatchsvdd._screening import find_defective, measure_plausibility
from skpatchsvdd._utils import SuspectsFound
from skpatchsvdd.datasets import make_textures

SIZE = 64
N_GOOD, N_DEFECTIVE = 14, 3


def damage(image, top, left):
    """Draw the same bright square with a cross: defects of one kind."""
    image = image.copy()
    image[top : top + 20, left : left + 20] = 250
    image[top + 8 : top + 12, left : left + 20] = 0
    image[top : top + 20, left + 8 : left + 12] = 0
    return image


@pytest.fixture(scope="module")
def good():
    return make_textures(N_GOOD + 6, image_size=SIZE, random_state=3).images


@pytest.fixture(scope="module")
def mixed(good):
    """Return good images, among which every fifth is defective, and which these are."""
    images = good[: N_GOOD + N_DEFECTIVE].copy()
    is_defective = np.zeros(len(images), dtype=bool)
    for k, i in enumerate((2, 7, 12)):
        images[i] = damage(images[i], 8 + 5 * k, 30 - 6 * k)
        is_defective[i] = True
    return images, is_defective


def make(**parameters):
    return PatchSVDD(random_state=0, **{"max_iter": 0} | parameters)


def fit(images, **parameters):
    with pytest.warns(SuspectsFound):
        return make(**parameters).fit(images, groups=None)


@pytest.fixture(scope="module")
def screened(mixed):
    return fit(mixed[0], contamination="auto")


def test_defective_images_of_one_kind_are_set_aside(screened, mixed):
    suspects = screened.suspects_
    aside = suspects.indices[suspects.is_set_aside]
    assert sorted(aside) == np.flatnonzero(mixed[1]).tolist()
    assert (suspects.p_values[suspects.is_set_aside] < 1e-4).all()
    assert (np.diff(suspects.p_values) >= 0).all()
    assert len(screened.training_scores_) == N_GOOD


@pytest.mark.parametrize("max_iter", [0, 2])
def test_it_is_as_if_they_were_not_in_X(mixed, good, max_iter):
    images, is_defective = mixed
    est = fit(images, contamination="auto", max_iter=max_iter)
    plain = make(max_iter=max_iter).fit(images[~is_defective], groups=None)
    np.testing.assert_array_equal(est.training_scores_, plain.training_scores_)
    assert est.offset_ == plain.offset_
    new = good[-3:]
    np.testing.assert_array_equal(est.score_samples(new), plain.score_samples(new))
    np.testing.assert_array_equal(est.anomaly_map(new), plain.anomaly_map(new))


def test_a_fraction_sets_so_many_aside(mixed):
    images, is_defective = mixed
    for fraction, n in ((0.06, 1), (3 / 17, 3)):
        est = fit(images, contamination=fraction)
        suspects = est.suspects_
        aside = suspects.indices[suspects.is_set_aside]
        assert len(aside) == n
        assert is_defective[aside].all()


def test_defects_are_found_again_that_were_hidden(mixed, good):
    images, is_defective = mixed
    plain = make().fit(images, groups=None)
    est = fit(images, contamination="auto")
    new = np.stack([damage(x, 20, 20) for x in good[-3:]])
    assert (plain.predict(new) == 1).any()
    assert (est.predict(new) == -1).all()
    assert (est.predict(images[is_defective]) == -1).all()


def test_nothing_is_set_aside_of_good_images(good):
    est = make(contamination="auto").fit(good, groups=None)
    assert not est.suspects_.is_set_aside.any()
    plain = make().fit(good, groups=None)
    np.testing.assert_array_equal(est.training_scores_, plain.training_scores_)


def test_images_beyond_those_compared_are_judged_by_them(mixed, monkeypatch):
    images, is_defective = mixed
    monkeypatch.setattr("skpatchsvdd._screening.screen._N_COMPARED", 9)
    suspects = fit(images, contamination="auto").suspects_
    aside = set(suspects.indices[suspects.is_set_aside])
    assert set(np.flatnonzero(is_defective)) <= aside
    assert len(aside) <= N_DEFECTIVE + 1


def test_grey_images_roi_and_groups(mixed):
    images, is_defective = mixed
    roi = np.ones((SIZE, SIZE), dtype=bool)
    roi[:8] = False
    grey = images[..., 0]
    groups = np.arange(len(images)) // 2
    est = make(contamination="auto", roi=roi)
    with pytest.warns(SuspectsFound):
        est.fit(grey, groups=groups)
    suspects = est.suspects_
    aside = suspects.indices[suspects.is_set_aside]
    assert sorted(aside) == np.flatnonzero(is_defective).tolist()
    np.testing.assert_array_equal(est.groups_, groups[~is_defective])


def test_without_it_strange_images_are_named(good):
    images = good[:15].copy()
    images[4] = damage(images[4], 10, 10)
    with pytest.warns(SuspectsFound, match=re.escape("X[4]")):
        est = make().fit(images, groups=None)
    assert est.suspects_.indices.tolist() == [4]
    assert not est.suspects_.is_set_aside.any()
    assert len(est.training_scores_) == 15


def test_places_are_those_in_X_beside_known_defects(mixed):
    images, is_defective = mixed
    first = damage(images[0], 25, 5)
    X = np.concatenate([first[None], images])
    y = np.append(-1, np.ones(len(images), dtype=int))
    with pytest.warns(SuspectsFound):
        est = make(contamination="auto").fit(X, y, groups=None)
    suspects = est.suspects_
    aside = suspects.indices[suspects.is_set_aside]
    assert sorted(aside) == (1 + np.flatnonzero(is_defective)).tolist()


def test_files_are_named(mixed, tmp_path):
    from PIL import Image

    images, _ = mixed
    files = [str(tmp_path / f"{i}.png") for i in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    with pytest.warns(SuspectsFound, match=re.escape(files[2])):
        est = make(contamination="auto").fit(files, groups=None)
    named = [files[i] for i in est.suspects_.indices]
    assert est.suspects_.files == named


def test_suspects_survive_a_file(screened, tmp_path):
    screened.save(tmp_path / "part.model")
    loaded = skpatchsvdd.load(tmp_path / "part.model")
    for own, other in zip(screened.suspects_, loaded.suspects_, strict=True):
        np.testing.assert_array_equal(own, other)


def test_fit_predict_calls_them_abnormal(mixed):
    images, is_defective = mixed
    est = make(contamination="auto")
    with pytest.warns(SuspectsFound):
        labels = est.fit_predict(images, groups=None)
    np.testing.assert_array_equal(labels == -1, is_defective)


@pytest.mark.parametrize("contamination", [-0.1, 0.6, "some", None, np.nan])
def test_other_values_are_refused(good, contamination):
    with pytest.raises(ValueError, match="contamination"):
        make(contamination=contamination).fit(good[:6])


def test_few_images(good):
    with pytest.raises(ValueError, match=r"contamination=0\.3 needs at least 5"):
        make(contamination=0.3).fit(good[:4], groups=None)
    est = make(contamination="auto").fit(good[:4], groups=None)
    assert len(est.suspects_.indices) == 0


def test_images_that_are_all_alike(good):
    X = np.repeat(good[:1], 8, axis=0)
    est = make(contamination="auto").fit(X, groups=None)
    assert len(est.suspects_.indices) == 0


def test_a_failed_fit_changes_nothing(screened, mixed):
    before = vars(screened).copy()
    screened.set_params(contamination=0.3)
    with pytest.raises(ValueError, match="at least 5"):
        screened.fit(mixed[0][:4], groups=None)
    screened.set_params(contamination="auto")
    assert all(vars(screened)[name] is value for name, value in before.items())


def test_a_warning_that_is_an_error_changes_nothing(screened, mixed):
    before = vars(screened).copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspectsFound)
        with pytest.raises(SuspectsFound):
            screened.fit(mixed[0], groups=None)
    kept = {name for name in before if name != "_unfinished"}
    assert all(vars(screened)[name] is before[name] for name in kept)


def test_plausibility_is_that_of_a_normal_distribution():
    rng = np.random.RandomState(0)
    scores = -np.exp(rng.normal(2.0, 0.5, 20000))
    p_values = measure_plausibility(scores, scores)
    for level in (0.2, 0.05, 0.006):
        assert np.mean(p_values <= level) == pytest.approx(level, rel=0.15)
    few = measure_plausibility(scores, np.append(scores, [-1e6] * 200))
    np.testing.assert_allclose(few, p_values, atol=0.02)


@pytest.mark.parametrize("rate", [0.05, 0.2])
@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_promise_if_all_that_is_set_aside_was_good(rate, fraction):
    """At most the rate and the fraction, whichever images are set aside."""
    rng, n = np.random.RandomState(1), 39
    n_aside = int(fraction * n)
    alarms = []
    for _ in range(4000):
        *scores, new = -rng.gamma(2, size=n + 1)
        kept = np.sort(scores)[n_aside:]  # the worst that can be set aside
        alarms.append(new < threshold_from_scores(kept, rate, name=None))
    error = 3 * np.sqrt(0.25 / len(alarms))
    assert np.mean(alarms) <= rate + fraction + error
    # It is nearly so bad: the bound says something.
    assert np.mean(alarms) >= 0.6 * (rate + fraction) - error


def test_what_is_set_aside_does_not_depend_on_the_order(mixed):
    from skpatchsvdd._images import check_images, digest_images
    from skpatchsvdd._parameters import resolve_options
    from skpatchsvdd._scoring import NormalImages
    from skpatchsvdd._utils import check_device

    images, is_defective = mixed
    device = check_device("cpu")
    options = resolve_options(make().get_params(deep=False), device)
    for seed in range(3):
        order = np.random.RandomState(seed).permutation(len(images))
        stack = check_images(images[order], image_size=None).hold()
        numbers = np.arange(len(images))
        normal = NormalImages(stack, digest_images(stack), numbers, numbers)
        found, _ = find_defective(normal, options, device, None)
        np.testing.assert_array_equal(found, is_defective[order])


@pytest.fixture(scope="module")
def grown(good):
    """Return an estimator, and one that has learnt three images more."""
    est = make().fit(good[:10], groups=None)
    other = make().fit(good[:10], groups=None).partial_fit(good[10:13])
    return est, other


def test_forgotten_images_are_as_if_they_had_never_joined(grown, good):
    est, other = grown
    other.forget([10, 11, 12])
    new = np.concatenate([good[-3:], good[10:13]])
    for method in ("score_samples", "anomaly_map", "p_values"):
        expected = getattr(est, method)(new)
        np.testing.assert_allclose(getattr(other, method)(new), expected, rtol=1e-5)
    np.testing.assert_allclose(other.training_scores_, est.training_scores_, rtol=1e-5)
    assert other.offset_ == pytest.approx(est.offset_, rel=1e-5)
    assert other.training_digests_ == est.training_digests_
    assert other.bank_size_ == est.bank_size_
    other.partial_fit(good[10:13])
    assert len(other.training_scores_) == 13


def test_what_is_forgotten_can_become_a_known_defect(mixed):
    images, is_defective = mixed
    with pytest.warns(SuspectsFound):
        est = make(contamination="auto").fit(images[:13], groups=None)
    kept = make().fit(images[:13], groups=None)
    kept.forget(is_defective[:13])
    defective = images[:13][is_defective[:13]]
    assert (kept.predict(defective) == -1).all()
    kept.partial_fit(defective, [-1] * len(defective))
    assert len(kept.defect_kinds_) == len(defective)
    assert len(kept.training_scores_) == len(est.training_scores_)


def test_forget_beside_feedback_and_calibrate(good):
    defective = damage(good[13], 20, 20)[None]

    def learn(images):
        est = make().fit(good[:8], groups=None)
        if len(images):
            est.partial_fit(images)
        return est.partial_fit(defective, [-1]).calibrate(good[14:19])

    est, other = learn([]), learn(good[8:10])
    other.forget([-1, -2])
    new = np.concatenate([defective, good[-2:]])
    np.testing.assert_allclose(
        other.score_samples(new), est.score_samples(new), rtol=1e-5
    )
    assert other.offset_ == pytest.approx(est.offset_, rel=1e-5)
    np.testing.assert_allclose(
        other.calibration_scores_, est.calibration_scores_, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([10], "places among the 10"),
        ([-11], "places among the 10"),
        ([0.5], "places among the 10"),
        ("all", "places among the 10"),
        ([True, False], "10 bools"),
        (list(range(9)), "at least two must stay"),
    ],
)
def test_indices_that_cannot_be_forgotten(grown, indices, message):
    est, before = grown[0], grown[0].training_scores_
    with pytest.raises(ValueError, match=message):
        est.forget(indices)
    assert est.training_scores_ is before
    assert est.forget([]).training_scores_ is before


def test_a_reduced_bank_and_a_mean_image_forget_nothing(good):
    reduced = make(bank_size=100).fit(good[:8], groups=None)
    with pytest.raises(ValueError, match="bank_size"):
        reduced.forget([0])
    paper = make(training="paper").fit(good[:8], groups=None)
    with pytest.raises(ValueError, match="mean image"):
        paper.forget([0])


def test_newcomers_that_look_defective_are_named(good):
    est = make().fit(good[:12], groups=None)
    new = good[12:14].copy()
    new[1] = damage(new[1], 20, 20)
    with pytest.warns(SuspectsFound, match="image 1 of X"):
        est.partial_fit(new)
    assert len(est.training_scores_) == 14


@pytest.mark.parametrize("seed", [0, 1])
def test_two_pictures_of_a_defective_piece_do_not_hide_each_other(seed):
    X = make_textures(18, image_size=64, random_state=seed).images
    X[17, 20:44, 20:44] = 0
    brighter = np.clip(X[17:].astype(int) + 4, 0, 255).astype(np.uint8)
    X = np.concatenate([X, brighter])
    with pytest.warns(SuspectsFound, match="2 of the images"):
        est = PatchSVDD(max_iter=0, device="cpu", random_state=0).fit(X)
    assert sorted(est.suspects_.indices) == [17, 18]
