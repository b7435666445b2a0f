"""The names that modules have in memory in transformers; PEFT uses these names for adapters.

Some of them differ from the names on disk. A matrix may be fused both on disk and in memory, on disk only, or not at
all (see `Target`).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mlxbert.config import EncoderConfig
from mlxbert.weights.families import keymap
from mlxbert.weights.families.family import Family
from mlxbert.weights.formats.config_json import ConfigJson


@dataclass(frozen=True)
class Target:
    """A module that an adapter can update."""

    name: str  # the name in memory, without the family's prefix
    ours: tuple[str, ...]  # the paths of our layers that together make up the module, in the order of its rows
    tensor: str  # the plain name of the tensor on disk that holds the module's weights
    part: int = 0  # the index of the module's part if the rows of the tensor are divided among several modules
    parts: int = 1  # the number of parts, all of equal size, into which the rows of the tensor are divided
    # The operation that is applied to the rows when they are read from the file.
    operation: keymap.TensorOperation = keymap.SAME

    @property
    def layered(self) -> bool:
        """Whether the module is in a layer of the encoder."""
        return self.ours[0].startswith("encoder.layers.")

    @property
    def inside(self) -> str:
        """The name of the module within its layer."""
        return re.sub(r"^.*\.\d+\.", "", self.name)

    @property
    def names(self) -> set[str]:
        """All names by which the settings of an adapter can refer to the module.

        The text up to the number of the layer is removed from the name in memory and from the paths of our layers. All
        suffixes of the rest are returned, for example `attention.self.query`, `self.query` and `query`.
        """
        roots = (self.inside, *(re.sub(r"^.*\.\d+\.", "", path) for path in self.ours))
        return {".".join(parts[start:]) for name in roots for parts in [name.split(".")] for start in range(len(parts))}


def targets(
    family: Family, config_json: ConfigJson, config: EncoderConfig, parts: Iterable[str] = ()
) -> Iterator[Target]:
    """Yields every module, not only linear layers, whose weights are one tensor on disk or part of one.

    Args:
        config_json: The configuration.
        config: The facts of the encoder.
        parts: The pooler and heads to include; the modules of the encoder are always included.
    """
    in_code = family.foreign(config_json, config)  # in the authors' code, modules are named like tensors
    for entry in keymap.expand(family.table(parts), config.num_stored_layers):
        if len(entry.theirs) != 1:
            continue
        (stem,) = entry.theirs
        names = (family.exported(config_json, f"{stem}.")[:-1],) if in_code else _in_memory(family, stem)
        if len(names) == 1:
            yield Target(names[0], entry.ours, f"{stem}.weight", operation=entry.operation)
        else:
            for part, (name, path) in enumerate(zip(names, entry.ours, strict=True)):
                yield Target(name, (path,), f"{stem}.weight", part, len(names))


def _in_memory(family: Family, stem: str) -> tuple[str, ...]:
    """Returns the names in memory of the module that has the name `stem` on disk.

    There are several names if the tensor on disk holds several modules that are separate in memory.
    """
    for pattern, names in family.modules.items():
        if match := re.fullmatch(pattern, stem):
            return tuple(match.expand(name) for name in names)
    return (stem,)
