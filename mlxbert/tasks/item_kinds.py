"""The kinds of items that tasks take, described for both the server and its clients.

Two other modules also list the kinds: `mlxbert.serve.protocols.mlxbert_api` with the bodies that the server reads, and
`mlxbert.cli.commands.tasks` with the arguments of commands. Importing this module imports neither MLX nor msgspec.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def _texts(items: Sequence[Any]) -> dict[str, Any]:
    return {"texts": items}


def _pairs(items: Sequence[Any]) -> dict[str, Any]:
    return {"pairs": items}


@dataclass(frozen=True, eq=False)
class ItemKind:
    """A kind of items."""

    title: str  # what an item is, in a few words
    to_body: Callable[[Sequence[Any]], dict[str, Any]] = _texts  # returns the fields of a request with the given items
    example: Callable[[str], Any] = lambda text: text  # makes an item from a text, to warm up a served model
    ranked: bool = False  # whether the items are texts to rank for a query, with results in the order of rank
    # Takes an item, and returns the fields that the JSON of its result omits because the item has them.
    not_in_json: Callable[[Any], dict[str, Any]] = lambda item: {}


def _questions(items: Sequence[Any]) -> dict[str, Any]:
    if len({context for _, context in items}) > 1:
        return _pairs(items)
    return {"questions": [question for question, _ in items], "context": items[0][1]}


def _query(items: Sequence[Any]) -> dict[str, Any]:
    return {"query": items[0][0], "texts": [text for _, text in items]}


def _pair(text: str) -> tuple[str, str]:
    return "the", text


TEXT = ItemKind("text")
TEXT_OR_PAIR = ItemKind("text or pair of texts")
PAIR = ItemKind("pair of texts", _pairs, _pair)
QUESTION = ItemKind("question with its context", _questions, _pair, not_in_json=lambda item: {"context": item[1]})
QUERY = ItemKind("query with a text", _query, _pair, ranked=True)
