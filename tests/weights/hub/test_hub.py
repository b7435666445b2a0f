"""A name of the hub becomes a folder: what is asked of the hub, what is fetched, and what is said when it fails.

A model that is not in the cache is inspected without its weights.
"""

import json
import shutil
import signal
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import HFValidationError

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.weights.hub import cache
from mlxbert.weights.hub.needed_files import leaves_folder, needed_files
from mlxbert.weights.model_source import ModelRef, find_folder
from mlxbert.weights.tokenizers.tokenizer_classes import CLASSES
from tests.helpers import lying_hub as lies
from tests.helpers.cases import together
from tests.helpers.fake_hub import Files, files_of, serve
from tests.helpers.hub_machine import FILL, NAME, Machine, write_shards
from tests.helpers.program import ENDING, WITHOUT_PRIVILEGES, call, command, environment
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st

NEEDED = {"config.json", "vocab.txt", "model.safetensors"}
NEVER = {"onnx/model.onnx", "openvino/model.bin", "pytorch_model.bin", "README.md", ".gitattributes"}


@pytest.fixture(scope="module")
def files(tiny: Path) -> Files:
    return files_of(tiny) | dict.fromkeys(NEVER, b"never")


@pytest.fixture
def warm(machine: Machine) -> Machine:
    assert machine.run("models", "download", NAME).status == 0
    machine.hub.forget()
    return machine


def test_a_name_is_downloaded_once_and_only_what_is_needed(machine: Machine, tiny: Path) -> None:
    outcome = machine.run(*FILL)
    assert outcome.status == 0
    assert outcome.out == call("fill-mask", "the [MASK]", "--top-k", "2", "--model", str(tiny)).out
    assert outcome.err.startswith("note: downloading org/tiny (") and outcome.err.count("\n") == 1
    assert machine.hub.fetched() == NEEDED
    assert set(files_of(machine.snapshot)) == NEEDED
    assert machine.run("tokenize", "the cat", "--model", NAME).lines[0]["tokens"][1]["token"] == "the"
    machine.hub.forget()
    watch = (
        "import os, sys; end = os._exit\n"
        "os._exit = lambda status: (print('huggingface_hub' in sys.modules, file=sys.stderr), end(status))\n"
    )
    again = machine.run(*FILL, prelude=watch)
    assert (again.status, again.out, again.err) == (0, outcome.out, "False\n")
    assert machine.hub.requests == []


def test_a_model_from_python_keeps_its_name_and_tells_its_progress(machine: Machine) -> None:
    seen: list[tuple[int, int]] = []
    with machine.client():
        model = mlxbert.load(NAME, on_progress=lambda *both: seen.append(both))
    total = sum(len(machine.repository.commits[machine.commit][file]) for file in NEEDED)
    assert (model.source, model.folder) == (NAME, machine.snapshot)
    assert (seen[0], seen[-1]) == ((0, total), (total, total)) and seen == sorted(seen)


@pytest.mark.parametrize("how", [{}, {"HF_HUB_OFFLINE": "Yes"}, {"TRANSFORMERS_OFFLINE": "1"}])
def test_offline_uses_the_cache_and_fails_without_one(machine: Machine, how: dict[str, str]) -> None:
    words = FILL if how else (*FILL, "--offline")
    machine.run(*words, **how).fails(1, "org/tiny: the model is not in the cache", "hint: run `mlxbert models download")
    assert machine.hub.requests == [] and machine.run(*FILL).status == 0
    machine.hub.forget()
    outcome = machine.run(*words, **how)
    assert (outcome.status, outcome.err, machine.hub.requests) == (0, "", [])


def test_without_a_network_only_what_is_cached_is_there(warm: Machine) -> None:
    away = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert warm.run(*FILL, **away).status == 0
    warm.forget_listing()
    outcome = warm.run(*FILL, **away)
    assert outcome.status == 0
    assert "cannot be reached" in outcome.err and "may be incomplete" in outcome.err
    warm.run("inspect", "org/other", **away).fails(1, "http://127.0.0.1:9 cannot be reached", "hint: check the network")
    warm.repository.status = 503
    assert "status 503" in warm.run(*FILL).err


