"""Writes attention weights to a file, as an HTML page or as numbers."""

import base64
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.cli.output.resumable_file import check_ending
from mlxbert.cli.views import console
from mlxbert.durable_files import atomic_write, writing
from mlxbert.lazy_numpy import np
from mlxbert.results.json import to_json

if TYPE_CHECKING:
    from mlxbert.explore.results import Attention

_EXTENSIONS = (".html", ".json", ".npz")
_LEAST = (0, 0.01, 0.02, 0.05)  # weights below the first of these that makes a page small enough are left out
_PACKED = 2_900_000  # maximum number of letters of the weights of a page


def check(path: Path | None, overwrite: bool) -> None:
    """Raises an error if the path cannot be written; called before a model is loaded."""
    check_ending(path, overwrite, _EXTENSIONS)


def write(result: "Attention", path: Path, model: str) -> None:
    """Writes the weights of a text.

    Args:
        path: The file to write; its extension determines the format.
        model: The name of the model, for the title of the page.
    """
    text = _page(result, model) if path.suffix == ".html" else to_json(result.to_dict()) + "\n"
    with writing(path), atomic_write(path, locked=False) as file:
        if path.suffix != ".npz":
            file.write(text.encode())
        else:
            names = np.array([token.token for token in result.tokens])
            layers, heads = np.array(result.layers), np.array(result.heads)
            np.savez_compressed(file, attention=result.weights, tokens=names, layers=layers, heads=heads)
    console.say("note", f"wrote {path}")


def _page(result: "Attention", model: str) -> str:
    """Returns a self-contained HTML page."""
    least, weights = _packed(result)
    data = {
        "model": model, "tokens": [token.token for token in result.tokens], "layers": result.layers,
        "heads": result.heads, "segments": [token.segment for token in result.tokens], "least": least,
        "special": [token.start == token.end for token in result.tokens], "weights": weights,
    }  # fmt: skip
    template = Path(__file__).with_name("attention.html").read_text(encoding="utf-8")
    script = json.dumps(data).replace("<", "\\u003c")  # no token can end the script
    return template.replace('"DATA"', script)


def _packed(result: "Attention") -> tuple[float, str]:
    """Packs the mean of all weights, and then the weights of each head, into a byte per weight.

    A byte is the square root of the weight times 255, because many weights are small. In a long text, most of them are
    so small that a page would be several times as large with them.

    Returns:
        The smallest weight of a head that is in the page, and the compressed bytes in base64.
    """

    def pack(least: float) -> str:
        shown = np.where(result.weights < least, 0, result.weights).reshape(-1, *result.mean.shape)
        levels = np.rint(np.sqrt(np.concatenate([result.mean[None], shown])) * 255).astype(np.uint8)
        return base64.b64encode(zlib.compress(levels.tobytes())).decode()

    for least in _LEAST[:-1]:
        if len(packed := pack(least)) <= _PACKED:
            return least, packed
    return _LEAST[-1], pack(_LEAST[-1])
