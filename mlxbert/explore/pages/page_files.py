"""Writes results to files: as self-contained HTML pages that a browser shows, or as numbers.

Shapes: N texts.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.cli.output.resumable_file import check_ending
from mlxbert.cli.views import console
from mlxbert.durable_files import atomic_write, writing
from mlxbert.explore.views import summary
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.results.json import to_json

if TYPE_CHECKING:
    from mlxbert.explore.results import Attention, Explanation, Share

MOST = 50_000  # texts of a map
_SHOWN = 400  # characters of a text on a map
_LARGEST = 2**16 - 1  # of the numbers with which a map stores coordinates
_LEAST = (0, 0.01, 0.02, 0.05)  # weights below the first of these that makes a page small enough are left out
_PACKED = 2_900_000  # maximum number of letters of the weights of a page
_EXPLANATION = """<!doctype html>
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


def write_attention(result: "Attention", path: Path, model: str) -> None:
    """Writes the weights of a text; the extension of the path, .html, .json or .npz, determines the format.

    Args:
        model: The name of the model, for the title of the page.
    """
    with writing(path), atomic_write(path, locked=False) as file:
        if path.suffix == ".html":
            file.write(_attention_page(result, model).encode())
        elif path.suffix == ".json":
            file.write(f"{to_json(result.to_dict())}\n".encode())
        else:
            names = np.array([token.token for token in result.tokens])
            layers, heads = np.array(result.layers), np.array(result.heads)
            np.savez_compressed(file, attention=result.weights, tokens=names, layers=layers, heads=heads)
    console.say("note", f"wrote {path}")


def write_explanation(result: "Explanation", path: Path, model: str) -> None:
    """Writes an explanation; the extension of the path, .html or .json, determines the format."""
    text = _explanation_page(result, model) if path.suffix == ".html" else to_json(result.to_dict()) + "\n"
    with writing(path), atomic_write(path, locked=False) as file:
        file.write(text.encode())
    console.say("note", f"wrote {path}")


def write_map(
    path: Path,
    overwrite: bool,
    title: str,
    texts: Sequence[str],
    coordinates: "NDArray[np.float32]",
    labels: Sequence[int],
    names: Sequence[str],
    none: str,
) -> None:
    """Writes a page that shows texts in a plane.

    Args:
        coordinates: Their coordinates, (N, 2).
        labels: The group of each text, which decides its colour; -1 for none.
        none: The name of the texts in no group.
    """
    low, high = (coordinates.min(0), coordinates.max(0)) if len(coordinates) else (np.zeros(2), np.zeros(2))
    side = float(max(high - low)) or 1.0
    scaled = np.rint((coordinates - (low + high) / 2) / side * _LARGEST + _LARGEST / 2).astype("<u2")
    shown = [text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…" for text in texts]
    data = {
        "title": title, "groups": list(names), "none": none, "named": bool(names),
        "texts": _packed(json.dumps(shown).encode()), "coordinates": _packed(scaled.T.tobytes()),
        "labels": _packed(np.array(labels, "<i4").tobytes()),
    }  # fmt: skip
    with writing(path), atomic_write(path, locked=False) as file:
        file.write(_with_data("map.html", data).encode())
        check_ending(path, overwrite, (path.suffix,))  # minutes have passed


def _with_data(template: str, data: Mapping[str, Any]) -> str:
    """Returns a page of this folder with its data; no text in them can end the script."""
    page = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return page.replace('"DATA"', json.dumps(data).replace("<", "\\u003c"))


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _attention_page(result: "Attention", model: str) -> str:
    least, weights = _packed_weights(result)
    return _with_data("attention.html", {
        "model": model, "tokens": [token.token for token in result.tokens], "layers": result.layers,
        "heads": result.heads, "segments": [token.segment for token in result.tokens], "least": least,
        "special": [token.start == token.end for token in result.tokens], "weights": weights,
    })  # fmt: skip


def _packed_weights(result: "Attention") -> tuple[float, str]:
    """Packs the mean of all weights, and then the weights of each head, into a byte per weight.

    A byte is the square root of the weight times 255, because many weights are small. In a long text, most of them are
    so small that a page would be several times as large with them.

    Returns:
        The smallest weight of a head that is in the page, and the compressed bytes in base64.
    """
    for least in _LEAST:
        shown = np.where(result.weights < least, 0, result.weights).reshape(-1, *result.mean.shape)
        levels = np.rint(np.sqrt(np.concatenate([result.mean[None], shown])) * 255).astype(np.uint8)
        if len(packed := _packed(levels.tobytes())) <= _PACKED:
            break
    return least, packed


def _explanation_page(result: "Explanation", model: str) -> str:
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
    return _EXPLANATION.format(
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