def test_a_cache_without_listing_is_completed_at_its_commit(warm: Machine, files: Files) -> None:
    first = warm.snapshot
    (first / "vocab.txt").unlink()
    warm.repository.commit(files | {"vocab.txt": b"other\n"})
    warm.forget_listing()
    offline = warm.run(*FILL, "--offline")
    assert "may be incomplete" in offline.err
    outcome = warm.run_anew(*FILL)
    assert (outcome.status, (first / "vocab.txt").read_bytes()) == (0, files["vocab.txt"])
    assert warm.hub.fetched() <= {"vocab.txt"}
    assert not warm.snapshot.exists()  # the newer commit was not asked for
    warm.hub.forget()
    assert (warm.run(*FILL).status, warm.hub.requests) == (0, [])


def test_a_commit_that_the_hub_has_forgotten_gives_way_to_the_newest(warm: Machine, files: Files) -> None:
    warm.forget_listing()
    warm.repository.commits.clear()
    warm.repository.commit(files | {"added_tokens.json": b"{}"})
    assert warm.run("models", "path", NAME).status == 0
    assert warm.run(*FILL).status == 0
    assert (warm.snapshot / "added_tokens.json").is_file()


def test_mlxbert_and_huggingface_hub_share_a_cache(machine: Machine) -> None:
    def python(code: str) -> list[str]:
        words = [sys.executable, "-c", "import huggingface_hub as hub\n" + code]
        ran = subprocess.run(words, env=environment(**machine.variables), check=True, stdout=-1)
        return ran.stdout.decode().split()

    python(f"hub.snapshot_download({NAME!r})")
    machine.hub.forget()
    outcome = machine.run(*FILL)
    assert (outcome.status, outcome.err, machine.hub.requests) == (0, "", [])
    assert machine.run("models", "remove", NAME, "--yes").status == 0
    assert machine.run(*FILL).status == 0
    (machine.folder / ".mlxbert-killed").mkdir()
    machine.hub.forget()
    found = python(
        f"print(*[hub.hf_hub_download({NAME!r}, file) for file in {sorted(NEEDED)}])\n"
        "scanned = hub.scan_cache_dir()\n"
        "print(len(scanned.warnings), *[len(revision.files) for repo in scanned.repos for revision in repo.revisions])"
    )
    assert found == [*(str(machine.snapshot / file) for file in sorted(NEEDED)), "0", "3"]
    assert machine.hub.fetched() == set()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("org/none", [], ["org/none: there is no such model on the hub", "hint: check the spelling"]),
        (NAME, ["--revision", "none"], ["no revision 'none'", "hint: "]),
        ("org/private", [], ["no such model", "HF_TOKEN"]),
        ("org/gated", [], ["restricted model", "/org/gated"]),
        ("org/keras", [], ["no folder has config.json", "found tf_model.h5\n", "hint: "]),
        ("org/down", [], ["status 500", "hint: "]),
        ("org/evil", [], ["'../evil.txt'", "nothing was written"]),
        ("org/absolute", [], ["'/etc/x'", "nothing was written"]),
        ("org/shards", [], ["'../../x.safetensors'", "plain file name"]),
        ("org/modules", [], ["'../up'", "modules.json"]),
    ],
)
def test_what_cannot_be_had_is_refused_before_it_is_fetched(
    machine: Machine, files: Files, name: str, options: list[str], said: list[str]
) -> None:
    rest = {file: data for file, data in files.items() if file != WEIGHTS}
    machine.hub.add("org/private", files).token = "secret"
    machine.hub.add("org/gated", files).gated = True
    machine.hub.add("org/keras", dict.fromkeys(["config.json", "vocab.txt", "tf_model.h5"], b"{}"))
    machine.hub.add("org/down", files).status = 500
    machine.hub.add("org/evil", files).listed = ("../evil.txt",)
    machine.hub.add("org/absolute", files).listed = ("/etc/x",)
    machine.hub.add("org/shards", rest | {f"{WEIGHTS}.index.json": b'{"weight_map": {"a": "../../x.safetensors"}}'})
    machine.hub.add("org/modules", files | {"modules.json": b'[{"path": "../up", "type": "Pooling"}]'})
    for words in (["inspect"], ["models", "download"]):
        outcome = machine.run(*words, name, *options)
        outcome.fails(1, *said)
        assert outcome.out == ""
    assert machine.hub.fetched() <= {"modules.json", f"{WEIGHTS}.index.json", "config.json"}
    assert not list(machine.home.rglob(WEIGHTS))


