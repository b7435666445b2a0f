"""Which index covers a path: links, which lead elsewhere later, roots whose server is gone, and folders on a Mac."""

import errno
import functools
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import mlxbert
from mlxbert import mac_files
from mlxbert.durable_files import writing
from mlxbert.errors import MlxbertError
from mlxbert.mac_files import PRIVACY
from mlxbert.search import update_events
from mlxbert.search.commands.index_updates import is_hidden
from mlxbert.search.file_systems import canonical_path
from mlxbert.search.file_walk import LeftOut, WalkedFile, walk
from mlxbert.search.index import open_index
from mlxbert.search.index_stores import find_index, index_file, list_indexes
from mlxbert.search.mcp import IndexTools
from tests.helpers.indexes import build, write
from tests.helpers.mac import HIDDEN, IN_THE_CLOUD, MacDisk, decomposed, opened, refused
from tests.helpers.program import Outcome, call, tiny_model


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A link to the first of two folders."""
    monkeypatch.setenv("MLXBERT_DATA", str(tmp_path / "data"))
    write(tmp_path / "r1" / "a.md", "the cat sat")
    write(tmp_path / "r2" / "a.md", "milk and water")
    (tmp_path / "current").symlink_to("r1")
    return tmp_path / "current"


def lead(link: Path, target: str) -> None:
    link.unlink()
    link.symlink_to(target)


@pytest.mark.parametrize("kept", ["in the data folder", "in a file of another folder"])
def test_a_search_of_a_link_finds_what_it_leads_to_now(link: Path, tmp_path: Path, kept: str) -> None:
    given = [] if kept == "in the data folder" else ["--index", str(tmp_path / "x.db")]
    variables: dict[str, Any] = {"MLXBERT_MODEL": str(tiny_model(tmp_path / "model"))}
    if given:
        assert call("index", str(write(tmp_path / "other" / "b.md", "dog").parent), *given, **variables).status == 0
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


def test_a_link_out_of_a_folder_is_not_covered_by_its_index(link: Path, tmp_path: Path, model: mlxbert.Model) -> None:
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


def test_links_and_folders_around_or_behind_are_indexed_once(link: Path, tmp_path: Path, model: mlxbert.Model) -> None:
    folder = write(tmp_path / "folder" / "b.md", "dog").parent
    inside = link.rename(folder / "link")
    lead(inside, str(tmp_path / "r1"))
    with open_index(paths=[inside, tmp_path / "r1"], model=model) as index:
        assert [*index.about.roots] == [str(tmp_path / "r1")]
        for paths, files in (([tmp_path / "r1"], 1), ([folder], 2), (None, 2), ([inside], 2), ([folder], 2)):
            *_, done = index.update(paths)
            assert isinstance(done, update_events.IndexUpdated) and done.files == files, paths
            assert [hit.path for hit in index.search("cat", mode="words")] == [f"{tmp_path}/r1/a.md"]
        assert [*index.about.roots] == [str(tmp_path / "r1"), str(folder)]


def test_a_search_asks_no_other_root(
    link: Path, tmp_path: Path, model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = write(tmp_path / "dead" / "a.md", "dog").parent
    with open_index(paths=[dead], model=model) as gone:
        assert [*gone.update()]
    with open_index(tmp_path / "data" / "indexes" / "both.db", paths=[dead, link], model=model) as index:
        assert [*index.update()]
    monkeypatch.setattr(os.path, "realpath", asked := mock.Mock(side_effect=os.path.realpath))
    for path in (link, link / "a.md", link):
        assert find_index([path]) == Path(index.path)
        with open_index(paths=[path]) as index:
            assert [*index.update([path])]
            assert [hit.text for hit in index.search("cat", paths=[path], mode="words")] == ["the cat sat"]
    assert find_index([tmp_path / "r1"]) == Path(index.path)
    assert not [call for call in asked.call_args_list if os.fspath(call.args[0]).startswith(str(dead))]


PLACEHOLDERS = 200
UMLAUT = unicodedata.normalize("NFC", "Übung")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MacDisk:
    monkeypatch.setenv("MLXBERT_DATA", str(tmp_path / "data"))
    return MacDisk(tmp_path / "disk", monkeypatch)


@pytest.fixture
def home(disk: MacDisk) -> Path:
    """A home folder as on a Mac with iCloud Drive."""
    home = disk.folder / "Users" / "me"
    for name in (
        *("Documents/letter.md", "Documents/old/will.md", f"Documents/{decomposed(UMLAUT)}.md", "code/a.py"),
        *("Documents/._letter.md", "Documents/.DS_Store", "Documents/Icon\r"),
        *("Library/Mail/mail.txt", "Library/Caches/x/y.txt"),
        *("Applications/Chess.app/Contents/Info.plist", "Pictures/Photos Library.photoslibrary/database/a.txt"),
        *("Documents/report.pages/index.xml", "code/App.xcodeproj/project.pbxproj", "Documents/diary.textbundle/a.md"),
        *("Documents/old/hidden.txt", "Documents/evicted/a.md", "code/app.py", "code/.gitignore"),
    ):
        write(home / name)
    write(home / "code" / ".gitignore", "*.pyc\n")
    first = write(home / "Movies" / "first.md", "")
    disk.flag(first, IN_THE_CLOUD)
    for number in range(1, PLACEHOLDERS):
        path = home / "Movies" / f"{number}.{('mov', 'md', 'pdf', 'zip')[number % 4]}"
        os.link(first, path)
        disk.flag(path, IN_THE_CLOUD)
    disk.flag(home / "Library", HIDDEN)
    disk.flag(home / "Documents" / "old" / "hidden.txt", HIDDEN)
    disk.flag(home / "Documents" / "evicted", IN_THE_CLOUD)
    return home


READ = ["Documents/diary.textbundle/a.md", "Documents/letter.md", "Documents/old/will.md", "code/a.py", "code/app.py"]
LEFT_OUT = {"in the cloud": PLACEHOLDERS + 1, "hidden": 6, "package": 4}


def commands(folder: Path) -> Callable[..., Outcome]:
    model = str(tiny_model(folder / "model"))
    return lambda *given: call(*map(str, given), MLXBERT_MODEL=model)


def test_a_home_folder_is_walked_without_what_is_in_the_cloud_hidden_or_packed(home: Path) -> None:
    with opened() as touched:
        found = [*walk([home])]
    read = [one.path for one in found if isinstance(one, WalkedFile)]
    assert {os.path.relpath(path, home) for path in read} == {*READ, f"Documents/{decomposed(UMLAUT)}.md"}
    assert Counter(one.reason for one in found if isinstance(one, LeftOut)) == LEFT_OUT
    closed = [home / name for name in ("Library", "Documents/evicted", "Applications/Chess.app")]
    assert not [path for path in touched if any(Path(path).is_relative_to(one) for one in closed)]
    assert sum(str(home / "Movies") + "/" in path for path in touched) == 0


def test_what_is_in_the_cloud_is_not_read_and_what_was_stays(home: Path, disk: MacDisk, model: mlxbert.Model) -> None:
    with opened() as touched, open_index(paths=[home], model=model) as index:
        *_, done = index.update()
        assert isinstance(done, update_events.IndexUpdated)
        assert done.files == len(READ) + 1 and done.left_out == LEFT_OUT
        assert [path for path in touched if "/Movies/" in path] == []
        for name in ("Documents/letter.md", "Documents/old"):
            disk.flag(home / name, IN_THE_CLOUD)
        os.utime(home / "Documents" / "letter.md")  # an eviction may change its time
        happened = [*index.update()]
        assert [(one.changed, one.removed) for one in happened if isinstance(one, update_events.Scanned)] == [(0, 0)]
        assert isinstance(happened[-1], update_events.IndexUpdated) and happened[-1].files == len(READ) + 1
        letter = home / "Documents" / "letter.md"
        disk.flag(letter, 0)
        assert not [one for one in index.update() if isinstance(one, update_events.FileIndexed)]  # it is the same
        letter.unlink()
        assert [one.path for one in index.update() if isinstance(one, update_events.FileRemoved)] == [str(letter)]
    assert [path for path in touched if "/Movies/" in path] == []


def test_a_path_that_is_named_is_walked_unless_that_downloads_it(home: Path, disk: MacDisk) -> None:
    def of(name: str) -> list[tuple[str, str]]:
        found = walk([home / name])
        return [(os.path.relpath(one.path, home), getattr(one, "reason", "")) for one in found]

    assert of("Library/Mail") == [("Library/Mail/mail.txt", "")]
    assert len(of("Library")) == 2 and of("Applications/Chess.app") != []
    assert of("Documents/old/hidden.txt") == [("Documents/old/hidden.txt", "")]
    assert of("Documents/evicted") == [("Documents/evicted/a.md", "")]
    assert of("Movies/1.md") == [("Movies/1.md", "in the cloud")]
    disk.flag(home / "code" / ".gitignore", IN_THE_CLOUD)
    with opened() as touched:
        assert [name for name, reason in of("code") if not reason] == ["code/a.py", "code/app.py"]
    assert str(home / "code" / ".gitignore") not in touched


def test_the_command_says_what_was_left_out_and_how_to_get_it(home: Path, disk: MacDisk, tmp_path: Path) -> None:
    run = commands(tmp_path)
    outcome = run("index", str(home))
    assert outcome.status == 0 and json.loads(outcome.out)["files"] == len(READ) + 1
    assert "left out: 201 in the cloud, 6 hidden, 4 packages; --verbose lists the paths" in outcome.err
    assert "in the cloud are not downloaded; choose 'Download Now' in the Finder" in outcome.err
    only = run("index", str(home / "Movies"), "--index", str(tmp_path / "x.db"))
    assert only.status == 1 and "no file could be read" in only.err and "all files are in the cloud" in only.err
    disk.denied.add(str(home / "Documents"))
    denied = run("index", str(home / "Documents"), "--index", str(tmp_path / "y.db"))
    assert denied.status == 1 and PRIVACY in denied.err.replace("\n", " ")
    below = run("index", str(home), "--index", str(tmp_path / "v.db"))
    assert below.status == 0 and "Documents: cannot be read; System Settings > Privacy & Security" in below.err
    disk.closed.add(str(home / "Applications"))
    closed = run("index", str(home / "Applications"), "--index", str(tmp_path / "w.db"))
    assert closed.status == 1 and "--verbose lists what was left out, and why" in closed.err
    assert PRIVACY not in closed.err.replace("\n", " ")
    assert [*walk([home / "Applications"])] == [LeftOut(str(home / "Applications"), "no permission")]
    assert [*walk([home / "Documents"])] == [LeftOut(str(home / "Documents"), "forbidden by macOS")]
    both = run("index", str(home / "Documents"), str(home / "code"), "--index", str(tmp_path / "z.db"))
    assert both.status == 0 and "Documents: cannot be read; System Settings > Privacy & Security" in both.err
    old = run("search", "cat", str(home / "Documents"))  # of the first index: nothing is lost, and nothing is silent
    assert old.lines and "Documents: cannot be read; System Settings > Privacy & Security" in old.err
    assert "cannot be read" not in run("search", "cat", str(home / "code")).err


def test_what_macos_forbids_to_write_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for on_mac, number, hint in ((True, 1, PRIVACY), (True, 13, None), (False, 1, None)):
        monkeypatch.setattr(mac_files, "_ON_MAC", on_mac)
        with pytest.raises(MlxbertError, match="cannot be written") as problem, writing(tmp_path):
            raise PermissionError(number, "no")
        assert problem.value.hint == hint


@pytest.mark.parametrize(
    "on_mac, number, said",
    [(True, errno.EPERM, True), (True, errno.EACCES, False), (False, errno.EPERM, False)],
)
def test_what_macos_forbids_to_read_is_said(
    on_mac: bool, number: int, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mac_files, "_ON_MAC", on_mac)
    folder, texts, table = tmp_path / "model", write(tmp_path / "texts.txt"), write(tmp_path / "texts.csv", "text\na\n")
    tiny_model(folder)
    for path, arguments in (
        (texts, ("embed", "--input", str(texts))),
        (folder / "vocab.txt", ("embed", "a", "--model", str(folder))),
        (folder / "config.json", ("inspect", str(folder))),
        (folder / "model.safetensors", ("embed", "a", "--model", str(folder))),
        (texts, ("answer", "a", "--context-file", str(texts), "--model", str(folder))),
        (table, ("finetune", "classify", "--train", str(table), "--model", str(folder), "--output", f"{folder}-2")),
    ):
        with refused(path, number):
            outcome = call(*arguments)
        assert outcome.status and os.strerror(number) in outcome.err, arguments
        assert (PRIVACY in " ".join(outcome.err.split())) == said, (arguments, outcome.err)


def test_changes_in_a_folder_that_no_update_enters_do_not_start_one(home: Path) -> None:
    roots = [str(home)]
    for name in ("Library/Caches/x/y.txt", "Applications/Chess.app/Contents/Info.plist", "Documents/evicted/a.md"):
        assert is_hidden(str(home / name), roots), name
        assert not is_hidden(str(home / name), [*roots, str((home / name).parent)]), name
    for name in ("Documents/letter.md", "Documents/gone/x.md", "Movies/1.md", "code/.gitignore"):
        assert not is_hidden(str(home / name), roots), name
    assert not is_hidden(f"{home}2/.x/a", [str(home), f"{home}2/.x"])


@pytest.fixture
def notes(disk: MacDisk, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files; a link leads to it, and one to a folder above it."""
    notes = disk.folder / "private" / "tmp" / decomposed(f"{UMLAUT} Notes")
    write(notes / decomposed("Größe.md"), "the dog sat")
    write(notes / "Sub" / "b.txt", "milk and water")
    (disk.folder / "tmp").symlink_to("private/tmp")
    (disk.folder / "link").symlink_to(notes)
    monkeypatch.chdir(notes)
    return notes


