"""What people know: missed defects, false alarms, and kinds of defects."""

import gc
import pickle
import weakref

import numpy as np
import pytest
from settings import SEED
from sklearn.exceptions import NotFittedError

import skpatchsvdd
from skpatchsvdd import Inspection, PatchSVDD
from skpatchsvdd._feedback import defect_patches, updates
from skpatchsvdd._scoring import fitted as fitted_bank
from skpatchsvdd.datasets import make_textures

QUICK = {"encoder": "procedural", "random_state": SEED, "device": "cpu"}
N_NORMAL = 10


@pytest.fixture(scope="module")
def normal():
    return make_textures(N_NORMAL, image_size=64, random_state=SEED).images


@pytest.fixture(scope="module")
def others():
    """Normal images that are not learnt from."""
    return make_textures(8, image_size=64, random_state=SEED + 50).images


def mark(images, level, places=None, size=12):
    """Return copies with a square at some places, and masks of it."""
    marked, masks = images.copy(), np.zeros(images.shape[:3], dtype=bool)
    for i in range(len(images)):
        top, left = (20, 20) if places is None else places[i]
        part = i, slice(top, top + size), slice(left, left + size)
        marked[part], masks[part] = level, True
    return marked, masks


@pytest.fixture(scope="module")
def dark(others):
    return mark(others, 0, [(8 * (i % 5), 16) for i in range(len(others))])


@pytest.fixture(scope="module")
def faint(others, dark):
    """Defects that are hard to see: some raise no alarm."""
    X, masks = others.copy(), dark[1]
    X[masks] = np.maximum(X[masks], 25) - 25
    return X, masks


@pytest.fixture(scope="module")
def bright(others):
    return mark(others, 255, [(8 * (i % 5), 16) for i in range(len(others))])


@pytest.fixture(scope="module")
def plain(normal):
    return PatchSVDD(**QUICK).fit(normal)


@pytest.fixture
def est(plain):
    return pickle.loads(pickle.dumps(plain))


def find_level(est):
    """Return the level up to which known defects raise the scores of new images."""
    return np.sort(est.training_scores_)[1]


def test_a_known_defect_raises_its_like_and_little_else(est, faint, others):
    (X, masks), both = faint, np.concatenate([faint[0], others])
    before, level = est.score_samples(both), find_level(est)
    maps = est.anomaly_map(X[:2])
    est.partial_fit(X[:2], [-1, -1], masks=masks[:2])
    raised = est.anomaly_map(X[:2])
    assert (raised >= maps * (1 - 1e-6)).all()
    assert (raised > maps)[masks[:2]].mean() > 0.5
    scores = est.score_samples(both)
    ratios = scores / before
    assert (scores[:2] < level).all()  # these themselves
    assert ratios[2:8].max() > 1.05  # of those that are no alarms by themselves
    assert np.median(ratios[10:]) < 1.01  # all but the same pictures without
    assert (ratios >= 1 - 1e-6).all()
    assert est.defect_kinds_.tolist() == ["defect", "defect"]
    assert all(n > 0 for n in est.defect_bank_size_.values())


def test_what_is_not_needed_any_more_is_freed_at_once(normal, dark):
    est = PatchSVDD(**QUICK).fit(normal)
    gc.collect()
    gc.disable()
    try:
        former = weakref.ref(est._on_device())
        bank = weakref.ref(est._fitted)
        est.partial_fit(dark[0][:2], [-1, -1], masks=dark[1][:2])
        assert former() is None
        assert bank() is None
    finally:
        gc.enable()


def test_fit_and_partial_fit_learn_the_same(normal, dark):
    """Without training: `fit` trains on known defects, too."""
    X, masks = dark
    est = PatchSVDD(max_iter=0, **QUICK).fit(normal)
    est.partial_fit(X[:2], [-1, -1], masks=masks[:2])
    y = [1] * N_NORMAL + [-1, -1]
    both = [None] * N_NORMAL + list(masks[:2])
    whole = PatchSVDD(max_iter=0, **QUICK)
    whole.fit(np.concatenate([normal, X[:2]]), y, masks=both)
    np.testing.assert_allclose(est.training_scores_, whole.training_scores_, rtol=1e-4)
    np.testing.assert_allclose(est.score_samples(X), whole.score_samples(X), rtol=1e-4)
    assert est.offset_ == pytest.approx(whole.offset_, rel=1e-4)


