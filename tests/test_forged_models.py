"""Model files with right checksums, whose numbers would keep a machine busy."""

import json

import pytest
from settings import SEED

from skpatchsvdd import PatchSVDD, load
from skpatchsvdd._storage.tensors import read_tensors, write_tensors
from skpatchsvdd.datasets import make_textures


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "part.model"
    images = make_textures(3, image_size=80, random_state=SEED).images
    params = {"embedding_dim": 8, "max_iter": 0, "random_state": SEED}
    PatchSVDD(encoder="hierarchical", **params, image_size=72).fit(images).save(path)
    return path


def pairs_of(content, part):
    """Return the list of [name, value] of a part of a model."""
    if part in ("parameters", "learnt"):
        return content[part]["dict"]
    bank = dict(content["learnt"]["dict"])["_fitted"]["of"]["dict"]
    return bank if part == "bank" else dict(bank)["setting"]["of"]["dict"]


def forge(model, path, changes):
    """Write a model file with other values, given as {(part, name): value}."""
    arrays, text = read_tensors(model)
    content = json.loads(text["content"])
    for (part, name), value in changes.items():
        (pair,) = (x for x in pairs_of(content, part) if x[0] == name)
        pair[1] = value
    write_tensors(path, arrays, text | {"content": json.dumps(content)})


def everywhere(name, value):
    return {("learnt", f"{name}_"): value, ("setting", name): value}


def resized(height, width, n_channels=3):
    """All that says at which size images are inspected."""
    size = {"tuple": [height, width]}
    return {
        ("parameters", "image_size"): size,
        ("setting", "image_size"): size,
        ("learnt", "inspected_shape_"): {"tuple": [height, width, n_channels]},
    }


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (everywhere("strides", {"tuple": [999_999_937, 999_999_937]}), "bank"),
        (everywhere("strides", {"tuple": [4, 10**30]}), "strides"),
        (everywhere("strides", {"tuple": [0, 16]}), "strides"),
        (everywhere("strides", {"tuple": [-4, 16]}), "strides"),
        (everywhere("strides", {"tuple": [2.5, 16]}), "strides"),
        (everywhere("strides", {"tuple": [4]}), "strides"),
        (everywhere("strides", {"tuple": [67, 71]}), "bank"),  # its patches lie closer
        ({("setting", "strides"): {"tuple": [1, 1]}}, "setting"),
        ({("setting", "image_size"): {"tuple": [10**6, 10**6]}}, "setting"),
        ({("setting", "light"): 1e9}, "setting"),
        (resized(10**6, 10**6), "size of images"),
        (resized(72, 72, 10**9), "size of images"),
        (resized(8, 8), "size of images"),
        ({("parameters", "image_size"): 10**5}, "size of images"),
        ({("learnt", "patch_sizes_"): {"tuple": [32, 2**20]}}, "encoder"),
        ({("bank", "n_averaged"): 10**9}, "bank"),
        ({("bank", "units"): {"list": [0.0] * 5}}, "bank"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(model, tmp_path, changes, name):
    path = tmp_path / "forged.model"
    forge(model, path, changes)
    with pytest.raises(ValueError, match=rf"forged.model cannot be loaded: its {name}"):
        load(path)


def test_what_is_not_forged_is_loaded(model, tmp_path):
    path = tmp_path / "same.model"
    forge(model, path, everywhere("strides", {"tuple": [4, 16]}))
    assert load(path).offset_ == load(model).offset_


def test_a_stride_that_is_larger_than_the_image_is_none_that_was_forged(tmp_path):
    images = make_textures(3, image_size=40, random_state=SEED).images
    params = {"patch_size": 32, "max_iter": 0, "strides": (1000,)}
    est = PatchSVDD(encoder="hierarchical", **params, random_state=SEED).fit(images)
    est.save(tmp_path / "a.model")
    assert load(tmp_path / "a.model").strides_ == (1000,)


@pytest.mark.parametrize("name", ["training_scores_", "calibrates_", "groups_"])
def test_a_calibration_of_other_images_is_refused(model, tmp_path, name):
    path = tmp_path / "forged.model"
    forge(model, path, {("learnt", name): {"list": [0.5] * 7}})
    with pytest.raises(
        ValueError, match=r"forged.model cannot be loaded: .*one length"
    ):
        load(path)
