"""`mlxbert ray`: what is refused before a job begins. `test_nodes.py` runs jobs."""

from pathlib import Path

import pytest

from mlxbert.scale.callables import CALLABLES
from mlxbert.scale.commands import COMMANDS
from tests.helpers.cases import together
from tests.helpers.program import call

BASE = ("embed", "--input", "in.parquet", "--output", "out")
CLASSIFY = ("classify", *BASE[1:])


@together(("arguments", "named"), [
    (("embed", "--input", "in.parquet"), "--output"), (("embed", "--output", "out"), "--input"),
    ((*BASE, "cat"), "cat"), ((*BASE, "--part-rows", "0"), "--part-rows"),
    ((*BASE, "--server", "http://127.0.0.1:9"), "--server"), ((*BASE, "--pair-column", "b"), "--pair-column"),
    ((*CLASSIFY, "--text-column", "a", "--text-column", "b"), "--text-column"),
    ((*CLASSIFY, "--labels", "a,b", "--pair-column", "b"), "--labels"), ((*CLASSIFY, "--multi"), "--multi"),
])  # fmt: skip
def test_wrong_options(arguments: tuple[str, ...], named: str) -> None:
    call("ray", *arguments).fails(2, named)


def test_each_command_has_a_callable() -> None:
    assert COMMANDS.keys() == CALLABLES.keys()


def test_without_ray_the_hint_is_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = call("ray", "embed", "--input", str(tmp_path), "--output", str(tmp_path / "out"))
    outcome.fails(1, "not installed")
    assert " install " in outcome.err and "ray[data]" in outcome.err


def test_an_existing_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    call("ray", "embed", "--input", "in.parquet", "--output", str(tmp_path / "file")).fails(2, "a folder")
    assert (tmp_path / "file").read_text() == "precious"
