"""Draws uploads."""

from collections.abc import Iterator
from typing import Any

from mlxbert.cli.views import console, rich


def summary_of(upload: dict[str, Any]) -> str:
    """Returns a sentence with the files of an upload, their sizes, and what is left out."""
    files = ", ".join(f"{file['path']} ({console.size(file['bytes'])}, {file['change']})" for file in upload["files"])
    left_out = f"; not sent: {', '.join(upload['left_out'])}" if upload["left_out"] else ""
    return f"{_place(upload)}: {files}{left_out}"


def draw_files(upload: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the files of an upload with their sizes, and what is left out."""
    yield rich.Text(console.visible(_place(upload)), style="bold")
    rows = [(file["path"], console.size(file["bytes"]), file["change"]) for file in upload["files"]]
    yield console.listing(("file", "size", "on the hub"), rows)
    facts = [("to send", console.size(upload["bytes"]))]
    facts += [("not sent", ", ".join(upload["left_out"]))] if upload["left_out"] else []
    facts += [("stays on the hub", ", ".join(upload["kept"]))] if upload["kept"] else []
    yield from console.facts("", facts)


def draw_upload(upload: dict[str, Any], *, listed: bool) -> Iterator["rich.RenderableType"]:
    """Draws the result of an upload; with its files if `listed` is set."""
    if listed:
        yield from draw_files(upload)
    names = ("url", "revision", "commit")
    yield from console.facts(upload["name"], [(name, upload[name]) for name in names])


def _place(upload: dict[str, Any]) -> str:
    """Returns where an upload goes, and who can see it."""
    kind = f"{'a new ' if upload['created'] else ''}{'public' if upload['public'] else 'private'} repository"
    return f"{upload['name']}, {kind}, branch {upload['revision']}"
