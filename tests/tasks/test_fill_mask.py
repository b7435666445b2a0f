"""fill-mask: several masks, targets, long texts, bad inputs, and vocabularies that mark where words begin."""

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.tasks.fill_mask import target_ids
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.cases import together
from tests.helpers.cells import ALL
from tests.helpers.tiny import CONFIG, VOCAB, random_network, save, tensors_of, tiny_config
from tests.helpers.vocabularies import HEAD, byte_files, pieces_file, plain, put

TOKYO = "Tokyo is the largest city in [MASK]."


def test_the_built_in_model_knows_where_tokyo_is(builtin: mlxbert.Model) -> None:
    result = mlxbert.fill_mask(builtin, TOKYO)
    (mask,) = result.masks
    assert (mask.position, TOKYO[mask.start : mask.end], len(mask.fills)) == (7, "[MASK]", 5)
    best = mask.fills[0]
    assert (best.token, best.token_id) == ("japan", 2900)
    assert best.text == "Tokyo is the largest city in japan."
    assert abs(best.score - 0.694) < 0.005
    assert [fill.score for fill in mask.fills] == sorted((fill.score for fill in mask.fills), reverse=True)


def test_several_masks_are_filled_each_while_the_others_stay(tiny: mlxbert.Model) -> None:
    text = "[MASK] cat [MASK] on [MASK]"
    result = mlxbert.fill_mask(tiny, text, top_k=1)
    assert [(mask.start, mask.end) for mask in result.masks] == [(0, 6), (11, 17), (21, 27)]
    assert [mask.position for mask in result.masks] == [1, 3, 5]
    for mask in result.masks:
        assert str(mask.fills[0].text).count("[MASK]") == 2


def test_targets_keep_their_scores_and_nothing_else_competes(tiny: mlxbert.Model) -> None:
    whole = {fill.token: fill.score for fill in mlxbert.fill_mask(tiny, "a [MASK] .", top_k=len(VOCAB)).masks[0].fills}
    assert {*whole} == {*VOCAB} and abs(sum(whole.values()) - 1) < 1e-5
    found = mlxbert.fill_mask(tiny, "a [MASK] .", targets=["dog", "CAT", "mat", "dog", "in", "on", "of"]).masks[0].fills
    assert sorted(fill.token for fill in found) == ["cat", "dog", "in", "mat", "of", "on"]
    for fill in found:
        assert abs(fill.score - whole[fill.token]) < 1e-7
    assert len(mlxbert.fill_mask(tiny, "a [MASK] .", targets=["dog", "cat"], top_k=1).masks[0].fills) == 1
    (mask,) = mlxbert.fill_mask(tiny, "he play [MASK] .", targets=["##ing"]).masks
    assert mask.fills[0].text == "he playing ."


