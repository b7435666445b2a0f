"""Draws the models on this machine."""

from collections.abc import Iterator
from typing import Any

from mlxbert.cli.views import console, rich

_COMPLETE = {True: "yes", False: "no", None: "not known"}


def draw_list(listing: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the built-in model, each revision in the cache, and each model that was written on this machine."""
    builtin, *cached = listing["models"]
    yield from draw_facts(builtin["name"], builtin)
    yield from console.facts("hub cache", [("folder", listing["cache"])])
    if cached:
        rows = [_revision(model, revision) for model in cached for revision in model["revisions"]]
        yield console.listing(("name", "family", "size", "revision", "complete"), rows)
    if listing["written"]:
        yield rich.Text("written on this machine", style="bold")
        yield console.listing(("folder", "by", "family", "size", "date"), map(_written, listing["written"]))


def draw_verified(report: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws a line for each revision, and one for each damaged or missing file."""
    yield from console.facts("hub cache", [("folder", report["cache"])])
    kinds = ("checked", "unknown", "damaged", "missing")
    rows = [(model["name"], _reference(model), *(len(model[kind]) for kind in kinds)) for model in report["models"]]
    if rows:
        yield console.listing(("name", "revision", *kinds), rows)
    for model in report["models"]:
        problems = model["damaged"] | dict.fromkeys(model["missing"], "is missing")
        yield from console.facts(f"{model['name']}, {_reference(model)}", list(problems.items())) if problems else ()


def draw_facts(title: str, facts: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the facts of one model, without its name."""
    rows = [
        ("size", console.size(value)) if key == "bytes" else (key.replace("_", " "), _as_text(value))
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


def _as_text(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return "; ".join(f"{task}: {quality}" for task, quality in value.items())
    return f"{value:,}" if isinstance(value, int) else value
