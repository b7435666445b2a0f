"""Records token vectors of a peer: `python scripts/make_token_goldens.py pylate|multi_vector`.

Writes tests/weights/goldens/tokens_PEER.json. `pylate` needs PyLate, `multi_vector` sentence-transformers from version
6; they cannot be installed together. The tests that read the numbers need neither.
"""

import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers import token_folders


def pylate(folder: Path, kind: str, texts: Sequence[str]) -> list[Any]:
    """Returns PyLate's vectors of texts of a kind, `query` or `document`."""
    vectors: list[Any] = (
        importlib.import_module("pylate.models")
        .ColBERT(str(folder), device="cpu")
        .encode([*texts], is_query=kind == "query", show_progress_bar=False)
    )
    return vectors


def multi_vector(folder: Path, kind: str, texts: Sequence[str]) -> list[Any]:
    """Returns the vectors of sentence-transformers' `MultiVectorEncoder`."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu")
    encode = model.encode_query if kind == "query" else model.encode_document
    return [array.cpu().numpy() for array in encode([*texts])]


PEERS = {"pylate": pylate, "multi_vector": multi_vector}


def main(peer: str) -> None:
    """Writes the numbers of a peer."""
    encode = PEERS[peer]
    texts = {"query": token_folders.QUERIES, "document": token_folders.DOCUMENTS}
    vectors = {}
    with tempfile.TemporaryDirectory() as place:
        for name, write in token_folders.PEERS[peer].items():
            folder = write(Path(place) / name)
            vectors[name] = {
                kind: [*map(token_folders.rounded, encode(folder, kind, each))] for kind, each in texts.items()
            }
            print(name, [len(each) for each in vectors[name]["query"] + vectors[name]["document"]])
    token_folders.write_golden(peer, vectors)


if __name__ == "__main__":
    main(sys.argv[1])
