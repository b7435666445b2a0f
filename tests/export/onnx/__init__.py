"""Tests of files in ONNX."""
