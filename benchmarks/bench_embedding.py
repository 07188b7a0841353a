"""Dense embedding against embedding patch by patch, in one run.

All patches of an image, K=32 every 4 pixels and K=64 every 16, are encoded twice: cut
out and encoded in batches of 64, and densely, as the estimator does it.

Example: python benchmarks/bench_embedding.py
"""

import numpy as np
import torch
from _common import machine_name, make_parser, print_json, print_table, stopwatch
from _hooks import check_device, exact_convolutions, make_encoder

STRIDES = (4, 16)
BATCH = 64


def main():
    args = parse_arguments()
    device = check_device(args.device)
    torch.manual_seed(0)
    encoder = make_encoder("hierarchical", 3, 64, 64, torch.Generator().manual_seed(0))
    encoder.to(device)
    images = torch.rand(args.repeats + 1, 1, 3, args.size, args.size, device=device)
    with torch.inference_mode(), exact_convolutions():
        plain, patchwise = time_each(encode_patchwise, encoder, images, device)
        fast, dense = time_each(encode_densely, encoder, images, device)
    error = max(
        (a - b).abs().max().item() for a, b in zip(patchwise, dense, strict=True)
    )
    rows = [
        {"way": "patch by patch", "ms an image": 1000 * plain},
        {"way": "dense", "ms an image": 1000 * fast},
    ]
    print(machine_name(device), f"\nimages of {args.size} x {args.size}\n")
    print_table(rows)
    print(f"\n{plain / fast:.1f} times faster; largest difference {error:.1e}")
    print_json(
        machine=machine_name(device),
        patchwise_ms=1000 * plain,
        dense_ms=1000 * fast,
        ratio=plain / fast,
        largest_difference=error,
    )


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--size", type=int, default=256, help="height and width")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def time_each(encode, encoder, images, device):
    """Return the median seconds an image, after one to warm up, and the features."""
    seconds = []
    for image in images:
        with stopwatch(device) as one:
            features = encode(encoder, image)
        seconds += one
    return float(np.median(seconds[1:])), features


def encode_patchwise(encoder, image):
    """Features of each scale, (n_patches, D), from patches cut out."""
    features = []
    for size, stride in zip(encoder.patch_sizes, STRIDES, strict=True):
        patches = image[0].unfold(1, size, stride).unfold(2, size, stride)
        patches = patches.permute(1, 2, 0, 3, 4).flatten(0, 1)  # (n_patches, c, K, K)
        features.append(torch.cat([encoder(batch) for batch in patches.split(BATCH)]))
    return features


def encode_densely(encoder, image):
    """Features of each scale, (n_patches, D), from the whole image."""
    return [x[0].flatten(1).T for x in encoder.encode_images(image, STRIDES)]


if __name__ == "__main__":
    main()
