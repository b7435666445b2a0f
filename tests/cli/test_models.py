"""The models on this machine: listed, fetched, found, removed."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.apple_double import plant
from tests.helpers.cases import together
from tests.helpers.fake_hub import FakeHub, call_with_hub, files_of, serve, terminal_with_hub
from tests.helpers.program import WITHOUT_PRIVILEGES, Outcome, command, environment, process, tiny_model
from tests.helpers.screen import Screen

pytestmark = pytest.mark.slow

NAME = "org/tiny"
OTHER = "org/copy"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A hub with a model of two versions, and a copy of it that has the same commits."""
    files = files_of(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    with serve() as hub:
        for name in (NAME, OTHER):
            hub.add(name, files).commit(files | {"added_tokens.json": b"{}"}, "v2")
        yield hub


@pytest.fixture
def variables(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    found = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    return found | {"HF_TOKEN": "", "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}


def run(variables: dict[str, str], *arguments: str) -> Outcome:
    return call_with_hub("models", *arguments, **variables)


def listed(variables: dict[str, str]) -> dict[str, Any]:
    """The hub models that `models list` shows, by name."""
    outcome = run(variables, "list")
    assert (outcome.status, outcome.err) == (0, "")
    (found,) = outcome.lines
    assert list(found) == ["cache", "models", "written"] and found["models"][0]["name"] == "builtin"
    assert found["cache"] == f"{variables['HF_HOME']}/hub"
    return {model["name"]: model for model in found["models"][1:]}


def folder(variables: dict[str, str], hub: FakeHub, revision: str = "main", name: str = NAME) -> Path:
    commit = hub.repositories[name].references[revision]
    return Path(variables["HF_HOME"]) / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / commit


def test_the_cache_is_listed_with_names_sizes_and_whether_all_is_there(variables: dict[str, str], hub: FakeHub) -> None:
    assert listed(variables) == {}
    for revision in ([], ["--revision", "v2"]):
        assert run(variables, "download", NAME, *revision).status == 0
    (found,) = listed(variables).values()
    assert list(found) == ["name", "family", "bytes", "folder", "revisions"]
    assert (found["name"], found["family"]) == (NAME, "bert")
    files = hub.repositories[NAME].commits[hub.repositories[NAME].references["v2"]]
    assert found["bytes"] == sum(map(len, files.values()))  # files of both versions are counted once
    revisions = {name: (one["folder"], one["complete"]) for one in found["revisions"] for name in one["names"]}
    assert revisions == {name: (str(folder(variables, hub, name)), True) for name in ("main", "v2")}
    (folder(variables, hub, "v2") / "vocab.txt").unlink()
    for path in Path(found["folder"]).glob(f"trees/{folder(variables, hub).name}.json"):
        path.unlink()
    complete = {tuple(each["names"]): each["complete"] for each in listed(variables)[NAME]["revisions"]}
    assert complete == {("main",): None, ("v2",): False}
    _, shown = terminal_with_hub("models", "list", **variables, NO_COLOR="1", COLUMNS="200")
    rows = [line.split() for line in shown.split("\n") if line.startswith(NAME)]
    assert sorted(row[4:] for row in rows) == [["main", "not", "known"], ["v2", "no"]]


def test_what_is_no_model_is_not_listed(variables: dict[str, str]) -> None:
    cache = Path(variables["HF_HOME"]) / "hub"
    for path in ("models--a--b/snapshots/x/config.json", "models--c/refs/main", "datasets--d--e/x", "models--", "x"):
        (cache / path).parent.mkdir(parents=True, exist_ok=True)
        (cache / path).write_text("{", encoding="utf-8")
    commit = cache / "models--f--g" / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True)
    (commit / "config.json").write_text("{", encoding="utf-8")
    assert listed(variables) == {}


def test_download_prints_the_folder_and_fetches_the_newest(variables: dict[str, str], hub: FakeHub) -> None:
    repository = hub.add("org/moving", hub.repositories[NAME].commits[hub.repositories[NAME].references["main"]])
    first = run(variables, "download", "org/moving")
    assert first.out == f"{folder(variables, hub, name='org/moving')}\n"
    assert first.err.startswith("note: downloading org/moving (")
    commit = repository.commit(repository.commits[repository.references["main"]] | {"added_tokens.json": b"{ }"})
    assert run(variables, "path", "org/moving").out == first.out
    hub.forget()
    second = run(variables, "download", "org/moving")
    assert second.out == f"{folder(variables, hub, name='org/moving')}\n" and commit in second.out
    assert hub.fetched() == {"added_tokens.json"}
    assert run(variables, "path", "org/moving").out == second.out
    assert run(variables, "download", "org/moving").err == ""
    variables["HF_HUB_OFFLINE"] = "1"
    run(variables, "download", "org/moving").fails(1, "offline", "hint: unset HF_HUB_OFFLINE")


def verified(variables: dict[str, str], *arguments: str, status: int) -> list[dict[str, Any]]:
    outcome = run(variables, "verify", *arguments)
    assert outcome.status == status and outcome.lines[0]["cache"] == f"{variables['HF_HOME']}/hub", outcome
    models: list[dict[str, Any]] = outcome.lines[0]["models"]
    return models


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_damaged_file_is_found_and_replaced(variables: dict[str, str], hub: FakeHub, file: str) -> None:
    for name, revision in ((NAME, "main"), (NAME, "v2"), (OTHER, "main")):
        assert run(variables, "download", name, "--revision", revision).status == 0
    whole = verified(variables, status=0)
    names = sorted((model["name"], *model["names"]) for model in whole)
    assert names == [(OTHER, "main"), (NAME, "main"), (NAME, "v2")]
    assert {tuple(model["unknown"]) for model in whole} == {()}
    path = folder(variables, hub) / file
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    right = path.resolve().name
    for model in verified(variables, NAME, status=1):  # the versions share the file
        assert list(model["damaged"]) == [file] and right in model["damaged"][file]
    (model,) = verified(variables, NAME, "--revision", "main", status=1)
    wrong = model["damaged"][file].split()[3].strip(",")
    assert len(wrong) == len(right) and wrong != right and file not in model["missing"]
    assert verified(variables, OTHER, status=0)
    hub.forget()
    outcome = run(variables, "download", NAME)
    assert outcome.status == 0 and wrong in outcome.err and right in outcome.err
    assert hub.fetched() == {file}
    assert path.read_bytes() == data
    assert [model["damaged"] for model in verified(variables, status=0)] == [{}, {}, {}]


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_loading_notices_a_file_of_another_size(variables: dict[str, str], hub: FakeHub, file: str) -> None:
    fill = ("fill-mask", "the [MASK]", "--model", NAME)
    first = call_with_hub(*fill, **variables)
    assert first.status == 0
    path = folder(variables, hub) / file
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    if file != "config.json":  # a model without a readable configuration is not listed
        assert [revision["complete"] for revision in listed(variables)[NAME]["revisions"]] == [False]
    offline = call_with_hub(*fill, "--offline", **variables)
    offline.fails(1, file, f"`mlxbert models download {NAME}`")
    again = call_with_hub(*fill, **variables)
    assert (again.status, again.out) == (0, first.out)
    assert f"{len(data) - 10:,} bytes, expected {len(data):,}" in again.err
    assert path.read_bytes() == data


def test_what_is_missing_or_has_no_known_hash_is_told(variables: dict[str, str], hub: FakeHub) -> None:
    assert verified(variables, status=0) == []
    run(variables, "verify", NAME).fails(1, "not in the cache")
    assert run(variables, "download", NAME).status == 0
    run(variables, "verify", NAME, "--revision", "v2").fails(1, "not in the cache", "'v2'")
    run(variables, "verify", "--revision", "main").fails(2, "no model")
    snapshot = folder(variables, hub)
    (snapshot / "vocab.txt").unlink()
    (snapshot / "own.txt").write_text("x", encoding="utf-8")
    (model,) = verified(variables, NAME, status=1)
    assert (model["missing"], model["damaged"], model["unknown"]) == (["vocab.txt"], {}, ["own.txt"])
    assert model["checked"] == ["config.json", "model.safetensors"]
    _, shown = terminal_with_hub("models", "verify", **variables, NO_COLOR="1", COLUMNS="200")
    assert "is missing" in shown and "vocab.txt" in shown


def test_a_terminal_shows_a_bar_while_a_model_arrives(variables: dict[str, str]) -> None:
    outcome, shown = terminal_with_hub("models", "download", NAME, on=["stderr"], **variables)
    assert outcome.status == 0
    assert re.search(r"100% +31\.\d/31\.\d kB", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
    assert shown.count("note:") == 1 and "downloading org/tiny" in shown


def test_path_never_downloads(variables: dict[str, str], hub: FakeHub) -> None:
    hub.forget()
    outcome = run(variables, "path", NAME)
    outcome.fails(1, f"{NAME}", "cache", "hint: ", f"`mlxbert models download {NAME}`")
    run(variables, "path", NAME, "--revision", "v2").fails(1, "--revision v2`")
    assert hub.requests == []
    assert run(variables, "download", NAME).status == 0
    assert run(variables, "path", NAME).out == f"{folder(variables, hub)}\n"


def test_remove_takes_one_version_or_all_and_leaves_other_models(variables: dict[str, str], hub: FakeHub) -> None:
    for name in (NAME, OTHER):
        for revision in ("main", "v2"):
            assert run(variables, "download", name, "--revision", revision).status == 0
    outcome = run(variables, "remove", NAME, "--revision", "v2", "--yes")
    (found,) = outcome.lines
    commit = hub.repositories[NAME].references["v2"]
    assert found == {"name": NAME, "revisions": [commit], "folder": str(folder(variables, hub, "v2")), "bytes": 2}
    assert outcome.err == "note: 2 bytes freed\n"
    assert not folder(variables, hub, "v2").exists()
    assert run(variables, "path", NAME).status == 0  # the files that the versions shared are still there
    assert (run(variables, "remove", NAME, "--yes").status, list(listed(variables))) == (0, [OTHER])
    assert not folder(variables, hub).parents[1].exists()
    assert [revision["complete"] for revision in listed(variables)[OTHER]["revisions"]] == [True, True]
    run(variables, "remove", NAME, "--yes").fails(1, "not in the cache", "hint: `mlxbert models list`")
    run(variables, "remove", OTHER, "--revision", "v3", "--yes").fails(1, "cache", "'v3'")


def test_remove_finds_a_model_by_a_name_in_another_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a volume that ignores case, where the folder of `baai/bge` is that of `BAAI/bge`; with files `._x` in it."""
    from mlxbert.weights.hub import cache
    from mlxbert.weights.hub.download import Removal

    hub, commit = tmp_path / "hub", "0" * 40
    folders = [hub / f"models--{name}" for name in ("BAAI--bge", "another--bge")]
    for folder in folders:
        for name, content in ((f"snapshots/{commit}/config.json", "{}"), ("refs/main", commit)):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(content)
    (tmp_path / "models--baai--bge").symlink_to(folders[0])
    plant(folders[0])
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(cache, "repository_folder", lambda name: tmp_path / f"models--{name.replace('/', '--')}")
    planted = sorted(folders[0].rglob("._*"))
    removal = Removal("baai/bge", None)
    assert removal.commits == [commit] and removal.size == 2
    assert planted and sorted(folders[0].rglob("._*")) == planted  # nobody has said yes
    removal.execute()
    assert [*hub.glob("models--*")] == [folders[1]]


def test_what_a_removal_frees_is_the_same_beside_files_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.weights.hub.download import Removal

    repository, commits = tmp_path / "models--a--b", ["0" * 40, "1" * 40]
    (repository / "blobs").mkdir(parents=True)
    for name, size, sharing in (("one", 1, commits[:1]), ("two", 20, commits[1:]), ("both", 300, commits)):
        (repository / "blobs" / name).write_bytes(bytes(size))
        for commit in sharing:
            (repository / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
            (repository / "snapshots" / commit / name).symlink_to(f"../../blobs/{name}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for planted in (False, True):
        if planted:
            plant(repository)
        for revision, size in (*zip(commits, (1, 20), strict=True), (None, 321)):
            assert Removal("a/b", revision).size == size
    one = Removal("a/b", commits[0])
    assert one.folder == repository / "snapshots" / commits[0]
    one.execute()
    assert [path.name for path in (repository / "snapshots").iterdir()] == commits[1:]
    assert not (repository / "blobs/one").exists() and (repository / "blobs/both").exists()
    whole = Removal("a/b", None)
    assert whole.folder == repository
    whole.execute()
    assert not repository.exists()


@pytest.mark.parametrize("answer", ["y", "n", "\x04"])
def test_remove_asks_at_a_terminal(variables: dict[str, str], hub: FakeHub, answer: str) -> None:
    assert run(variables, "download", NAME).status == 0
    run(variables, "remove", NAME).fails(2, "31.3 kB", "hint: --yes")  # there is nobody to ask
    assert folder(variables, hub).exists()
    with Screen() as screen:
        running = subprocess.Popen(
            command("models", "remove", NAME), env=environment(**variables, TERM="xterm", NO_COLOR="1", COLUMNS="200"),
            stdin=screen.inner, stderr=screen.inner, stdout=subprocess.PIPE,
        )  # fmt: skip
        screen.wait_for(b"remove it? [y/N]: ")
        screen.type(answer.encode() + (b"\n" if answer != "\x04" else b""))
        out, _ = running.communicate(timeout=60)
        shown = screen.shown()
    assert b"31.3 kB" in shown and str(folder(variables, hub).parents[1]).encode() in shown
    assert folder(variables, hub).exists() == (answer != "y")
    assert bool(out) == (answer == "y")
    assert running.returncode == 0


@together("what", ["download", "verify", "path", "remove"])
def test_the_builtin_model_and_folders_are_not_in_the_cache(
    variables: dict[str, str], tmp_path: Path, what: str
) -> None:
    run(variables, what, "builtin").fails(2, "built-in model")
    run(variables, what, str(tmp_path)).fails(2, "is a folder", "hint: ")
    run(variables, what, str(tmp_path / "none")).fails(1, "no such folder")
    run(variables, what, NAME, "--revision", "../..").fails(2, "expected a branch, a tag or a commit")


def test_a_cache_that_may_not_be_changed_keeps_its_models(variables: dict[str, str], hub: FakeHub) -> None:
    assert run(variables, "download", NAME).status == 0
    cache = Path(variables["HF_HOME"]) / "hub"
    folders = [path for path in (cache, *cache.rglob("*")) if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    outcome = process("models", "remove", NAME, "--yes", prelude=WITHOUT_PRIVILEGES, **variables)  # type: ignore[arg-type]
    for path in folders:
        path.chmod(0o755)
    outcome.fails(1, "cannot be removed", "hint: ")
    assert folder(variables, hub).exists()
