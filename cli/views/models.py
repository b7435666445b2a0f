"""Models on this machine."""

from collections.abc import Iterator
from typing import Any

from mlxbert.cli.views import console, rich

_COMPLETE = {True: "yes", False: "no", None: "not known"}


def draw_list(found: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """The built-in model, the folder of the cache, a line for each revision in it, and one for each model made here."""
    builtin, *cached = found["models"]
    yield from draw_facts(builtin["name"], builtin)
    yield from console.facts("hub cache", [("folder", found["cache"])])
    if cached:
        rows = [_revision(model, revision) for model in cached for revision in model["revisions"]]
        yield console.listing(("name", "family", "size", "revision", "complete"), rows)
    if found["written"]:
        yield rich.Text("written on this machine", style="bold")
        yield console.listing(("folder", "by", "family", "size", "date"), map(_written, found["written"]))


def draw_verified(found: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """A line for each revision, and one for each file that is damaged or missing."""
    yield from console.facts("hub cache", [("folder", found["cache"])])
    kinds = ("checked", "unknown", "damaged", "missing")
    rows = [(model["name"], _reference(model), *(len(model[kind]) for kind in kinds)) for model in found["models"]]
    if rows:
        yield console.listing(("name", "revision", *kinds), rows)
    for model in found["models"]:
        wrong = model["damaged"] | dict.fromkeys(model["missing"], "is missing")
        yield from console.facts(f"{model['name']}, {_reference(model)}", list(wrong.items())) if wrong else ()


def draw_facts(title: str, facts: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """The facts of one model, without its name."""
    rows = [
        ("size", console.size(value)) if key == "bytes" else (key.replace("_", " "), _shown(value))
        for key, value in facts.items()
    ]
    return console.facts(title, [row for row in rows if row[0] != "name"])


def _revision(model: dict[str, Any], revision: dict[str, Any]) -> tuple[object, ...]:
    size = console.size(revision["bytes"])
    return model["name"], model["family"], size, _reference(revision), _COMPLETE[revision["complete"]]


def _written(model: dict[str, Any]) -> tuple[object, ...]:
    size = console.size(model["bytes"])
    return model["folder"], model["kind"], model["family"] or "-", size, model["written"].partition("T")[0]


def _reference(revision: dict[str, Any]) -> str:
    return ", ".join(revision["names"]) or str(revision["commit"][:12])


def _shown(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return "; ".join(f"{task}: {quality}" for task, quality in value.items())
    return f"{value:,}" if isinstance(value, int) else value
