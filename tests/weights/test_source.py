"""Names that may be those of folders or of models on the hub."""

from pathlib import Path

import pytest

from mlxbert.errors import HubError
from mlxbert.weights.source import find_folder


def test_a_name_that_is_no_folder_and_no_model_suggests_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(HubError, match="no folder of that name") as caught:
        find_folder("my-model", offline=True)
    assert caught.value.hint and "my-model2" not in caught.value.hint
    (tmp_path / "my-model2").mkdir()
    with pytest.raises(HubError) as caught:
        find_folder("my-model", offline=True)
    assert caught.value.hint and "my-model2" in caught.value.hint
    with pytest.raises(HubError) as caught:
        find_folder("org/my-model", offline=True)
    assert "folder" not in caught.value.message