def test_a_token_opens_a_private_model_and_does_not_go_to_another_host(machine: Machine, files: Files) -> None:
    with serve() as other:
        other.add(NAME, files)
        machine.repository.token, machine.repository.redirected = "secret", other.url
        machine.run(*FILL, HF_TOKEN="wrong").fails(1, NAME)
        machine.hub.forget()
        outcome = machine.run(*FILL, "--quiet", HF_TOKEN="secret")
    assert (outcome.status, outcome.err) == (0, "")
    assert {headers.get("authorization") for headers in machine.hub.headers} == {"Bearer secret"}
    assert "model.safetensors" in other.fetched()
    assert {headers.get("authorization") for headers in other.headers} == {None}


def test_an_interrupted_download_ends_at_once_and_is_mended_by_the_next(machine: Machine) -> None:
    begun = threading.Event()

    def stall(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
        if file != "model.safetensors" or handler.command != "GET":
            return False
        begun.set()
        return lies.stall(handler, file, data)

    machine.repository.answer = stall
    for by in (signal.SIGKILL, *ENDING):
        begun.clear()
        running = subprocess.Popen(command(*FILL), env=environment(**machine.variables), stdout=-1, stderr=-1)
        assert begun.wait(60)
        running.send_signal(by)
        _, err = running.communicate(timeout=8)  # before huggingface_hub gives up waiting
        assert running.returncode == (-by if by == signal.SIGKILL else 128 + by) and b"Traceback" not in err
    assert not (machine.folder / "refs" / "main").exists()  # nothing claims to be whole
    machine.run(*FILL, "--offline").fails(1, "not in the cache")
    machine.hub.forget()
    machine.repository.answer = None
    assert machine.run(*FILL).status == 0
    assert machine.hub.fetched() == {"model.safetensors"}


def test_modules_are_fetched_with_their_folders(machine: Machine, files: Files) -> None:
    """And the vocabulary of every class."""
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [{"idx": i, "path": f"{i}_{kind}", "type": f"x.models.{kind}"} for i, kind in enumerate(kinds)]
    vocabularies = {file for kind in CLASSES.values() for file in kind.files}
    assert "spm.model" in vocabularies
    wanted = {f"0_Transformer/{file}": file.encode() for file in vocabularies}
    wanted |= {f"0_Transformer/{file}": files[file] for file in NEEDED}
    wanted |= {"modules.json": json.dumps(modules).encode(), "0_Transformer/sentence_bert_config.json": b"{}"}
    wanted |= {"1_Pooling/config.json": b"{ }", "2_Dense/config.json": b"{  }", "2_Dense/model.safetensors": b"x"}
    never = {f"{folder}/{file}": b"never" for folder in ("0_Transformer", "2_Dense", "4_x") for file in NEVER}
    machine.repository.commit(wanted | never)
    outcome = machine.run("models", "download", NAME)
    assert (outcome.status, outcome.out) == (0, f"{machine.snapshot}\n")
    assert machine.hub.fetched() == set(wanted)
    machine.hub.forget()
    assert machine.run("models", "path", NAME).err == ""
    (machine.snapshot / "modules.json").unlink()
    machine.run("models", "path", NAME).fails(1, "modules.json", "cache")


def test_a_revision_is_a_branch_a_tag_or_a_commit(machine: Machine, files: Files) -> None:
    commit = machine.repository.commit(files | {"added_tokens.json": b"{}"}, "v1", "feature/x")
    for revision in ("v1", "feature/x", commit):
        assert machine.run(*FILL, "--revision", revision).status == 0
        assert (machine.folder / "snapshots" / commit / "added_tokens.json").is_file()
        machine.hub.forget()
        assert machine.run(*FILL, "--revision", revision, "--offline").err == ""
        assert machine.hub.requests == []
    machine.run(*FILL, "--offline").fails(1, "not in the cache")


@together("revision", ["../x", "a/../../b", "/etc", "", "a//b", "./a", "a\\b", "a\0b", "a\nb"])
def test_a_revision_that_leads_out_of_the_cache_is_wrong_usage(revision: str) -> None:
    with pytest.raises(mlxbert.ArgumentError, match="expected a branch, a tag or a commit"):
        find_folder(ModelRef(NAME, revision=revision))
    with pytest.raises(mlxbert.ArgumentError, match="`revision` is 'main'"):  # the built-in model has no revisions
        mlxbert.load("builtin", revision="main")


def test_a_cache_that_cannot_be_written_is_named(machine: Machine) -> None:
    """Nor one on a disk that fills."""
    full = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))\n"
    )
    machine.run(*FILL, prelude=full).fails(1, "cannot be written", "HF_HOME")
    assert not list(machine.home.rglob("*.incomplete"))
    shutil.rmtree(machine.home)
    machine.home.mkdir(mode=0o555)
    machine.run(*FILL, prelude=WITHOUT_PRIVILEGES).fails(1, "cannot be written", "HF_HOME")


