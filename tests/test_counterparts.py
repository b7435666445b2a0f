"""Names that users know from other libraries, and misspelled ones: the error says what is meant."""

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.other_libraries import ARGUMENTS, ATTRIBUTES, VALUES
from mlxbert.training.options.training_tasks import TASKS

FUNCTIONS = {name: getattr(mlxbert, name) for name in dir(mlxbert) if inspect.isfunction(getattr(mlxbert, name))}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_name_of_another_library_is_no_attribute_and_names_ours(name: str, tiny: mlxbert.Model) -> None:
    for owner in (mlxbert, tiny):
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


def test_names_and_arguments_of_ours_are_not_in_the_tables() -> None:
    parameters = {name for one in FUNCTIONS.values() for name in inspect.signature(one).parameters}
    assert len(FUNCTIONS) > 25 and not ATTRIBUTES.keys() & {*dir(mlxbert), *dir(mlxbert.Model)}
    both = ARGUMENTS.keys() & parameters
    assert not both, both
    named = {one for instead in ARGUMENTS.values() if not isinstance(instead, str) for one in instead}
    options = {"batch_size", "epochs", "lr", "warmup"}  # of training
    assert named <= parameters | options, named - parameters
    assert set(VALUES.values()) <= {*TASKS, "embed"}


CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "embed": ("embed", {"normalize_embeddings": True}, "normalize"),
    "batches": ("embed", {"batch_size": 32}, "batch_tokens"),
    "misspelled": ("classify", {"top_kk": 2}, "top_k"),
    "labels": ("classify", {"candidate_labels": ["a"]}, "labels"),
    "code": ("load", {"trust_remote_code": True}, "never runs the code"),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_unknown_argument_names_ours(call: str, tiny: mlxbert.Model) -> None:
    function, arguments, ours = CALLS[call]
    name = next(iter(arguments))
    first = () if function == "load" else ("the cat",)
    callers = [getattr(mlxbert, function)] if function == "load" else [getattr(tiny, function)]
    for caller in callers:
        with pytest.raises(mlxbert.ArgumentError, match=f"{function} has no argument '{name}'") as caught:
            caller(*first, **arguments)
        assert caught.value.hint and ours in caught.value.hint


def test_an_option_of_training_names_ours(tmp_path: Any) -> None:
    for option, ours in (("num_train_epochs", "epochs"), ("learning_rate", "lr"), ("epoch", "epochs")):
        arguments: dict[str, Any] = {option: 3}
        with pytest.raises(mlxbert.ArgumentError, match=option) as caught:
            mlxbert.finetune("classify", train=[], output=tmp_path, **arguments)
        assert caught.value.hint == f"did you mean {ours}?"


@pytest.mark.parametrize(("task", "meant"), [("clasify", "classify"), ("text-classification", "classify")])
def test_a_misspelled_choice_is_suggested(task: str, meant: str, tmp_path: Any) -> None:
    calls = (
        lambda: mlxbert.finetune(task, train=[], output=tmp_path),
        lambda: mlxbert.load(task=task),
    )
    for call in calls:
        with pytest.raises(mlxbert.ArgumentError, match=f"task is '{task}', expected one of") as caught:
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


@pytest.mark.parametrize("name", ["embed", "finetune"])
def test_public_functions_can_be_sent_to_other_processes(name: str) -> None:
    function = getattr(mlxbert, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__doc__ and "texts" in str(inspect.signature(mlxbert.embed))
