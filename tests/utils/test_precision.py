"""Which number format a CPU trains in: by what it is."""

import pytest
import torch

from skpatchsvdd._utils.computing import cpu_has_amx, training_autocast, training_layout

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forget():
    cpu_has_amx.cache_clear()
    yield
    cpu_has_amx.cache_clear()


def has(monkeypatch, amx):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)


@pytest.mark.parametrize("amx", [True, False])
def test_the_processor_decides(monkeypatch, amx):
    has(monkeypatch, amx)
    with training_autocast(CPU):
        assert torch.is_autocast_enabled("cpu") == amx
    assert (training_layout(CPU) == torch.channels_last) == amx


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("AVX2", False), ("avx512_core", False), ("AVX512_CORE_AMX", True), ("ALL", True)],
)
def test_what_one_dnn_may_not_use_does_not_count(monkeypatch, limit, expected):
    has(monkeypatch, True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert cpu_has_amx() == expected


def test_a_torch_that_does_not_tell_trains_in_float32(monkeypatch):
    has(monkeypatch, True)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert not cpu_has_amx()
