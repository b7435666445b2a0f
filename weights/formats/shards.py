"""Weights in several files (shards), with an index that names the files."""

import os
from collections.abc import Collection
from pathlib import Path

from mlxbert.errors import CheckpointError
from mlxbert.weights.formats.config_json import read_json


def find_shards(index: Path, elsewhere: Collection[Path] = ()) -> list[Path]:
    """Returns the files that an index names, in the order of the index. Paths in `elsewhere` count as existing."""
    weight_map = read_json(index, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index}: weight_map is {weight_map!r:.60}, expected an object that maps tensors to shards"
        )
    shards = []
    for name in dict.fromkeys(str(value) for value in weight_map.values()):
        shard = index.parent / name
        if Path(name).name != name:
            raise CheckpointError(f"{index}: a shard has the name {name!r}, expected a plain file name")
        if shard not in elsewhere and not os.path.isfile(shard):  # also false for invalid names
            raise CheckpointError(f"{index}: shard {name!r} is not in the folder", hint="download the model again")
        shards.append(shard)
    return shards
