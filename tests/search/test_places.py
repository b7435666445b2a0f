"""Which index covers a path: links, which lead elsewhere later, and roots on volumes whose server is gone."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.search import update_events
from mlxbert.search.index import open_index
from mlxbert.search.index_stores import find_index, list_indexes
from mlxbert.search.mcp import IndexTools
from tests.helpers.program import call, tiny_model


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A link to the first of two folders."""
    monkeypatch.setenv("MLXBERT_DATA", str(tmp_path / "data"))
    for name, text in (("r1", "the cat sat"), ("r2", "milk and water")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(text)
    link = tmp_path / "current"
    link.symlink_to("r1")
    return link


def lead(link: Path, target: str) -> None:
    link.unlink()
    link.symlink_to(target)


@pytest.mark.parametrize("kept", ["in the data folder", "in a file of another folder"])
def test_a_search_of_a_link_finds_what_it_leads_to_now(link: Path, tmp_path: Path, kept: str) -> None:
    given = [] if kept == "in the data folder" else ["--index", str(tmp_path / "x.db")]
    variables: dict[str, Any] = {"MLXBERT_MODEL": str(tiny_model(tmp_path / "model"))}
    if given:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "b.md").write_text("dog")
        assert call("index", str(tmp_path / "other"), *given, **variables).status == 0
    for target, text, roots in (("r1", "the cat sat", 1), ("r2", "milk and water", 2), ("r1", "the cat sat", 2)):
        lead(link, target)
        done = call("index", str(link), *given, **variables)
        assert json.loads(done.out)["files"] == (1 + roots if given else 1), done
        hits = call("search", "milk", str(link), *given, **variables).lines
        assert [hit["text"] for hit in hits] == [text]
    assert len(list_indexes()) == (0 if given else 2)


def test_an_index_of_a_link_is_that_of_the_folder_behind_it(link: Path, tmp_path: Path, model: mlxbert.Model) -> None:
    real = tmp_path / "r1"
    with open_index(paths=[link], model=model) as index:
        assert [*index.update()] and index.about.roots == (str(real),)
        for where in (f"path={real}/*", f"path={real}/a.md", "path=r1/*"):
            assert [hit.path for hit in index.search("cat", where=[where])] == [f"{real}/a.md"], where
        for under in (link, link / "a.md", real, real / "a.md"):
            assert [hit.path for hit in index.search("cat", paths=[under])] == [f"{real}/a.md"], under
        for served in (IndexTools(index), IndexTools(index, [str(link)]), IndexTools(index, [str(real)])):
            assert served.list(f"{real}/*").files == [f"{real}/a.md"] == served.list("r1/*").files
            for named in (f"{real}/a.md", "a.md", "r1/a.md"):
                assert [one.path for one in served.read(path=named).passages] == [f"{real}/a.md"], named


def test_a_folder_that_is_named_through_a_link_has_one_index(link: Path, tmp_path: Path, model: mlxbert.Model) -> None:
    with open_index(paths=[tmp_path / "r1"], model=model) as index:
        assert [*index.update()]
    (tmp_path / "above").symlink_to(tmp_path)
    for path in (link, tmp_path / "above" / "r1", tmp_path / "above" / "current" / "a.md", tmp_path / "r1"):
        assert find_index([path]) == Path(index.path), path
        with open_index(paths=[path]) as same:
            *_, done = same.update([path])
            assert isinstance(done, update_events.IndexUpdated) and done.files == 1
            assert same.about.roots == (str(tmp_path / "r1"),)
    lead(link, "r2")
    assert find_index([link]) is None


def test_a_link_in_a_folder_that_leads_out_of_it_is_not_covered_by_its_index(
    link: Path, tmp_path: Path, model: mlxbert.Model
) -> None:
    inside = tmp_path / "folder" / "link"
    inside.parent.mkdir()
    inside.symlink_to(tmp_path / "r1")
    with open_index(paths=[inside.parent], model=model) as index:
        assert [*index.update()]
    assert find_index([inside]) is None
    with open_index(paths=[inside], model=model) as other:
        assert [*other.update()] and other.about.roots == (str(tmp_path / "r1"),)
    assert find_index([inside]) == Path(other.path) == find_index([inside / "a.md"]) == find_index([tmp_path / "r1"])
    assert find_index([inside.parent]) == Path(index.path)


def test_a_link_and_a_folder_around_it_or_behind_it_are_indexed_once(
    link: Path, tmp_path: Path, model: mlxbert.Model
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.md").write_text("dog")
    inside = link.rename(folder / "link")
    lead(inside, str(tmp_path / "r1"))
    with open_index(paths=[inside, tmp_path / "r1"], model=model) as index:
        assert [*index.about.roots] == [str(tmp_path / "r1")]
        for paths, files in (([tmp_path / "r1"], 1), ([folder], 2), (None, 2), ([inside], 2), ([folder], 2)):
            *_, done = index.update(paths)
            assert isinstance(done, update_events.IndexUpdated) and done.files == files, paths
            assert [hit.path for hit in index.search("cat", mode="words")] == [f"{tmp_path}/r1/a.md"]
        assert [*index.about.roots] == [str(tmp_path / "r1"), str(folder)]


def test_a_search_asks_no_other_root_where_it_leads(
    link: Path, tmp_path: Path, model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / "a.md").write_text("dog")
    with open_index(paths=[dead], model=model) as gone:
        assert [*gone.update()]
    with open_index(tmp_path / "data" / "indexes" / "both.db", paths=[dead, link], model=model) as index:
        assert [*index.update()]
    asked, real = [], os.path.realpath

    def realpath(path: Any, **more: Any) -> str:
        asked.append(os.fspath(path))
        return real(path, **more)

    monkeypatch.setattr(os.path, "realpath", realpath)
    for path in (link, link / "a.md", link):
        assert find_index([path]) == Path(index.path)
        with open_index(paths=[path]) as index:
            assert [*index.update([path])]
            assert [hit.text for hit in index.search("cat", paths=[path], mode="words")] == ["the cat sat"]
    assert find_index([tmp_path / "r1"]) == Path(index.path)
    assert [path for path in asked if path.startswith(str(dead))] == []
