"""How far training and inspection are from what the device could do."""

import numpy as np
import torch
from _common import stopwatch
from _hooks import crop_size, make_encoder, parts_of, resolve, training_autocast
from _plain_training import SIZES
from torch.utils.flop_counter import FlopCounterMode

N_VIEWS = 2


def measure_floor(device, step_ms, operations, values):
    """Compare a step's operations and bytes with a large product and copy."""
    dtype = training_dtype(device)
    n_bytes = dtype.itemsize * values
    product, copy = measure_speeds(device, dtype)
    floor = max(operations / product, n_bytes / copy)
    return {
        "format": str(dtype).removeprefix("torch."),
        "GFLOP a step": operations / 1e9,
        "GB a step": n_bytes / 1e9,
        "product TFLOP/s": product / 1e12,
        "copy GB/s": copy / 1e9,
        "floor ms": 1000 * floor,
        "ms a step": float(np.median(step_ms)),
        "times the floor": float(np.median(step_ms)) / (1000 * floor),
    }


def measure_inspection_floor(model, n_images, device):
    """Return what the operations of an image take at the speed of a large product.

    The search is that in all patches of so many images. A GPU encodes by products of
    half precision, three for one of float32, and searches by such products; a CPU
    computes in float32.
    """
    is_gpu = device.type == "cuda"
    product, _ = measure_speeds(device, torch.float16 if is_gpu else torch.float32)
    dense, units, _ = parts_of(model)
    start = 0
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        image = torch.zeros(1, model.encoder_.config[0], *dense.image_size)
        for member in model.encoder_.members:
            stop = start + len(member.patch_sizes)
            member.encode_images(image, dense.strides[start:stop])
            start = stop
    encoding = (3 if is_gpu else 1) * counter.get_total_flops()
    n_features = model.encoder_.config[1]
    search = sum(
        2 * np.prod(grid) ** 2 * n_images * (n_features + 2 * (unit > 0))
        for grid, unit in zip(dense.grids, units, strict=True)
    )
    return {
        "encoding GFLOP": encoding / 1e9,
        "all rows GFLOP": search / 1e9,
        "product TFLOP/s": product / 1e12,
        "encoding floor ms": 1000 * encoding / product,
        "all rows floor ms": 1000 * search / product,
    }


def count_step(est, train, device):
    """Operations, and values read or written, of a step of the estimator.

    A convolution is run three times: forward, for the gradient of its input and for
    that of its weights. Each reads two of input, output and their gradients and writes
    the third.
    """
    n_channels = train.image_shape[2]
    encoder = make_encoder(
        "hierarchical", n_channels, est.embedding_dim, SIZES[-1], torch.Generator()
    )
    size = crop_size(train.image_shape[:2], SIZES[-1])
    inputs = n_channels * size**2
    operations = values = 0
    for i, conv in enumerate([*encoder.small, *encoder.big[0]]):
        span = {8: 16, 9: 0}.get(i, conv.kernel_size[0] - 1)
        size = (size - span - 1) // conv.stride[0] + 1
        outputs = conv.out_channels * size**2
        operations += 3 * 2 * conv.weight[0].numel() * outputs
        values += 3 * (inputs + outputs)
        inputs = outputs
    n_views = N_VIEWS * resolve(est, device).batch_size
    return n_views * operations, n_views * values


def training_dtype(device):
    """Return the format in which the estimator computes its products in training."""
    one = torch.ones(1, 1, device=device)
    with training_autocast(device):
        return (one @ one).dtype


def measure_speeds(device, dtype, n=8192):
    """Operations a second of a product, bytes a second of a copy."""
    n = n if device.type == "cuda" else n // 8
    a = torch.randn(n, n, device=device, dtype=dtype)
    b = torch.empty_like(a)
    products, copies = [], []
    for _ in range(5):
        with stopwatch(device) as seconds:
            a @ a
        products.append(seconds[0])
        with stopwatch(device) as seconds:
            b.copy_(a)
        copies.append(seconds[0])
    return 2 * n**3 / min(products), 2 * a.nbytes / min(copies)