def spellings(notes: Path, disk: MacDisk) -> list[str]:
    composed = unicodedata.normalize("NFC", str(notes))
    return [
        str(notes), composed, composed.upper().replace(str(disk.folder).upper(), str(disk.folder)),
        f"{disk.folder}/TMP/{notes.name.lower()}", f"{disk.folder}/link/", ".", f"{notes}/SUB/..",
    ]  # fmt: skip


def test_a_folder_under_many_spellings_has_one_index(notes: Path, disk: MacDisk, model: mlxbert.Model) -> None:
    embedded = []
    for spelling in spellings(notes, disk):
        assert canonical_path(spelling) == str(notes), spelling
        with open_index(paths=[spelling], model=model) as index:
            *_, done = index.update([spelling])
            assert isinstance(done, update_events.IndexUpdated)
            embedded.append(done.embedded)
            assert index.about.roots == (str(notes),)
            assert len(index.search("dog", paths=[spelling])) == 2
            assert len(index.search("dog", paths=[f"{spelling}/sub", f"{spelling}/nothing"])) == 1
            assert len(IndexTools(index, [spelling]).list().files) == 2
    assert embedded == [2] + [0] * 6 and len(list_indexes()) == 1
    named = {index_file([spelling]) for spelling in spellings(notes, disk)}
    assert len(named) == 1 and str(named.pop().name).startswith(f"{UMLAUT}-Notes-")


