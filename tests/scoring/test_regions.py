import numpy as np
from PIL import Image
from scipy import ndimage
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._images import files as image_files
from skpatchsvdd._scoring.regions import find_regions, resize_regions


def test_inspect_says_all_at_once(fitted, mixed):
    X = mixed.images
    results = fitted.inspect(X)
    np.testing.assert_array_equal(results.scores, fitted.score_samples(X))
    np.testing.assert_array_equal(results.p_values, fitted.p_values(X))
    np.testing.assert_array_equal(results.labels, fitted.predict(X))
    np.testing.assert_array_equal(results.maps, fitted.anomaly_map(X))
    np.testing.assert_array_equal(results.masks, fitted.predict_mask(X))
    for one, other in zip(results.regions, fitted.predict_regions(X), strict=True):
        np.testing.assert_array_equal(one, other)
    for own, mask, one_map in zip(
        results.regions, results.masks, results.maps, strict=True
    ):
        assert len(own) > 0 if mask.any() else own.shape == (0,)
        np.testing.assert_array_equal(own, find_regions(mask, one_map))


def test_regions_are_those_of_the_plain_way(rng):
    one_map = ndimage.gaussian_filter(rng.random((60, 80)), 3).astype(np.float32)
    mask = one_map > np.quantile(one_map, 0.8)
    found = find_regions(mask, one_map)
    labels, n_regions = ndimage.label(mask, structure=np.ones((3, 3)))
    assert len(found) == n_regions > 3
    assert (np.diff(found["peak"]) <= 0).all()
    for region in found:
        own = labels == labels[region["row"], region["col"]]
        assert region["area"] == own.sum()
        assert region["peak"] == one_map[own].max()
        assert one_map[region["row"], region["col"]] == region["peak"]
        np.testing.assert_allclose(region["mean"], one_map[own].mean(), rtol=1e-5)
        rows, cols = np.nonzero(own)
        assert (region["top"], region["bottom"]) == (rows.min(), rows.max() + 1)
        assert (region["left"], region["right"]) == (cols.min(), cols.max() + 1)


def test_resized_regions_by_hand():
    mask, one_map = np.zeros((4, 6), dtype=bool), np.zeros((4, 6))
    mask[1:3, 2:5] = True
    one_map[2, 4] = 7
    regions = find_regions(mask, one_map)
    assert resize_regions(regions, (4, 6), (4, 6)) is regions
    large = resize_regions(regions, (4, 6), (40, 30))
    assert large.tolist() == [(10, 10, 30, 25, 300, 25, 22, 7, 7 / 6)]
    small = resize_regions(regions, (4, 6), (1, 2))
    assert small.tolist() == [(0, 0, 1, 2, 1, 0, 1, 7, 7 / 6)]


def test_regions_are_found_at_the_size_of_inspection(normal, mixed, monkeypatch):
    large = np.repeat(np.repeat(mixed.images, 4, axis=1), 4, axis=2)
    options = {"patch_size": 32, "embedding_dim": 8, "max_iter": 0}
    est = PatchSVDD(image_size=48, random_state=SEED, **options).fit(normal)
    est.offset_ = est.training_scores_.max()  # there will be alarms
    results, seen = est.inspect(large), []
    label = ndimage.label
    monkeypatch.setattr(
        ndimage, "label", lambda x, **kw: seen.append(x.shape) or label(x, **kw)
    )
    regions = est.predict_regions(large)
    assert set(seen) == {(48, 48)}
    for own, mask, map_ in zip(regions, results.masks, results.maps, strict=True):
        assert mask.shape == map_.shape == large.shape[1:3]
        total = own["area"].sum()
        assert abs(total - mask.sum()) <= 0.25 * max(total, mask.sum()) + 16


def test_inspect_explains_its_alarms_from_what_it_has_at_hand(
    normal, mixed, tmp_path, monkeypatch
):
    files = [tmp_path / f"{i}.png" for i in range(len(mixed.images))]
    for file, image in zip(files, mixed.images, strict=True):
        Image.fromarray(image).save(file)
    options = {"patch_size": 32, "embedding_dim": 8, "max_iter": 0}
    est = PatchSVDD(random_state=SEED, **options).fit(normal)
    est.offset_ = np.median(est.score_samples(files))
    expected, read = est.explain(files), []
    original = image_files.read_image
    monkeypatch.setattr(
        image_files, "read_image", lambda x, **kw: read.append(x) or original(x, **kw)
    )
    results = est.inspect(files, explain=True)
    assert sorted(read) == sorted(files)  # each once
    assert 0 < np.sum(results.labels == -1) < len(files)
    for label, own, full in zip(results.labels, results.matches, expected, strict=True):
        np.testing.assert_array_equal(own, full[: 1 if label == -1 else 0])
    assert "matches" not in est.inspect(files)
