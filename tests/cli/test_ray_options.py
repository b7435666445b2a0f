"""`--ray`: what it cannot be combined with. The jobs themselves are tested in tests/ray."""

from pathlib import Path

import pytest

from tests.helpers.program import call

BASE = ("embed", "--input", "in.parquet", "--output", "out", "--ray", "local")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("embed", "cat", "--ray", "local"), "--ray"),
        (("embed", "--input", "in.parquet", "--ray", "local"), "--output"),
        (("embed", "--output", "out", "--ray", "local"), "--input"),
        ((*BASE, "--server", "http://127.0.0.1:9"), "--server"),
        ((*BASE, "--words"), "--words"),
        ((*BASE, "--vectors", "sparse"), "--vectors"),
        ((*BASE, "--top-k", "5"), "--top-k"),
        ((*BASE, "--format", "csv"), "--format"),
        ((*BASE, "--field", "text"), "--field"),
        ((*BASE, "--no-header"), "--no-header"),
        ((*BASE, "--encoding", "latin-1"), "--encoding"),
        ((*BASE, "--part-rows", "0"), "--part-rows"),
        (("embed", "cat", "--part-rows", "5"), "--part-rows"),
        (("tag", "cat", "--ray-cpus", "5"), "--ray-cpus"),
        (("classify", *BASE[1:], "--pair", "cat"), "--pair"),
        (("classify", *BASE[1:], "--text-column", "a", "--text-column", "b"), "--text-column"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], named: str) -> None:
    call(*arguments).fails(2, named)


def test_without_ray_the_hint_is_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = call("embed", "--input", str(tmp_path), "--output", str(tmp_path / "out"), "--ray", "local")
    outcome.fails(1, "not installed")
    assert " install " in outcome.err and "ray[data]" in outcome.err


def test_an_existing_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    call("embed", "--input", "in.parquet", "--output", str(tmp_path / "file"), "--ray", "local").fails(2, "a folder")
    assert (tmp_path / "file").read_text() == "precious"


def test_other_commands_have_no_such_option() -> None:
    call("answer", "who?", "--context", "Ann.", "--ray", "local").fails(2, "--ray")
