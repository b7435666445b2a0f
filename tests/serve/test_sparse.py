"""TEI's route for sparse vectors."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

import mlxbert
from mlxbert.serve.http.app import make_app
from tests.helpers.serving import serving
from tests.helpers.sparse_folder import TEXTS, save_splade


def test_tei_gives_the_ids_and_weights_of_tokens(tmp_path: Path) -> None:
    folder = save_splade(tmp_path / "m")
    expected = [*mlxbert.embed_sparse(mlxbert.load(folder), TEXTS[:3])]
    with serving({"sparse": folder}) as service:
        client = TestClient(make_app(service))
        assert "embed-sparse" in service.facts["sparse"].tasks and "embed" not in service.facts["sparse"].tasks
        found = client.post("/embed_sparse", json={"inputs": [*TEXTS[:3]]}).json()
        refused = client.post("/embed", json={"inputs": TEXTS[0]})
    assert [[entry["index"] for entry in row] for row in found] == [result.ids.tolist() for result in expected]
    for row, result in zip(found, expected, strict=True):
        assert [entry["value"] for entry in row] == pytest.approx(result.values.tolist(), rel=1e-5)
    assert refused.status_code == 424
