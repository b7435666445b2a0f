"""Writes an explanation to a file, as an HTML page or as JSON."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.cli.output.resumable_file import check_ending
from mlxbert.cli.views import console
from mlxbert.durable_files import atomic_write, writing
from mlxbert.explore.views import summary
from mlxbert.results.json import to_json

if TYPE_CHECKING:
    from mlxbert.explore.results import Explanation, Share

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Explanation</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ margin: 2rem auto; max-width: 50rem; padding: 0 1rem; font: 16px/1.8 system-ui, sans-serif; }}
  h1 {{ font-size: 1.2rem; overflow-wrap: anywhere; }}
  p {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
  td {{ padding: 0 .6rem 0 0; }} td:last-child {{ text-align: right; font-variant-numeric: tabular-nums; }}
  .note {{ opacity: .75; }}
</style>
</head>
<body>
<h1>{target}: {score:.3f}</h1>
{texts}
<p class="note">{model}, {method}. Green words speak for it, red ones against it.
{summary}.</p>
<table>{rows}</table>
</body>
</html>
"""


def check(path: Path | None, overwrite: bool) -> None:
    """Raises an error if the path cannot be written; called before a model is loaded."""
    check_ending(path, overwrite, (".html", ".json"))


def write(result: "Explanation", path: Path, model: str) -> None:
    """Writes an explanation; the extension of the path determines the format."""
    text = _page(result, model) if path.suffix == ".html" else to_json(result.to_dict()) + "\n"
    with writing(path), atomic_write(path, locked=False) as file:
        file.write(text.encode())
    console.say("note", f"wrote {path}")


def _page(result: "Explanation", model: str) -> str:
    """Returns a self-contained HTML page without scripts."""
    largest = max((abs(word.score) for word in result.words), default=0.0) or 1.0
    texts = [
        f"<p>{_marked(text, [word for word in result.words if word.text == number], largest)}</p>"
        for number, text in enumerate((result.text, result.pair))
        if text is not None
    ]
    rows = [
        f"<tr><td>{escape(word.token)}</td><td>{word.score:+.3f}</td></tr>"
        for word in sorted(result.words, key=lambda word: -abs(word.score))
    ]
    return _PAGE.format(
        target=escape(result.target), score=result.score, summary=summary(result), model=escape(model),
        method=result.method, texts="\n".join(texts), rows="\n".join(rows),
    )  # fmt: skip


def _marked(text: str, words: list["Share"], largest: float) -> str:
    """Returns a text in HTML with a colour behind each word; the share is its title."""
    parts, last = [], 0
    for word in words:
        start = max(word.start, last)
        colour = "40 160 80" if word.score > 0 else "220 60 60"
        style = f"background: rgb({colour} / {abs(word.score) / largest:.2f})"
        parts.append(escape(text[last:start]))
        parts.append(f'<span style="{style}" title="{word.score:+.4f}">{escape(text[start : word.end])}</span>')
        last = max(word.end, last)
    return "".join([*parts, escape(text[last:])])
