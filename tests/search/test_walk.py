"""Folders walked: what git ignores, links, names of every kind; and files that become something else meanwhile."""

import os
import random
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest import mock

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.search import update_events
from mlxbert.search.documents import table_documents
from mlxbert.search.file_walk import _COSTS, LeftOut, WalkedFile, WalkOptions, _stars, naming_of, walk
from mlxbert.search.index import Index, open_index
from tests.helpers.cases import together

ALL = WalkOptions()


def tree(folder: Path, *names: str, **ignores: str) -> Path:
    """A folder with files; a name that ends with a slash is a folder. `ignores` are .gitignore files by folder."""
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text("text")
    for name, text in ignores.items():
        (folder / name.strip("_") / ".gitignore").write_text(text)
    return folder


def found(paths: Path | Iterable[Path], options: WalkOptions = ALL, under: Path | None = None) -> list[str]:
    """The files of a walk, relative to the first path."""
    paths = [paths] if isinstance(paths, Path) else [*paths]
    files = (one.path for one in walk(paths, options) if isinstance(one, WalkedFile))
    return [os.path.relpath(path, under or paths[0]) for path in files]


def left_out(path: Path, options: WalkOptions = ALL) -> dict[str, str]:
    return {os.path.relpath(one.path, path): one.reason for one in walk([path], options) if isinstance(one, LeftOut)}


