"""The names of transformers' modules in memory, by which PEFT names adapters; some differ from those on disk.

A matrix may be fused on disk and in memory, on disk alone, or nowhere, see `Target`.
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
    """A module that an adapter can be for.

    Attributes:
        name: Its name in memory, without the family's prefix.
        ours: The paths of our layers that it consists of, in the order of its rows.
        tensor: The plain name of the tensor on disk that holds its weights.
        part: Which part of the rows of that tensor is its own.
        parts: How many parts of equal size the tensor has.
        operation: What happens to its rows on the way from the file.
    """

    name: str
    ours: tuple[str, ...]
    tensor: str
    part: int = 0
    parts: int = 1
    operation: keymap.TensorOperation = keymap.SAME

    @property
    def layered(self) -> bool:
        """Whether it is in a layer of the encoder."""
        return self.ours[0].startswith("encoder.layers.")

    @property
    def inside(self) -> str:
        """Its name without the layer that it is in."""
        return re.sub(r"^.*\.\d+\.", "", self.name)

    @property
    def names(self) -> set[str]:
        """What it is called: the ends of its own name and of our paths."""
        whole = (self.inside, *(re.sub(r"^.*\.\d+\.", "", path) for path in self.ours))
        return {".".join(parts[start:]) for name in whole for parts in [name.split(".")] for start in range(len(parts))}


def targets(
    family: Family, config_json: ConfigJson, config: EncoderConfig, parts: Iterable[str] = ()
) -> Iterator[Target]:
    """The modules of the encoder and of these parts that have one tensor on disk, linear or not.

    Args:
        family: The family.
        config_json: The configuration.
        config: The facts of the encoder in it.
        parts: Pooler and heads.
    """
    in_code = family.foreign(config_json, config)  # there, modules are called as tensors are
    for entry in keymap.expand(family.table(parts), config.num_stored_layers):
        if len(entry.theirs) != 1:
            continue
        (stem,) = entry.theirs
        names = (family.exported(config_json, f"{stem}.")[:-1],) if in_code else _in_memory(family, stem)
        if len(names) == 1:
            yield Target(names[0], entry.ours, f"{stem}.weight", operation=entry.operation)
        else:
            for part, (name, own) in enumerate(zip(names, entry.ours, strict=True)):
                yield Target(name, (own,), f"{stem}.weight", part, len(names))


def _in_memory(family: Family, stem: str) -> tuple[str, ...]:
    """The modules in memory of a stem on disk: several where a tensor is fused on disk alone."""
    for pattern, names in family.modules.items():
        if found := re.fullmatch(pattern, stem):
            return tuple(found.expand(name) for name in names)
    return (stem,)
