"""Files that inspect images without this package."""

from skpatchsvdd._export.onnx_file import export_onnx, is_onnx_file
