"""fill-mask in vocabularies that mark where words begin: how they read, where they go, known targets."""

from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.tasks.fill_mask import target_ids
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config
from tests.helpers.vocabularies import HEAD, byte_files, pieces_file, plain, put

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
    """The text with a token of the vocabulary in it."""
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
def test_a_word_stands_behind_the_white_space_there_or_a_space(family: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(family)
    mark = "\u0120" if family == "byte_pairs" else SPACE
    assert place(tokenizer, "in ", f"{mark}Paris") == "in Paris."
    assert place(tokenizer, "in \t ", f"{mark}Paris") == "in \t Paris."
    assert place(tokenizer, "in", f"{mark}Paris") == "in Paris."
    assert place(tokenizer, "", f"{mark}Paris") == "Paris."
    assert place(tokenizer, "in ", "Paris") == "inParis."
    assert place(tokenizer, "in", "Paris") == "inParis."


def test_a_continuation_stays_behind_a_space_that_the_model_saw(tmp_path: Path) -> None:
    plainly = {"content": "<mask>", "lstrip": False}
    tokenizer = opened(tmp_path, byte_files(), "RobertaTokenizer", mask_token=plainly)
    assert place(tokenizer, "in ", "Paris") == "in Paris."


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
    """The tiny network with another vocabulary."""
    size = opened(folder, content, name).vocab_size
    save(folder, tensors_of(random_network(tiny_config(vocab_size=size))), {**CONFIG, "vocab_size": size})
    return mlxbert.load(str(folder))


def roberta(folder: Path) -> mlxbert.Model:
    """The tiny network with a vocabulary of byte pairs."""
    return model_of(folder, byte_files(), "RobertaTokenizer")


def test_a_mask_does_not_include_the_space_that_it_takes(tmp_path: Path) -> None:
    model = roberta(tmp_path / "model")
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


def test_a_respelled_mask_is_the_models_own(tmp_path: Path) -> None:
    model = roberta(tmp_path / "model")
    one, other = (mlxbert.fill_mask(model, f"the {mask} in").masks[0] for mask in ("[MASK]", "<mask>"))
    assert [fill.score for fill in one.fills] == [fill.score for fill in other.fills]
