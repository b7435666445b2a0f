"""Hints that no other test sees, and the commands that hints name."""

import re
from pathlib import Path

import pytest

import mlxbert
from mlxbert.errors import MlxbertError
from mlxbert.weights.formats.weight_files import open_weights
from tests.docs.snippets import of_hints
from tests.helpers.commands import COMMANDS
from tests.helpers.program import call
from tests.helpers.torch_files import archive


@pytest.mark.slow  # reads all of the source
def test_commands_in_hints_exist_with_their_options() -> None:
    found = [text for text in of_hints() if text.startswith("mlxbert ")]
    assert len(found) > 30
    for text in found:
        words = re.sub("VALUE", "classify", text).split()[1:3]  # a task, which is filled in
        name = " ".join(words) if " ".join(words) in COMMANDS else words[0]
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) <= options, text


@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        ("model.onnx", "an ONNX file", "from which this file was exported"),
        ("model.pt", "a torch file", "rename it to pytorch_model.bin"),
        ("last.ckpt", "a training checkpoint", "save only the model, as safetensors"),
    ],
)
def test_weights_in_other_formats_say_what_to_do(tmp_path: Path, name: str, kind: str, advice: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(MlxbertError, match=kind) as caught:
        open_weights(tmp_path)
    assert caught.value.hint and advice in caught.value.hint


@pytest.mark.parametrize(
    ("content", "problem", "advice"),
    [
        (b"\0" * 257 + b"ustar" + b"\0" * 300, "tar archive", "save the model again"),
        (archive(b"", **{"code/model.py": b"pass"}), "TorchScript", "save the state_dict"),  # type: ignore[arg-type]
    ],
    ids=["tar", "TorchScript"],  # an archive has the time of its making in it
)
def test_torch_files_of_other_kinds_say_how_to_save_the_model(
    tmp_path: Path, content: bytes, problem: str, advice: str
) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(MlxbertError, match=problem) as caught:
        open_weights(tmp_path).arrays()
    assert caught.value.hint and advice in caught.value.hint


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


def test_data_with_both_negatives_and_scores_or_with_one_text_say_which_column_to_choose() -> None:
    rows = [{"anchor": "a", "positive": "b", "negative": "c", "score": 1.0}]
    with pytest.raises(MlxbertError, match="cannot be combined") as caught:
        mlxbert.finetune("embed", train=rows, output="x", negative_column="negative", label_column="score")
    assert caught.value.hint == "use either the negatives in 'negative' or the scores in 'score'"
    with pytest.raises(MlxbertError, match="needs pairs of texts") as caught:
        mlxbert.finetune("embed", train=[{"text": "a", "score": 1.0}], output="x", label_column="score")
    assert caught.value.hint == "choose the column of second texts with `pair_column=`"


def test_a_sweep_over_no_adapter_says_how_to_compare() -> None:
    rows = [{"text": f"{label} {n}", "label": label} for label in "ab" for n in range(4)]
    with pytest.raises(MlxbertError, match="`sweep` of `lora`") as caught:
        mlxbert.finetune("classify", train=rows, output="x", sweep={"lora": [None, 8]})
    assert caught.value.hint == "compare with a separate call without `lora`"


def test_few_shot_with_pairs_names_its_argument() -> None:
    rows = [{"text": f"{label} {n}", "pair": "x", "label": label} for label in "ab" for n in range(4)]
    with pytest.raises(MlxbertError, match="`few_shot` takes single texts") as caught:
        mlxbert.finetune("classify", train=rows, output="x", few_shot=True)
    assert caught.value.hint and caught.value.hint.startswith("omit `few_shot=True`")


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


def test_a_corpus_that_is_too_small_to_hold_examples_out_says_so(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("Only one short sentence.\n")
    with pytest.raises(MlxbertError) as caught:
        mlxbert.pretrain(tmp_path / "one.txt", output=tmp_path / "out", model="builtin", steps=1).run()
    assert caught.value.hint and caught.value.hint.startswith("use more text")


@pytest.mark.slow
def test_pairs_without_other_texts_have_no_negatives(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("anchor,positive\nA dog.,A hound.\nA dog.,A hound.\n")
    found = call("mine", str(tmp_path / "pairs.csv"), "--output", str(tmp_path / "hard.jsonl"))
    found.fails(1, "no negatives can be found", "give more pairs or a smaller --margin")
    assert not (tmp_path / "hard.jsonl").exists()


def test_what_is_no_model_says_how_to_load_one() -> None:
    with pytest.raises(MlxbertError, match="expected the result of") as caught:
        mlxbert.embed(3, "a text")  # type: ignore[arg-type]
    assert caught.value.hint == "`model = mlxbert.load()` loads the built-in model"
