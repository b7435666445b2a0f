"""`mlxbert serve`: its arguments; tests/serve has the server itself."""

from pathlib import Path
from typing import Any

import pytest

from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexSettings
from tests.helpers.cases import together
from tests.helpers.program import call

ABOUT = IndexSettings("model", "0" * 64, 8, "cosine", "mean", ("", ""), 200, True, (0.5, 1.0))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command gives to the server, which does not start."""
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(
        "mlxbert.serve.http.server.serve",
        lambda models, options, **more: arguments.update(models=models, options=options, **more),
    )
    return arguments


def test_models_and_indexes_have_names(served: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def models(*words: str, model: str = "") -> dict[str, str]:
        outcome = call("serve", *words, MLXBERT_MODEL=model)
        assert outcome.status == 0, outcome
        return {name: reference.source for name, reference in served["models"].items()}

    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    SqliteStore(tmp_path / "notes.db", ABOUT).close()
    assert models() == {"builtin": "builtin"}
    assert models(model="org/name") == {"org/name": "org/name"}
    assert models("models/mine", "small=org/name") == {"mine": "models/mine", "small": "org/name"}
    models("--index", "notes.db", "--index", "b=notes.db", "--port", "1", "--allow-host", "a", "--offline")
    assert served["indexes"] == {"notes": "notes.db", "b": "notes.db"}
    assert (served["options"].port, served["options"].allow_host) == (1, ["a"])
    assert served["models"]["builtin"].offline
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr("mlxbert.search.index_stores.find_index", lambda paths: tmp_path / "notes.db")
    models("--index", "docs")  # a folder that has an index
    assert served["indexes"] == {"docs": str(tmp_path / "notes.db")}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("a=builtin", "a=builtin"), "'a' is given twice"),
        (("=builtin",), "'=builtin'"),
        (("a=",), "'a='"),
        (("--index", "nothing.db"), "nothing.db"),
        (("--port", "65536"), "--port"),
        (("--host", "0.0.0.0"), "--host is '0.0.0.0'"),
        (("--api-key-file", "nothing"), "--api-key-file is nothing"),
        (("--allow-origin", "*"), "--allow-origin is '*'"),
        (("--allow-origin", "http://a.example/"), "--allow-origin"),
        (("--log-file", "nowhere/log"), "--log-file is nowhere/log"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlxbert.serve.http.server.listen", refused)
    call("serve", *arguments).fails(2, expected)


@together("given", [("--model", "a dir"), ("--model=a dir",), ("-m", "a dir")])
def test_the_model_is_an_argument(given: tuple[str, ...]) -> None:
    call("serve", *given).fails(2, f"no option {given[0].partition('=')[0]}", "mlxbert serve 'a dir'")
    call("inspect", *given).fails(2, "mlxbert inspect 'a dir'")


def test_what_is_no_index_is_refused_at_the_start(served: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    for content in (b"", b"the cat sat on the mat " * 100):
        file.write_bytes(content)
        call("serve", "--index", str(file)).fails(1, f"{file}: ", "hint: ")
    assert not served


def refused(*_: object) -> None:
    """Stands for opening an address, which fast tests may not."""
    raise AssertionError("wrong usage was not noticed before")
