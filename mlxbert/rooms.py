"""The rooms: what is more than a model, its files and its tasks. This table is all that the core knows of them.

A room is a folder of the package with the commands, views and tests of one feature. A room imports the core; the core
never imports a room, but asks this table for a command or a part by its name. Whoever deletes the folder of a room,
its tests and its entry has deleted the feature.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.frozen_dict import FrozenDict


@dataclass(frozen=True)
class Room:
    """A room."""

    about: str  # what users do there
    # The modules of its commands, by the headings of the help. A command of two words is added to a group.
    commands: Mapping[str, Mapping[str, str]]
    # The modules that the core or another room uses, if the room is there, by what they offer.
    parts: Mapping[str, str] = FrozenDict()


_FILES = "mlxbert.search.commands.search"
_TRAIN, _EXPLORE, _EXPORT = (f"mlxbert.{name}.commands" for name in ("train", "explore", "export"))
ROOMS: Mapping[str, Room] = FrozenDict({
    "search": Room(
        "Finds passages in the user's own files.",
        {
            "Search your files": {
                "search": _FILES, "index": _FILES, "indexes": "mlxbert.search.commands.indexes",
                "mcp": "mlxbert.search.commands.mcp",
            },
        },
        {"indexes": "mlxbert.search.commands.indexed_texts", "index files": "mlxbert.search.index_stores",
            "documents": "mlxbert.search.documents.document_kinds",
        },
    ),
    "train": Room(
        "Fine-tunes, pre-trains, distills and evaluates models.",
        {
            "Train a model": {
                "finetune": f"{_TRAIN}.finetune", "evaluate": f"{_TRAIN}.evaluate", "pretrain": f"{_TRAIN}.pretrain",
                "distill": f"{_TRAIN}.pretrain", "distill-static": f"{_TRAIN}.distill_static",
                "vocabulary": f"{_TRAIN}.pretrain", "mine": f"{_TRAIN}.mine",
            },
        },
        {"columns": "mlxbert.train.data.columns", "work for several processes": "mlxbert.train.processes"},
    ),
    "serve": Room(
        "Answers requests of other programs.",
        {"Serve other programs": {"serve": "mlxbert.serve.commands.serve"}},
        {"models of a server": "mlxbert.serve.server_models", "HTTP client": "mlxbert.serve.http_client"},
    ),
    "export": Room(
        "Converts models from and for other programs, uploads them, and proves that they compute the same.",
        {
            "Look inside": {"verify": f"{_EXPORT}.verify"},
            "Models and machine": {"convert": f"{_EXPORT}.convert", "models upload": f"{_EXPORT}.upload"},
        },
        {"reader of TensorFlow 1": "mlxbert.export.tensorflow.reader"},
    ),
    "explore": Room(
        "Groups many texts, and shows what a model does with one.",
        {
            "Explore many texts": {
                "dedupe": f"{_EXPLORE}.dedupe", "cluster": f"{_EXPLORE}.cluster", "map": f"{_EXPLORE}.map",
            },
            "Look inside": {name: f"{_EXPLORE}.{name}" for name in ("attention", "explain", "senses")},
        },
    ),
    "doctor": Room(
        "Says what the machine is, whether it computes right, and how fast.",
        {"Models and machine": {name: "mlxbert.doctor.commands.doctor" for name in ("doctor", "bench")}},
    ),
    "scale": Room(
        "Shares work among several machines.",
        {"Use a model": {"ray": "mlxbert.scale.commands"}},
        {"Lance tables": "mlxbert.scale.lance_store"},
    ),
})  # fmt: skip


def commands(panel: str) -> dict[str, str]:
    """Returns the modules of the commands of all rooms under a heading of the help, by command."""
    return {name: module for room in ROOMS.values() for name, module in room.commands.get(panel, {}).items()}


def part(name: str) -> Any:
    """Imports and returns the module that offers something to the core.

    Raises:
        MlxbertError: The room that offers it was deleted.
    """
    for module in _modules(name):
        return importlib.import_module(module)
    raise MlxbertError(f"this installation of mlxbert has no {name}")


def has_part(name: str) -> bool:
    """Whether a room offers something."""
    return any(_modules(name))


def _modules(name: str) -> Iterator[str]:
    return (room.parts[name] for room in ROOMS.values() if name in room.parts)
