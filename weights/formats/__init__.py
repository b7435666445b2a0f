"""Formats of weights. Each format is a module or folder with the same two functions (`weight_files.WeightReader`)."""
