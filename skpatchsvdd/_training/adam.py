"""Adam, on one long vector of all parameters."""

import torch

# The constants of the paper.
_MOMENTUM, _MOMENTUM_OF_SQUARES, _TINY = 0.9, 0.999, 1e-8


class Adam:
    """Adam (Kingma and Ba, 2015) with few and large operations.

    All parameters become views of one vector, so that a step is a dozen operations,
    however many they are, and a CUDA graph can hold it. The first `torch.optim.AdamW`
    of a process takes seconds, to import what compiles it, and rounds differently.

    The gradients of `clipped`, together, are scaled down to a norm of `max_gradient`;
    those of `others` stay as they are. Weights, but not biases, shrink at every step by
    `decay` times the step size (Loshchilov and Hutter, 2019).
    """

    def __init__(self, clipped, others, max_gradient, decay=0.0):
        clipped, others = ([p for p in x if p.requires_grad] for x in (clipped, others))
        self._parameters = clipped + others
        self._n_clipped = sum(p.numel() for p in clipped)
        self._max_gradient = max_gradient
        self._values = _join(p.detach() for p in self._parameters)
        parts = self._values.split([p.numel() for p in self._parameters])
        for p, part in zip(self._parameters, parts, strict=True):
            # In the same order in memory, channels last or not.
            p.data = part.as_strided(p.shape, p.stride())
        self._means = torch.zeros_like(self._values)
        self._squares = torch.zeros_like(self._values)
        shrink = (torch.full_like(p, decay * (p.ndim > 1)) for p in self._parameters)
        self._decays = _join(shrink) if decay else None
        # A GPU that replays a step reads these anew.
        self._size, self._rate, self._growth = self._values.new_zeros(3)
        self._n_steps = 0

    def prepare(self, rate):
        """Set the step size of the next step."""
        self._n_steps += 1
        self._size.fill_(rate)
        self._rate.fill_(rate / (1 - _MOMENTUM**self._n_steps))
        self._growth.fill_((1 - _MOMENTUM_OF_SQUARES**self._n_steps) ** -0.5)

    def forget(self):
        """Forget all gradients."""
        for p in self._parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        """Move all parameters against their gradients."""
        grads = _join(
            torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters
        )
        clipped = grads[: self._n_clipped]
        norm = torch.linalg.vector_norm(clipped)
        clipped *= (self._max_gradient / (norm + _TINY)).clamp(max=1)
        self._means.lerp_(grads, 1 - _MOMENTUM)
        self._squares.mul_(_MOMENTUM_OF_SQUARES)
        self._squares.addcmul_(grads, grads, value=1 - _MOMENTUM_OF_SQUARES)
        if self._decays is not None:
            self._values.sub_(self._values * self._decays * self._size)
        scale = self._squares.sqrt().mul_(self._growth).add_(_TINY)
        self._values.sub_((self._means * self._rate).div_(scale))


def _join(tensors):
    """Return the numbers of tensors without gaps, in their order in memory."""
    return torch.cat([x.as_strided((x.numel(),), (1,)) for x in tensors])