def test_only_folders_are_opened_for_a_spelling(notes: Path, disk: MacDisk) -> None:
    with opened() as touched:
        assert canonical_path(f"{disk.folder}/TMP/{notes.name}/SUB/B.TXT") == str(notes / "Sub" / "b.txt")
        assert canonical_path(notes / "new" / "X") == str(notes / "new" / "X")
    assert not [path for path in touched if path.lower().endswith(".txt")]
    disk.denied.add(str(notes))
    assert canonical_path(str(notes).upper().replace(str(disk.folder).upper(), str(disk.folder))) == str(notes)


def test_the_commands_know_every_spelling(notes: Path, disk: MacDisk, tmp_path: Path) -> None:
    run = commands(tmp_path)
    for spelling in spellings(notes, disk)[2:5]:
        outcome = run("index", spelling)
        assert outcome.status == 0 and json.loads(outcome.out)["files"] == 2, outcome
        assert json.loads(run("indexes", "show", spelling).out)["covers"] == [str(notes)]
    moved = notes.with_name("Archive")
    notes.rename(moved)
    outcome = run("indexes", "move", str(notes), str(moved).replace("Archive", "archive"))
    assert outcome.status == 0 and json.loads(outcome.out)["covers"] == [str(moved)], outcome
    removed = run("indexes", "remove", f"{disk.folder}/tmp/ARCHIVE", "--yes")
    assert removed.status == 0 and list_indexes() == []


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_filters_and_assistants_find_names_in_either_form(form: Any, tmp_path: Path, model: mlxbert.Model) -> None:
    spelled = functools.partial(unicodedata.normalize, form)
    folder = tmp_path / decomposed("Prüfung")
    path = str(write(folder / decomposed(f"{UMLAUT}.md"), f"---\ntitle: {decomposed('Käse')}\n---\nthe dog sat"))
    write(folder / "plain.md", "milk and water")
    with build(tmp_path / "index.db", folder, model) as twins:
        for where in ("path=*Übung*", "path=?bung.md", "path=*/[ÜX]bung.md", "path=Prüfung/?bung.md"):
            assert [hit.path for hit in twins.search("dog", where=[spelled(where)])] == [path], where
        assert [hit.path for hit in twins.search("dog", where={"path": spelled(path)})] == [path]
        assert len(twins.search("dog", where=[spelled("path!=*Übung*")])) == 1
        for under, count in ((str(tmp_path / "Prüfung"), 2), (path, 1), (str(tmp_path / "Prüfung" / "Ü"), 0)):
            assert len(twins.search("dog", paths=[spelled(under)])) == count, under
        for served in (IndexTools(twins), IndexTools(twins, [str(tmp_path / decomposed("Prüfung"))])):
            assert served.list(spelled("*Übung*")).files == [path]
            assert served.list(spelled("Prüfung/*")).total == 2
            for named in (path, f"{UMLAUT}.md", f"Prüfung/{UMLAUT}.md"):
                assert served.read(path=spelled(named)).passages[0].path == path, named
                assert [one.path for one in served.search("dog", paths=[spelled(named)]).passages] == [path]


