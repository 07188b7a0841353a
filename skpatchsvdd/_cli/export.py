"""The command export."""

import os

from skpatchsvdd._cli.models import check_folder, load_model
from skpatchsvdd._cli.status import OK
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
    facts = est.export_onnx(
        args.output, bank_size=args.bank_size, input_size=args.input_size
    )
    height, width, n_channels = facts["image_shape"]
    sizes = zip(facts["bank_size"].items(), est.bank_size_.values(), strict=True)
    for (name, n_kept), n_all in sizes:
        print(f"scale {name}: {n_kept:,} of {n_all:,} normal patches")
    print(
        f"images: bytes, any number x {height} x {width} x {n_channels}\n"
        f"threshold: an image is abnormal below a score of {facts['threshold']:.4g}"
    )
    print(f"wrote {args.output}, {os.path.getsize(args.output) / 1e6:.1f} MB")
    return OK