def test_files_are_sorted_with_absolute_paths_sizes_and_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "b", "a/2", "a/10", "c/d/e", "empty/")
    later = time.time_ns() + 10**12
    os.utime(tmp_path / "b", ns=(7, later))
    files = [*walk([tmp_path])]
    assert [os.path.relpath(one.path, tmp_path) for one in files] == ["a/10", "a/2", "b", "c/d/e"]
    assert files[2] == WalkedFile(str(tmp_path / "b"), 4, later, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for given in ("c", "./c/", "c/../c", Path("c"), "c/d/e"):
        assert [one.path for one in walk([given])] == [str(tmp_path / "c/d/e")]


# (files, .gitignore files by folder, what is found)
GIT = [
    (["a.log", "b/a.log", "b/c"], {"_": "*.log"}, ["b/c"]),
    (["a.log", "keep.log"], {"_": "*.log\n!keep.log"}, ["keep.log"]),
    (["a", "b/a", "b/c/a"], {"_": "/a\nb/c/a"}, ["b/a"]),
    (["out", "b/out/x", "out2"], {"_": "out/"}, ["out", "out2"]),
    (["b/c/x", "b/keep"], {"_": "b/*\n!b/keep"}, ["b/keep"]),
    (["b/x", "b/keep"], {"_": "b/\n!b/keep"}, []),  # what is in a folder that is ignored cannot be taken back
    (["a.log", "b/a.log", "c/a.log"], {"_": "*.log", "b": "!a.log"}, ["b/a.log"]),
    (["x", "b/x", "b/c/x"], {"b": "/x"}, ["b/c/x", "x"]),
    (["a/z", "a/b/z", "a/b/c/z", "z"], {"_": "a/**/z"}, ["z"]),
    (["a/b", "a/c/d", "x/a/b"], {"_": "a/**"}, ["x/a/b"]),
    (["a/b", "a/c"], {"_": "a/**\n!a/b"}, ["a/b"]),
    (["a/b", "a/c/d", "b"], {"_": "a/**/"}, ["a/b", "b"]),
    (["a/b", "b"], {"_": "*/"}, ["b"]),
    (["a/b", "b"], {"_": "**/"}, ["b"]),
    (["a/b", "b"], {"_": "/**/"}, ["b"]),
    (["a/b", "b"], {"_": "/**\n!a"}, []),
    (["a/b", "a/b.log", "c"], {"_": "a/*.log", "a": "/*\n!/b"}, ["a/b", "c"]),
    (["a/b/x", "a/b/x.log", "a/c"], {"_": "*.log", "a": "/*\n!/b"}, ["a/b/x"]),  # `!/b` does not match what is in `b`
    (["foo/x", "foo/x.log"], {"_": "!foo/\n*.log\n!foo/"}, ["foo/x"]),
    (["#a", "!a", "b ", "b", "c"], {"_": "\\#a\n\\!a\nb\\ \n#c\n\nc   "}, ["b"]),
    (["a.pyc", "a.pyo", "a.pyx"], {"_": "*.py[!x]\r\n"}, ["a.pyx"]),
    (["a", "b"], {"_": "\ufeffa\n!\nx\\\n[z-a]\n/\n"}, ["b"]),  # lines that git cannot read
    (["x\ny", "x", "x\n", "a\nb/x"], {"_": "/x"}, ["a\nb/x", "x\n", "x\ny"]),
]


@pytest.mark.parametrize(("names", "ignores", "expected"), GIT)
def test_what_git_ignores_is_left_out(
    tmp_path: Path, names: list[str], ignores: dict[str, str], expected: list[str]
) -> None:
    assert found(tree(tmp_path, *names, **ignores)) == expected
    assert {reason for name, reason in left_out(tmp_path).items() if ".gitignore" not in name} <= {"ignored"}


def test_rules_above_count_up_to_the_folder_of_git(tmp_path: Path) -> None:
    tree(tmp_path, "a/b/x.log", "a/b/x.tmp", "a/b/x", _="*.tmp", a="*.log")
    assert found(tmp_path / "a/b") == ["x", "x.log", "x.tmp"]  # no checkout
    (tmp_path / "a/.git").mkdir()
    assert found(tmp_path / "a/b") == ["x", "x.tmp"]
    assert found(tmp_path) == ["a/b/x", "a/b/x.tmp"]  # a checkout in another folder has rules of its own
    (tmp_path / "a/.git").rmdir()
    (tmp_path / ".git").write_text("gitdir: elsewhere")  # of a worktree
    assert found(tmp_path / "a/b") == ["x"]


CONFIG = '[user]\n\tname = x\n[core]\n\tbare = false\n\t{} = {} ; why\n[core "x"]\n\t{} = other\n'


@together(
    ("value", "ignores"),
    [("true", True), ("TRUE", True), ("yes", True), ("1", True), ("false", False), ("0", False), ("odd", False)],
)
def test_names_are_compared_as_the_repository_says(tmp_path: Path, value: str, ignores: bool) -> None:
    rules = f"*.log\n/Build/\n{unicodedata.normalize('NFC', 'übung')}*\nÄ"
    names = ["a.LOG", "b.log", "build/x", "sub/Build/y", unicodedata.normalize("NFD", "Übung.md"), "ä"]
    tree(tmp_path, ".git/config", *names, _=rules)
    assert found(tmp_path) == sorted({*names} - {"b.log"})
    (tmp_path / ".git/config").write_text(CONFIG.format("ignoreCase", value, "ignorecase"))
    left = {*names} - {"b.log"} - ({"a.LOG", "build/x"} if ignores else set())
    assert found(tmp_path) == sorted(left)  # of ASCII letters alone, as in git


def test_names_are_compared_in_one_unicode_form_if_the_repository_says_so(tmp_path: Path) -> None:
    name = unicodedata.normalize("NFD", "Übung")
    names = ".git/config", f"{name}/{name}.md", f"{name}/a/{name}.log", "b"
    for folder in ("mac", "other"):
        tree(tmp_path / folder, *names, _="ü\nÜbung.*\n/Übung/a")
    assert len(found(tmp_path / "other")) == 3
    (tmp_path / "mac/.git/config").write_text("[core] precomposeunicode\n")
    assert found(tmp_path / "mac") == ["b"]
    assert found(tmp_path / "mac", WalkOptions(exclude=("b",))) == []
    assert found(tmp_path / "other", WalkOptions(exclude=("Übung.md",))) == [f"{name}/a/{name}.log", "b"]


@together(
    ("text", "ignore_case"),
    [
        ("[core]\n\tignorecase = true\n", True), ('[ Core ] ; a comment\n IgnoreCase="yes" # and another\n', True),
        ("[core] ignorecase ; on without a value", True), ("[core]\nignorecase=1#", True),
        ("[core]\nignorecase=true\nignorecase=0", False), ("[core]\nignorecase = # nothing", False),
        ("[core]\n# ignorecase = true\n; ignorecase", False), ('[core "other"]\nignorecase = true', False),
        ('[core]\n[remote "a]b"]\nignorecase = true', False),
    ],
)  # fmt: skip
def test_the_configuration_of_a_repository_is_read_as_by_git(tmp_path: Path, text: str, ignore_case: bool) -> None:
    tree(tmp_path, ".git/config")
    (tmp_path / ".git" / "config").write_text(text)
    assert naming_of(str(tmp_path)).ignore_case is ignore_case


@together("start", ["", "ignorecase", "ignorecase =", "ignorecase = a", "[core", "[", "#", '[core "'])
def test_a_long_line_of_a_configuration_takes_no_time(tmp_path: Path, start: str) -> None:
    tree(tmp_path, ".git/config")
    (tmp_path / ".git" / "config").write_text(f"[core]\nignorecase = true\n{start}{' ' * 200_000}x")
    begun = time.process_time()
    naming_of(str(tmp_path))
    assert time.process_time() - begun < 1  # it was minutes


def test_a_worktree_and_a_submodule_have_the_settings_of_their_repository(tmp_path: Path) -> None:
    tree(tmp_path, "main/.git/worktrees/w/", "main/.git/modules/m/", "w/A", "m/A", "n/A", w="a", m="a", n="a")
    for folder, target in (("w", "worktrees/w"), ("m", "modules/m"), ("n", "nowhere")):
        (tmp_path / folder / ".git").write_text(f"gitdir: ../main/.git/{target}\n")
    (tmp_path / "main/.git/worktrees/w/commondir").write_text("../..\n")
    (tmp_path / "main/.git/config").write_text("[core]\n\tignorecase = true\n")
    (tmp_path / "main/.git/modules/m/config").write_text("[core]\n\tignorecase = true\n")
    assert (found(tmp_path / "w"), found(tmp_path / "m")) == ([], [])
    assert found(tmp_path / "n") == ([] if sys.platform == "darwin" else ["A"])
    (tmp_path / "n/.git").unlink()
    os.mkfifo(tmp_path / "n/.git")  # which is not waited for
    assert found(tmp_path / "n") == ([] if sys.platform == "darwin" else ["A"])


def test_a_path_that_is_given_is_walked_hidden_ignored_or_not_and_each_file_found_once(tmp_path: Path) -> None:
    tree(tmp_path, "a/b/c", "a/d", "e")
    for paths in (["a/b", "", "a"], ["", "a", "a/b"], ["a/b/c", "", "a/b/c"], ["", "a/b/c"]):
        assert sorted(found([tmp_path / path for path in paths], under=tmp_path)) == ["a/b/c", "a/d", "e"]
    root = tmp_path / "hidden"
    tree(root, ".git/", ".venv/a", ".venv/.b", "build/c", "build/d.log", "build/e", _="build/\n*.log\n/build/e")
    assert found(root) == []
    assert found(root / ".venv") == ["a"]
    assert found(root / "build") == ["c"]
    assert found([root / "build/d.log", root / ".venv/.b"], under=root) == ["build/d.log", ".venv/.b"]


def test_a_path_that_does_not_exist_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "broken").symlink_to("nowhere")
    for name in ("nothing", "broken", "nothing/below"):
        with pytest.raises(InputError, match=name) as problem:
            walk([tmp_path, tmp_path / name])
        assert problem.value.hint
    with pytest.raises(ArgumentError):
        walk(["a\0b"])