def test_a_cache_that_is_whole_need_not_be_written(warm: Machine) -> None:
    for path in [warm.home, *warm.home.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for words in (FILL, ("models", "download", NAME)):
        assert warm.run(*words, prelude=WITHOUT_PRIVILEGES).status == 0
    assert warm.hub.fetched() == set()


def test_a_proxy_is_asked(machine: Machine) -> None:
    proxy = {"HF_ENDPOINT": "http://hub.example", "HTTP_PROXY": machine.hub.url, "http_proxy": machine.hub.url}
    outcome = machine.run("models", "download", NAME, prelude="pass\n", NO_PROXY="", no_proxy="", **proxy)
    assert outcome.status == 0 and machine.hub.fetched() == NEEDED


def test_names_follow_the_rules_of_the_hub() -> None:
    validate = pytest.importorskip("huggingface_hub.utils").validate_repo_id
    names = ["bert", "a/b", "a.b/c_d-e", "a/b/c", ".a", "a.", "-a", "a--b", "a..b", "a/b.git", "a/", "/a", "~/a"]
    for name in [*names, "a b", "", "a" * 96, "a" * 97, "a\n"]:
        try:
            validate(name)
        except HFValidationError:
            assert not cache.is_hub_name(name), name
        else:
            assert cache.is_hub_name(name), name


@pytest.mark.slow
def test_the_cache_is_where_huggingface_hub_looks() -> None:
    code = (
        "from huggingface_hub import constants as c; from mlxbert.weights.hub import cache as h\n"
        "print(str(h.cache_folder()) == c.HF_HUB_CACHE, h.is_offline() == c.HF_HUB_OFFLINE)"
    )
    for variables in (
        {"XDG_CACHE_HOME": "/x"},
        {"HF_HOME": "~/h", "XDG_CACHE_HOME": "/x"},
        {"HF_HUB_CACHE": "$HOME/c", "HF_HOME": "/h", "HF_HUB_OFFLINE": "on"},
        {"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"},
    ):
        own = {"HOME": "/home", **variables}
        done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, check=True)
        assert done.stdout == b"True True\n", variables


def test_paths_that_leave_a_folder_are_known() -> None:
    assert all(map(leaves_folder, ["../a", "a/../b", "/a", "a\\..\\b", "C:a", "c:/a", "a\0", ".."]))
    assert not any(map(leaves_folder, ["a", "a/b", "..a", "a..b", ".gitattributes", "ab:c"]))


DAMAGED: dict[str, list[Any]] = {
    "modules.json": [{}, [1], [{"path": 3}], [{"path": "/"}]],
    "model.safetensors.index.json": [[], {}, {"weight_map": {}}, {"weight_map": {"a": "none.safetensors"}}],
}


@together(("file", "content"), [(file, content) for file, contents in DAMAGED.items() for content in contents])
def test_damaged_modules_and_indices_are_an_error(file: str, content: Any) -> None:
    listed = ["config.json", file, *([WEIGHTS] if file == "modules.json" else [])]
    with pytest.raises(mlxbert.HubError, match=file.removeprefix("model.safetensors.").replace(".", r"\.")):
        needed_files(NAME, listed, lambda file: content)


WEIGHTS = "model.safetensors"


def local(folder: Path) -> dict[str, Any]:
    """What is said of a model, wherever its files lie."""
    return told(call("inspect", str(folder)).lines[0])


def told(found: dict[str, Any]) -> dict[str, Any]:
    weights, fit = found["weights"] | {"here": None}, found["fit"] | {"free": None}
    return found | {"folder": "", "weights": weights, "fit": fit}


@pytest.mark.parametrize("whole", [True, False])
def test_of_the_weights_only_the_header_is_read(machine: Machine, tiny: Path, whole: bool) -> None:
    """Also from a server that cannot send a part of a file, and from another one to which the hub redirects."""
    machine.repository.redirected, machine.repository.whole = machine.hub.url, whole
    outcome = machine.run("inspect", NAME)
    (found,) = outcome.lines
    assert told(found) == local(tiny)
    assert (found["weights"]["here"], found["weights"]["bytes"]) == (False, (tiny / WEIGHTS).stat().st_size)
    assert found["folder"] == str(machine.snapshot) and {*files_of(machine.snapshot)} == {"config.json", "vocab.txt"}
    assert outcome.err.startswith("note: downloading org/tiny (") and outcome.err.count("\n") == 1
    machine.hub.forget()
    again = machine.run("inspect", NAME)
    assert (told(again.lines[0]), again.err) == (told(found), "")
    assert machine.hub.fetched() == {WEIGHTS}


