"""The bar of long work: in a notebook, unless the user gave a function; never in a script."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import mlxbert
from mlxbert import progress as notebook
from mlxbert.weights import model_source
from mlxbert.weights.hub import cache


def _in(config: dict[str, Any] | None) -> Any:
    """IPython in a notebook, in a terminal, or imported only."""
    return SimpleNamespace(get_ipython=lambda: None if config is None else SimpleNamespace(config=config))


@pytest.mark.parametrize(("config", "shown"), [({"IPKernelApp": {}}, True), ({}, False), (None, False)])
def test_only_a_notebook_gets_a_bar(
    config: dict[str, Any] | None,
    shown: bool,
    tiny: mlxbert.Model,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", _in(config))
    monkeypatch.setattr(notebook, "_DELAY", 0)
    mlxbert.embed(tiny, ["a", "b"])
    drawn = capsys.readouterr()
    assert drawn.out == "" and ("2/2" in drawn.err) == bool(drawn.err) == shown
    seen: list[tuple[int, int]] = []
    mlxbert.embed(tiny, ["a", "b"], on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)] and capsys.readouterr().err == ""


def test_a_download_in_a_notebook_has_a_bar_of_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_folder: Any
) -> None:
    def download(name: str, revision: str | None, on_progress: Any) -> Any:
        on_progress(1_000_000, 3_000_000)
        on_progress(3_000_000, 3_000_000)
        return tiny_folder

    monkeypatch.setitem(sys.modules, "IPython", _in({"IPKernelApp": {}}))
    monkeypatch.setattr(notebook, "_DELAY", 0)
    monkeypatch.setattr("mlxbert.weights.hub.download.download", download)
    monkeypatch.setattr(cache, "find_snapshot", lambda *given: None)
    monkeypatch.setattr(cache, "is_offline", lambda: False)
    assert model_source.find_folder(model_source.ModelRef("some/name")) == tiny_folder
    assert "3.00M/3.00M" in capsys.readouterr().err
