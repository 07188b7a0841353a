"""Files of models: equal after loading, and harmless whatever is in them."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import joblib
import numpy as np
import pytest
from settings import SEED

from skpatchsvdd import Inspection, PatchSVDD, Training, load
from skpatchsvdd._comparison import network
from skpatchsvdd._encoding import procedural
from skpatchsvdd._storage.estimator import LEARNT
from skpatchsvdd._storage.model import read_model, write_model
from skpatchsvdd._utils import read_tensors, saving, write_tensors
from skpatchsvdd.datasets import make_textures

QUICK = {
    "encoder": "hierarchical",
    "embedding_dim": 8,
    "max_iter": 1,
    "training": Training(batch_size=2),
    "random_state": SEED,
}
PAPER = Training(method="paper", batch_size=2)
N_MUTATIONS = 500


@pytest.fixture(scope="module")
def images():
    return make_textures(6, image_size=80, random_state=SEED).images


@pytest.fixture(scope="module")
def path(images, tmp_path_factory):
    """The file of a small model."""
    path = tmp_path_factory.mktemp("models") / "part.model"
    PatchSVDD(**QUICK).fit(images).save(path)
    return path


def assert_same(value, other):
    """Compare attributes, arrays in dicts and tuples included, to the last bit."""
    assert isinstance(value, type(other))  # mapped arrays are arrays
    if isinstance(value, dict):
        assert list(value) == list(other)
        for key in value:
            assert_same(value[key], other[key])
    elif isinstance(value, tuple):
        for one, its in zip(value, other, strict=True):
            assert_same(one, its)
    elif isinstance(value, np.ndarray):
        np.testing.assert_array_equal(value, other)
        assert value.dtype == other.dtype
    else:
        assert value == other


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder": "procedural"},
        {"max_iter": 0, "patch_size": 32, "bank_size": 50},
        {"training": PAPER, "image_size": (80, 72)},
        {"inspection": Inspection(relative_weight=0)},
        {"roi": np.triu(np.ones((80, 80), dtype=bool)), "strides": [8, 16]},
    ],
)
def test_a_loaded_model_is_the_same(images, tmp_path, options):
    est = PatchSVDD(**QUICK | options).fit(images)
    est.save(tmp_path / "a.model")
    for mmap in (False, True):
        loaded = load(tmp_path / "a.model", mmap=mmap)
        np.testing.assert_array_equal(
            loaded.anomaly_map(images), est.anomaly_map(images)
        )
        learnt = [x for x in vars(est) if x.endswith("_") and x != "encoder_"]
        assert "training_files_" in learnt
        for name in learnt:
            assert_same(getattr(loaded, name), getattr(est, name))
        assert not loaded.encoder_.training
        for match, other in zip(
            loaded.explain(images), est.explain(images), strict=True
        ):
            np.testing.assert_array_equal(match, other)
    given = est.get_params()  # those of `training` and `inspection` among them
    assert str(loaded.training) == str(given.pop("training"))
    assert str(loaded.inspection) == str(given.pop("inspection"))
    for name, value in given.items():
        np.testing.assert_array_equal(loaded.get_params()[name], value)


def test_all_that_is_learnt_is_saved(path):
    est = load(path)
    learnt = {x for x in vars(est) if x.endswith("_")} | {"_calibration", "_fitted"}
    read_off = {"bank_size_", "usual_distances_", "training_files_"}
    read_off |= {"defect_kinds_", "defect_bank_size_", "training_scores_", "groups_"}
    read_off |= {"calibrates_", "calibration_scores_", "calibration_groups_", "twins_"}
    read_off |= {"fixed_threshold_"}
    assert learnt == {*LEARNT, *read_off}


def test_groups_and_more_images_go_on(images, tmp_path):
    groups = ["lot 1"] * 2 + ["lot 2"] * 2 + ["lot 3"] * 2
    est = PatchSVDD(**QUICK).fit(images, groups=groups)
    est.save(tmp_path / "a.model")
    loaded = load(tmp_path / "a.model")
    np.testing.assert_array_equal(loaded.groups_, groups)
    more = make_textures(2, image_size=80, random_state=SEED + 4).images
    for one in (est, loaded):
        one.partial_fit(more, groups=["lot 4"] * 2)
    np.testing.assert_array_equal(loaded.training_scores_, est.training_scores_)
    assert loaded.offset_ == est.offset_
    loaded.save(tmp_path / "a.model")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (5, TypeError, "name of a file, a str, got 5"),
        (None, TypeError, "name of a file, a str, got None"),
        (b"part.model", TypeError, "name of a file, a str, got b'part"),
        ("", ValueError, "path is empty"),
        (".", IsADirectoryError, "it is a folder"),
    ],
)
def test_what_names_no_file_is_refused(path, name, error, message):
    with pytest.raises(error, match=message):
        load(name)
    with pytest.raises(error, match=message):
        load(path).save(name)


def test_a_generator_becomes_none(images, tmp_path):
    options = QUICK | {"random_state": np.random.RandomState(0), "max_iter": 0}
    PatchSVDD(**options).fit(images).save(tmp_path / "a.model")
    assert load(tmp_path / "a.model").random_state is None


@pytest.mark.slow
def test_an_approximate_index_is_built_anew(images, tmp_path):
    options = QUICK | {"neighbors": "pynndescent", "max_iter": 0, "patch_size": 32}
    est = PatchSVDD(**options).fit(images[:4])
    est.save(tmp_path / "a.model")
    loaded = load(tmp_path / "a.model")
    np.testing.assert_allclose(
        loaded.score_samples(images[4:]), est.score_samples(images[4:]), rtol=1e-5
    )


def test_a_file_is_no_larger_than_that_of_joblib(path):
    joblib.dump(load(path), path.with_suffix(".joblib"))
    assert path.stat().st_size < 1.02 * path.with_suffix(".joblib").stat().st_size


def test_headers_do_not_grow_with_the_number_of_images(tmp_path):
    def write(n):
        learnt = {
            "known": [i.to_bytes(24, "little") for i in range(n)],
            "seen": {i.to_bytes(24, "little") for i in range(n)},
            "files": [f"/folder/{i}.png" for i in range(n - 1)] + [None],
            "sizes": [(256, i) for i in range(n)],
            "groups": np.array([f"lot {i} \u00e9" for i in range(n)]),
        }
        write_model(tmp_path / "a", {}, learnt)
        for mmap in (False, True):
            read = read_model(tmp_path / "a", mmap)[1]
            np.testing.assert_array_equal(read.pop("groups"), learnt["groups"])
            assert read == {key: learnt[key] for key in read}
        return int.from_bytes((tmp_path / "a").read_bytes()[:8], "little")

    assert write(20_000) < write(20) + 200  # longer numbers


def test_a_header_that_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_MAX_HEADER", 1000)
    with pytest.raises(ValueError, match="could not be read again"):
        write_tensors(tmp_path / "a", {"x": np.zeros(3)}, {"long": "x" * 1000})
    assert not list(tmp_path.iterdir())


def test_safetensors_reads_what_is_written_and_the_reverse(tmp_path, rng):
    package = pytest.importorskip("safetensors")
    numpy = pytest.importorskip("safetensors.numpy")
    shapes = [(0, 3), (5,), (2, 3, 4)]
    arrays = {
        f"{dtype} {i}": (100 * rng.random(shape)).astype(dtype)
        for i, shape in enumerate(shapes)
        for dtype in saving._NAMES
    }
    write_tensors(tmp_path / "own", arrays, {"format": "é"})
    with package.safe_open(tmp_path / "own", "numpy") as file:
        text = file.metadata()
        theirs = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert_same(dict(sorted(theirs.items())), dict(sorted(arrays.items())))
    assert set(text) == {"format", "checksums"}
    numpy.save_file(theirs, tmp_path / "theirs", text)
    for mmap in (False, True):
        read, text = read_tensors(tmp_path / "theirs", mmap)
        assert text == {"format": "é"}
        for name in arrays:
            np.testing.assert_array_equal(read[name], arrays[name], strict=True)


def test_models_and_shipped_weights_are_files_of_safetensors(path):
    package = pytest.importorskip("safetensors")
    for file in (path, procedural.WEIGHTS, network.WEIGHTS):
        arrays, text = read_tensors(file)
        with package.safe_open(file, "numpy") as theirs:
            assert text.items() <= theirs.metadata().items()
            for name in arrays:
                np.testing.assert_array_equal(theirs.get_tensor(name), arrays[name])


def test_no_pickle_is_ever_loaded(path, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    load(path)


def mutate(data, rng):
    """Damage a file in one of several ways."""
    data, kind = bytearray(data), rng.integers(6)
    header = 8 + int.from_bytes(data[:8], "little")
    if kind == 0:  # cut off
        return bytes(data[: rng.integers(len(data))])
    if kind == 1:  # a bit, anywhere
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    elif kind == 2:  # a bit of the header
        data[rng.integers(header)] ^= 1 << rng.integers(8)
    elif kind == 3:  # a digit of the header
        digits = [i for i in range(8, header) if chr(data[i]).isdigit()]
        data[rng.choice(digits)] = ord(str(rng.integers(10)))
    elif kind == 4:  # some bytes too many
        where = rng.integers(len(data))
        data[where:where] = rng.bytes(rng.integers(1, 9))
    else:  # another length
        data[:8] = int(rng.integers(0, 2**62)).to_bytes(8, "little")
    return bytes(data)


def refusal_of(file):
    """Return the error that loading a file ends in, or None."""
    try:
        load(file)
    except ValueError as error:
        return error
    return None


def test_damaged_files_are_refused(path, tmp_path, rng):
    data, n_refused = path.read_bytes(), 0
    file = tmp_path / "damaged.model"
    for _ in range(N_MUTATIONS):
        damaged = mutate(data, rng)
        if damaged == data:
            continue
        file.write_bytes(damaged)
        error = refusal_of(file)
        n_refused += error is not None
        if error is None:  # a blank of the header that has become another one
            assert len(damaged) == len(data)
        else:
            assert str(file) in str(error)
    assert n_refused > 0.95 * N_MUTATIONS


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["learnt"]["dict"].pop(),
        lambda content: content["learnt"]["dict"].append(["__class__", 1]),
        lambda content: content["parameters"]["dict"].append(["evil", 1]),
        lambda content: content.update(learnt={"eval": "1"}),
        lambda content: content.update(learnt={"object": "Popen", "of": {}}),
        lambda content: content.update(learnt={}),
        lambda content: content.update(learnt=[1]),
        lambda content: content.update(learnt={"array": "no such"}),
        lambda content: content["learnt"]["dict"][-1].__setitem__(1, 5),
        lambda content: content.update(parameters={"dict": 5}),
        lambda content: content.update(learnt={"bytes": "zz"}),
        lambda content: content.update(learnt={"long": {"array": "array 0"}}),
        lambda content: content.update(learnt={"long": 5, "in": "list"}),
        lambda content: content.update(learnt={"long": {"list": []}, "in": "exec"}),
        lambda content: find_encoder(content).update(config=[3, 10**9, 64]),
        lambda content: find_encoder(content).update(config=[10**9, 8, 64]),
        lambda content: find_encoder(content).update(config=[3, 8, 2**30]),
    ],
)
def test_hostile_content_is_refused(path, tmp_path, change):
    """Files whose checksums are right, made to do harm."""
    arrays, text = read_tensors(path)
    content = json.loads(text["content"])
    change(content)
    write_tensors(tmp_path / "a", arrays, text | {"content": json.dumps(content)})
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(tmp_path / "a")


def find_encoder(content):
    return dict(content["learnt"]["dict"])["encoder_"]


def test_files_of_others_say_so(tmp_path):
    write_tensors(tmp_path / "other", {"x": np.zeros(3)}, {})
    with pytest.raises(ValueError, match="not a PatchSVDD model file"):
        load(tmp_path / "other")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="not a PatchSVDD model file"):
        load(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


def test_a_file_says_what_it_is(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + length])["__metadata__"]
    assert text["format"] == "skpatchsvdd 1"
    assert set(text) == {"format", "version", "content", "checksums"}


def test_a_file_of_a_newer_format_says_so(path, tmp_path):
    arrays, text = read_tensors(path)
    newer = {"format": "skpatchsvdd 2", "version": "7.0"}
    write_tensors(tmp_path / "newer", arrays, text | newer)
    with pytest.raises(ValueError, match=r"skpatchsvdd 7\.0, which is newer"):
        load(tmp_path / "newer")


def test_a_deep_header_is_refused(tmp_path):
    head = b'{"a":' + b"[" * 200_000
    (tmp_path / "deep").write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(tmp_path / "deep")


def test_what_has_no_place_in_a_file_is_named(images, tmp_path):
    est = PatchSVDD(**QUICK | {"max_iter": 0}).fit(images)
    est.loss_curve_ = {"x": object()}
    with pytest.raises(TypeError, match="loss_curve_ cannot be saved"):
        est.save(tmp_path / "a.model")
    assert not list(tmp_path.iterdir())


@pytest.mark.wide  # another process loads it
def test_a_killed_save_leaves_the_former_file(images, tmp_path):
    path, target = tmp_path / "former.model", tmp_path / "part.model"
    est = PatchSVDD(**QUICK | {"max_iter": 0})
    est.fit(images).save(path)
    target.write_bytes(path.read_bytes())
    code = (
        "import sys, skpatchsvdd\n"
        "est = skpatchsvdd.load(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "while True: est.save(sys.argv[2])\n"
    )
    command = [sys.executable, "-c", code, str(path), str(target)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert load(target).offset_ == load(path).offset_
