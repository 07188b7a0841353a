"""The command export."""

import os

from skpatchsvdd._cli.models import check_folder, load_model
from skpatchsvdd._cli.terminal import OK
from skpatchsvdd._export import is_onnx_file
from skpatchsvdd._utils import check_file_name


def run(args):
    """Write a model as a file of ONNX, and say what is in it."""
    path = check_file_name(args.output)
    if path.exists() and not is_onnx_file(path):
        raise ValueError(
            f"{path} exists and was not exported by this command. Pass another name."
        )
    check_folder(path)
    est = load_model(args.model, "cpu", args.encoder)
    print("exporting: seconds, a minute for a large bank")
    facts = est.export_onnx(path, input_size=args.input_size)
    for name, n_patches in facts["bank_size"].items():
        print(f"scale {name}: {n_patches:,} normal patches")
    shape = " x ".join(map(str, facts["image_shape"]))
    print(f"images: bytes, any number x {shape}")
    print(f"threshold: an image is abnormal below a score of {facts['threshold']:.4g}")
    print(f"wrote {path}, {os.path.getsize(path) / 1e6:.1f} MB")
    return OK