def test_options_choose_by_patterns_and_size(tmp_path: Path) -> None:
    tree(tmp_path, "a.md", "docs/b.md", "docs/c.txt", "docs/old/d.md", "vendor/e.md")
    (tmp_path / "docs/large.md").write_text("x" * 100)
    options = WalkOptions(include=("*.md", "/docs/c.*"), exclude=("vendor/", "docs/old"), max_bytes=99)
    assert found(tmp_path, options) == ["a.md", "docs/b.md", "docs/c.txt"]
    assert left_out(tmp_path, options) == {"docs/large.md": "too large", "docs/old": "excluded", "vendor": "excluded"}
    of_docs = WalkOptions(include=("docs/",))
    assert left_out(tmp_path, of_docs) == {"a.md": "not included", "vendor/e.md": "not included"}
    assert found(tmp_path, WalkOptions(include=("*", "!*.md"))) == ["docs/c.txt"]
    assert left_out(tmp_path / "a.md", WalkOptions(exclude=("*.md",))) == {".": "excluded"}
    for wrong in ("", "!", "# a"):
        with pytest.raises(ArgumentError, match="exclude"):
            walk([tmp_path], WalkOptions(exclude=(wrong,)))


def test_links(tmp_path: Path) -> None:
    tree(tmp_path, "in/z/file", "in/.store/hidden", "out/file", "out/folder/x")
    for name, target in {
        **{"a": "z/file", "b": "z/file", "c": "nowhere", "d": "../out/file", "e": "../out/folder", "f": "z"},
        **{"g": ".store/hidden", "h": ".", "i": "i", "j": "/", ".k": "z/file", "z/up": "../..", "l": "../in2/z/file"},
    }.items():
        (tmp_path / "in" / name).symlink_to(target)
    (tmp_path / "in2").symlink_to("in")
    for root in (tmp_path / "in", tmp_path / "in2"):  # a path that is a link itself
        assert found(root) == ["z/file", ".store/hidden"]
        assert left_out(root) == {
            **{".store": "hidden", ".k": "hidden", "c": "broken link", "i": "broken link"},
            **{name: "link" for name in ("d", "e", "f", "h", "j", "z/up")},
        }
    assert sorted(found([tmp_path / "in", tmp_path / "in2", tmp_path / "in2/z"])) == [".store/hidden", "z/file"]


