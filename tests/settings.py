"""What the environment says about the numbers that tests compute with.

SKPATCHSVDD_TEST_SEED     the seed of the fixtures, 0 if not given
SKPATCHSVDD_TEST_THREADS  threads of torch
SKPATCHSVDD_TEST_ONEDNN   0 to compute without oneDNN
SKPATCHSVDD_TEST_BF16     1 to train in bf16, 0 to train in float32

Whatever is not given is as the machine has it. numerics.py runs the suite under several
of them.
"""

import os
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

from skpatchsvdd._training import loop

PREFIX = "SKPATCHSVDD_TEST_"
SEED = int(os.environ.get(f"{PREFIX}SEED", 0))
PRODUCTS = {
    torch.conv2d,
    torch.nn.functional.linear,
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.mm,
    torch.Tensor.mm,
    torch.bmm,
    torch.Tensor.bmm,
    torch.addmm,
    torch.baddbmm,
}


def apply_settings(monkeypatch):
    """Compute as the environment says until `monkeypatch` is undone."""
    if n_threads := os.environ.get(f"{PREFIX}THREADS"):
        torch.set_num_threads(int(n_threads))
    if is_fast := os.environ.get(f"{PREFIX}ONEDNN"):
        torch.backends.mkldnn.set_flags(bool(int(is_fast)))
    if is_bf16 := os.environ.get(f"{PREFIX}BF16"):
        context = bf16_products if int(is_bf16) else float32_products
        monkeypatch.setattr(loop, "training_autocast", context)


def float32_products(device):
    """Context that computes in float32, as on a processor without bf16."""
    return torch.autocast(device.type, enabled=False)


@contextmanager
def bf16_products(device):
    """Context of torch's autocast to bf16, as on a processor that is fast with it."""
    with torch.autocast(device.type, torch.bfloat16), RoundedProducts():
        yield


class RoundedProducts(TorchFunctionMode):
    """Products of numbers rounded to bf16, summed in float32 and rounded again.

    That is what hardware for bf16 does. Without it torch's own products of bf16 are
    hundreds of times slower than those of float32.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in PRODUCTS or not torch.is_autocast_enabled(args[0].device.type):
            return func(*args, **kwargs)
        with torch.autocast(args[0].device.type, enabled=False):
            return func(*map(_round, args), **kwargs).bfloat16()


def _round(x):
    is_real = isinstance(x, torch.Tensor) and x.is_floating_point()
    return x.bfloat16().float() if is_real else x


def describe():
    """Name the settings that are given, in one line."""
    names = [name for name in sorted(os.environ) if name.startswith(PREFIX)]
    names += ["ATEN_CPU_CAPABILITY"] * ("ATEN_CPU_CAPABILITY" in os.environ)
    given = " ".join(f"{name}={os.environ[name]}" for name in names)
    return f"numerics: {given or 'as the machine has it'}"
