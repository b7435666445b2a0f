"""Checkpoints of TensorFlow 1, read without TensorFlow."""
