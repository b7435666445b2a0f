"""The model families: facts, names of tensors and dialects, one file per family."""
