"""The names of transformers' modules in memory, which PEFT uses for adapters; some differ from the names on disk.

A matrix may be fused both on disk and in memory, on disk only, or not at all, see `Target`.
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
    """A module that an adapter can update.

    Attributes:
        name: The name in memory, without the family's prefix.
        ours: The paths of our layers that the module consists of, in the order of its rows.
        tensor: The plain name of the tensor on disk that holds the module's weights.
        part: The index of the part of the tensor's rows that belongs to the module.
        parts: The number of parts of equal size that the tensor has.
        operation: The operation on the rows when they are read from the file.
    """

    name: str
    ours: tuple[str, ...]
    tensor: str
    part: int = 0
    parts: int = 1
    operation: keymap.TensorOperation = keymap.SAME

    @property
    def layered(self) -> bool:
        """Whether the module is in a layer of the encoder."""
        return self.ours[0].startswith("encoder.layers.")

    @property
    def inside(self) -> str:
        """The name within the layer."""
        return re.sub(r"^.*\.\d+\.", "", self.name)

    @property
    def names(self) -> set[str]:
        """All names of the module: the endings of its name in memory and of our paths."""
        roots = (self.inside, *(re.sub(r"^.*\.\d+\.", "", path) for path in self.ours))
        return {".".join(parts[start:]) for name in roots for parts in [name.split(".")] for start in range(len(parts))}


def targets(
    family: Family, config_json: ConfigJson, config: EncoderConfig, parts: Iterable[str] = ()
) -> Iterator[Target]:
    """Yields the modules of the encoder and of these parts that have one tensor on disk, linear or not.

    Args:
        family: The family.
        config_json: The configuration.
        config: The facts of the encoder.
        parts: The pooler and heads to include.
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
    """Returns the modules in memory of a stem on disk: several if the tensor is fused on disk only."""
    for pattern, names in family.modules.items():
        if match := re.fullmatch(pattern, stem):
            return tuple(match.expand(name) for name in names)
    return (stem,)
