"""Texts to vectors: one, many, long ones; prompts, sizes, usage; threads, bad inputs, and models that are wrong."""

import csv
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, models as token_models, pre_tokenizers, processors

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from mlxbert.text.batch import WINDOW
from mlxbert.text.usage import Usage
from tests.helpers.cases import together
from tests.helpers.cells import ALL
from tests.helpers.libraries import Library
from tests.helpers.program import VOCABULARY, tiny_model
from tests.helpers.st_folder import NORMALIZE, dense, layer_norm, pooling, save_st, write_json
from tests.helpers.tiny import random_network, save, tensors_of, tiny_config

Vector = NDArray[np.float32]
D, LIMIT = 24, 32
TEXTS = ["the cat sat on the mat", "a dog", "", "paris , tokyo !", "he bought milk in the largest store", "cat " * 25]
LONG = " ".join(("the cat sat on mat in paris he bought milk " * 8).split()[:71])
MIXED = "the " * 30 + "bought " * 30 + ", ! " * 6
PROMPT = "man is : "


def near(found: Vector, expected: Vector) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max() <= 1e-5)


def hidden_states(model: mlxbert.Model, ids: list[int]) -> tuple[Vector, Vector]:
    """The last hidden state (L, D), and how much the first token attends to each token, heads averaged (L,)."""
    output = model.network.encoder(mx.array([ids]), output_attentions=True)
    assert output.attentions is not None
    return np.array(output.last_hidden_state[0]), np.array(output.attentions[-1][0, :, 0].mean(axis=0))


def test_a_text_gives_a_vector_and_many_give_rows(tiny: mlxbert.Model) -> None:
    one = mlxbert.embed(tiny, TEXTS[0])
    assert type(one) is np.ndarray and one.shape == (D,) and one.dtype == np.float32
    rows = mlxbert.embed(tiny, TEXTS)
    assert rows.shape == (len(TEXTS), D) and rows.dtype == np.float32 and near(rows[0], one)
    assert (mlxbert.embed(tiny, tuple(TEXTS)) == rows).all() and (mlxbert.embed(tiny, iter(TEXTS)) == rows).all()
    nothings: list[Any] = [[], (), iter([])]
    for nothing in nothings:
        none = mlxbert.embed(tiny, nothing)
        assert none.shape == (0, D) and none.dtype == np.float32
    assert mlxbert.embed(tiny, [], dimensions=5).shape == (0, 5)
    assert mlxbert.embed(tiny, [], pooling="cls+max").shape == (0, 2 * D)


@together("batch_tokens", [None, 1, 33, 10**6])
def test_a_batch_gives_what_each_text_gives_alone(tiny: mlxbert.Model, batch_tokens: int | None) -> None:
    texts = TEXTS * 2 + TEXTS[::-1]
    alone = np.stack([mlxbert.embed(tiny, text) for text in texts])
    assert near(mlxbert.embed(tiny, texts, batch_tokens=batch_tokens), alone)
    assert np.abs(alone[:5] - alone[1:6]).max(axis=1).min() > 1e-3  # another order would show


def test_a_vector_is_the_pooled_encoder_output(tiny: mlxbert.Model) -> None:
    hidden, attention = hidden_states(tiny, tiny.tokenizer.encode(TEXTS[0]).ids)
    expected = {
        "mean": hidden.mean(axis=0),
        "cls+mean": np.concatenate([hidden[0], hidden.mean(axis=0)]),
        "last_token+max+cls": np.concatenate([hidden[-1], hidden.max(axis=0), hidden[0]]),
        "attention": attention @ hidden,
    }
    for name, vector in expected.items():
        found = mlxbert.embed(tiny, TEXTS, pooling=name)  # padded
        assert near(found[0], vector.astype(np.float32)), name
    assert near(mlxbert.embed(tiny, TEXTS[0]), expected["mean"])


