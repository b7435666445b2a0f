"""What the options of embed do: prompts, sizes, normalizing; usage and progress; threads and models that fail."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.results.embed import Embedding
from mlxbert.text.batch import WINDOW
from mlxbert.text.usage import Usage
from tests.helpers.cases import together
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.tiny import random_network, save, tensors_of, tiny_config
from tests.tasks.test_embed import LIMIT, LONG, PROMPT, TEXTS, D, hidden_states, near


def _lengths(vectors: np.ndarray[Any, Any]) -> float:
    """How far the rows are from length 1."""
    return float(np.abs(np.linalg.norm(vectors, axis=1) - 1).max())


def test_vectors_are_normalized_as_the_model_says_or_as_asked(tiny: mlxbert.Model, unit: mlxbert.Model) -> None:
    plain = mlxbert.embed(tiny, TEXTS)
    normal = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    assert _lengths(plain) > 0.5
    assert near(mlxbert.embed(tiny, TEXTS, normalize=True), normal)
    assert near(mlxbert.embed(tiny, TEXTS, normalize=False), plain)
    assert near(mlxbert.embed(unit, TEXTS), normal) and near(mlxbert.embed(unit, TEXTS, normalize=True), normal)
    assert near(mlxbert.embed(unit, TEXTS, normalize=False), plain)


@together("size", [1, 7, D - 1, D])
def test_dimensions_are_the_first_and_cut_before_normalizing(unit: mlxbert.Model, size: int) -> None:
    whole = mlxbert.embed(unit, TEXTS)
    cut = mlxbert.embed(unit, TEXTS, dimensions=size)
    assert near(cut, whole[:, :size])
    assert mlxbert.embed(unit, TEXTS[0], dimensions=size).shape == (size,)
    assert _lengths(mlxbert.embed(unit, TEXTS, dimensions=size, normalize=True)) < 1e-6
    assert size == D or _lengths(cut) > 1e-3


@together(
    "option,value",
    [
        ("dimensions", D + 1),
        *((name, one) for name in ("dimensions", "batch_tokens") for one in (0, -1, "3", 2.5, True)),
    ],
)
def test_sizes_that_do_not_go_are_refused(unit: mlxbert.Model, option: str, value: Any) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=f"`{option}` is {value!r}"):
        mlxbert.embed(unit, TEXTS, **{option: value})


def test_the_cut_that_a_model_names_is_the_default(tmp_path: Path) -> None:
    model = mlxbert.load(save_st(tmp_path, pooling("cls"), settings={"truncate_dim": 9}), dtype="float32")
    assert mlxbert.embed(model, TEXTS).shape == (len(TEXTS), 9)
    assert mlxbert.embed(model, TEXTS, dimensions=D).shape == (len(TEXTS), D)


def test_a_prompt_stands_before_each_text(tiny: mlxbert.Model, unit: mlxbert.Model) -> None:
    prompted = [PROMPT + text for text in TEXTS[:4]]
    expected = mlxbert.embed(tiny, prompted)
    assert near(mlxbert.embed(tiny, TEXTS[:4], prompt=PROMPT), expected)
    lead = 1 + len(unit.tokenizer.pieces(PROMPT))
    for row, text in enumerate(prompted):  # this model leaves the prompt out of its mean, and [CLS] with it
        hidden, _ = hidden_states(unit, unit.tokenizer.encode(text).ids)
        found = mlxbert.embed(unit, TEXTS[:4], prompt=PROMPT, normalize=False)
        assert near(found[row], hidden[lead:].mean(axis=0))
        assert not near(found[row], hidden[lead - 1 :].mean(axis=0))
    named = mlxbert.embed(unit, TEXTS, prompt_name="query")
    assert near(named, mlxbert.embed(unit, TEXTS, prompt=PROMPT))
    assert not near(named, mlxbert.embed(unit, TEXTS, prompt_name="passage"))
    assert near(mlxbert.embed(unit, TEXTS, prompt=""), mlxbert.embed(unit, TEXTS))


def test_the_default_prompt_gives_way_to_any_other(tmp_path: Path) -> None:
    settings = {"prompts": {"query": PROMPT, "none": ""}, "default_prompt_name": "query"}
    model = mlxbert.load(save_st(tmp_path, pooling("mean"), settings=settings), dtype="float32")
    bare = mlxbert.embed(model, TEXTS, prompt="")
    assert near(mlxbert.embed(model, TEXTS), mlxbert.embed(model, TEXTS, prompt=PROMPT))
    assert not near(mlxbert.embed(model, TEXTS), bare)
    assert near(mlxbert.embed(model, TEXTS, prompt_name="none"), bare)


@together(
    "options,message",
    [
        ({"prompt": "a", "prompt_name": "query"}, "the `prompt` 'a' and the `prompt_name` 'query' cannot be combined"),
        ({"prompt": "", "prompt_name": "query"}, "the `prompt` '' and"),
        ({"prompt_name": "doc"}, "`prompt_name` is 'doc', but the model has only the prompts 'query', 'passage'"),
        ({"prompt_name": ["query"]}, r"`prompt_name` is \['query'\], but the model has"),
        ({"prompt": 3}, "`prompt` is 3, expected a text"),
        ({"prompt": "cat " * 30}, "the prompt has 31 tokens, but the prompt and a text together can have at most 32"),
    ],
)
def test_prompts_that_cannot_be_used_are_refused(unit: mlxbert.Model, options: Any, message: str) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=message):
        mlxbert.embed_stream(unit, TEXTS, **options)


def test_the_longest_prompt_leaves_room_for_a_token(unit: mlxbert.Model) -> None:
    (result,) = mlxbert.embed_stream(unit, ["dog milk"], prompt="cat " * 29)
    assert (result.tokens, result.truncated) == (LIMIT, True) and np.isfinite(result.embedding).all()
    assert [len(row) for row in mlxbert.embed(unit, ["dog milk", ""], prompt="cat " * 29, overflow="window")] == [D, D]


def test_a_model_without_prompts_says_so(tiny: mlxbert.Model) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=r"prompt_name.*'query'"):
        mlxbert.embed(tiny, "a", prompt_name="query")


def test_usage_counts_what_was_computed(tiny: mlxbert.Model) -> None:
    usage = Usage()
    found = list(mlxbert.embed_stream(tiny, [*TEXTS, LONG], usage=usage, batch_tokens=32))
    assert usage.inputs == len(TEXTS) + 1 and usage.tokens == sum(result.tokens for result in found)
    assert usage.tokens <= usage.padded_tokens and 3 <= usage.batches <= 7 and 0 <= usage.padding < 1
    windows = Usage()
    list(mlxbert.embed_stream(tiny, [LONG], usage=windows, overflow="window", batch_tokens=1))
    assert (windows.inputs, windows.tokens, windows.batches) == (3, 71 + 6, 3)


def test_progress_is_told_after_each_text(tiny: mlxbert.Model) -> None:
    seen: list[tuple[int, int]] = []
    mlxbert.embed(tiny, (text for text in TEXTS), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, len(TEXTS)) for done in range(1, len(TEXTS) + 1)]


def _in_a_thread(work: Callable[[], object]) -> BaseException | None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as problem:
            caught.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0] if caught else None


def test_another_thread_is_refused_at_the_call_and_at_an_iterator(tiny: mlxbert.Model) -> None:
    stream = mlxbert.embed_stream(tiny, ["a"])
    works: list[Callable[[], object]] = [
        lambda: mlxbert.embed(tiny, "a"),
        lambda: mlxbert.embed_stream(tiny, ["a"]),
        lambda: mlxbert.similarity(tiny, "a", ["b"]),
        lambda: next(stream),
    ]
    for work in works:
        problem = _in_a_thread(work)
        assert isinstance(problem, mlxbert.ThreadError)


def test_weights_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    tensors = tensors_of(random_network(tiny_config()))
    broken = {
        name: array * float("nan") if name.endswith("embeddings.LayerNorm.weight") else array
        for name, array in tensors.items()
    }
    model = mlxbert.load(save(tmp_path / "model", broken), dtype="float32")
    with pytest.raises(mlxbert.MlxbertError, match="vectors that are not finite") as caught:
        mlxbert.embed(model, "a")
    assert "bfloat16" in (caught.value.hint or "")


def test_two_models_live_side_by_side(tiny: mlxbert.Model, tmp_path: Path) -> None:
    other = mlxbert.load(save(tmp_path / "other", tensors_of(random_network(tiny_config(), seed=8))), dtype="float32")
    one, two = mlxbert.embed(tiny, TEXTS), mlxbert.embed(other, TEXTS)
    assert not near(one, two)
    texts = TEXTS * (WINDOW // len(TEXTS) + 1)
    pairs = zip(mlxbert.embed_stream(tiny, texts), mlxbert.embed_stream(other, texts), strict=True)
    for number, (a, b) in enumerate(pairs):
        assert isinstance(a, Embedding) and isinstance(b, Embedding)
        assert near(a.embedding, one[number % len(TEXTS)]) and near(b.embedding, two[number % len(TEXTS)])


def test_texts_are_lower_cased_and_cut_as_the_model_says(tmp_path: Path) -> None:
    cased = {"do_lower_case": False}
    plain = mlxbert.load(save(tmp_path / "plain", settings=cased), dtype="float32")
    folder = save_st(tmp_path / "st", pooling("mean"), transformer={"max_seq_length": 6, "do_lower_case": True})
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    model = mlxbert.load(folder, dtype="float32")
    (result,) = mlxbert.embed_stream(model, ["The CAT sat ON the mat in Paris"])
    assert (result.tokens, result.truncated) == (6, True)
    assert near(result.embedding, mlxbert.embed(plain, "the cat sat on"))
    assert not near(result.embedding, mlxbert.embed(plain, "The CAT sat ON"))


def test_a_limit_beyond_the_positions_is_the_positions(tmp_path: Path) -> None:
    folder = save_st(tmp_path, pooling("mean"), NORMALIZE, transformer={"max_seq_length": 512})
    (result,) = mlxbert.embed_stream(mlxbert.load(folder), [LONG])
    assert result.tokens == LIMIT


def test_halves_give_float32_vectors(tmp_path: Path) -> None:
    folder = save_st(tmp_path, pooling("mean"), NORMALIZE)
    expected = mlxbert.embed(mlxbert.load(folder, dtype="float32"), TEXTS)
    for dtype, least in (("float16", 0.999), ("bfloat16", 0.99)):
        model = mlxbert.load(folder, dtype=dtype)
        found = mlxbert.embed(model, TEXTS)
        assert found.dtype == np.float32 and (found * expected).sum(axis=1).min() >= least
