"""The model families: facts, tensor names and dialects, one file per family."""
