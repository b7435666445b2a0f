"""Weights in ONNX graphs."""