def test_what_is_neither_file_nor_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / ".gitignore")  # which is not waited for
    pipe = LeftOut(str(tmp_path / "pipe"), "not a file")
    assert [*walk([tmp_path])] == [LeftOut(str(tmp_path / ".gitignore"), "hidden"), pipe]
    assert [*walk([tmp_path / "pipe"])] == [pipe]


def test_names_of_any_bytes(tmp_path: Path) -> None:
    names = [b"\xff\xfe.md", b"a\nb", b"\x1b[31m", "\u00e9".encode(), b"a\\b", b" "]
    try:
        for name in (*names, b"\xff.log"):
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("x")
    except OSError:
        pytest.skip("this disk takes names of Unicode only")
    (tmp_path / ".gitignore").write_bytes(b"\xff.log")
    assert sorted(os.fsencode(name) for name in found(tmp_path)) == sorted(names)


def test_folders_and_files_that_cannot_be_read_or_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "closed/x", "gone/x", "odd/x", "z/y")
    problems = {"closed": PermissionError(13, ""), "gone": FileNotFoundError(2, ""), "odd": OSError(5, "")}
    scan = os.scandir

    def scandir(path: str) -> object:
        if (problem := problems.get(os.path.basename(path))) is not None:
            raise problem
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert found(tmp_path) == ["z/y"]
    assert left_out(tmp_path) == {"closed": "no permission", "gone": "vanished", "odd": "cannot be read"}
    assert [*walk([tmp_path / "closed"])] == [LeftOut(str(tmp_path / "closed"), "no permission")]
    monkeypatch.undo()
    walked = walk([tmp_path / "closed", tmp_path / "gone", tmp_path / "z"])
    assert isinstance(next(walked), WalkedFile)
    os.remove(tmp_path / "gone/x")
    (tmp_path / "gone").rmdir()
    assert [os.path.relpath(one.path, tmp_path) for one in walked] == ["gone", "z/y"]


