"""Results in files: formats, and parts that survive an interruption."""
