"""Names that users know from other libraries, and misspelled ones: the error says what is meant."""

import copy
import importlib.util
import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.other_libraries import ARGUMENTS, ATTRIBUTES, VALUES
from mlxbert.train.options.training_tasks import TASKS
from tests.helpers.cases import together

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
    calls = (lambda: mlxbert.finetune(task, train=[], output=tmp_path), lambda: mlxbert.load(task=task))
    for call in calls:
        with pytest.raises(mlxbert.ArgumentError, match=f"`task` is '{task}', expected one of") as caught:
            call()
        assert caught.value.hint == f"did you mean '{meant}'?"
    with pytest.raises(mlxbert.ArgumentError) as caught:
        mlxbert.load(task="quux")
    assert caught.value.hint is None


def test_vectors_are_not_taken_for_texts(tiny: mlxbert.Model) -> None:
    vectors: Any = np.ones((2, 4), dtype=np.float32)
    for call in (lambda: tiny.similarity(vectors[0], vectors), lambda: tiny.similarity_matrix(vectors, vectors)):
        with pytest.raises(mlxbert.MlxbertError) as caught:
            call()
        assert caught.value.hint and "@" in caught.value.hint


def test_public_functions_can_be_sent_to_other_processes() -> None:
    assert all(pickle.loads(pickle.dumps(function)) is function for function in FUNCTIONS.values())
