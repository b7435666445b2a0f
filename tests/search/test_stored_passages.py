"""All passages of an index with their vectors."""

from pathlib import Path

import numpy as np
import pytest

import mlxbert
from mlxbert.search.commands.indexed_texts import stored_passages
from mlxbert.search.index import open_index


@pytest.mark.parametrize("store", ["index.db", "lance:index"])
def test_passages_have_the_vectors_of_the_search(
    store: str, tmp_path: Path, tiny: mlxbert.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if store.startswith("lance:"):
        pytest.importorskip("lance")
    for name, text in {"b.txt": "the dog sat on the mat", "a.md": "# City\n\nthe cat sat"}.items():
        Path("docs").mkdir(exist_ok=True)
        Path("docs", name).write_text(text)
    with open_index(store, model=tiny, paths=["docs"], titles=False) as index:
        list(index.update())
        index.add([{"id": "7", "text": "paris , tokyo", "lang": "en"}])
        found = [*stored_passages(index.store)]
        assert len(found) == index.store.size()
    rows = [row for row, _ in found]
    assert [row["text"] for row in rows][-2:] == ["the dog sat on the mat", "paris , tokyo"]
    assert rows[-2]["path"].endswith("b.txt") and rows[-2]["start_line"] == 1
    assert rows[-1]["path"] is None and rows[-1]["place"] == "7" and rows[-1]["fields"]["lang"] == "en"
    vectors = mlxbert.embed(tiny, [row["text"] for row in rows], normalize=True)
    assert np.allclose(np.stack([vector for _, vector in found]), vectors, atol=2e-3)