def test_large_weights_are_not_sent_to_their_end(machine: Machine, tiny: Path) -> None:
    data = (tiny / WEIGHTS).read_bytes()
    length = 8 + struct.unpack("<Q", data[:8])[0]
    end = len(data) - length
    extra = 2**26  # bytes, more than the buffers of two sockets hold
    entry = b',"extra":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}}' % (extra, end, end + extra)
    header = data[8:length].rstrip()[:-1] + entry
    machine.repository.commit(
        files_of(tiny) | {WEIGHTS: struct.pack("<Q", len(header)) + header + data[length:] + bytes(extra)}
    )
    machine.run("inspect", NAME).fails(1, f"{NAME}/{WEIGHTS}: tensor 'extra'", "hint: ")
    assert machine.hub.left.get(timeout=60) == WEIGHTS


@pytest.mark.parametrize("at_commit", [True, False])
def test_an_inspected_model_does_not_pass_for_a_whole_one(machine: Machine, at_commit: bool) -> None:
    at = ("--revision", machine.commit) if at_commit else ()
    machine.inspect(*at)
    machine.run("models", "path", NAME, *at).fails(1, f"{NAME}", "cache")
    machine.run(*FILL, *at, "--offline").fails(1, "cache", "offline")
    machine.run("inspect", NAME, *at, "--offline").fails(1, "cache", "offline")
    (listed,) = machine.run("models", "list").lines
    assert [revision["complete"] for model in listed["models"][1:] for revision in model["revisions"]] == [False]
    (removed,) = machine.run("models", "remove", NAME, "--yes").lines
    assert removed["revisions"] == [machine.commit] and not machine.snapshot.exists()
    machine.inspect(*at)
    machine.hub.forget()
    assert machine.run(*FILL, *at).status == 0
    assert machine.hub.fetched() == {WEIGHTS}  # the small files were there
    machine.hub.forget()
    assert machine.inspect(*at)["weights"]["here"] is machine.inspect(*at, "--offline")["weights"]["here"] is True
    assert machine.run(*FILL, *at).err == ""
    assert machine.hub.requests == []


@pytest.mark.parametrize("kind", ["shards", "modules"])
def test_the_headers_of_all_weights_are_read(machine: Machine, tiny: Path, tmp_path: Path, kind: str) -> None:
    if kind == "shards":
        weights = write_shards(tiny, tmp_path / kind)
    else:
        specs = [pooling("cls"), dense(mx.ones((7, 24)), mx.ones(7)), NORMALIZE]
        save_st(tmp_path / kind, *specs, settings={"similarity_fn_name": "dot"})
        weights = [WEIGHTS, f"2_Dense/{WEIGHTS}"]
    machine.repository.commit(files_of(tmp_path / kind))
    found = machine.inspect()
    assert told(found) == local(tmp_path / kind)
    assert {file for file in machine.hub.fetched() if file.endswith(".safetensors")} == {*weights}
    assert [*found["weights"]["files"]] == weights or found["parameters"]["2_Dense"] == 175
    machine.hub.forget()
    assert machine.run("embed", "the cat", "--model", NAME).status == 0
    assert machine.hub.fetched() == {*weights}


def test_weights_that_are_here_are_read_here(machine: Machine, tiny: Path) -> None:
    assert machine.run(*FILL).status == 0
    machine.forget_listing()
    (machine.snapshot / "vocab.txt").unlink()
    machine.hub.forget()
    found = machine.inspect()
    assert WEIGHTS not in machine.hub.fetched()
    assert (told(found), found["weights"]["here"]) == (local(tiny), True)


def test_truncated_weights_and_connections_that_break_in_a_header_are_errors(machine: Machine, tiny: Path) -> None:
    files = files_of(tiny)
    machine.repository.commit(files | {WEIGHTS: files[WEIGHTS][:-1]})
    machine.run("inspect", NAME).fails(1, f"{NAME}/{WEIGHTS}: ", "truncated, because tensor")
    machine.repository.dropped[WEIGHTS] = 3
    machine.run("inspect", NAME).fails(1, NAME, "hint: ")
