"""Writing a file of ONNX: checks, the graph of one image, and a loop over images."""

import json
import logging
import warnings
from contextlib import contextmanager
from numbers import Integral

import torch

from skpatchsvdd._export.one_image import OneImage, make_graph_bank
from skpatchsvdd._export.search import OPSET, make_function
from skpatchsvdd._utils import check_file_name, replaced_when_whole
from skpatchsvdd._version import __version__

_PRODUCER = "skpatchsvdd"
_OUTPUTS = ("score", "p_value", "verdict", "map", "mask")
# What one file can hold, by its format, and what all but the bank and weights take.
_MOST_BYTES, _REST = 2**31, 2**24
# Bytes at the beginning of a file among which its producer is named.
_BEGINNING = 64


def export_onnx(est, path, input_size):
    """Write a fitted estimator as a file of ONNX; see `PatchSVDD.export_onnx`."""
    if est._fitted.setting.reduction > 1:
        raise ValueError(
            "export_onnx cannot write a model of image_size='full', whose finest scale "
            "sees images in tiles. Fit with image_size=(height, width), or use save."
        )
    _import_onnx()
    path = check_file_name(path)
    est._fitted.check_file()
    input_size = _choose_input_size(est, input_size)
    _check_file_size(est)
    bank = make_graph_bank(est._fitted, est.encoder_)
    module = OneImage(bank, est._calibration, est.offset_, input_size).eval()
    shape = (*input_size, est.inspected_shape_[2])
    facts = {
        "version": __version__,
        "image_shape": list(shape),
        "inspected_shape": list(est.inspected_shape_),
        "threshold": float(est.offset_),
        "bank_size": {str(name): n for name, n in est.bank_size_.items()},
    }
    content = _repeat(_trace(module, shape), shape, facts).SerializeToString()
    with replaced_when_whole(path) as partial:
        partial.write_bytes(content)
    return facts


def is_onnx_file(path):
    """Whether a file is one that this package has exported."""
    with open(path, "rb") as file:
        return _PRODUCER.encode() in file.read(_BEGINNING)


def _import_onnx():
    """Raise if a package is missing that writes files of ONNX."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"export_onnx needs {error.name}. Install what is missing by "
            'pip install "skpatchsvdd[onnx]", or pip install onnx onnxscript.'
        ) from error
    if not hasattr(torch.onnx, "ops"):
        raise ImportError(
            f"export_onnx needs torch 2.8 or later, and this is {torch.__version__}. "
            "Save the model, and export it where torch is newer."
        )


def _choose_input_size(est, input_size):
    """Return the size of the images that come in: one for all."""
    size = tuple(est.inspected_shape_[:2])
    sizes = sorted({tuple(map(int, x)) for x in est._fitted.sizes})
    if input_size is None:
        if est.image_size is None:
            return size
        if len(sizes) == 1:
            return sizes[0]
        names = ", ".join(f"{h} x {w}" for h, w in sizes[:3])
        raise ValueError(
            "the training images came in several sizes, and a file takes images of "
            f"one: pass input_size=(height, width), such as one of {names}."
        )
    pair = tuple(input_size) if hasattr(input_size, "__iter__") else (input_size,) * 2
    if len(pair) != 2 or not all(isinstance(x, Integral) and x > 0 for x in pair):
        raise ValueError(
            f"input_size must be (height, width) in pixels, got {input_size!r}."
        )
    if est.image_size is None and pair != size:
        raise ValueError(
            f"input_size must be {size}, the size of the training images, got {pair}: "
            "fit with image_size resizes others."
        )
    return tuple(map(int, pair))


def _check_file_size(est):
    """Raise if a bank and the weights are more than one file can hold."""
    rows = [index.view_bank().rows for index in est._fitted.indexes]
    rest = _REST + sum(4 * x.numel() for x in est.encoder_.parameters())
    if est._fitted.variations is not None:
        rest += sum(x.sample.rows.nbytes for x in est._fitted.variations)
    n_bytes = rest + sum(x.nbytes for x in rows)
    if n_bytes > _MOST_BYTES:
        most = max((_MOST_BYTES - rest) // sum(x[0].nbytes for x in rows), 1)
        raise ValueError(
            f"the bank takes {n_bytes / 2**30:.1f} GiB, and a file of ONNX can hold "
            f"{_MOST_BYTES / 2**30:.1f} GiB. Fit again with bank_size={most} or less, "
            "or with a smaller image_size, and export that."
        )


def _trace(module, shape):
    """Return the graph of one image, with all that it needs, as a model."""
    from onnx import inliner

    image = torch.zeros(shape, dtype=torch.uint8)
    with torch.no_grad():
        module(image)  # what is made on first use is there before it is traced
    with _quiet():
        try:
            program = torch.export.export(module, (image,), strict=False)
            traced = torch.onnx.export(
                program,
                input_names=["image"],
                output_names=list(_OUTPUTS),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # whatever a user's module makes torch raise
            raise ValueError(
                "the encoder cannot be exported: torch finds no graph for it "
                f"({_find_reason(error)}). Modules must compute with torch's "
                "operations alone, the same ones for every image. Nothing was written."
            ) from error
    model = traced.model_proto
    model.functions.append(make_function())
    return inliner.inline_local_functions(model)


def _find_reason(error):
    """Return the first line of what an error comes from."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}"


@contextmanager
def _quiet():
    """Keep to themselves what exporters say of other packages and later versions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _repeat(one, shape, facts):
    """Return a model that inspects any number of images, one after the other.

    So an image's results depend on that image alone, and memory does not grow.
    """
    from onnx import TensorProto, helper

    types = (TensorProto.DOUBLE, TensorProto.DOUBLE, TensorProto.INT64)
    outputs = [
        helper.make_tensor_value_info(name, kind, ["n"])
        for name, kind in zip(_OUTPUTS, types, strict=False)
    ]
    outputs += [
        helper.make_tensor_value_info(name, kind, ["n", *shape[:2]])
        for name, kind in (("map", TensorProto.FLOAT), ("mask", TensorProto.BOOL))
    ]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", *shape])
    for output in one.graph.output:  # names that no other results have
        name = f"one_{output.name}"
        one.graph.node.append(helper.make_node("Identity", [output.name], [name]))
        output.name = name
    scan = helper.make_node(
        "Scan", ["images"], list(_OUTPUTS), body=one.graph, num_scan_inputs=1
    )
    model = helper.make_model(
        helper.make_graph([scan], "inspection", [images], outputs),
        producer_name=_PRODUCER,
        producer_version=__version__,
        ir_version=one.ir_version,
        opset_imports=[x for x in one.opset_import if x.domain == ""],
    )
    helper.set_model_props(model, {k: json.dumps(v) for k, v in facts.items()})
    return model
