import pytest
import torch

from skpatchsvdd._utils import halve_without_memory


@pytest.mark.parametrize("enough", [2, 0])
def test_half_the_size_where_memory_runs_out(monkeypatch, enough):
    sizes = []

    def call(size):
        sizes.append(size)
        if size > enough:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return size

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    if enough:
        assert halve_without_memory(call, 16) == 2
        assert sizes == [16, 8, 4, 2]
    else:  # for a single one
        with pytest.raises(torch.cuda.OutOfMemoryError):
            halve_without_memory(call, 4)
