import threading
import warnings
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._gpu import GraphedCall, SharedGraphedCall, prefetch, run_concurrently
from skpatchsvdd.datasets import make_textures

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class FakeGraph:
    """Stands in for a CUDA graph, and for the context that records one."""

    made = 0

    def __call__(self, graph, stream, capture_error_mode):
        type(self).made += 1
        return nullcontext()

    def replay(self):
        pass


@pytest.fixture
def fake_graph(monkeypatch):
    FakeGraph.made = 0
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", FakeGraph())


def test_it_is_recorded_once_and_after_a_few_calls(fake_graph):
    calls = []

    def double(x):
        calls.append(x)
        return (2 * x,)

    graphed = GraphedCall(double)
    for i in range(8):
        graphed(torch.tensor([i]))
        assert graphed.is_recorded == (i >= 3)
    assert FakeGraph.made == 1
    assert len(calls) == 4  # the last one was recorded
    assert calls[-1].item() == 7  # and is given what every replay reads


def test_other_shapes_and_types_are_not_replayed(fake_graph):
    graphed = GraphedCall(lambda x: 2 * x, n_eager=0)
    graphed(torch.tensor([1]))
    assert graphed(torch.tensor([5, 6])).tolist() == [10, 12]
    assert graphed(torch.tensor([0.5])).item() == 1.0
    assert FakeGraph.made == 1


@pytest.mark.parametrize("name", [None, "training step"])
def test_what_cannot_be_recorded_is_called_as_it_is(fake_graph, monkeypatch, name):
    @contextmanager
    def refuse(*args, **kwargs):
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    graphed = GraphedCall(lambda x: 2 * x, name=name)
    with warnings.catch_warnings(record=True) as told:
        assert [graphed(torch.tensor(i)).item() for i in range(9)] == [*range(0, 18, 2)]
    assert not graphed.is_recorded
    assert len(told) == (name is not None)
    assert all("the training step cannot be recorded" in str(x.message) for x in told)


def test_threads_that_share_a_graph_get_results_of_their_own(fake_graph):
    graphed = SharedGraphedCall(lambda x: (2 * x, x))
    results = [graphed(torch.tensor([i])) for i in range(6)]
    assert graphed.is_recorded
    assert results[4][0] is not results[5][0]
    assert results[4][0].data_ptr() != results[5][0].data_ptr()


def test_a_second_thread_computes_on_its_own(fake_graph):
    begun, over = threading.Event(), threading.Event()

    def compute(image):
        if image[0] == 0:
            begun.set()
            assert over.wait(60)
        return image, image

    graphed = SharedGraphedCall(compute)
    thread = threading.Thread(target=graphed, args=[torch.tensor([0])])
    thread.start()
    assert begun.wait(60)
    assert graphed(torch.tensor([1]))[0] == 1  # the first one is not over
    over.set()
    thread.join(60)


def test_all_results_are_fetched_in_their_order():
    batches = [(torch.full((2, 3), i), torch.full((2,), -i)) for i in range(4)]
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        device = torch.device(device)
        moved = (tuple(x.to(device) for x in batch) for batch in batches)
        fetched = list(prefetch(moved, device))
        for (maps, scores), (x, y) in zip(fetched, batches, strict=True):
            np.testing.assert_array_equal(maps, x.numpy())
            np.testing.assert_array_equal(scores, y.numpy())


@needs_gpu
def test_maps_of_a_graph_are_those_of_a_batch():
    images = make_textures(30, image_size=128, random_state=SEED).images
    est = PatchSVDD(
        encoder="hierarchical", max_iter=20, device="cuda", random_state=SEED
    ).fit(images[:20])
    expected, scores = est.anomaly_map(images[20:]), est.score_samples(images[20:])
    one_by_one = [est.anomaly_map(x[None]) for x in images[20:]]
    assert est._on_device().inspect_graphed.is_recorded
    np.testing.assert_allclose(np.concatenate(one_by_one), expected, rtol=1e-4)
    one_by_one = [est.score_samples(x[None]) for x in images[20:]]
    np.testing.assert_allclose(np.concatenate(one_by_one), scores, rtol=1e-4)
    # A known image, and images on another scale, go another way.
    np.testing.assert_allclose(
        est.score_samples(images[:1]), est.training_scores_[:1], rtol=1e-4
    )
    floats = [est.score_samples(x[None] / 255) for x in images[20:]]
    np.testing.assert_allclose(np.concatenate(floats), scores, rtol=1e-3)


@needs_gpu
def test_a_generator_draws_on_after_a_recording_that_failed():
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(SEED)

    def draw():
        x = torch.rand(4, generator=generator, device=device)
        x.sum().item()  # waits, which no graph can hold
        return x

    graphed = GraphedCall(draw, n_eager=1, generator=generator)
    drawn = torch.stack([graphed() for _ in range(4)])
    assert not graphed.is_recorded
    assert len(torch.unique(drawn)) == drawn.numel()


@needs_gpu
def test_threads_may_record_at_once():
    device = torch.device("cuda")
    start = threading.Barrier(4)
    results = []

    def work(number):
        stream = torch.cuda.Stream(device)
        graphed = GraphedCall(lambda x: x @ x + number, n_eager=1, stream=stream)
        x = torch.eye(64, device=device)
        start.wait(60)
        for _ in range(20):
            found = graphed(x)
        stream.synchronize()  # the whole device may be recording for another thread
        results.append((graphed.is_recorded, torch.equal(found, x + number)))

    threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [(True, True)] * 4


@needs_gpu
def test_concurrent_calls_have_the_same_streams_every_time():
    gpu = torch.device("cuda")

    def find_stream():
        return torch.cuda.current_stream(gpu).cuda_stream

    first = run_concurrently([find_stream, find_stream], gpu)
    assert len({find_stream(), *first}) == 3
    for _ in range(40):
        assert run_concurrently([find_stream, find_stream], gpu) == first