@pytest.mark.parametrize("bank_size", [None, 200])
def test_one_defect_at_a_time_raises_the_threshold_as_all_at_once(
    normal, dark, bank_size
):
    est = PatchSVDD(bank_size=bank_size, **QUICK).fit(normal)
    whole, offset = pickle.loads(pickle.dumps(est)), est.offset_
    for i in range(5):
        est.partial_fit(dark[0][[i]], [-1], masks=dark[1][[i]])
    whole.partial_fit(dark[0][:5], [-1] * 5, masks=dark[1][:5])
    np.testing.assert_allclose(est.training_scores_, whole.training_scores_, rtol=1e-4)
    assert offset >= est.offset_ >= 1.25 * offset


@pytest.mark.parametrize("how", ["fit", "partial_fit"])
def test_masks_in_y_say_where(est, normal, dark, how):
    X, masks = dark
    if how == "fit":
        X = np.concatenate([normal, X[:2]])
        y = np.concatenate([np.zeros((N_NORMAL, 64, 64)), masks[:2]])
        est.fit(X, y)
        same = PatchSVDD(**QUICK).fit(X, masks=y)
    else:
        same = pickle.loads(pickle.dumps(est))
        est.partial_fit(X[:2], masks[:2])
        same.partial_fit(X[:2], masks=masks[:2])
    assert len(est.defect_kinds_) == 2
    np.testing.assert_array_equal(est.score_samples(normal), same.score_samples(normal))


def test_without_a_mask_the_map_says_where(est, faint, capsys):
    X, level = faint[0][:2], find_level(est)
    est.set_params(verbose=1).partial_fit(X, [-1, -1])
    said = capsys.readouterr().out
    assert "learning defects" in said
    assert said.count("no mask, so where the map is highest") == 2
    assert (est.score_samples(X) < level).all()


@pytest.mark.parametrize("bank_size", [None, 200])
def test_a_forgotten_defect_leaves_no_threshold_behind(normal, dark, bank_size):
    est = PatchSVDD(bank_size=bank_size, **QUICK).fit(normal)
    scores, offset = est.training_scores_, est.offset_
    est.partial_fit(dark[0][:2], ["dark"] * 2, masks=dark[1][:2])
    assert (est.training_scores_ < scores).any()
    est.partial_fit(dark[0][:2], ["good"] * 2, corrections=True)
    assert est.offset_ == offset
    np.testing.assert_array_equal(est.training_scores_, scores)


def test_a_known_defect_can_be_called_something_else(est, dark):
    X, masks = dark
    y = ["dark", "spot", "Good", "NORMAL"]
    est.partial_fit(X[:4], y, masks=[*masks[:2], None, None])
    scores = est.score_samples(X)
    est.partial_fit(X[1:2], ["stain"], masks=masks[1:2])
    assert est.defect_kinds_.tolist() == ["dark", "stain"]
    np.testing.assert_allclose(est.score_samples(X), scores, rtol=1e-4)


def test_a_normal_image_cannot_become_a_defect(est, normal):
    before = dict(vars(est))
    message = r"called 'scratch', but it was learnt from .* by forget\(\[1\]\)"
    with pytest.raises(ValueError, match=message):
        est.partial_fit(normal[1:2], ["scratch"])
    assert vars(est) == before
    with pytest.raises(ValueError, match="among the normal images"):
        PatchSVDD(**QUICK).fit(normal[[0, 1, 2, 0]], [1, 1, 1, -1])


def test_known_defects_count_once(est, dark):
    X, masks = dark
    est.partial_fit(X[:1], [-1], masks=masks[:1])
    before = est._fitted
    est.partial_fit(X[[0, 0]], [-1, -1], masks=masks[[0, 0]])
    assert est._fitted is before


def test_groups_do_not_matter_for_defects(normal, dark):
    groups = np.arange(N_NORMAL) // 2
    est = PatchSVDD(**QUICK).fit(normal, groups=groups)
    est.partial_fit(dark[0][:2], [-1, -1], masks=dark[1][:2])
    est.partial_fit(dark[0][2:3], [-1], groups=["any"], masks=dark[1][2:3])
    assert len(est.groups_) == N_NORMAL
    with pytest.raises(ValueError, match="fit was given groups, and partial_fit was"):
        est.partial_fit(dark[0][2:4], [-1, 1])


# Corrections


def test_a_corrected_image_and_no_other_raises_no_alarm_again(est, dark, bright):
    X = np.concatenate([bright[0], dark[0]])
    before = est.score_samples(X)
    assert (before[:3] < est.offset_).all()
    offset, scores, size = est.offset_, est.training_scores_, est.bank_size_
    est.partial_fit(X[:3], corrections=True)
    assert (est.predict(X[:3]) == 1).all()
    after = est.score_samples(X)
    assert (after[:3] == 0).all()
    assert not est.anomaly_map(X[:3]).any()
    np.testing.assert_array_equal(after[3:], before[3:])
    # None of them has joined what is normal.
    assert est.bank_size_ == size
    assert est.offset_ == offset
    np.testing.assert_array_equal(est.training_scores_, scores)


