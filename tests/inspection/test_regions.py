import numpy as np

from skpatchsvdd._inspection.regions import find_regions


def test_regions_by_hand():
    mask = np.zeros((6, 8), dtype=bool)
    mask[0, 0] = mask[1, 1] = True  # touching at a corner
    mask[3:5, 4:8] = True
    one_map = np.zeros((6, 8))
    one_map[1, 1], one_map[3, 5] = 2, 5
    regions = find_regions(mask, one_map)
    assert regions.tolist() == [
        (3, 4, 5, 8, 8, 3, 5, 5, 5 / 8),
        (0, 0, 2, 2, 2, 1, 1, 2, 1),
    ]


def test_no_regions():
    regions = find_regions(np.zeros((4, 4), dtype=bool), np.ones((4, 4)))
    assert regions.shape == (0,)
    assert regions["area"].tolist() == []


def test_regions_of_an_estimator(fitted, normal, mixed):
    images = np.concatenate([normal, mixed.images])
    masks, regions = fitted.predict_mask(images), fitted.predict_regions(images)
    maps = fitted.anomaly_map(images)
    assert len(regions) == len(images)
    for mask, one_map, found in zip(masks, maps, regions, strict=True):
        assert found["area"].sum() == mask.sum()
        if len(found):
            assert found["peak"][0] == one_map[mask].max()
            boxes = np.zeros_like(mask)
            for region in found:
                rows = slice(region["top"], region["bottom"])
                boxes[rows, region["left"] : region["right"]] = True
            assert (boxes >= mask).all()
    assert fitted.predict_regions(images, alpha=0.4)[-1].dtype == regions[0].dtype


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
