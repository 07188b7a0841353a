import pytest
import torch

from skpatchsvdd._gpu import run_concurrently


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_concurrent_calls_have_the_same_streams_every_time():
    gpu = torch.device("cuda")

    def find_stream():
        return torch.cuda.current_stream(gpu).cuda_stream

    first = run_concurrently([find_stream, find_stream], gpu)
    assert len({find_stream(), *first}) == 3
    for _ in range(40):
        assert run_concurrently([find_stream, find_stream], gpu) == first
