"""Writes models in ONNX, for onnxruntime."""
