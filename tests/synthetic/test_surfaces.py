import numpy as np
import pytest
from settings import SEED

from skpatchsvdd.datasets import make_textures

KINDS = ["fabric", "wood", "gear"]


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_labels_and_masks_agree(kind):
    data = make_textures(
        10, image_size=64, anomaly_fraction=0.7, kind=kind, random_state=SEED
    )
    assert data.images.shape == (10, 64, 64, 3)
    assert data.images.dtype == np.uint8
    assert data.labels.tolist() == [1] * 3 + [-1] * 7
    assert data.masks.dtype == bool
    assert (data.masks.any(axis=(1, 2)) == (data.labels == -1)).all()
    assert ((data.defects == "good") == (data.labels == 1)).all()
    assert len(set(data.defects)) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_defects_change_the_image_inside_the_mask_alone(kind):
    """The same seed makes the same surface, with or without a defect."""
    whole = make_textures(6, image_size=96, kind=kind, random_state=SEED + 3)
    broken = make_textures(
        6, image_size=96, anomaly_fraction=1, kind=kind, random_state=SEED + 3
    )
    masks = broken.masks
    assert (masks.mean(axis=(1, 2)) < 0.25).all()
    # What differs outside is camera noise and light; inside, something is to be seen.
    change = np.abs(np.float64(broken.images) - whole.images).max(axis=3)
    for mask, one in zip(masks, change, strict=True):
        assert np.median(one[~mask]) < 0.7 * np.median(one[mask])


def test_random_state_makes_images_reproducible():
    a, b, c = (make_textures(3, image_size=48, random_state=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(a.images, b.images)
    assert (a.images != c.images).any()
    assert len({image.tobytes() for image in a.images}) == 3
    more = make_textures(5, image_size=48, random_state=0)
    np.testing.assert_array_equal(more.images[:3], a.images)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_samples": 0}, "n_samples must be an integer of at least 1, got 0"),
        ({"image_size": 16}, "image_size must be an integer of at least 32"),
        ({"anomaly_fraction": 1.5}, r"anomaly_fraction must be in \[0, 1\], got 1.5"),
        ({"kind": "marble"}, "kind must be one of .*'gear'.*got 'marble'"),
    ],
)
def test_wrong_parameters_are_explained(parameters, message):
    with pytest.raises(ValueError, match=message):
        make_textures(**parameters)