def test_folders_deeper_than_paths_can_say(tmp_path: Path) -> None:
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(50):
            os.mkdir("deep" * 25)
            os.chdir("deep" * 25)
    finally:
        os.chdir(here)
    (tmp_path / "x").write_text("x")
    assert found(tmp_path) == ["x"]
    assert {*left_out(tmp_path).values()} == {"cannot be read"}  # beyond the longest path of the system


def test_patterns_of_many_stars_take_no_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    many = [
        *("****?b", "**/a/**/a/**/*a/**/a/**/a/**/b", "*a*a*a*a*a*a*a*a*a*b", "*?a*?a*?a*?a*?a*?a*?a*?b"),
        *("**a**a**a**a**[bc]*[bd]*e", "/**/*a*a*a*a*a*a*a/**/x"),
    ]
    few = ["*a*a*ab", "**/a/**/a/**/*ab", "/**/a/**/*?a*?ab", "***b", "[[:alpha:]]&&[a||b]~~x"]
    deepest = "a/" * 127 + "x"
    tree(tmp_path, "a" * 250, "a" * 200 + "/" + "a" * 200, deepest, "a/" * 200 + "b", _="\n".join([*many, *few]))
    start = time.process_time()
    walked = {os.path.relpath(one.path, tmp_path): getattr(one, "reason", None) for one in walk([tmp_path])}
    assert time.process_time() - start < 3
    files = dict.fromkeys(["a" * 250, "a" * 200 + "/" + "a" * 200, deepest])
    assert walked == {**files, ".gitignore": "hidden", "a/" * 128 + "a": "too deep"}
    assert [record.args for record in caplog.records] == [(len(many), many[0])]


def test_many_and_long_patterns_take_no_time(tmp_path: Path) -> None:
    many = [f"a{number}b" for number in range(200)] + [f"*a*a*a{number}" for number in range(100)]
    rules = "\n".join([*many, *["*.log"] * 20_000, "a*" * 100_000, "!x.log"])
    names = {*(f"a{number}.c" for number in range(20)), "x.log"}
    tree(tmp_path, *(f"{'a/' * 20}a{number}.c" for number in range(20)), "a" * 150, "a7b", *("x.log", "y.log"), _=rules)
    start = time.process_time()
    assert {os.path.basename(path) for path in found(tmp_path)} == {*names, "a" * 150}
    assert time.process_time() - start < 1.5


WORDS = ["a", "b", "ab", "abc", "x.log", "x.md", "A b", "[a]", "b.d", "Cd", "Y.LOG"]
PARTS = [  # of patterns
    *("a", "b", "ab", "*", "*.log", "*.md", "**", "?", "a*", "*b*", "[ab]", "[!a]*", "\\[a\\]", "A b", "*.d", "x.*"),
    *("a**b", "[a-z]?", "b.[c-e]", "\\a", "cD", "y.log", "C*", "a B"),
]


def rules(chosen: random.Random) -> str:
    lines = []
    for _ in range(chosen.randint(1, 6)):
        parts = "/".join(chosen.choices(PARTS, k=chosen.choice([1, 1, 1, 2, 2, 3])))
        if chosen.random() < 0.2:
            parts = "/**/".join(chosen.choices(PARTS, k=chosen.randint(2, 4)))
        start, end = chosen.choice(["", "", "", "/"]), chosen.choice(["", "", "", "/", " ", "\r"])
        lines.append(f"{chosen.choice(['', '', '!'])}{start}{parts}{end}")
    return "\n".join(line for line in lines if _stars(line) in _COSTS)


