"""Writes a map of texts as an HTML page.

Shapes: N texts.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

from mlxbert.cli.output.resumable_file import check_ending
from mlxbert.durable_files import atomic_write, writing
from mlxbert.lazy_numpy import NDArray, np

MOST = 50_000  # texts of a page
_SHOWN = 400  # characters of a text on a page
_LARGEST = 2**16 - 1  # of the numbers with which a page stores coordinates


def write_page(
    path: Path,
    overwrite: bool,
    title: str,
    texts: Sequence[str],
    coordinates: "NDArray[np.float32]",
    labels: Sequence[int],
    names: Sequence[str],
    none: str,
) -> None:
    """Writes a self-contained HTML page, which shows the texts in a plane.

    Args:
        coordinates: Their coordinates, (N, 2).
        labels: The group of each text, which decides its colour; -1 for none.
        none: The name of the texts in no group.
    """
    low, high = (coordinates.min(0), coordinates.max(0)) if len(coordinates) else (np.zeros(2), np.zeros(2))
    side = float(max(high - low)) or 1.0
    scaled = np.rint((coordinates - (low + high) / 2) / side * _LARGEST + _LARGEST / 2).astype("<u2")
    data = {
        "title": title, "groups": list(names), "none": none, "named": bool(names),
        "texts": _packed(json.dumps([_shortened(text) for text in texts]).encode()),
        "coordinates": _packed(scaled.T.tobytes()), "labels": _packed(np.array(labels, "<i4").tobytes()),
    }  # fmt: skip
    template = Path(__file__).with_name("map.html").read_text(encoding="utf-8")
    script = json.dumps(data).replace("<", "\\u003c")  # no name can end the script
    with writing(path), atomic_write(path, locked=False) as file:
        file.write(template.replace('"DATA"', script).encode())
        check_ending(path, overwrite, (path.suffix,))  # minutes have passed


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