def test_a_stream_is_read_as_it_is_consumed_and_holds_nothing(tiny: mlxbert.Model) -> None:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for _ in range(6 * WINDOW):
            taken += 1
            yield "a"

    stream = mlxbert.embed_stream(tiny, texts())
    assert taken == 0
    first = next(stream)
    assert isinstance(first, Embedding) and first.text == "a" and first.embedding.shape == (D,)
    assert taken <= 2 * WINDOW
    for number, _ in enumerate(stream, 2):
        assert taken <= number + 2 * WINDOW  # never more than two windows ahead
    assert number == taken == 6 * WINDOW


BAD: list[Any] = [None, 5, "half \ud800", mlxbert.InputError("not readable"), b"bytes", ["a"]]


def test_bad_inputs_keep_their_places_or_raise(tiny: mlxbert.Model) -> None:
    texts: list[Any] = ["the cat", *BAD, "a dog", None, "milk"]
    found = list(mlxbert.embed_stream(tiny, texts, on_error="return"))
    bad = [result for result in found if isinstance(result, Failure)]
    good = [result for result in found if isinstance(result, Embedding)]
    assert [failure.index for failure in bad] == [1, 2, 3, 4, 5, 6, 8]
    assert [found.index(failure) for failure in bad] == [failure.index for failure in bad]
    assert [result.text for result in good] == ["the cat", "a dog", "milk"]
    messages = [failure.error.message for failure in bad]
    assert messages[:2] == ["expected a text, found NoneType", "expected a text, found int"]
    assert "half of a surrogate pair" in messages[2] and messages[3] == "not readable"
    for result in good:
        assert near(result.embedding, mlxbert.embed(tiny, result.text))
    for one in BAD:
        with pytest.raises(mlxbert.InputError):
            mlxbert.embed(tiny, ["a", one])
        stream = mlxbert.embed_stream(tiny, ["a cat", "a dog", one, "the mat"])
        assert [next(stream).text, next(stream).text] == ["a cat", "a dog"]
        with pytest.raises(mlxbert.InputError, match=r"^input 2: "):
            next(stream)


def test_a_long_text_is_cut_at_its_end_or_an_error(tiny: mlxbert.Model) -> None:
    (result,) = mlxbert.embed_stream(tiny, [LONG])
    assert result.truncated and result.tokens == LIMIT and result.text == LONG
    (start,) = mlxbert.embed_stream(tiny, [" ".join(LONG.split()[: LIMIT - 2])])
    assert not start.truncated and start.tokens == LIMIT and near(result.embedding, start.embedding)
    message = f"the text has 73 tokens, but the model takes at most {LIMIT}"
    with pytest.raises(mlxbert.InputError, match=message):
        mlxbert.embed(tiny, ["a", LONG], overflow="error")
    short, long = mlxbert.embed_stream(tiny, ["a", LONG], overflow="error", on_error="return")
    assert isinstance(short, Embedding) and isinstance(long, Failure) and long.error.message == message


def _windows(text: str, size: int) -> tuple[list[str], list[int]]:
    words = text.split()
    parts = [words[start : start + size] for start in range(0, len(words), size)]
    return [" ".join(part) for part in parts], [len(part) for part in parts]


def test_a_long_text_is_the_mean_of_its_windows(tiny: mlxbert.Model) -> None:
    parts, weights = _windows(LONG, LIMIT - 2)
    assert weights == [30, 30, 11]
    (result,) = mlxbert.embed_stream(tiny, [LONG], overflow="window")
    expected = np.average(mlxbert.embed(tiny, parts), axis=0, weights=weights)
    assert near(result.embedding, expected) and result.embedding.dtype == np.float32
    assert (result.tokens, result.truncated) == (71 + 3 * 2, False)
    assert not near(result.embedding, mlxbert.embed(tiny, parts).mean(axis=0))
    texts = ["a dog", LONG, "", LONG, "milk"]
    rows = mlxbert.embed(tiny, texts, overflow="window")
    assert near(rows[1], expected) and near(rows[3], expected)
    assert near(rows[[0, 2, 4]], mlxbert.embed(tiny, ["a dog", "", "milk"]))


