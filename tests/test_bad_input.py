"""Images, labels and groups that must not come in: named, and nothing is changed.

Files are in test_files.py, parameters in test_bad_parameters.py.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from inputs import floats, objects, pillow
from scipy.sparse import csr_array
from sklearn.base import clone
from unchanged import check_stays_unfitted, refused, unchanged

EVERYWHERE = ("fit", "partial_fit", "score_samples")
nan, inf = float("nan"), float("inf")


class Bad(NamedTuple):
    """Images that are refused: how they are made of good ones, and in what words."""

    name: str
    make: callable
    match: str
    error: type = ValueError
    methods: tuple = EVERYWHERE


def with_pixel(value):
    def change(X):
        X = floats(X)
        X[1, 2, 3, 0] = value
        return X

    return change


def hide(X):
    return np.ma.masked_greater(X, 200)


SCORE, FIT = ("score_samples", "partial_fit"), ("fit",)
BAD_IMAGES = [
    # No images at all
    Bad("none", lambda X: None, "X must be an array of images.* got NoneType"),
    Bad("number", lambda X: 3.0, "X must be an array of images.* got float"),
    Bad("bool", lambda X: True, "X must be an array of images.* got bool"),
    Bad("dict", lambda X: {"a": X}, "X must be an array of images.* got dict"),
    Bad("set", lambda X: {1, 2}, "X must be an array of images.* got set"),
    Bad("generator", lambda X: (x for x in X), "X must be.* or a list.* got generator"),
    Bad("object", lambda X: object(), "X must be an array of images.* got object"),
    Bad("scalar", lambda X: np.array(5.0), "X must be an array of im.* got ndarray"),
    Bad("function", lambda X: len, "X must be an array of images"),
    Bad("one path", lambda X: "a.png", r"X is 'a\.png'\. Pass a list of paths"),
    Bad("one pillow image", lambda X: pillow(X)[0], r"X is <PIL.*Pass a list of"),
    Bad("bytes", lambda X: b"abc", "X cannot be read as an array of numbers.*Pass"),
    Bad("pairs", lambda X: [(x, 1) for x in X], "X is a list of pairs.*images alone"),
    Bad("sparse", lambda X: csr_array(X[0, :, :, 0]), "X cannot.*Pass", TypeError),
    # Wrong types of numbers
    Bad("int64", lambda X: X.astype(int), "X has dtype int64, whose scale.*Pass uint8"),
    Bad("int8", lambda X: X.astype(np.int8), "X has dtype int8.*Pass uint8"),
    Bad("int16", lambda X: X.astype(np.int16), "X has dtype int16.*Pass uint8"),
    Bad("uint32", lambda X: X.astype(np.uint32), "X has dtype uint32.*Pass uint8"),
    Bad("complex", lambda X: X + 1j, "Complex data not supported: X has.*real part"),
    Bad("dates", lambda X: X.astype("M8[s]"), r"X has dtype datetime64.*Pass uint8"),
    Bad("text", lambda X: X.astype(str), "X has dtype <U.*not numbers.*Pass images as"),
    Bad("fields", lambda X: np.zeros(4, dtype=[("a", "f4")]), "X has dtype.*Pass"),
    Bad("words in objects", lambda X: np.full((4, 9, 9), "a", object), "X cannot be"),
    Bad("dict in objects", lambda X: np.full((4, 9, 9), {}), "X cannot", TypeError),
    Bad("nested numbers", lambda X: X.tolist(), "X has dtype int64.*Pass uint8"),
    # Wrong values
    Bad("nan", with_pixel(nan), "X contains NaN, first in image 1.*Fill in such"),
    Bad("infinity", with_pixel(inf), "X contains infinity.*Fill in such pixels"),
    Bad("minus infinity", with_pixel(-inf), "X contains infinity"),
    Bad("nan in float16", lambda X: np.float16(with_pixel(nan)(X)), "X contains NaN"),
    Bad("nan in a list", lambda X: list(with_pixel(nan)(X)), "image 1 contains NaN"),
    Bad("huge", with_pixel(1e30), r"X holds floats.* 1e\+30.*Divide them"),
    Bad("huge negative", with_pixel(-1e9), r"X holds floats from -1e\+09.*Divide them"),
    Bad("beyond float32", lambda X: X * 1e300, "X holds floats.*Divide them"),
    Bad("masked", hide, r"X is a masked array that hides \d+ values.*roi=.*filled"),
    Bad("masked in a list", lambda X: list(hide(X)), "image 0 is a masked array.*roi="),
    # Wrong shapes
    Bad("empty list", lambda X: [], "X has shape.*Pass at least one image"),
    Bad("no images", lambda X: X[:0], r"X has shape \(0, 34, 34, 3\).*at least one"),
    Bad("no rows", lambda X: X[:, :0], r"X has shape \(4, 0, 34, 3\).*without a pixel"),
    Bad("no channels", lambda X: X[..., :0], "X has shape.*without a pixel"),
    Bad("no pixels", lambda X: [x[:, :0] for x in X], "image 0 has shape.*a pixel"),
    Bad("one image", lambda X: X[0], r"X has shape.*looks like one image.*X\[None\]"),
    Bad("one grey image", lambda X: X[0, :, :, 0], r"one grey image is X\[None\]"),
    Bad("one row", lambda X: X[0, 0, :, 0], "X has 1 dimensions. Reshape your data"),
    Bad("five axes", lambda X: X[None], "X has 5 dimensions. Reshape your data to"),
    Bad("rows", lambda X: X.reshape(4, -1), r"X has.*Reshape it.*Trans.*\(to_images"),
    Bad(
        "channels first",
        lambda X: np.moveaxis(X, -1, 1),
        r"X has shape \(4, 3, 34, 34\).*must be last.*np\.moveaxis\(X, 1, -1\)",
    ),
    Bad(
        "tensor with channels first",
        lambda X: torch.from_numpy(X).permute(0, 3, 1, 2),
        r"Channels must be last.*X\.permute\(0, 2, 3, 1\) of a tensor",
    ),
    Bad(
        "channels first in a list",
        lambda X: list(np.moveaxis(X, -1, 1)),
        r"image 0 has shape \(3, 34, 34\).*np\.moveaxis\(x, 0, -1\)",
    ),
    # Lists
    Bad("ragged numbers", lambda X: [[[1.0, 2], [3]]], "X cannot.*Pass images as arr"),
    Bad("ragged image", lambda X: [X[0], [[1.0, 2], [3]]], "image 1 cannot.*Pass"),
    Bad("sizes", lambda X: [X[0], X[1, 1:]], "image 1 has size 33 x 34.*image_size"),
    Bad("channels", lambda X: [X[0], X[1, :, :, 0]], "image 1 has 1 channels.*same"),
    Bad("four axes", lambda X: [X, X], "image 0 has 4 dimensions. Each image"),
    Bad("row in a list", lambda X: [X[0], X[1, 0, 0]], "image 1 has 1 dimensions"),
    Bad("number in a list", lambda X: [X[0], 3], "image 1 has 0 dimensions"),
    Bad("none in a list", lambda X: [X[0], None], "image 1 is None.*Pass a list"),
    Bad("path in a list", lambda X: [X[0], "a.png"], r"image 1 is 'a\.png', not an"),
    Bad("image among paths", lambda X: ["a.png", X[0]], "image 1 is array.*is a path"),
    Bad("nan among paths", lambda X: objects("a.png", nan), "image 1 is nan.*missing"),
    Bad("objects of sizes", lambda X: objects(X[0], X[0, 1:]), "image 1 has size 33"),
    Bad("complex in a list", lambda X: list(X + 1j), "image 0 has dtype complex"),
    Bad("int in a list", lambda X: [X[0], X[1].astype(int)], "image 1 has dtype int64"),
    # Tensors and pillow's images that cannot be arrays
    Bad("bf16", lambda X: torch.ones(2, 34, 34).bfloat16(), r"X\.float\(\)", TypeError),
    Bad("no memory", lambda X: torch.ones(2, 9, device="meta"), "X is a", TypeError),
    Bad("sparse tensor", lambda X: torch.eye(9).to_sparse(), "dense", TypeError),
    Bad("bf16 in a list", lambda X: [torch.eye(9).bfloat16()], "image 0 is", TypeError),
    Bad("pillow channels", lambda X: [*pillow(X), *pillow(X, "L")], "image 4 has 1 ch"),
    # Images that another method would take
    Bad("too few", lambda X: X[:1], "X has 1 sample.*at least two n", methods=FIT),
    Bad("short", lambda X: X[:, :9], "height 9 is smaller.*patch_size=32", methods=FIT),
    Bad("thin", lambda X: X[:, :, :9], r"width 9 is smaller.*resized\.$", methods=FIT),
    Bad("other size", lambda X: X[:, 1:], r"X has images of.*fitted on", methods=SCORE),
    Bad("grey", lambda X: X[..., 0], r"\(34, 34, 1\), but PatchSVDD", methods=SCORE),
    Bad("more channels", lambda X: X[..., [0, 1, 2, 0]], "fitted on", methods=SCORE),
]


@pytest.mark.parametrize("bad", BAD_IMAGES, ids=lambda bad: bad.name)
def test_bad_images(tiny_fitted, tiny, bad):
    est, X = tiny_fitted, tiny
    with unchanged(est, X):
        for method in bad.methods:
            with pytest.raises(bad.error, match=f"(?s){bad.match}"):
                getattr(est, method)(bad.make(X))
    if "fit" in bad.methods:
        check_stays_unfitted(est, bad.make(X))


def test_many_channels_first_are_recognised_by_an_estimator(tiny_fitted, tiny):
    X = np.concatenate([tiny, tiny], axis=-1)
    est = clone(tiny_fitted).fit(X)
    with refused(est, X, r"Channels must be last: pass np\.moveaxis\(X, 1, -1\)"):
        est.score_samples(np.moveaxis(X, -1, 1))


# Labels and groups. There are four images.
WORDS = "1 for normal and -1 for abnormal images"
BAD_LABELS = [
    ("zeros", [0, 0, 0, 0], f"y must hold {WORDS}.*got 0.*If 0 means normal, pass"),
    ("zeros and ones", np.array([0, 1, 0, 1]), "If 0 means normal.*== 0, 1, -1"),
    ("ones and zeros", [1.0, 0.0, 1.0, 1.0], r"y must hold.*got 0\.0"),
    ("booleans", np.array([True, True, True, False]), "y must hold.*got True"),
    ("nan", [nan] * 4, f"y must hold {WORDS}.*got nan.*Leave out images without"),
    ("one nan", [1, 1, 1, nan], "y must hold.*got nan.*Leave out images without"),
    ("none in y", [1, 1, None, -1], "y must hold.*got None.*Leave out images"),
    ("words", ["good", "good", 1, -1], "y must hold.*got 'good'.*== 'good', 1, -1"),
    ("digits", ["1", "1", "-1", "1"], "y must hold names.*got '1'"),
    ("classes", [0, 1, 2, 3], "y must hold.*got 0.*pass no y"),
    ("targets", [0.1, 1.2, 2.3, 3.4], r"y must hold.*got 0\.1"),
    ("complex labels", np.ones(4) + 1j, "y must hold"),
    ("date labels", np.zeros(4, dtype="M8[s]"), "y must hold"),
    ("hidden labels", np.ma.masked_equal([1, 1, 1, -1], -1), "y is a masked array"),
    ("columns", np.ones((4, 2)), r"y must be labels of.*elements of shape \(2,\)"),
    ("nan in a mask", [np.full((34, 34), nan)] * 4, "mask of image 0 contains NaN"),
    ("mask with channels", np.ones((4, 34, 34, 3)), "y must be labels.*or masks"),
    ("labels and masks", [1, 1, 1, np.ones((34, 34))], "y must be labels.*or masks"),
    ("fewer labels", [1, 1, 1], "X and y have inconsistent numbers.*3 for 4 images"),
    ("more labels", [1] * 5, "X and y have inconsistent numbers.*5 for 4 images"),
    ("strings", ["fine", "fine", "bad", "bad"], r"0 sample\(s\) to learn"),
    ("paths", [Path("a.png")] * 4, "or a mask for each image, got"),
    ("none and masks", [None, *np.ones((3, 34, 34))], r"elements of shape \(\) and"),
    ("one word", "abc", "inconsistent numbers of samples"),
    ("one label", 1, "y must hold a label or a mask for each image"),
    ("dict of labels", dict.fromkeys(range(4), 1), "y must hold a label or a mask"),
    ("set of labels", {1, 2, 3, 4}, "y must hold a label or a mask"),
    ("all abnormal", [-1] * 4, "4 that y calls abnormal. Pass at least two normal"),
    ("one normal", [-1, -1, 1, -1], r"X has 1 sample\(s\).*3 that y calls abnormal"),
]


@pytest.mark.parametrize(("name", "y", "match"), BAD_LABELS, ids=lambda x: str(x)[:18])
def test_bad_labels(tiny_fitted, tiny, name, y, match):
    est, X = tiny_fitted, tiny
    with refused(est, X, match):
        est.fit(X, y)
    check_stays_unfitted(est, X, y)
    if name not in ("strings", "all abnormal", "one normal"):
        with refused(est, X, match):
            est.partial_fit(X, y)


BAD_GROUPS = [
    ("a word", "abcd", "groups must hold a label.*for each image, got 'abcd'"),
    ("a number", 5, "groups must hold a label.*got 5"),
    ("too few", [1, 2], "groups must hold one label for each.*2 labels for 4 images"),
    ("one group", ["a"] * 4, "groups holds one group, a, and.*images of more groups"),
    ("missing", [nan, 1, 2, 3], "groups must hold.*missing value. Pass a label"),
    ("none", [1, 2, 3, None], "groups must hold.*missing value. Pass a label"),
    ("two columns", np.ones((4, 2)), "groups must hold a label"),
    ("ragged", [[1], [1, 2], 3, 4], "groups must hold a label"),
    ("dict", {1: 2, 2: 3}, "groups must hold a label"),
]


@pytest.mark.parametrize(("name", "groups", "match"), BAD_GROUPS)
def test_bad_groups(tiny_fitted, tiny, name, groups, match):
    est, X = tiny_fitted, tiny
    with refused(est, X, match):
        est.fit(X, groups=groups)
    check_stays_unfitted(est, X, groups=groups)
