"""Vectors that would be wrong without a word: each of these mistakes is refused, or makes no difference."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import mlxbert
from mlxbert.machine.device import mx
from tests.helpers.program import VOCABULARY, tiny_model
from tests.helpers.st_folder import NORMALIZE, dense, layer_norm, pooling, save_st, write_json

D = 24


@pytest.mark.parametrize("task", [None, "embed"])
def test_a_folder_that_goes_after_loading_changes_nothing(task: str | None, tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("cls"), NORMALIZE)
    model = mlxbert.load(folder, task=task, dtype="float32")
    expected = mlxbert.embed(mlxbert.load(folder, dtype="float32"), "the cat sat")
    shutil.rmtree(folder)
    assert np.array_equal(mlxbert.embed(model, "the cat sat"), expected)


def test_modules_that_cannot_be_used_do_not_keep_a_model_from_other_tasks(tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("median"))
    model = mlxbert.load(folder)
    assert mlxbert.fill_mask(model, "the [MASK] sat").masks
    for _ in range(2):
        with pytest.raises(mlxbert.ConfigError, match="pooling_mode is 'median'"):
            mlxbert.embed(model, "the cat")
    with pytest.raises(mlxbert.ConfigError, match="pooling_mode is 'median'"):
        mlxbert.load(folder, task="embed")


def test_a_model_loaded_for_another_task_makes_no_vectors(unit_folder: Path) -> None:
    model = mlxbert.load(unit_folder, task="fill-mask")
    with pytest.raises(mlxbert.CheckpointError, match="was loaded for another task"):
        mlxbert.embed(model, "the cat")


def test_two_checkpoints_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("cls"))
    inner = save_st(folder / "0_Transformer", pooling("cls"))
    modules = [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    write_json(folder / "modules.json", modules)
    with pytest.raises(mlxbert.ConfigError, match=r"modules\.json.*another.*0_Trans"):
        mlxbert.load(folder)
    mlxbert.load(inner)


def test_windows_that_cancel_out_give_no_nan(tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("mean"), dense(mx.zeros((5, D)), None, "Identity"), NORMALIZE)
    vector = mlxbert.embed(mlxbert.load(folder), "the cat sat on the mat " * 30, overflow="window")
    assert np.array_equal(vector, np.zeros(5, np.float32))


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([pooling("cls", embedding_dimension=999)], "embedding_dimension is 999, but the encoder gives 24 values"),
        (
            [pooling("cls", old=True, word_embedding_dimension=23)],
            "word_embedding_dimension is 23, but the encoder gives",
        ),
    ],
)
def test_a_pooling_for_another_width_is_refused(specs: list[Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(mlxbert.ConfigError, match=said):
        mlxbert.load(save_st(tmp_path / "model", *specs), task="embed")


def test_weights_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    ones = mx.ones((D,)).astype(mx.int32)
    folder = save_st(tmp_path / "model", pooling("cls"), layer_norm(ones, ones))
    with pytest.raises(mlxbert.CheckpointError, match=r"tensor.*'norm\.\w+'.*dtype.*I32.*F32"):
        mlxbert.load(folder, task="embed")


def test_a_text_that_runs_together_with_its_prompt_is_refused_alone(tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("mean", include_prompt=False))
    model = mlxbert.load(folder)
    found = list(mlxbert.embed_stream(model, ["the cat", "SK]", "a dog"], prompt="[MA", on_error="return"))
    assert [type(one).__name__ for one in found] == ["Embedding", "Failure", "Embedding"]
    assert isinstance(found[1], mlxbert.Failure) and "fewer tokens than the prompt" in found[1].error.message


def test_what_stands_before_a_bad_text_is_not_lost_and_the_error_says_which_it_is(unit: mlxbert.Model) -> None:
    texts: list[Any] = ["a cat", "a dog", None, "the mat"]
    stream = mlxbert.embed_stream(unit, texts)
    assert [next(stream).text, next(stream).text] == ["a cat", "a dog"]
    with pytest.raises(mlxbert.InputError, match="input 2: expected a text, found NoneType"):
        next(stream)
    with pytest.raises(mlxbert.InputError, match="input 2: expected a text"):
        mlxbert.embed(unit, texts)
    with pytest.raises(mlxbert.InputError, match=r"^expected a text, found NoneType\n"):
        mlxbert.embed(unit, [None])  # type: ignore[list-item]  # that is the mistake


def test_a_name_is_no_model_and_an_unknown_option_is_said_to_be_one(unit: mlxbert.Model) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=r"`model` is 'builtin', expected .* mlxbert\.load"):
        mlxbert.embed("builtin", ["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="batch_size"):
        mlxbert.embed(unit, ["a"], batch_size=3)  # type: ignore[call-arg]
    with pytest.raises(mlxbert.ArgumentError, match="`normalize` is 'no', expected True, False or None"):
        mlxbert.embed(unit, ["a"], normalize="no")  # type: ignore[arg-type]


def test_a_cut_text_is_counted(unit: mlxbert.Model) -> None:
    usage = mlxbert.Usage()
    list(mlxbert.embed_stream(unit, ["the cat", "the cat " * 40], usage=usage))
    assert (usage.texts, usage.truncated) == (2, 1)
    usage = mlxbert.Usage()
    mlxbert.similarity(unit, "the cat " * 40, ["a", "b", "the dog " * 40], top_k=1, usage=usage)
    assert (usage.texts, usage.truncated) == (4, 2)


def test_a_text_without_a_token_fails_in_its_place(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    (folder / "vocab.txt").unlink()
    bare = Tokenizer(models.WordPiece({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    bare.pre_tokenizer, bare.post_processor = pre_tokenizers.BertPreTokenizer(), processors.ByteLevel()
    write_json(folder / "tokenizer.json", json.loads(bare.to_str()))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    model = mlxbert.load(folder)
    found = [*mlxbert.embed_stream(model, ["the cat", "", " "], on_error="return")]
    assert [isinstance(result, mlxbert.Failure) for result in found] == [False, True, True]
    with pytest.raises(mlxbert.InputError, match="no token"):
        mlxbert.next_sentence(model, ("", ""))
