"""What is special about a GPU: kernels and their fallback, CUDA graphs, streams."""

from skpatchsvdd._gpu.graphs import GraphedCall, SharedGraphedCall
from skpatchsvdd._gpu.kernels import KernelWithFallback, runs_kernels, split_halves
from skpatchsvdd._gpu.streams import (
    current_device,
    prefetch,
    run_concurrently,
    thread_stream,
)
