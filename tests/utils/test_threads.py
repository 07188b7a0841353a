import threading
import time

import pytest
import torch

from skpatchsvdd._utils import threads


def test_a_thread_is_one_item_ahead_and_counts_as_its_own():
    started, idents = [], set()

    def count(item):
        started.append(item)
        idents.add(threading.get_ident())
        return len(set(threads.map_in_threads(lambda _: get_thread(), range(8))))

    def get_thread():
        time.sleep(0.01)
        return threading.get_ident()

    with threads.torch_threads(1):
        results = threads.map_ahead(count, [0, 1, 2, 3])
        assert next(results) == 1
        wait_for(lambda: len(started) > 1)
        assert started == [0, 1]
        assert list(results) == [1, 1, 1]
    assert started == [0, 1, 2, 3]
    assert threading.get_ident() not in idents
    assert list(threads.map_ahead(count, [])) == []


def test_threads_that_use_torch_have_one_each():
    def count(_):
        time.sleep(0.01)
        return torch.get_num_threads()

    with threads.torch_threads(3):
        counts = threads.map_in_threads(count, range(8), uses_torch=True)
        assert counts == [1] * 8
        assert threads.map_in_threads(count, [0], uses_torch=True) == [3]
        assert torch.get_num_threads() == 3


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_error_ahead_is_raised_in_its_turn():
    results = threads.map_ahead(lambda x: 1 / x, [1, 0, 2])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
