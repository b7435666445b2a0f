"""The model families, one file per family: their facts, tensor names and dialects."""
