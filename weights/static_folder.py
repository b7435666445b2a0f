"""The configuration of a static model, which its files state only in part: the rest comes from its table.

model2vec writes a `config.json` with `model_type` model2vec. The module StaticEmbedding of sentence-transformers has no
configuration at all. It differs in two ways: it keeps unknown tokens, and it truncates no texts unless its
`tokenizer.json` says so.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.headers import Header
from mlxbert.weights.formats.static_table import MODULE, sizes
from mlxbert.weights.formats.weight_files import open_weights

KIND = "StaticEmbedding"  # the class in sentence-transformers


def static_config(
    folder: Path, stated: ConfigJson | None, modules: Path, headers: Mapping[Path, Header], *, normalize: bool
) -> ConfigJson:
    """Returns the complete configuration of a static model.

    Args:
        folder: The folder of the table.
        stated: The `config.json`; `None` if there is none.
        modules: The `modules.json`, which takes the place of a missing `config.json`.
        headers: Headers of weights that are not in the folder.
        normalize: Whether `modules.json` says that vectors are scaled to length 1.

    Raises:
        CheckpointError: The folder has no table, or its tensors do not fit together.
        ConfigError: `normalize` is not a boolean.
    """
    rows, width = sizes(folder, open_weights(folder, elsewhere=headers).tensors)
    size = {"vocab_size": rows, "hidden_size": width}
    if stated is not None:
        stated.flag("normalize", default=False)
        return replace(stated, values=stated.values | size)
    values: dict[str, Any] = {"model_type": MODULE, "normalize": normalize, "max_length": None}
    return ConfigJson(modules, values | size, added=tuple(values))
