"""Hints that no other test sees, and the commands that hints name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import MlxbertError
from mlxbert.weights.formats.weight_files import open_weights
from tests.docs.snippets import of_hints
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS
from tests.helpers.program import call
from tests.helpers.torch_files import archive

_SCRIPT = archive(b"", **{"code/model.py": b"pass"})  # type: ignore[arg-type]
_LABELLED = [{"text": f"{label} {n}", "label": label} for label in "ab" for n in range(4)]
_SCORED = {"anchor": "a", "positive": "b", "negative": "c", "score": 1.0}
Call = Callable[[Path], object]


@pytest.mark.slow  # reads all of the source
def test_commands_in_hints_exist_with_their_options() -> None:
    found = [text for text in of_hints() if text.startswith("mlxbert ")]
    assert len(found) > 30
    for text in found:
        words = re.sub("VALUE", "classify", text).split()[1:3]  # a task, which is filled in
        name = " ".join(words) if " ".join(words) in COMMANDS else words[0]
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) <= options, text


@together(
    "name,content,kind,advice",
    [
        ("model.onnx", b"x", "an ONNX file", "from which this file was exported"),
        ("model.pt", b"x", "a torch file", "rename it to pytorch_model.bin"),
        ("last.ckpt", b"x", "a training checkpoint", "save only the model, as safetensors"),
        ("pytorch_model.bin", b"\0" * 257 + b"ustar" + b"\0" * 300, "tar archive", "save the model again"),
        ("pytorch_model.bin", _SCRIPT, "TorchScript", "save the state_dict"),
    ],
)
def test_weights_in_other_formats_say_what_to_do(
    tmp_path: Path, name: str, content: bytes, kind: str, advice: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MlxbertError, match=kind) as caught:
        open_weights(tmp_path).arrays()
    assert caught.value.hint and advice in caught.value.hint
    (tmp_path / name).unlink()


@pytest.mark.slow
def test_commands_that_lack_something_say_what(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    folder = str(tmp_path / "folder")
    call("models", "remove", folder, "--yes").fails(2, "is a folder", "only models of the hub are in the cache")
    call("indexes", "move", folder, str(tmp_path / "new")).fails(1, "no such file", "rename the folder first")
    call("answer", "Who?", "--pair-column", "b", "--context", "x").fails(2, "cannot be combined", "omit --pair-column")
    (tmp_path / "folder" / "corpus.jsonl").touch()
    (tmp_path / "folder" / "queries.jsonl").touch()
    (tmp_path / "folder" / "qrels").mkdir()
    call("evaluate", "embed", "--data", folder, "--split", "dev").fails(1, "no such file", "qrels/test.tsv")


def test_the_hint_on_attention_names_no_option_that_the_command_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.explore.attention.MOST", 100)
    call("attention", "Some words in a row").fails(2, "choose fewer layers or fewer heads")


def _finetune(task: str, data: list[Any], **options: Any) -> Call:
    return lambda folder: mlxbert.finetune(task, train=data, output=folder / "x", **options)


@together("call,problem,hint", [
    (_finetune("embed", [_SCORED], negative_column="negative", label_column="score"), "cannot be combined",
     "use either the negatives in 'negative' or the scores in 'score'"),
    (_finetune("embed", [{"text": "a", "score": 1.0}], label_column="score"), "needs pairs of texts",
     "choose the column of second texts with `pair_column=`"),
    (_finetune("classify", _LABELLED, sweep={"lora": [None, 8]}), "`sweep` of `lora`",
     "compare with a separate call without `lora`"),
    (_finetune("classify", [{**row, "pair": "x"} for row in _LABELLED], few_shot=True),
     "`few_shot` takes single texts", "omit `few_shot=True`"),
    (lambda folder: mlxbert.pretrain(folder / "a.txt", output=folder / "out", model="builtin", steps=1).run(), "",
     "use more text"),
    (lambda folder: mlxbert.embed(3, "a text"), "expected the result of",  # type: ignore[call-overload]
     "`model = mlxbert.load()` loads the built-in model"),
])  # fmt: skip
def test_what_the_library_refuses_says_what_to_do(call: Call, problem: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Only one short sentence.\n")
    with pytest.raises(MlxbertError, match=problem) as caught:
        call(tmp_path)
    assert caught.value.hint and caught.value.hint.startswith(hint)


@pytest.mark.slow
def test_an_index_says_what_to_ask_instead(tmp_path: Path) -> None:
    with mlxbert.open_index(tmp_path / "x.db") as index:
        index.add([{"id": "1", "text": "A text.", "size": "3"}])
        with pytest.raises(MlxbertError, match="only tests for equality") as caught:
            index.search("text", where={"size": ">2"})
        assert caught.value.hint == "give a list of conditions: `where=['size>2']`"
        with pytest.raises(MlxbertError, match="no chunk with this number") as caught:
            index.read(99)
        assert caught.value.hint and caught.value.hint.startswith("search again")


@pytest.mark.slow
def test_pairs_without_other_texts_have_no_negatives(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("anchor,positive\nA dog.,A hound.\nA dog.,A hound.\n")
    found = call("mine", str(tmp_path / "pairs.csv"), "--output", str(tmp_path / "hard.jsonl"))
    found.fails(1, "no negatives can be found", "give more pairs or a smaller --margin")
    assert not (tmp_path / "hard.jsonl").exists()