def test_two_files_whose_names_differ_in_form_alone_are_two(tmp_path: Path, model: mlxbert.Model) -> None:
    forms: tuple[Any, ...] = ("NFC", "NFD")
    for form in forms:
        write(tmp_path / "x" / unicodedata.normalize(form, "é") / "a.md", f"dog {form}")
    if len(os.listdir(tmp_path / "x")) == 1:
        pytest.skip("this disk takes them for one")
    with build(tmp_path / "index.db", tmp_path / "x", model) as index:
        for form in forms:
            path = str(tmp_path / "x" / unicodedata.normalize(form, "é"))
            assert [hit.text for hit in index.search("dog", paths=[path])] == [f"dog {form}"]
            served = IndexTools(index, [path])
            assert [one.text for one in served.search("dog").passages] == [f"dog {form}"]
            assert [one.text for one in served.read(path=f"{path}/a.md").passages] == [f"dog {form}"]


def test_a_link_on_a_mac_leads_to_the_name_on_disk(notes: Path, disk: MacDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    link, real = disk.folder / "private" / "tmp" / "Current", disk.folder / "Old"
    write(real / "Sub" / "a.md", "the dog sat")
    link.symlink_to(real)
    read = os.readlink  # whoever made the link wrote another case
    monkeypatch.setattr(os, "readlink", lambda *given, **more: read(*given, **more).replace("/Old", "/OLD"))
    for spelling, wanted in (
        (f"{disk.folder}/TMP/current", real),
        (f"{disk.folder}/tmp/CURRENT/SUB/A.MD", real / "Sub" / "a.md"),
        (f"{disk.folder}/TMP", disk.folder / "private" / "tmp"),
        (f"{disk.folder}/TMP/new/X", disk.folder / "private" / "tmp" / "new" / "X"),
        (f"{disk.folder}/LINK/sub", notes / "Sub"),
    ):
        assert canonical_path(spelling) == str(wanted), spelling
