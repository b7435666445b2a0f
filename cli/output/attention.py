"""Attention weights in a file: a page to look at, or numbers."""

import base64
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.cli.output.result_file import check_path
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError
from mlxbert.files import atomic_write, writing
from mlxbert.results.json import to_json

if TYPE_CHECKING:
    from mlxbert.results.attention import Attention

_ENDINGS = (".html", ".json", ".npz")


def check(path: Path | None, overwrite: bool) -> None:
    """Refuses a file that cannot be written, before a model is loaded."""
    if path is None:
        return
    if path.suffix not in _ENDINGS:
        raise ArgumentError(f"--output {path}: expected a name that ends in {', '.join(_ENDINGS)}")
    check_path(path, overwrite)


def write(found: "Attention", path: Path, model: str) -> None:
    """Writes the weights of a text.

    Args:
        found: The weights.
        path: The file; its ending says what it becomes.
        model: The name of the model, for the title of a page.
    """
    text = _page(found, model) if path.suffix == ".html" else to_json(found.to_dict()) + "\n"
    with writing(path), atomic_write(path, locked=False) as file:
        if path.suffix != ".npz":
            file.write(text.encode())
        else:
            import numpy as np

            names = np.array([token.token for token in found.tokens])
            np.savez_compressed(
                file, attention=found.weights, tokens=names, layers=np.array(found.layers), heads=np.array(found.heads)
            )
    console.say("note", f"wrote {path}")


def _page(found: "Attention", model: str) -> str:
    """A page without requests: the weights are in it, each rounded to a byte."""
    import numpy as np

    levels = np.rint(found.weights * 255).astype(np.uint8).tobytes()
    data = {
        "model": model, "tokens": [token.token for token in found.tokens], "layers": found.layers, "heads": found.heads,
        "segments": [token.segment for token in found.tokens],
        "weights": base64.b64encode(zlib.compress(levels)).decode(),
    }  # fmt: skip
    template = Path(__file__).with_name("attention.html").read_text(encoding="utf-8")
    written = json.dumps(data).replace("<", "\\u003c")  # nothing in a token ends the script
    return template.replace('"DATA"', written)
