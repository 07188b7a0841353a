"""What tests see of a training, and how they end one."""

from skpatchsvdd._training import loop


def first_losses(est):
    """Loss terms at the first step: no step has blurred what they depend on."""
    return {name: float(curve[0]) for name, curve in est.loss_curve_.items()}


def interrupt(monkeypatch, n_steps):
    """Press Ctrl-C in the step after `n_steps`."""
    descend = loop.descend
    calls = []

    def interrupted(*args):
        calls.append(1)
        if len(calls) > n_steps:
            raise KeyboardInterrupt
        return descend(*args)

    monkeypatch.setattr(loop, "descend", interrupted)
