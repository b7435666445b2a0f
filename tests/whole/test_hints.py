"""Hints that no other test sees: commands that hints name, names of other libraries, and misspelled ones."""

import copy
import importlib.util
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import MlxbertError
from mlxbert.other_libraries import ARGUMENTS, ATTRIBUTES, VALUES
from mlxbert.train.options.training_tasks import TASKS
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
    (lambda folder: mlxbert.embed(3, "a text"), "expected the result of",  # type: ignore[arg-type]
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


FUNCTIONS = {name: getattr(mlxbert, name) for name in dir(mlxbert) if inspect.isfunction(getattr(mlxbert, name))}


@together("name", ATTRIBUTES)
def test_a_name_of_another_library_is_no_attribute_and_names_ours(name: str, tiny: mlxbert.Model) -> None:
    is_package = importlib.util.find_spec(f"mlxbert.{name}") is not None
    for owner in (tiny, *([] if is_package else [mlxbert])):
        assert not hasattr(owner, name) and getattr(owner, name, None) is None
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        words = str(caught.value).replace("(", " ").replace(",", " ").split()
        ours = [word.removeprefix("mlxbert.") for word in words if word.startswith("mlxbert.")]
        assert all(one in dir(mlxbert) or one.split(".")[0] in dir(mlxbert) or one in "load…" for one in ours), ours
        assert ours or "model." in str(caught.value)


def test_an_unknown_attribute_of_a_model_is_none(tiny: mlxbert.Model) -> None:
    assert not hasattr(tiny, "nothing") and hasattr(tiny, "embed") and hasattr(tiny, "tokenizer")
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'nothing'"):
        tiny.nothing  # type: ignore[attr-defined]  # noqa: B018


LABELLED = mlxbert.Classification("a", (mlxbert.Label("b", 0.9),))
FILLED = mlxbert.FillMask("a [MASK]", (mlxbert.Mask(2, 2, 8, (mlxbert.Fill("cat", 5, 0.9),)),))


@together(
    "owner,name,meant",
    [
        (mlxbert, "tokenise", "did you mean tokenize?"),
        (LABELLED, "top", "did you mean .labels[0]?"),
        (LABELLED, "label", "did you mean .labels[0].label?"),
        (LABELLED, "txet", "did you mean text?"),
        (FILLED, "score", "did you mean .masks[0].fills[0].score?"),
        (FILLED, "nothing", ""),
        (FILLED, "_txet", ""),
    ],
)
def test_a_name_near_one_of_ours_is_suggested(owner: Any, name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'.*{re.escape(meant)}$"):
        getattr(owner, name)
    if isinstance(owner, mlxbert.Classification | mlxbert.FillMask):
        for key, expected in ((name, meant), (0, "")):
            with pytest.raises(TypeError, match=f"is not subscriptable.*{re.escape(expected)}$"):
                owner[key]  # type: ignore[index]
        assert copy.deepcopy(owner) == owner == pickle.loads(pickle.dumps(owner)) and np.array([owner]).shape == (1,)


@together(
    "name,meant",
    [("pipeline", "mlxbert.load"), ("tokenise", "did you mean tokenize?"), ("nothing", "from 'mlxbert'")],
)
def test_an_import_of_a_name_of_another_library_names_ours(name: str, meant: str) -> None:
    with pytest.raises(ImportError, match=f"cannot import name '{name}' from 'mlxbert'.*") as caught:
        exec(f"from mlxbert import {name}", {})
    assert meant in str(caught.value)
    from mlxbert import errors, search  # packages and modules are found as always

    assert errors.ArgumentError is mlxbert.ArgumentError and search.__name__ == "mlxbert.search"


def test_names_and_arguments_of_ours_are_not_in_the_tables() -> None:
    parameters = {name for one in FUNCTIONS.values() for name in inspect.signature(one).parameters}
    assert len(FUNCTIONS) > 25 and not ATTRIBUTES.keys() & {*dir(mlxbert), *dir(mlxbert.Model)}
    both = ARGUMENTS.keys() & parameters
    assert not both, both
    named = {one for instead in ARGUMENTS.values() if not isinstance(instead, str) for one in instead}
    options = {"batch_size", "epochs", "lr", "warmup"}  # of training
    assert named <= parameters | options, named - parameters
    assert set(VALUES.values()) <= {*TASKS, "embed"}


@together(
    "function,name,value,ours",
    [
        ("embed", "normalize_embeddings", True, "normalize"),
        ("embed", "batch_size", 32, "batch_tokens"),
        ("classify", "top_kk", 2, "top_k"),
        ("classify", "candidate_labels", ["a"], "labels"),
        ("load", "trust_remote_code", True, "never runs the code"),
    ],
)
def test_an_unknown_argument_names_ours(function: str, name: str, value: Any, ours: str, tiny: mlxbert.Model) -> None:
    owner, first = (mlxbert, ()) if function == "load" else (tiny, ("the cat",))
    with pytest.raises(mlxbert.ArgumentError, match=f"{function} has no argument '{name}'") as caught:
        getattr(owner, function)(*first, **{name: value})
    assert caught.value.hint and ours in caught.value.hint


def test_an_option_of_training_names_ours(tmp_path: Any) -> None:
    for option, ours in (("num_train_epochs", "epochs"), ("learning_rate", "lr"), ("epoch", "epochs")):
        with pytest.raises(mlxbert.ArgumentError, match=option) as caught:
            mlxbert.finetune("classify", train=[], output=tmp_path, **{option: 3})  # type: ignore[arg-type]
        assert caught.value.hint == f"did you mean {ours}?"


@together("task,meant", [("clasify", "classify"), ("text-classification", "classify")])
def test_a_misspelled_choice_is_suggested(task: str, meant: str, tmp_path: Any) -> None:
    for ask in (lambda: mlxbert.finetune(task, train=[], output=tmp_path), lambda: mlxbert.load(task=task)):
        with pytest.raises(mlxbert.ArgumentError, match=f"`task` is '{task}', expected one of") as caught:
            ask()
        assert caught.value.hint == f"did you mean '{meant}'?"
    with pytest.raises(mlxbert.ArgumentError) as caught:
        mlxbert.load(task="quux")
    assert caught.value.hint is None


def test_vectors_are_not_taken_for_texts(tiny: mlxbert.Model) -> None:
    vectors: Any = np.ones((2, 4), dtype=np.float32)
    for ask in (lambda: tiny.similarity(vectors[0], vectors), lambda: tiny.similarity_matrix(vectors, vectors)):
        with pytest.raises(mlxbert.MlxbertError) as caught:
            ask()
        assert caught.value.hint and "@" in caught.value.hint


def test_public_functions_can_be_sent_to_other_processes() -> None:
    assert all(pickle.loads(pickle.dumps(function)) is function for function in FUNCTIONS.values())
