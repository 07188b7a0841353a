import pytest
import torch
from settings import SEED
from torch import nn

from skpatchsvdd._training.loop import Adam


def make_layers():
    generator = torch.Generator().manual_seed(SEED)
    layers = [nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3), nn.Linear(2, 5)]
    for p in nn.ModuleList(layers).parameters():
        nn.init.normal_(p, generator=generator)
    layers[1].to(memory_format=torch.channels_last)
    return layers


def losses(layers):
    """Return a few losses, some of them steep, one without the last layer's bias."""
    generator = torch.Generator().manual_seed(SEED + 1)
    for scale in (1.0, 100.0, 0.01, 1.0, 30.0):
        x = scale * torch.randn(2, 3, 9, 9, generator=generator)
        x = layers[1](layers[0](x).tanh()).mean(dim=(2, 3))
        yield (x @ layers[2].weight.T).square().sum()


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("max_gradient", [1.0, float("inf")])
def test_it_is_torch_s_adam_with_clipped_gradients(max_gradient, decay):
    ours, theirs = make_layers(), make_layers()
    clipped = [p for x in ours[:2] for p in x.parameters()]
    adam = Adam(clipped, list(ours[2].parameters()), max_gradient, decay)
    groups = [
        {"params": [x.weight for x in theirs], "weight_decay": decay},
        {"params": [x.bias for x in theirs], "weight_decay": 0.0},
    ]
    expected = torch.optim.AdamW(groups)
    rates = (1e-2, 2e-2, 3e-2, 1e-2, 1e-3)
    for rate, mine, other in zip(rates, losses(ours), losses(theirs), strict=True):
        adam.prepare(rate)
        adam.forget()
        mine.backward()
        adam.step()
        for group in expected.param_groups:
            group["lr"] = rate
        expected.zero_grad()
        other.backward()
        some = [p for x in theirs[:2] for p in x.parameters()]
        nn.utils.clip_grad_norm_(some, max_gradient)
        expected.step()
    for x, y in zip(ours, theirs, strict=True):
        assert x.weight.stride() == y.weight.stride()
        torch.testing.assert_close(x.weight, y.weight, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(x.bias, y.bias, rtol=1e-4, atol=1e-6)
