"""What other tools of MLX call a BERT's tensors.

They follow https://github.com/ml-explore/mlx-examples/blob/main/bert/convert.py, whose layers are named as MLX's own.
"""

_LAYER = r"^encoder\.layers\.(\d+)\."
_THEIRS = {
    r"attention\.(query|key|value)_proj": r"attention.self.\2",
    r"attention\.out_proj": "attention.output.dense",
    "ln1": "attention.output.LayerNorm",
    "ln2": "output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
}
# Patterns (regular expressions) and the names that transformers has.
MLX_SPELLINGS = {rf"{_LAYER}{theirs}\.": rf"encoder.layer.\1.{name}." for theirs, name in _THEIRS.items()} | {
    r"^embeddings\.norm\.": "embeddings.LayerNorm.",
    r"^pooler\.(weight|bias)$": r"pooler.dense.\1",
}
