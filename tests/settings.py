"""What the environment says about the numbers that tests compute with.

SKPATCHSVDD_TEST_SEED     the seed of the fixtures, 0 if not given
SKPATCHSVDD_TEST_THREADS  threads of torch
SKPATCHSVDD_TEST_ONEDNN   0 to compute without oneDNN
SKPATCHSVDD_TEST_BF16     1 to train in bf16, 0 to train in float32

Whatever is not given is as the machine has it. numerics.py runs the suite under several
of them.
"""

import os

import torch

from skpatchsvdd import _training

PREFIX = "SKPATCHSVDD_TEST_"
SEED = int(os.environ.get(f"{PREFIX}SEED", 0))


def apply_settings(monkeypatch):
    """Compute as the environment says until `monkeypatch` is undone."""
    if n_threads := os.environ.get(f"{PREFIX}THREADS"):
        torch.set_num_threads(int(n_threads))
    if is_fast := os.environ.get(f"{PREFIX}ONEDNN"):
        torch.backends.mkldnn.set_flags(bool(int(is_fast)))
    if is_bf16 := os.environ.get(f"{PREFIX}BF16"):
        monkeypatch.setattr(
            _training,
            "training_autocast",
            lambda device: torch.autocast(
                device.type, torch.bfloat16, enabled=bool(int(is_bf16))
            ),
        )


def describe():
    """Name the settings that are given, in one line."""
    names = [name for name in sorted(os.environ) if name.startswith(PREFIX)]
    names += ["ATEN_CPU_CAPABILITY"] * ("ATEN_CPU_CAPABILITY" in os.environ)
    given = " ".join(f"{name}={os.environ[name]}" for name in names)
    return f"numerics: {given or 'as the machine has it'}"