@pytest.mark.slow
@pytest.mark.parametrize("ignorecase", ["false", "true"])
def test_git_itself_agrees(tmp_path: Path, ignorecase: str) -> None:
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C"]
    try:
        subprocess.run([*git, ".", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git")
    for seed in range(int(os.environ.get("MLXBERT_TEST_SEEDS", "30"))):
        chosen, folder = random.Random(seed), tmp_path / str(seed)
        names = {"/".join(chosen.choices(WORDS, k=chosen.randint(1, 6))) for _ in range(40)}
        names = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
        tree(folder, *names, _=rules(chosen))
        for inside in chosen.sample([path for path in sorted(folder.rglob("*")) if path.is_dir()], 2):
            (inside / ".gitignore").write_text(rules(chosen))
        for command in (["init", "-q"], ["config", "core.ignorecase", ignorecase]):
            subprocess.run([*git, folder, *command], check=True, capture_output=True)
        listed = subprocess.run([*git, folder, "ls-files", "-oz", "--exclude-standard"], capture_output=True)
        shown = {name for name in os.fsdecode(listed.stdout).split("\0") if name and ".gitignore" not in name}
        assert {*found(folder)} == shown, seed


SECRET = "paris paris paris"


@pytest.fixture
def index(tmp_path: Path, tiny: mlxbert.Model) -> Iterator[Index]:
    """A new index of a folder that a link leads to, next to files that are none of its business; has 30 seconds."""
    before = signal.signal(signal.SIGALRM, mock.Mock(side_effect=TimeoutError))
    signal.alarm(30)
    for name in ("real/a.txt", "real/inner/b.txt", "real/inner/rows.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\nthe cat sat on the mat\n")
    (tmp_path / "outside").mkdir()
    for name in ("a.txt", "b.txt", "rows.csv"):
        (tmp_path / "outside" / name).write_text(f"text\n{SECRET} {name}\n")
    (tmp_path / "docs").symlink_to("real")
    with open_index(tmp_path / "index.db", model=tiny, paths=[tmp_path / "docs"]) as found:
        yield found
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def updated(index: Index, swap: Callable[[], object]) -> dict[str, str]:
    """Brings an index up to date; `swap` is called when the walk is done. Which files could not be read, and why."""
    failed = {}
    for event in index.update():
        if isinstance(event, update_events.Scanned):
            swap()
        elif isinstance(event, update_events.FileFailed):
            failed[Path(event.path).name] = event.reason
    return failed


def texts(index: Index) -> set[str]:
    hits = (index.search(word, mode="words", top_k=50, all_chunks=True) for word in ("cat", "paris"))
    return {hit.text for found in hits for hit in found}


@pytest.mark.parametrize("name", ["a.txt", "inner/b.txt", "inner/rows.csv"])
@pytest.mark.parametrize("becomes", ["a FIFO", "a link"])
def test_a_file_that_becomes_something_else_is_not_read(name: str, becomes: str, index: Index, tmp_path: Path) -> None:
    path = tmp_path / "real" / name

    def swap() -> None:
        path.unlink()
        os.mkfifo(path) if becomes == "a FIFO" else path.symlink_to(tmp_path / "outside" / path.name)

    failed = updated(index, swap)
    assert [*failed] == [path.name] and (becomes == "a link" or "is a FIFO, not a regular file" in failed.values())
    assert index.stats().files == 2 and not any(SECRET in text for text in texts(index))


def test_a_folder_that_becomes_a_link_is_not_followed(index: Index, tmp_path: Path) -> None:
    def swap() -> None:
        (tmp_path / "real" / "inner").rename(tmp_path / "away")
        (tmp_path / "real" / "inner").symlink_to(tmp_path / "outside")

    assert {*updated(index, swap)} == {"b.txt", "rows.csv"}
    assert not any(SECRET in text for text in texts(index))


def test_records_that_become_a_link_while_they_are_read_are_read_as_they_were(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = table_documents._find_text

    def swapped(*given: object) -> object:
        path = tmp_path / "real" / "inner" / "rows.csv"
        path.unlink()
        path.symlink_to(tmp_path / "outside" / "rows.csv")
        return look(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(table_documents, "_find_text", swapped)
    updated(index, lambda: None)
    assert "the cat sat on the mat" in texts(index) and not any(SECRET in text for text in texts(index))
