import threading
import time

import pytest
import torch

from skpatchsvdd._utils import device
from skpatchsvdd._utils.device import halve_without_memory, run_beside


def test_half_the_size_where_memory_runs_out(monkeypatch):
    sizes = []

    def call(size):
        sizes.append(size)
        if size > 3:
            raise torch.cuda.OutOfMemoryError
        return size

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert halve_without_memory(call, 16) == 2
    assert sizes == [16, 8, 4, 2]


def test_memory_that_is_not_enough_for_one_is_an_error(monkeypatch):
    def call(size):
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        halve_without_memory(call, 4)


def test_a_thread_is_one_item_ahead_and_counts_as_its_own():
    started, threads = [], set()

    def count(item):
        started.append(item)
        threads.add(threading.get_ident())
        return len(set(device.map_in_threads(lambda _: get_thread(), range(8))))

    def get_thread():
        time.sleep(0.01)
        return threading.get_ident()

    with device.torch_threads(1):
        results = device.map_ahead(count, [0, 1, 2, 3])
        assert next(results) == 1
        wait_for(lambda: len(started) > 1)
        assert started == [0, 1]
        assert list(results) == [1, 1, 1]
    assert started == [0, 1, 2, 3]
    assert threading.get_ident() not in threads
    assert list(device.map_ahead(count, [])) == []


def test_threads_that_use_torch_have_one_each():
    def count(_):
        time.sleep(0.01)
        return torch.get_num_threads()

    with device.torch_threads(3):
        counts = device.map_in_threads(count, range(8), uses_torch=True)
        assert counts == [1] * 8
        assert device.map_in_threads(count, [0], uses_torch=True) == [3]
        assert torch.get_num_threads() == 3


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_error_ahead_is_raised_in_its_turn():
    results = device.map_ahead(lambda x: 1 / x, [1, 0, 2])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_calls_beside_each_other_have_the_same_streams_every_time():
    gpu = torch.device("cuda")

    def find_stream():
        return torch.cuda.current_stream(gpu).cuda_stream

    first = run_beside([find_stream, find_stream], gpu)
    assert len({find_stream(), *first}) == 3
    for _ in range(40):
        assert run_beside([find_stream, find_stream], gpu) == first