def test_each_window_has_the_prompt_and_their_mean_unit_length(unit: mlxbert.Model) -> None:
    lead = len(unit.tokenizer.pieces(PROMPT))
    parts, weights = _windows(MIXED, LIMIT - 2 - lead)
    assert lead >= 3 and len(set(weights)) == 2
    (result,) = mlxbert.embed_stream(unit, [MIXED], overflow="window", prompt=PROMPT)
    mean = np.average(mlxbert.embed(unit, parts, prompt=PROMPT), axis=0, weights=weights)
    assert np.linalg.norm(mean) < 0.9999
    assert near(result.embedding, mean / np.linalg.norm(mean))
    assert result.tokens == 72 + len(parts) * (lead + 2)
    raw = mlxbert.embed(unit, MIXED, overflow="window", prompt=PROMPT, normalize=False)
    each = mlxbert.embed(unit, parts, prompt=PROMPT, normalize=False)
    assert near(raw, np.average(each, axis=0, weights=weights)) and np.linalg.norm(raw) > 1.5
    cut = mlxbert.embed(unit, MIXED, overflow="window", prompt=PROMPT, dimensions=7)
    assert near(cut, mean[:7])  # what is cut is not of unit length any more


def _lengths(vectors: np.ndarray[Any, Any]) -> float:
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


def test_the_default_prompt_and_size_of_a_model_give_way_to_any_other(tmp_path: Path) -> None:
    settings = {"prompts": {"query": PROMPT, "none": ""}, "default_prompt_name": "query", "truncate_dim": 9}
    model = mlxbert.load(save_st(tmp_path, pooling("mean"), settings=settings), dtype="float32")
    bare = mlxbert.embed(model, TEXTS, prompt="")
    assert near(mlxbert.embed(model, TEXTS), mlxbert.embed(model, TEXTS, prompt=PROMPT))
    assert not near(mlxbert.embed(model, TEXTS), bare)
    assert near(mlxbert.embed(model, TEXTS, prompt_name="none"), bare)
    assert bare.shape == (len(TEXTS), 9) and mlxbert.embed(model, TEXTS, dimensions=D).shape == (len(TEXTS), D)


