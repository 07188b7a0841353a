"""What is special about a GPU: CUDA graphs and streams."""

from skpatchsvdd._gpu.graphs import GraphedCall, SharedGraphedCall
from skpatchsvdd._gpu.streams import (
    current_device,
    prefetch,
    run_concurrently,
    thread_stream,
)
