"""Modules of a user, of which a file holds how to recognise them, and no code."""

import numpy as np
import torch
from torch import nn

from skpatchsvdd._encoding import (
    LARGEST_MULTIPLE,
    ModuleEncoder,
    copy_frozen,
    run_module,
    weights_digest,
)

# A picture that a module is shown, so that one with the same weights but other layers
# is told from it, and how much the means of its maps may differ, as a fraction of the
# largest: other processors round differently.
_SEED, _SIDE, _SAME = 0, 256, 0.01
# What a `ModuleEncoder` is made of besides the module.
_FIELDS = ("n_channels", "number", "patch_sizes", "strides", "multiple", "axes")


def describe_module(encoder):
    """Return what a file holds of an encoder: all but the module itself."""
    _, (module, *args) = encoder.__reduce__()
    return {
        "kind": type(module).__name__,
        "weights": weights_digest(module),
        "n_weights": sum(x.numel() for x in module.parameters()),
        "answer": _ask(module, encoder.config[0], max(encoder.patch_sizes)),
        **dict(zip(_FIELDS, args, strict=True)),
    }


class GivenModules:
    """What a user passes beside a file, for the modules that it does not hold.

    `encoder` as it was for the estimator; names in a list are passed over.
    """

    def __init__(self, encoder):
        if encoder is None or isinstance(encoder, nn.Module):
            encoder = [encoder]
        self._given = [x for x in encoder if isinstance(x, nn.Module)]
        self._used = set()

    def parameter(self, number):
        """Return a module as a parameter of the estimator, or None without one."""
        return self._given[number] if number < len(self._given) else None

    def make_encoder(self, fields):
        """Return the encoder of a module that is the one of the file, or raise."""
        number, kind = fields["number"], fields["kind"]
        who = f"its encoder is a module of yours, {kind}"
        if number >= len(self._given):
            raise ValueError(
                f"{who}, with {fields['n_weights']:,} weights, of which the file holds "
                "a checksum alone. Pass load(path, encoder=module), with the weights "
                "it had; if there were several, a list of them (the command line takes "
                "--encoder package.module:name)"
            )
        given = self._given[number]
        if weights_digest(given) != fields["weights"]:
            raise ValueError(
                f"{who}, and the {type(given).__name__} given as encoder has other "
                "weights. Pass the one that the model was fitted with"
            )
        module = copy_frozen(given)
        sizes, n_channels = fields["patch_sizes"], fields["n_channels"]
        if not _is_same(_ask(module, n_channels, max(sizes)), fields["answer"]):
            raise ValueError(
                f"{who}, and the {type(given).__name__} given as encoder has the same "
                "weights but makes other features of a picture. Pass the module as it "
                "was, with the same layers and normalisation"
            )
        _check_fields(fields)
        self._used.add(number)
        return ModuleEncoder(module, *(fields[x] for x in _FIELDS)).eval()

    def check_all_used(self):
        """Raise if modules were given that a file has no use for."""
        if len(self._used) < len(self._given):
            raise ValueError(
                f"encoder holds {len(self._given)} modules, and the model was fitted "
                f"with {len(self._used)}. Pass these alone"
            )


def _check_fields(fields):
    """Raise if what a file says of a module does not fit together."""
    *_, sizes, strides, multiple, axes = (fields[x] for x in _FIELDS)
    if not (
        type(multiple) is int
        and 1 <= multiple <= LARGEST_MULTIPLE
        and len(axes) == len(sizes) == len(strides)
        and all(mean.shape == columns.shape[:1] for mean, columns in axes)
    ):
        raise ValueError("section 'encoder' is invalid")


def _ask(module, n_channels, patch_size):
    """Return the means of each map's channels over a fixed picture, or None.

    None if the module is for images of another size.
    """
    side = max(_SIDE, patch_size)
    picture = np.random.RandomState(_SEED).rand(1, n_channels, side, side)
    try:
        maps = run_module(module, torch.from_numpy(picture.astype(np.float32)))
    except ValueError:
        return None
    return [x.mean(dim=(0, 2, 3)).numpy() for x in maps]


def _is_same(answer, expected):
    if answer is None or expected is None:
        return answer is expected
    return [x.shape for x in answer] == [x.shape for x in expected] and all(
        np.abs(x - y).max() <= _SAME * np.abs(y).max()
        for x, y in zip(answer, expected, strict=True)
    )