@together(
    "options,message",
    [
        *(({"pooling": name}, "pooling.*cls, mean, .* joined by") for name in ("median", "", "cls+", "cls,mean", 3)),
        ({"dimensions": D + 1}, f"`dimensions` is {D + 1}"),
        *(({"dimensions": one}, f"`dimensions` is {one!r}") for one in (0, -1, "3", 2.5, True)),
        *(({"batch_tokens": one}, f"`batch_tokens` is {one!r}") for one in (0, -1, "3", 2.5, True)),
        ({"overflow": "cut"}, "overflow.*'cut'.*truncate, window, error"),
        ({"on_error": "skip"}, "on_error.*'skip'.*raise, return"),
        ({"prompt": "a", "prompt_name": "query"}, "the `prompt` 'a' and the `prompt_name` 'query' cannot be combined"),
        ({"prompt": "", "prompt_name": "query"}, "the `prompt` '' and"),
        ({"prompt_name": "doc"}, "`prompt_name` is 'doc', but the model has only the prompts 'query', 'passage'"),
        ({"prompt_name": ["query"]}, r"`prompt_name` is \['query'\], but the model has"),
        ({"prompt": 3}, "`prompt` is 3, expected a text"),
        ({"prompt": "cat " * 30}, "the prompt has 31 tokens, but the prompt and a text together can have at most 32"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    unit: mlxbert.Model, tiny: mlxbert.Model, options: Any, message: str
) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=message):
        mlxbert.embed_stream(unit, TEXTS, **options)
    with pytest.raises(mlxbert.ArgumentError, match=r"prompt_name.*'query'"):  # a model without prompts
        mlxbert.embed(tiny, "a", prompt_name="query")
    with pytest.raises(mlxbert.ArgumentError, match=r"`texts` is 'the cat'.*iterable"):  # not its letters
        mlxbert.embed_stream(tiny, "the cat")


def test_the_longest_prompt_leaves_room_for_a_token(unit: mlxbert.Model) -> None:
    (result,) = mlxbert.embed_stream(unit, ["dog milk"], prompt="cat " * 29)
    assert (result.tokens, result.truncated) == (LIMIT, True) and np.isfinite(result.embedding).all()
    assert [len(row) for row in mlxbert.embed(unit, ["dog milk", ""], prompt="cat " * 29, overflow="window")] == [D, D]


def test_usage_and_progress_count_what_was_computed(tiny: mlxbert.Model) -> None:
    usage = Usage()
    found = list(mlxbert.embed_stream(tiny, [*TEXTS, LONG], usage=usage, batch_tokens=32))
    assert usage.inputs == len(TEXTS) + 1 and usage.tokens == sum(result.tokens for result in found)
    assert usage.tokens <= usage.padded_tokens and 3 <= usage.batches <= 7 and 0 <= usage.padding < 1
    windows = Usage()
    list(mlxbert.embed_stream(tiny, [LONG], usage=windows, overflow="window", batch_tokens=1))
    assert (windows.inputs, windows.tokens, windows.batches) == (3, 71 + 6, 3)
    seen: list[tuple[int, int]] = []
    mlxbert.embed(tiny, (text for text in TEXTS), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, len(TEXTS)) for done in range(1, len(TEXTS) + 1)]


def test_two_models_live_side_by_side(tiny: mlxbert.Model, tmp_path: Path) -> None:
    other = mlxbert.load(save(tmp_path / "other", tensors_of(random_network(tiny_config(), seed=8))), dtype="float32")
    one, two = mlxbert.embed(tiny, TEXTS), mlxbert.embed(other, TEXTS)
    assert not near(one, two)
    pairs = zip(mlxbert.embed_stream(tiny, TEXTS), mlxbert.embed_stream(other, TEXTS), strict=True)
    for number, (a, b) in enumerate(pairs):
        assert near(a.embedding, one[number]) and near(b.embedding, two[number])


def test_texts_are_lower_cased_and_cut_as_the_model_says(tmp_path: Path) -> None:
    cased = {"do_lower_case": False}
    plain = mlxbert.load(save(tmp_path / "plain", settings=cased), dtype="float32")
    folder = save_st(tmp_path / "st", pooling("mean"), transformer={"max_seq_length": 6, "do_lower_case": True})
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    model = mlxbert.load(folder, dtype="float32")
    (result,) = mlxbert.embed_stream(model, ["The CAT sat ON the mat in Paris"])
    beyond = mlxbert.load(save_st(tmp_path / "long", pooling("mean"), transformer={"max_seq_length": 512}))
    assert beyond.tokenizer.max_length == LIMIT  # the positions that there are
    assert (result.tokens, result.truncated) == (6, True)
    assert near(result.embedding, mlxbert.embed(plain, "the cat sat on"))
    assert not near(result.embedding, mlxbert.embed(plain, "The CAT sat ON"))


def test_halves_give_float32_vectors(tmp_path: Path) -> None:
    folder = save_st(tmp_path, pooling("mean"), NORMALIZE)
    expected = mlxbert.embed(mlxbert.load(folder, dtype="float32"), TEXTS)
    for dtype, least in (("float16", 0.999), ("bfloat16", 0.99)):
        model = mlxbert.load(folder, dtype=dtype)
        found = mlxbert.embed(model, TEXTS)
        assert found.dtype == np.float32 and (found * expected).sum(axis=1).min() >= least