@together(
    "options,said",
    [
        *(({"targets": wrong}, "target") for wrong in (["zebra"], [""], [], "cat", ["cat dog"], ["cat", "\ud800"])),
        *(({"top_k": wrong}, f"`top_k` is {wrong!r}") for wrong in (0, len(VOCAB) + 1)),
        ({"text": "no"}, "`text` is 'no'"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_options_that_cannot_be_used_are_refused(tiny: mlxbert.Model, options: dict[str, Any], said: str) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=said):
        mlxbert.fill_mask(tiny, "a [MASK] .", **options)


def test_a_text_without_a_mask_raises_or_fails_in_its_place(tiny: mlxbert.Model) -> None:
    texts = ["the [MASK]", "the cat", "[MASK] sat"]
    with pytest.raises(mlxbert.InputError, match=r"the text 'the cat' has no \[MASK\]"):
        list(mlxbert.fill_mask(tiny, texts))
    with pytest.raises(mlxbert.InputError):
        mlxbert.fill_mask(tiny, "one text raises", on_error="return")
    good, bad, last = mlxbert.fill_mask(tiny, texts, on_error="return")
    assert isinstance(good, mlxbert.FillMask) and isinstance(last, mlxbert.FillMask)
    assert isinstance(bad, mlxbert.Failure) and bad.index == 1 and "has no [MASK]" in bad.error.message


def test_each_mask_of_a_long_text_is_seen_with_what_stands_around_it(tiny: mlxbert.Model) -> None:
    words = ["the", "cat", "sat", "on", "a", "mat"] * 20
    words[3], words[60], words[61], words[119] = ["[MASK]"] * 4
    text = " ".join(words)
    result = mlxbert.fill_mask(tiny, text)
    assert [mask.position for mask in result.masks] == [4, 61, 62, 120]
    assert all(text[mask.start : mask.end] == "[MASK]" for mask in result.masks)
    # 30 tokens fit between [CLS] and [SEP]; the window of a mask begins 15 before it, unless the text ends earlier.
    # The mask next to another shares its window.
    for mask, start in zip(result.masks, (0, 45, 45, 90), strict=True):
        alone = mlxbert.fill_mask(tiny, " ".join(words[start : start + 30]))
        same = next(found for found in alone.masks if found.position == mask.position - start)
        assert [fill.token for fill in same.fills] == [fill.token for fill in mask.fills]
        assert abs(same.fills[0].score - mask.fills[0].score) < 1e-6
    with pytest.raises(mlxbert.InputError, match=r"122 tokens.*32"):
        mlxbert.fill_mask(tiny, text, overflow="error")
    cut = mlxbert.fill_mask(tiny, text, overflow="truncate")
    assert len(cut.masks) == 1 and cut.truncated and not result.truncated
    with pytest.raises(mlxbert.InputError, match=r"no \[MASK\] within the first 32 tokens"):
        mlxbert.fill_mask(tiny, " ".join(words[4:]), overflow="truncate")


def test_both_spellings_of_the_mask_are_understood(tmp_path: Path) -> None:
    vocab = ["<mask>" if word == "[MASK]" else word for word in VOCAB]
    model = mlxbert.load(str(save(tmp_path / "m", vocab=vocab, settings={"mask_token": "<mask>"})))
    text = "é [MASK] sat <mask> mat [MASK]"
    result = mlxbert.fill_mask(model, text, top_k=1)
    assert [text[mask.start : mask.end] for mask in result.masks] == ["[MASK]", "<mask>", "[MASK]"]
    plain = mlxbert.fill_mask(model, text.replace("[MASK]", "<mask>"), top_k=1)
    assert [mask.fills[0].token for mask in plain.masks] == [mask.fills[0].token for mask in result.masks]
    word = result.masks[1].fills[0].token.removeprefix("##")
    assert result.masks[1].fills[0].text in (f"é [MASK] sat {word} mat [MASK]", f"é [MASK] sat{word} mat [MASK]")


def test_a_model_of_a_thread_that_has_ended_is_refused_too(tiny_folder: Path) -> None:
    with ThreadPoolExecutor(1) as first:
        model = first.submit(mlxbert.load, str(tiny_folder)).result()
    with ThreadPoolExecutor(1) as second:  # ids of threads are used again
        assert isinstance(second.submit(mlxbert.fill_mask, model, "[MASK]").exception(), mlxbert.ThreadError)


def test_scores_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    tensors = tensors_of(random_network(tiny_config()))
    tensors["cls.predictions.bias"] = mx.full(tensors["cls.predictions.bias"].shape, mx.nan)
    tensors["cls.seq_relationship.bias"] = mx.full((2,), mx.nan)
    model = mlxbert.load(str(save(tmp_path / "m", tensors)))
    with pytest.raises(mlxbert.MlxbertError, match="not finite"):
        mlxbert.fill_mask(model, "the [MASK]")
    with pytest.raises(mlxbert.MlxbertError, match="not finite"):
        mlxbert.next_sentence(model, ("the", "cat"))


def test_rows_of_the_embeddings_without_a_token_are_no_words(tmp_path: Path) -> None:
    config = {**CONFIG, "vocab_size": CONFIG["vocab_size"] + 13}
    tensors = tensors_of(random_network(tiny_config(vocab_size=config["vocab_size"])))
    tensors["cls.predictions.bias"][-13:] = 50.0  # each of them would win
    model = mlxbert.load(str(save(tmp_path / "m", tensors, config)))
    fills = mlxbert.fill_mask(model, "the [MASK]", top_k=len(VOCAB)).masks[0].fills
    assert sorted(fill.token_id for fill in fills) == list(range(len(VOCAB)))
    assert sum(fill.score for fill in fills) < 1e-6


def test_fills_repeat_the_text_up_to_the_50th_mask_or_not_at_all(tiny: mlxbert.Model) -> None:
    text = " ".join(["[MASK]"] * 60)
    masks = mlxbert.fill_mask(tiny, text, top_k=1).masks
    assert [mask.fills[0].text is None for mask in masks] == [False] * 49 + [True] * 11
    without = mlxbert.fill_mask(tiny, text, top_k=1, text=False)
    assert [(fill.token_id, fill.score, fill.text) for mask in without.masks for fill in mask.fills] == [
        (fill.token_id, fill.score, None) for mask in masks for fill in mask.fills
    ]
    assert all("text" not in fill for mask in without.to_dict()["masks"] for fill in mask["fills"])
    written = json.loads(json.dumps(mlxbert.fill_mask(tiny, text, top_k=1).to_dict()))
    assert list(written) == ["text", "masks"] and [mask["position"] for mask in written["masks"]] == [*range(1, 61)]
    assert list(written["masks"][0]) == ["position", "start", "end", "fills"]
    assert list(written["masks"][0]["fills"][0]) == ["token", "token_id", "score", "text"]


SPACE = "\u2581"
PIECES = {
    "sentencepiece.bpe.model": pieces_file(
        [*HEAD, *plain(SPACE, f"{SPACE}the", f"{SPACE}Paris", "s", "a", "t", "Paris")]
    )
}


def opened(folder: Path, content: Any, name: str, **settings: Any) -> Tokenizer:
    put(folder, {**content, "tokenizer_config.json": {"tokenizer_class": name, **settings}})
    return Tokenizer(read_tokenizer(folder), tiny_config(vocab_size=100))


@pytest.fixture
def byte_pairs(tmp_path: Path) -> Tokenizer:
    return opened(tmp_path, byte_files(), "RobertaTokenizer")


@pytest.fixture
def pieces(tmp_path: Path) -> Tokenizer:
    return opened(tmp_path, PIECES, "XLMRobertaTokenizer")


def place(tokenizer: Tokenizer, left: str, token: str, right: str = ".") -> str:
    number = tokenizer.token_id(token)
    assert number is not None
    return tokenizer.filled(left, number, right)


def test_words_read_as_in_a_text(byte_pairs: Tokenizer, pieces: Tokenizer) -> None:
    for tokenizer, token, shown in (
        (byte_pairs, "\u0120Paris", " Paris"),
        (byte_pairs, "Paris", "Paris"),
        (byte_pairs, "\u00c3\u00a9", "\u00e9"),
        (byte_pairs, "<mask>", "<mask>"),
        (pieces, f"{SPACE}Paris", "Paris"),
        (pieces, "s", "s"),
    ):
        number = tokenizer.token_id(token)
        assert number is not None and tokenizer.shown(number) == shown


@pytest.mark.parametrize("family", ["byte_pairs", "pieces"])
def test_a_word_stands_behind_the_white_space_there_or_a_space(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tokenizer = request.getfixturevalue(family)
    mark = "\u0120" if family == "byte_pairs" else SPACE
    for left, shown in (("in ", "in Paris."), ("in \t ", "in \t Paris."), ("in", "in Paris."), ("", "Paris.")):
        assert place(tokenizer, left, f"{mark}Paris") == shown
    assert place(tokenizer, "in ", "Paris") == place(tokenizer, "in", "Paris") == "inParis."
    plainly = {"content": "<mask>", "lstrip": False}  # the model saw the space
    seen = opened(tmp_path / "seen", byte_files(), "RobertaTokenizer", mask_token=plainly)
    assert place(seen, "in ", "Paris") == "in Paris."


def test_targets_are_words_at_the_beginning_or_exact_spellings(byte_pairs: Tokenizer, pieces: Tokenizer) -> None:
    def tokens(tokenizer: Tokenizer, *targets: str) -> list[str]:
        return [tokenizer.token(number) for number in target_ids(tokenizer, targets)]

    assert tokens(byte_pairs, "Paris", " the", "\u0120P", "ing", "aris", "\u00e9") == [
        "\u0120Paris", "\u0120the", "\u0120P", "ing", "aris", "\u00c3\u00a9",
    ]  # fmt: skip
    assert tokens(pieces, "Paris", f"{SPACE}the", "s") == [f"{SPACE}Paris", f"{SPACE}the", "s"]
    for tokenizer in (byte_pairs, pieces):
        for target in ("theParis", "", " ", "in the"):
            with pytest.raises(mlxbert.ArgumentError, match="not in the vocabulary"):
                target_ids(tokenizer, [target])
    with pytest.raises(mlxbert.ArgumentError, match="surrogate"):
        target_ids(pieces, ["\ud800"])


def model_of(folder: Path, content: Any, name: str) -> mlxbert.Model:
    size = opened(folder, content, name).vocab_size
    save(folder, tensors_of(random_network(tiny_config(vocab_size=size))), {**CONFIG, "vocab_size": size})
    return mlxbert.load(str(folder))


def test_a_mask_does_not_include_the_space_that_it_takes(tmp_path: Path) -> None:
    model = model_of(tmp_path / "model", byte_files(), "RobertaTokenizer")
    text = "the [MASK] in  <mask>, Paris[MASK]"
    masks = mlxbert.fill_mask(model, text, targets=["Paris", "ing"]).masks
    assert [text[mask.start : mask.end] for mask in masks] == ["[MASK]", "<mask>", "[MASK]"]
    assert [mask.start for mask in masks] == [4, 15, 28]
    for mask, word, joined in zip(masks, ("the ", "in  ", "Paris"), ("the", "in", "Paris"), strict=True):
        texts = {fill.token: fill.text for fill in mask.fills}
        gap = "" if word.endswith(" ") else " "
        assert texts[" Paris"] == text[: mask.start] + gap + "Paris" + text[mask.end :]
        assert texts["ing"] == text[: mask.start].rstrip() + "ing" + text[mask.end :]
        assert text[: mask.start].endswith(word) and word.startswith(joined)


def test_a_mask_whose_offsets_include_spaces_does_not_include_them(tmp_path: Path) -> None:
    model, text = model_of(tmp_path, PIECES, "XLMRobertaTokenizer"), "the [MASK], Paris  <mask>"
    respelled = model.tokenizer.encode(text.replace("[MASK]", "<mask>"))
    assert (3, 10) in respelled.offsets  # the tokenizer counts the space as a part of the mask
    masks = mlxbert.fill_mask(model, text, targets=["Paris"]).masks
    assert [text[mask.start : mask.end] for mask in masks] == ["[MASK]", "<mask>"]
    assert [mask.fills[0].text for mask in masks] == ["the Paris, Paris  <mask>", "the [MASK], Paris  Paris"]


CHECKPOINT, DATA = os.environ.get("MLXBERT_TEST_CHECKPOINT"), os.environ.get("MLXBERT_TEST_DATA")


def masked_sentences() -> list[str]:
    """Paragraphs of SQuAD, of each of which one, two or three words are masked."""
    generator, found = random.Random(17), []
    articles = json.loads((Path(DATA or "") / "squad/dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph["context"].split() for article in articles for paragraph in article["paragraphs"]]
    for words in generator.sample([words for words in paragraphs if len(words) <= 200], 200 if ALL else 8):
        places = generator.sample(range(len(words)), generator.choice((1, 1, 2, 3)))
        found.append(" ".join("[MASK]" if place in places else word for place, word in enumerate(words)))
    return found


def assert_same_fills(ours: mlxbert.FillMask, theirs: Any) -> None:
    """The same tokens in the same order, but for ties, with the same scores."""
    rows = theirs if isinstance(theirs[0], list) else [theirs]
    for mask, row in zip(ours.masks, rows, strict=True):
        scores = {fill["token"]: fill["score"] for fill in row}
        for fill, other in zip(mask.fills, row, strict=True):
            same = fill.token_id == other["token"] or abs(scores.get(fill.token_id, -1) - other["score"]) < 1e-6
            assert same and abs(fill.score - other["score"]) <= 1e-4, f"{ours.text}: {fill} instead of {other}"


@pytest.mark.slow
@pytest.mark.skipif(not CHECKPOINT or not DATA, reason="needs MLXBERT_TEST_CHECKPOINT and MLXBERT_TEST_DATA")
def test_words_targets_and_scores_are_those_of_the_pipeline() -> None:
    """Needs the folder of a BERT with a masked-LM head, and one with squad in its original format."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pipeline = transformers.pipeline("fill-mask", model=CHECKPOINT, dtype=torch.float32, device="cpu")
    model = mlxbert.load(str(CHECKPOINT), task="fill-mask", dtype="float32", device="cpu")
    sentences = masked_sentences()
    assert sum(sentence.count("[MASK]") > 1 for sentence in sentences) > len(sentences) // 4
    targets: dict[str, Any] = {"targets": ["the", "man", "city", "2009", "good", "in", "american"], "top_k": 7}
    for options in ({"top_k": 5}, targets):
        for ours in mlxbert.fill_mask(model, sentences, **options):
            assert_same_fills(ours, pipeline(ours.text, **options))
