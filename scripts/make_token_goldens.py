"""Records token vectors of a peer: `python scripts/make_token_goldens.py pylate|multi_vector`.

Writes tests/weights/goldens/tokens_PEER.json. `pylate` needs PyLate, `multi_vector` sentence-transformers from version
6; they cannot be installed together. The tests that read the numbers need neither.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers import token_folders, token_peers


def main(peer: str) -> None:
    """Writes the numbers of a peer."""
    encode = token_peers.PEERS[peer]
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