def test_a_folder_that_goes_after_loading_changes_nothing(tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("cls"), NORMALIZE)
    models = [mlxbert.load(folder, task=task, dtype="float32") for task in (None, "embed")]
    expected = mlxbert.embed(mlxbert.load(folder, dtype="float32"), "the cat sat")
    shutil.rmtree(folder)
    assert all(np.array_equal(mlxbert.embed(model, "the cat sat"), expected) for model in models)


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


WHOLE_NUMBERS = mx.ones((D,)).astype(mx.int32)


@together(
    "specs,said",
    [
        ([pooling("cls", embedding_dimension=999)], "embedding_dimension is 999, but the encoder gives 24 values"),
        ([pooling("cls", old=True, word_embedding_dimension=23)], "word_embedding_dimension is 23, but the encoder"),
        ([pooling("cls"), layer_norm(WHOLE_NUMBERS, WHOLE_NUMBERS)], r"tensor.*'norm\.\w+'.*dtype.*I32.*F32"),
    ],
)
def test_modules_that_do_not_fit_the_encoder_are_refused(specs: list[Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(mlxbert.MlxbertError, match=said):
        mlxbert.load(save_st(tmp_path / said[:5], *specs), task="embed")


def test_windows_that_cancel_out_give_no_nan(tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("mean"), dense(mx.zeros((5, D)), None, "Identity"), NORMALIZE)
    vector = mlxbert.embed(mlxbert.load(folder), "the cat sat on the mat " * 30, overflow="window")
    assert np.array_equal(vector, np.zeros(5, np.float32))


def test_a_text_that_runs_together_with_its_prompt_is_refused_alone(tmp_path: Path) -> None:
    folder = save_st(tmp_path / "model", pooling("mean", include_prompt=False))
    model = mlxbert.load(folder)
    found = list(mlxbert.embed_stream(model, ["the cat", "SK]", "a dog"], prompt="[MA", on_error="return"))
    assert [type(one).__name__ for one in found] == ["Embedding", "Failure", "Embedding"]
    assert isinstance(found[1], mlxbert.Failure) and "fewer tokens than the prompt" in found[1].error.message


def test_a_text_without_a_token_fails_in_its_place(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    (folder / "vocab.txt").unlink()
    bare = Tokenizer(
        token_models.WordPiece({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    bare.pre_tokenizer, bare.post_processor = pre_tokenizers.BertPreTokenizer(), processors.ByteLevel()
    write_json(folder / "tokenizer.json", json.loads(bare.to_str()))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    model = mlxbert.load(folder)
    found = [*mlxbert.embed_stream(model, ["the cat", "", " "], on_error="return")]
    assert [isinstance(result, mlxbert.Failure) for result in found] == [False, True, True]
    with pytest.raises(mlxbert.InputError, match="no token"):
        mlxbert.next_sentence(model, ("", ""))


torch, st = Library("torch"), Library("sentence_transformers")
EMBEDDER, DATA = os.environ.get("MLXBERT_TEST_EMBEDDER"), os.environ.get("MLXBERT_TEST_DATA")
REAL = pytest.mark.skipif(not EMBEDDER or not DATA, reason="needs MLXBERT_TEST_EMBEDDER and MLXBERT_TEST_DATA")
ODD = [
    "", " ", "\n", "a", ".", "?!", "\t\u00a0", "\x00\x07\x1b[31m", "\u200b\u200d", "é e\u0301", "ﬁ ①", "\ufffd",
    "🙂" * 300,
]  # fmt: skip
SHARE = 1 if ALL else 40


def _paragraphs(name: str) -> list[str]:
    articles = json.loads((Path(DATA or "") / name).read_text(encoding="utf-8"))["data"]
    return [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]


def _pairs() -> list[tuple[str, str, float]]:
    with (Path(DATA or "") / "stsb-en" / "stsb-en-test.csv").open(encoding="utf-8", newline="") as file:
        return [(first, second, float(score)) for first, second, score in csv.reader(file)]


def texts_of_every_kind() -> list[str]:
    """Sentences, paragraphs, some far over 256 tokens, Chinese, German, and what nobody would write."""
    generator = random.Random(5)
    sentences = [text for first, second, _ in _pairs() for text in (first, second)]
    english, chinese, german = (_paragraphs(f"xquad/xquad.{language}.json") for language in ("en", "zh", "de"))
    long = [" ".join(generator.sample(english, 4)) for _ in range(150 // SHARE)]
    marked = [
        f"{text} {generator.choice('🙂🏳️‍🌈👩🏽‍🚀')}\x1b{generator.choice(sentences)}"
        for text in generator.sample(sentences, 200 // SHARE)
    ]
    found = ODD + long + marked + generator.sample(chinese, 150 // SHARE) + generator.sample(german, 150 // SHARE)
    found += generator.sample(_paragraphs("squad/dev-v1.1.json"), 400 // SHARE)
    found += generator.sample(sentences, 2000 // SHARE - len(found))
    generator.shuffle(found)
    return found


PAIRS, BOUND = 500 if ALL else 60, 1e-5


@pytest.fixture(scope="module")
def embedder() -> mlxbert.Model:
    """all-MiniLM-L6-v2; the data are stsb-en, squad and xquad in their original formats."""
    return mlxbert.load(str(EMBEDDER), task="embed", dtype="float32", device="cpu")


@REAL
@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers_also_of_a_text_alone(embedder: mlxbert.Model) -> None:
    texts = texts_of_every_kind()
    reference = st.SentenceTransformer(str(EMBEDDER), device="cpu").encode(texts, show_progress_bar=False)
    vectors = mlxbert.embed(embedder, texts)
    cosines = (vectors.astype(np.float64) * reference).sum(axis=1)
    cosines /= np.linalg.norm(vectors.astype(np.float64), axis=1) * np.linalg.norm(reference.astype(np.float64), axis=1)
    assert len(cosines) == 2000 // SHARE and cosines.min() >= 0.99999
    for number in random.Random(3).sample(range(len(texts)), 200 // SHARE):
        assert near(mlxbert.embed(embedder, texts[number]), vectors[number])


@REAL
@pytest.mark.slow
def test_similar_sentences_rank_as_people_rank_them(embedder: mlxbert.Model) -> None:
    step, spearman = (1, 82.03) if ALL else (3, 82.35)  # as sentence-transformers computes it
    first, second, scores = zip(*_pairs()[::step], strict=True)
    cosines = (mlxbert.embed(embedder, first) * mlxbert.embed(embedder, second)).sum(axis=1)
    rows: list[Any] = [np.asarray(cosines), np.asarray(scores)]
    ranks = [np.searchsorted(np.sort(row), row) + np.searchsorted(np.sort(row), row, "right") for row in rows]
    assert abs(100 * np.corrcoef(np.stack(ranks))[0, 1] - spearman) <= 0.02


@REAL
@pytest.mark.slow
@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
@pytest.mark.sampled
def test_scores_and_order_are_those_of_the_cross_encoder(activation: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    given: dict[str, Any] = {"num_labels": 1, "max_length": 200, "device": "cpu"}
    theirs = st.CrossEncoder(EMBEDDER, activation_fn=getattr(torch.nn, activation)(), **given)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    chosen = random.Random(5).sample(_paragraphs("squad/dev-v1.1.json"), 500 if ALL else 30)
    query = "Where was it built?"
    texts = [text * (1 + number % 3) for number, text in enumerate(chosen)]  # some too long
    expected = theirs.rank(query, texts)
    model = mlxbert.load(tmp_path / "theirs", task="classify", dtype="float32", device="cpu")
    scores = {row["corpus_id"]: row["score"] for row in expected}
    for one, row in zip(mlxbert.rerank(model, query, texts), expected, strict=True):
        assert abs(one.score - scores[one.index]) <= 1e-5
        assert one.index == row["corpus_id"] or abs(one.score - row["score"]) <= 1e-5
