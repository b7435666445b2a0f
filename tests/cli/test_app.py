"""The program as a whole: notes, the smallest commands, and bad input, which ends in words and never in a traceback."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxbert.cli import session
from mlxbert.cli.views import console
from tests.helpers.cases import together
from tests.helpers.program import (
    TIMEOUT,
    WITHOUT_PRIVILEGES,
    builtin_copy,
    call,
    change_config,
    change_weights,
    command,
    environment,
    process,
    terminal,
    tiny_model,
)
from tests.helpers.rooms import needs

pytestmark = pytest.mark.usefixtures("loaded_once")

PARIS = "[MASK] is the capital of France."


def test_the_note_on_the_builtin_model_comes_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def noted(data: str = "data", *, quiet: bool = False) -> bool:
        monkeypatch.setenv("MLXBERT_DATA", str(tmp_path / data))
        console.set_quiet(quiet)
        session.note_builtin("fill-mask", "builtin")
        session.say_queued()
        return "note: the built-in model" in capsys.readouterr().err

    assert [noted(quiet=True), noted(), noted(), noted()] == [False, True, False, False]
    (mark,) = (tmp_path / "data").iterdir()
    for moved, expected in ((-25 * 60 * 60, True), (0, False), (+25 * 60 * 60, True)):  # the last is the clock's fault
        then = mark.stat().st_mtime + moved
        os.utime(mark, (then, then))
        assert noted() == expected
    (tmp_path / "file").touch()
    assert [noted("file"), noted("file")] == [True, True]


@together(
    "arguments",
    [("fill-mask", PARIS, "--targets", ","), ("embed", "a text", "--dimensions", "9999"), ("classify", "a text")],
)
def test_what_cannot_be_done_is_said_without_a_note_on_the_model(arguments: tuple[str, ...]) -> None:
    outcome = call(*arguments)
    assert outcome.status in (1, 2) and outcome.err.startswith("error: ") and "note:" not in outcome.err


def test_the_environment_names_a_model_and_the_option_wins(small: str) -> None:
    by_variable = call("fill-mask", "the [MASK]", MLXBERT_MODEL=small)
    assert by_variable.err == ""  # a model that was chosen is not explained
    assert (by_variable.status, len(by_variable.lines)) == (0, 1)
    by_option = call("fill-mask", "the [MASK]", "--model", small, MLXBERT_MODEL="/no/such")
    assert by_option.out == by_variable.out


def test_tokenize_shows_a_pair_with_segments_positions_and_offsets() -> None:
    text, pair = "Hello, playwrights!", "Goodbye."
    outcome = call("tokenize", text, "--pair", pair)
    (line,) = outcome.lines
    assert list(line) == ["text", "tokens"]
    names = ["token", "id", "segment", "position", "start", "end"]
    assert all(list(token) == names for token in line["tokens"])
    spelled = ["[CLS]", "hello", ",", "playwright", "##s", "!", "[SEP]", "goodbye", ".", "[SEP]"]
    found = [(token["token"], token["segment"], token["position"]) for token in line["tokens"]]
    assert found == [(token, int(place > 6), place) for place, token in enumerate(spelled)]
    seen = [(text, pair)[token["segment"]][token["start"] : token["end"]] for token in line["tokens"]]
    assert seen == ["", "Hello", ",", "playwright", "s", "!", "", "Goodbye", ".", ""]
    assert (outcome.status, outcome.err) == (0, "")


def test_inspect_accounts_for_every_tensor_and_parameter(small: str) -> None:
    for model, longest in (("builtin", 512), (small, 24)):
        outcome = call("inspect", model)
        (found,) = outcome.lines
        assert (outcome.status, outcome.err, found["family"], found["max_length"]) == (0, "", "bert", longest)
        parameters = dict(found["parameters"])
        assert parameters.pop("total") == sum(parameters.values())
        assert found["tensors"]
        assert all(row["name"] and row["dtype"] and row["shape"] and row["becomes"] for row in found["tensors"])


def test_tensors_of_other_tasks_are_named_if_that_is_asked_for(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    change_weights(model, lambda arrays: arrays.update({"classifier.bias": arrays["bert.pooler.dense.bias"]}))
    assert "classifier.bias" in call("fill-mask", "[MASK]", "--model", str(model), "--verbose").err


def test_models_list_shows_the_builtin_model() -> None:
    (listed,) = call("models", "list").lines
    found = listed["models"][0]
    assert (found["name"], found["tasks"]) == ("builtin", ["fill-mask", "next-sentence", "embed"])
    assert found["bytes"] > found["parameters"] > 1_000_000


TEXT = "the [MASK]"


def test_a_folder_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    for arguments in (["fill-mask", TEXT, "--model"], ["tokenize", TEXT, "--model"], ["inspect"]):
        call(*arguments, str(tmp_path / "none")).fails(1, f"{tmp_path}/none: no such folder", "hint: ")
        call(*arguments, __file__).fails(1, "is a file", "hint: ")


def test_a_folder_without_config_or_weights_or_vocabulary_says_what_is_missing(tmp_path: Path) -> None:
    call("inspect", str(tmp_path)).fails(1, "no config.json", "hint: ")
    bare = builtin_copy(tmp_path / "bare", "config.json", "vocab.txt")
    call("fill-mask", TEXT, "--model", str(bare)).fails(1, "model.safetensors")
    assert call("tokenize", TEXT, "--model", str(bare)).status == 0
    (bare / "tf_model.h5").write_bytes(b"keras")
    call("fill-mask", TEXT, "--model", str(bare)).fails(1, "tf_model.h5 is a Keras file", "hint: ")
    (bare / "pytorch_model.bin").write_bytes(b"pickle")
    call("fill-mask", TEXT, "--model", str(bare)).fails(1, "pytorch_model.bin")
    model = tiny_model(tmp_path / "mute")
    (model / "vocab.txt").unlink()
    call("fill-mask", TEXT, "--model", str(model)).fails(1, "no tokenizer.json and no vocab.txt")


def _cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@together(
    "damage,said",
    [
        (_cut_off, ["truncated"]),
        (lambda model: change_weights(model, lambda found: found.pop("bert.pooler.dense.weight")), ["is missing"]),
        (lambda model: (model / "config.json").write_text('{"model_type": "be'), ["not valid"]),
        (lambda model: change_config(model, model_type="gpt5"), ["model_type", "gpt5"]),
        (lambda model: change_config(model, hidden_size=0), ["hidden_size", "0"]),
        (lambda model: (model / "vocab.txt").write_bytes(b"\xff\0\xfe"), ["UTF-8"]),
        (lambda model: (model / "tokenizer.json").write_text('{"model": 3}'), ["damaged"]),
    ],
)
def test_a_damaged_model_is_refused_in_words(
    damage: Callable[[Path], object], said: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = tiny_model(tmp_path_factory.mktemp("damaged") / "model")
    damage(model)
    outcome = call("next-sentence", "the", "cat", "--model", str(model))  # whose head needs the pooler
    outcome.fails(1, *said)
    assert outcome.out == ""
    if said[0] in ("model_type", "hidden_size"):
        for arguments in (["inspect"], ["tokenize", TEXT, "--model"]):
            call(*arguments, str(model)).fails(1, *said)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers"])
def test_absurd_sizes_in_a_configuration_are_refused_without_trying(key: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    change_config(model, **{key: 10**7})
    process("fill-mask", TEXT, "--model", str(model), timeout=10).fails(1)


@together("text", ["the cat", "", "the [mask]", "[ MASK ]"])
def test_a_text_without_a_mask_says_where_one_goes(text: str, small: str) -> None:
    outcome = call("fill-mask", text, "--model", small)
    outcome.fails(1, "has no [MASK]", "hint: put [MASK]")
    assert outcome.out == ""


@pytest.mark.parametrize("name", [pytest.param("dedupe", marks=needs("explore")), "embed"])
def test_names_of_files_are_no_texts(name: str, tmp_path: Path) -> None:
    files = [tmp_path / "a.md", tmp_path / "b.md"]
    for file in files:
        file.write_text("text")
    call(name, *map(str, files)).fails(2, "a.md", "mlxbert ", str(tmp_path))


@pytest.mark.slow
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    (tmp_path / "in.txt").write_text("the [MASK]\n", encoding="utf-8")
    arguments = ["fill-mask", "--input", str(tmp_path / "in.txt"), "--model", str(model)]
    for name in ("in.txt", "model/config.json", "model/model.safetensors", "model/vocab.txt", "model"):
        (tmp_path / name).chmod(0)
        outcome = process(*arguments, prelude=WITHOUT_PRIVILEGES)
        (tmp_path / name).chmod(0o700)
        outcome.fails(1, str(tmp_path / name), "ermission denied")


@together(
    "arguments,status",
    [
        ([b"\xff [MASK]"], 1),
        ([b"the \xff"], 1),
        ([TEXT, "--targets", b"\xff"], 2),
        ([TEXT, "--model", b"/no/such/\xff"], 1),
        (["--input", b"\xff.txt"], 1),
        ([TEXT, b"--\xff"], 2),
    ],
)
def test_an_argument_that_is_not_utf_8_is_an_error(arguments: list[str | bytes], status: int, small: str) -> None:
    call("fill-mask", *arguments, MLXBERT_MODEL=small).fails(status)


def test_a_text_that_is_not_utf_8_fails_in_its_place(small: str) -> None:
    first, second = call("tokenize", b"the \xff", "the", "--model", small).lines
    assert (first["index"], second["text"]) == (0, "the")
    call("tokenize", "the", "--pair", b"\xff", "--model", small).fails(1, "surrogate")
    call("next-sentence", "the", b"\xff", "--model", small).fails(1, "surrogate")


def test_a_folder_whose_name_is_not_utf_8_is_no_obstacle(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    os.rmdir(folder)
    model = tiny_model(Path(os.fsdecode(folder).replace("\udcff", "new")))
    os.rename(model, folder)
    outcome = call("inspect", folder)
    assert "Traceback" not in outcome.err
    assert (outcome.status, outcome.lines[0]["family"]) == (0, "bert")


@pytest.mark.slow
def test_a_folder_whose_name_is_no_text_is_named_all_the_same() -> None:
    process("inspect", b"bad\xff").fails(1)
    outcome, shown = terminal("inspect", "bad\udcff", on=("stdout", "stderr"))
    # macOS has no such names, and Python before 3.14 passes on what it says of them.
    assert outcome.status == 1 and re.search(r" bad\\udcff: (no such folder|.*Illegal byte sequence)", shown)


@pytest.mark.slow
def test_output_is_utf_8_whatever_the_locale_says(small: str) -> None:
    outcome = process("fill-mask", "東京 [MASK]", "--model", small, PYTHONIOENCODING="ascii")
    assert "Traceback" not in outcome.err
    assert (outcome.status, outcome.lines[0]["text"]) == (0, "東京 [MASK]")


@pytest.mark.slow
def test_a_closed_pipe_ends_the_program_quietly(small: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the [MASK]\n" * 5000, encoding="utf-8")
    running = subprocess.Popen(
        command("fill-mask", "--input", str(tmp_path / "in.txt"), "--model", small),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout is not None and running.stderr is not None
    assert json.loads(running.stdout.readline())["text"] == "the [MASK]"
    running.stdout.close()
    assert running.stderr.read() == b""
    running.stderr.close()
    assert running.wait(TIMEOUT) == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["help", "embed"], ["inspect", "builtin", "--all", "--no-json"]])
def test_a_closed_pipe_is_no_failure_of_help(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command(*words), env=environment(), stdout=write, stderr=subprocess.PIPE, timeout=TIMEOUT, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("texts", [1, 300])
@pytest.mark.slow
def test_a_full_disk_is_an_error(texts: int, small: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("fill-mask", *[TEXT] * texts, "--model", small),
            stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=TIMEOUT, check=False,
        )  # fmt: skip
    assert done.stderr.decode().splitlines() == ["error: output: No space left on device"]
    assert done.returncode == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.slow
def test_a_stream_closed_beforehand_is_no_traceback(closed: str, small: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command("fill-mask", "--input", "-", "--model", small)],
        input=b"the [MASK]\n", capture_output=True, env=environment(), timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert done.returncode in (0, 1, 2)
