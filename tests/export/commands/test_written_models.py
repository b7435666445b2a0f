"""`models list` shows the models that were made on this machine, and where they are."""

import json
import os
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxbert.folders.written_models import remember, written_models
from mlxbert.machine.user_folders import VARIABLE
from tests.helpers.program import Outcome, call, unprivileged

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder, which does not exist yet."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    return tmp_path / "data"


def model(folder: Path, config: str = '{"model_type": "bert"}') -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    (folder / "weights").write_bytes(bytes(1000 - len(config)))
    return folder


def folders() -> list[str]:
    return [one.folder.name for one in written_models()]


def test_a_model_is_known_by_its_folder_until_that_is_gone(tmp_path: Path, data: Path) -> None:
    assert written_models() == [] and not data.exists()
    for name in ("b", "a"):
        remember(model(tmp_path / name), "finetune classify")
    remember(tmp_path / "a", "convert")  # which has replaced it
    first, second = written_models()
    assert (first.folder, first.kind, first.family, first.bytes) == (tmp_path / "a", "convert", "bert", 1000)
    assert (second.folder.name, second.kind, second.written[:2]) == ("b", "finetune classify", "20")
    (tmp_path / "a").rename(tmp_path / "moved")
    assert folders() == ["b"]
    (tmp_path / "moved").rename(tmp_path / "a")
    assert folders() == ["b"]  # it is forgotten
    (tmp_path / "b" / "config.json").unlink()
    assert folders() == [] and not [*(data / "models").iterdir()]


def test_the_family_of_a_model_in_modules_is_that_of_its_first_module(tmp_path: Path) -> None:
    (tmp_path / "a" / "encoder").mkdir(parents=True)
    (tmp_path / "a" / "encoder" / "config.json").write_text('{"model_type": "bert"}')
    modules = tmp_path / "a" / "modules.json"
    remember(tmp_path / "a", "finetune classify")
    for content, family in (
        ('[{"path": "encoder"}, {"path": "1_Pooling"}]', "bert"),
        ('[{"path": "none"}]', None), ('[{"path": 1}]', None), ("[]", None), ("{", None),
    ):  # fmt: skip
        modules.write_text(content)
        assert [one.family for one in written_models()] == [family], content


def test_odd_and_relative_paths_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / os.fsdecode(b'a \xff\n"')
    remember(model(odd, "{"), "pretrain")
    (found,) = written_models()
    assert (found.folder, found.family) == (odd, None)
    model(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    remember("a", "pretrain")
    monkeypatch.chdir("/")
    assert {one.folder for one in written_models()} == {odd, tmp_path / "a"}


@pytest.mark.parametrize("name", ["adapter_config.json", "modules.json"])
def test_an_adapter_and_a_folder_of_modules_are_models(name: str, tmp_path: Path) -> None:
    model(tmp_path / "a", "[]").joinpath("config.json").rename(tmp_path / "a" / name)
    remember(tmp_path / "a", "finetune tag")
    assert folders() == ["a"]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"digest": "0"}'])
def test_a_damaged_entry_is_dropped(damage: str, tmp_path: Path, data: Path) -> None:
    for name in ("a", "b"):
        remember(model(tmp_path / name), "pretrain")
    next((data / "models").iterdir()).write_text(damage)
    assert len(folders()) == 1 and len([*(data / "models").iterdir()]) == 1


def test_a_model_on_a_disk_that_is_not_there_is_not_forgotten(tmp_path: Path) -> None:
    remember(model(tmp_path / "disk" / "a"), "pretrain")
    (tmp_path / "disk").rename(tmp_path / "elsewhere")
    assert folders() == []
    (tmp_path / "elsewhere").rename(tmp_path / "disk")
    assert folders() == ["a"]
    (tmp_path / "disk").chmod(0)  # or may not be looked into
    try:
        with unprivileged():
            assert folders() == []
    finally:
        (tmp_path / "disk").chmod(0o700)
    assert folders() == ["a"]


def test_a_data_folder_that_cannot_be_written_is_no_failure(tmp_path: Path, data: Path) -> None:
    data.write_text("a file")
    remember(model(tmp_path / "a"), "pretrain")
    assert written_models() == [] and data.read_text() == "a file"


def listed(*options: str, **variables: str) -> Outcome:
    outcome = call("models", "list", *options, HF_HOME=variables.pop("HF_HOME"), **variables)  # type: ignore[arg-type]
    assert (outcome.status, outcome.err) == (0, "")
    return outcome


def test_the_list_shows_folder_kind_family_size_and_date(tmp_path: Path) -> None:
    remember(model(tmp_path / "mine"), "finetune classify")
    (found,) = listed(HF_HOME=str(tmp_path / "hub")).lines
    (written,) = found["written"]
    date = written.pop("written")
    assert written == {"folder": str(tmp_path / "mine"), "kind": "finetune classify", "family": "bert", "bytes": 1000}
    table = listed("--no-json", HF_HOME=str(tmp_path / "hub"), COLUMNS="300").out
    row = next(line for line in table.split("\n") if "finetune classify" in line)
    assert str(tmp_path / "mine") in row and "1.0 kB" in row and date[:10] in row


@pytest.mark.slow
def test_every_command_that_makes_a_model_remembers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer, usual = runpy.run_path(str(ROOT / "scripts" / "fuzz_options.py")), tmp_path / "usual"
    usual.mkdir()
    fuzzer["Files"](usual).write()
    monkeypatch.chdir(tmp_path)
    expected: dict[str, Any] = {}
    given = fuzzer["usual"](usual)
    for command in fuzzer["commands"](usual):
        name, words = " ".join(command.path), dict(given[" ".join(command.path)])
        key = "folder" if name == "convert" else "output"
        if name == "convert" or name.split()[0] in ("finetune", "pretrain", "distill"):
            output = name.replace(" ", "-")
            if "dry_run" in words:
                assert call(*fuzzer["compose"](command, words | {key: [f"dry-{output}"]})).status == 0
                del words["dry_run"]
            more = {"epochs": ["1"]} if "steps" not in words and name != "convert" else {}
            assert call(*fuzzer["compose"](command, words | more | {key: [output]})).status == 0
            expected[output] = name
    assert {one.folder.name: one.kind for one in written_models()} == expected
    assert len(expected) == 10
    shutil.rmtree(tmp_path / "convert")
    (found,) = listed(HF_HOME=str(tmp_path / "hub")).lines
    assert {Path(one["folder"]).name for one in found["written"]} == {*expected} - {"convert"}
    assert json.dumps(found)