def test_what_was_corrected_can_be_called_defective(est, bright):
    X, masks = bright
    est.partial_fit(X[:2], corrections=True)
    est.partial_fit(X[:1], ["spot"], masks=masks[:1])
    assert est.predict(X[:2]).tolist() == [-1, 1]


def test_an_image_of_the_bank_can_be_corrected(normal):
    est = PatchSVDD(false_alarm_rate=0.3, **QUICK).fit(normal)
    lowest = normal[[est.training_scores_.argmin()]]
    assert est.predict(lowest) == -1
    est.partial_fit(lowest, corrections=True)
    assert est.predict(lowest) == 1
    assert est.calibrates_.all()


def test_corrections_need_no_groups_and_leave_theirs_calibrating(normal, bright):
    groups = np.arange(N_NORMAL) // 2
    est = PatchSVDD(max_iter=0, **QUICK).fit(normal, groups=groups)
    est.partial_fit(bright[0][:1], corrections=True)
    est.partial_fit(bright[0][1:2], groups=[9], corrections=True)
    est.partial_fit(bright[0][2:4], groups=[0, 9])
    assert est.calibrates_.all()
    assert est.groups_.tolist() == [*groups, 0, 9]


def test_a_first_call_takes_no_corrections(normal):
    est = PatchSVDD(**QUICK)
    with pytest.raises(NotFittedError, match=r"corrections=True .* Call fit"):
        est.partial_fit(normal, corrections=True)
    assert not hasattr(est, "encoder_")


# Kinds


def test_regions_are_named(est, dark, bright):
    X = np.concatenate([dark[0][:3], bright[0][:3]])
    masks = np.concatenate([dark[1][:3], bright[1][:3]])
    est.partial_fit(X, ["dark"] * 3 + ["bright"] * 3, masks=masks)
    for images, kind in ((dark[0][3:], "dark"), (bright[0][3:], "bright")):
        names = est.name_regions(images)
        regions = est.predict_regions(images)
        assert [len(found) for found in names] == [len(found) for found in regions]
        assert all(found["kind"][0] == kind for found in names)
        assert all(found["distance"][0] < 1 for found in names)


def test_unknown_regions_are_called_so(est, plain, dark, bright, normal):
    (first, *_) = plain.name_regions(bright[0])
    assert first["kind"][0] == "unknown"
    assert first["distance"][0] == np.inf
    est.partial_fit(dark[0][:1], ["dark"], masks=dark[1][:1])
    stripes = np.tile(np.array([0, 255], np.uint8)[None, :, None], (64, 32, 3))[None]
    (names,) = est.name_regions(stripes)
    assert names["kind"][0] == "unknown"
    assert names["distance"][0] >= 1
    assert all(len(found) == 0 for found in est.name_regions(normal))


def test_unlike_defects_do_not_have_the_name_of_the_only_kind(est, dark, others):
    places = [(8 * (i % 5), 16) for i in range(len(others))]
    est.partial_fit(dark[0][:3], ["dark"] * 3, masks=dark[1][:3])
    colours = [255, 0, 0], [0, 0, 255]
    unlike = [mark(others, level, places)[0][3:] for level in colours]
    names = est.name_regions(np.concatenate(unlike))
    assert sum(found["kind"][0] == "dark" for found in names) <= 1  # of 10
    assert all(found["kind"][0] == "dark" for found in est.name_regions(dark[0][3:]))


