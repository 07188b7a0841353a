"""Fixtures of the bank's tests."""

import importlib
import os

import pytest
import torch

from skpatchsvdd._bank import fused, variation


@pytest.fixture
def kernel_device(monkeypatch):
    """Where kernels run: on a GPU, or with Triton's interpreter, if it is asked for."""
    if torch.cuda.is_available():
        pytest.importorskip("triton")
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1")
    kernels = importlib.import_module("skpatchsvdd._bank.kernels")
    for module in (fused, variation):
        monkeypatch.setattr(module, "load_kernels", lambda *args: kernels)
    return torch.device("cpu")
