import threading

import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._inspection.behind import fetch_behind
from skpatchsvdd._inspection.recording import Recording
from skpatchsvdd.datasets import make_textures

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class FakeRecording(Recording):
    """Says what it does, and never touches a GPU."""

    def __init__(self, compute):
        super().__init__(compute)
        self.n_recorded = 0

    def _record(self, image):
        self.n_recorded += 1


def test_it_is_recorded_once_and_after_a_few_calls():
    calls = []
    recording = FakeRecording(lambda image: calls.append(image) or (image, image))
    for i in range(8):
        assert recording(torch.tensor([i]))[0] == i
        assert recording.n_recorded == (i >= 3)
    assert len(calls) == 8


def test_a_second_thread_computes_on_its_own():
    begun, over = threading.Event(), threading.Event()

    def compute(image):
        if image[0] == 0:
            begun.set()
            assert over.wait(60)
        return image, image

    recording = FakeRecording(compute)
    thread = threading.Thread(target=recording, args=[torch.tensor([0])])
    thread.start()
    assert begun.wait(60)
    assert recording(torch.tensor([1]))[0] == 1  # the first one is not over
    over.set()
    thread.join(60)


def test_all_results_are_fetched_in_their_order():
    batches = [(torch.full((2, 3), i), torch.full((2,), -i)) for i in range(4)]
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        device = torch.device(device)
        moved = (tuple(x.to(device) for x in batch) for batch in batches)
        fetched = list(fetch_behind(moved, device))
        for (maps, scores), (x, y) in zip(fetched, batches, strict=True):
            np.testing.assert_array_equal(maps, x.numpy())
            np.testing.assert_array_equal(scores, y.numpy())


@needs_gpu
def test_recorded_maps_are_those_of_a_batch():
    images = make_textures(30, image_size=128, random_state=SEED).images
    est = PatchSVDD(
        encoder="hierarchical", max_iter=20, device="cuda", random_state=SEED
    ).fit(images[:20])
    expected, scores = est.anomaly_map(images[20:]), est.score_samples(images[20:])
    one_by_one = [est.anomaly_map(x[None]) for x in images[20:]]
    assert est._inspector()._inspect_recorded._graph is not None
    np.testing.assert_allclose(np.concatenate(one_by_one), expected, rtol=1e-4)
    one_by_one = [est.score_samples(x[None]) for x in images[20:]]
    np.testing.assert_allclose(np.concatenate(one_by_one), scores, rtol=1e-4)
    # A known image, and images on another scale, go another way.
    np.testing.assert_allclose(
        est.score_samples(images[:1]), est.training_scores_[:1], rtol=1e-4
    )
    floats = [est.score_samples(x[None] / 255) for x in images[20:]]
    np.testing.assert_allclose(np.concatenate(floats), scores, rtol=1e-3)
