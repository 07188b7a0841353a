import pytest
import torch

from skpatchsvdd._utils import halve_without_memory


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