@pytest.fixture(scope="module")
def unreached():
    """Images with rows that large patches do not reach, and some that none do.

    An estimator has learnt all but the last two.
    """
    size = 79
    images = make_textures(8, image_size=size, random_state=SEED).images
    est = PatchSVDD(**QUICK).fit(images[:6])
    scales = zip(est.patch_sizes_, est.strides_, strict=True)
    ends = [(size - k) // stride * stride + k for k, stride in scales]
    assert min(ends) + 4 < max(ends) < size
    return est, images, ends


@pytest.mark.parametrize("choose", [min, max])
def test_a_mask_in_a_border_that_patches_do_not_reach_is_learnt(unreached, choose):
    est, images, ends = unreached
    est, row = pickle.loads(pickle.dumps(est)), choose(ends)
    _, masks = mark(images[:1], 0, [(row, row)], size=79 - row)
    marked, offset = images[:1].copy(), est.offset_
    marked[masks] = np.minimum(marked[masks], 235) + 20
    assert est.score_samples(marked) > 0.2 * offset
    est.partial_fit(marked, ["corner"], masks=masks)
    assert est.score_samples(marked) < 0.7 * offset


@pytest.mark.parametrize("is_same", [False, True])
def test_a_region_in_a_border_that_patches_do_not_reach_is_named(unreached, is_same):
    est, images, ends = unreached
    est, border = pickle.loads(pickle.dumps(est)), min(ends)
    place = border + 4 if is_same else 20
    marked, masks = mark(images[6:], 255, [(place, place), (border + 4,) * 2], size=10)
    est.partial_fit(marked[:1], ["square"], masks=masks[:1])
    # A threshold so high that the region is in that border alone.
    est.offset_ = float(0.999 * est.score_samples(marked[1:])[0])
    results = est.inspect(marked[1:], names=True)
    assert results.regions[0]["top"][0] >= border
    assert np.isfinite(results.names[0]["distance"][0])
    if is_same:
        assert results.names[0]["kind"][0] == "square"


@pytest.mark.parametrize("name", ["unknown", "", "1", "-1", "nan"])
def test_names_that_are_refused(est, dark, name):
    with pytest.raises(ValueError, match="y must"):
        est.partial_fit(dark[0][:1], [name])


BAD_MASKS = {
    "count": (lambda x: x[:1], "got 1 for 2 images"),
    "size": (lambda x: x[:, :40], "the mask of image 0 has 40 x 64 pixels, but"),
    "axes": (lambda x: x[..., None], r"got an array of shape \(64, 64, 1\)"),
    "text": (lambda x: x.astype(str), "image 0 has dtype <U5, which are not numbers"),
    "nan": (lambda x: np.where(x, np.nan, 0), "image 0 contains NaN"),
    "empty": (lambda x: 0 * x, "image 0, which y calls defective, is empty"),
    "word": (lambda x: "masks", "masks must hold a mask .*got 'masks'"),
    "number": (lambda x: 3, "masks must hold a mask"),
}


@pytest.mark.parametrize("kind", BAD_MASKS)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_masks_are_refused(est, dark, method, kind):
    change, match = BAD_MASKS[kind]
    before = dict(vars(est))
    with pytest.raises(ValueError, match=match):
        getattr(est, method)(dark[0][:2], [-1, -1], masks=change(dark[1][:2]))
    assert vars(est) == before


def test_a_mask_on_a_good_image_is_refused(est, dark):
    with pytest.raises(ValueError, match=r"y calls image 1 normal.*has 144"):
        est.partial_fit(dark[0][:2], [-1, 1], masks=dark[1][:2])
    with pytest.raises(ValueError, match="y calls image 0 normal"):
        est.partial_fit(dark[0][:2], ["good", "dark"], masks=dark[1][:2])


def test_masks_of_files_of_another_size(normal, dark):
    est = PatchSVDD(image_size=48, **QUICK).fit(normal)
    est.partial_fit(dark[0][:1], [-1], masks=dark[1][:1])
    small = dark[1][1][::4, ::4].repeat(3, 0).repeat(3, 1)  # of the size of inspection
    est.partial_fit(dark[0][1:2], [-1], masks=[small])
    assert len(est.defect_kinds_) == 2


def test_a_defect_outside_of_what_is_looked_at(normal, dark):
    roi = np.zeros((64, 64), dtype=bool)
    roi[40:, 40:] = True
    est = PatchSVDD(roi=roi, **QUICK).fit(normal)
    mask = np.zeros((1, 64, 64))
    mask[0, :4, :4] = 1
    with pytest.raises(ValueError, match=r"the mask of .* holds no pixel of roi"):
        est.partial_fit(dark[0][:1], [-1], masks=mask)


# What follows


@pytest.fixture
def taught(est, dark, bright):
    est.partial_fit(dark[0][:2], ["dark", "spot"], masks=dark[1][:2])
    return est.partial_fit(bright[0][:2], corrections=True)


def test_a_bank_may_hold_patches_of_one_image_alone(normal, dark):
    X, y = np.concatenate([normal, dark[0][:2]]), [1] * len(normal) + [-1] * 2
    masks = [None] * len(normal) + list(dark[1][:2])
    est = PatchSVDD(bank_size=1, max_iter=0, **QUICK).fit(X, y, masks=masks)
    assert len(np.unique(est._fitted.indexes[0].places[:, 0])) == 1
    assert np.isfinite(est.score_samples(X)).all()


@pytest.mark.parametrize("how", ["save", "pickle"])
def test_what_is_known_is_saved(taught, dark, bright, tmp_path, how):
    if how == "save":
        taught.save(tmp_path / "part.model")
        loaded = skpatchsvdd.load(tmp_path / "part.model")
    else:
        loaded = pickle.loads(pickle.dumps(taught))
    for X in (dark[0], bright[0]):
        np.testing.assert_array_equal(loaded.score_samples(X), taught.score_samples(X))
    np.testing.assert_array_equal(loaded.defect_kinds_, taught.defect_kinds_)
    assert loaded.defect_bank_size_ == taught.defect_bank_size_
    names = loaded.name_regions(dark[0])
    for found, other in zip(names, taught.name_regions(dark[0]), strict=True):
        np.testing.assert_array_equal(found, other)
    loaded.partial_fit(dark[0][2:3], ["dark"], masks=dark[1][2:3])
    assert len(loaded.defect_kinds_) == 3


def test_fit_forgets(taught, plain, normal, others):
    taught.fit(normal)
    assert len(taught.defect_kinds_) == 0
    np.testing.assert_array_equal(
        taught.score_samples(others), plain.score_samples(others)
    )


def test_joined_copies_keep_what_was_known_before(taught, dark, bright, others):
    copies = [pickle.loads(pickle.dumps(taught)) for _ in range(2)]
    whole = pickle.loads(pickle.dumps(taught)).partial_fit(others[:2])
    copies[0].partial_fit(others[:2])
    taught.join(copies)
    both = np.concatenate([dark[0], others, bright[0]])
    np.testing.assert_allclose(
        taught.score_samples(both), whole.score_samples(both), rtol=1e-3
    )
    assert taught.defect_kinds_.tolist() == whole.defect_kinds_.tolist()
    copies[0].partial_fit(dark[0][3:4], ["spot"])
    whole.partial_fit(bright[0][2:3], corrections=True)
    for other, name in ((copies[0], "known defect"), (whole, "correction")):
        with pytest.raises(ValueError, match=f"0 of others has another {name} than"):
            taught.join([other])


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(
    ("where", "step"),
    [
        (defect_patches, "find_decisive"),
        (updates, "score_memorized"),
        (fitted_bank, "score_features"),
    ],
)
def test_an_interrupted_call_changes_nothing(
    taught, dark, monkeypatch, where, step, error
):
    def fail(*args, **kwargs):
        raise error

    before = dict(vars(taught))
    monkeypatch.setattr(where, step, fail)
    with pytest.raises(error):
        taught.partial_fit(dark[0][3:5], ["dark", "good"])
    assert vars(taught) == before


def test_explain_looks_at_the_patch_that_was_raised(taught, dark):
    matches = taught.explain(dark[0][3:5])
    boxes = matches[0][0]
    top = 8 * (3 % 5)
    assert (boxes["top"] < top + 12).all()
    assert (boxes["bottom"] > top).all()


@pytest.mark.parametrize(
    "params",
    [
        {"inspection": Inspection(relative_weight=0), "bank_size": 300},
        {"bank_size": 300},
        {"encoder": ["hierarchical", "procedural"], "patch_size": 32, "max_iter": 0},
    ],
)
def test_other_ways_through(normal, faint, params):
    est = PatchSVDD(**QUICK | params).fit(normal)
    X, masks = faint[0][:1], faint[1][:1]
    before = est.score_samples(X)
    assert est.partial_fit(X, [-1], masks=masks).score_samples(X) < before
    assert np.isfinite(est.training_scores_).all()


@pytest.mark.parametrize("groups", [None, ["a", "b"] * 6, np.arange(12) // 3])
def test_similar_corrections_make_a_look_normal_and_do_not_calibrate(normal, groups):
    X = np.concatenate([normal, normal[:, ::-1]])[:12]
    est = PatchSVDD(**QUICK).fit(X, groups=groups)
    odd = np.tile(X[:1], (3, 1, 1, 1))
    odd[:, 10:30, 10:30] = 255
    odd[1, 0, 0], odd[2, 1, 1] = 0, 0
    assert (est.predict(odd) == -1).all()
    n_images = len(est.training_scores_)
    est.partial_fit(odd[:1], corrections="similar")
    assert (est.predict(odd) == 1).all()
    assert est.offset_ == est.training_scores_[est.calibrates_].min()
    assert len(est.training_scores_) == n_images + 1
    assert not est.calibrates_[-1]
    again = est.score_samples(odd)
    est.partial_fit(odd[:1], corrections="similar")  # nothing new
    np.testing.assert_array_equal(est.score_samples(odd), again)
