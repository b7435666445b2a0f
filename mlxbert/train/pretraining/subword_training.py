"""Trains subword vocabularies: WordPiece, byte-level BPE and Unigram, each with the special tokens of its family.

The same texts always give the same vocabulary. The WordPiece trainer of `tokenizers` cannot guarantee that, because it
numbers characters in the order of a hash table. A WordPiece vocabulary is therefore trained by BPE on words whose
beginnings are marked, and then written as WordPiece.
"""

import io
import itertools
import json
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from mlxbert.errors import ArgumentError

MAX_ALPHABET = 1000  # characters of a WordPiece vocabulary, as in BERT
MAX_CHARACTERS = 100  # of a token
_COVERAGE = 0.9995  # share of the text that the characters of a Unigram vocabulary cover
_MAX_UNIGRAM = 50_000_000  # characters for the Unigram trainer, which uses about 20 bytes of memory for each
_START = "\u2581"
_SPACE = "\u0120"  # a space in byte-level vocabularies
_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>")
_MASK = "<mask>"
_FAIRSEQ = 2  # tokens that XLM-RoBERTa adds to the SentencePiece model: <pad>, <mask>

Texts = Callable[[], Iterable[str]]  # each call starts again at the first text


@dataclass(frozen=True)
class Characters:
    """The number of times that each character occurs in a corpus, and the number of texts."""

    counts: Counter[str]
    texts: int

    @property
    def total(self) -> int:
        return self.counts.total()


@dataclass(frozen=True)
class Subwords:
    """A trained vocabulary."""

    files: dict[str, bytes]  # the vocabulary files by name
    size: int  # the number of tokens
    frequent: tuple[str, ...]  # some of the most frequent tokens that begin a word and have at least three characters


def count_characters(texts: Iterable[str]) -> Characters:
    """Counts how often each character occurs in the texts."""
    counts = np.zeros(0x110000, np.int64)
    number = 0
    for text in texts:
        number += 1
        np.add.at(counts, np.frombuffer(text.encode("utf-32-le"), np.uint32), 1)
    return Characters(Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts)}), number)


def word_piece(texts: Texts, characters: Characters, size: int, *, cased: bool) -> Subwords:
    """Trains a WordPiece vocabulary like BERT's, with the file `vocab.txt`."""
    normalizer = normalizers.BertNormalizer(lowercase=not cased)
    counts: Counter[str] = Counter()
    for character, count in characters.counts.items():
        for normal in normalizer.normalize_str(character):
            if not normal.isspace() and normal != _START:
                counts[normal] += count
    # The most frequent characters; ties are ordered by code point.
    alphabet = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:MAX_ALPHABET])
    _check_size(
        size,
        len(_BERT) + 2 * len(alphabet),
        f"the {len(alphabet)} characters of the corpus, at the start of words and inside words",
    )
    trainer = Tokenizer(models.BPE())
    trainer.normalizer = normalizer
    trainer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(_START, prepend_scheme="always", split=False)]
    )
    # Some of these merges only join a mark and a character, and some have characters outside the alphabet.
    limit = size + 2 * len(counts) + MAX_ALPHABET
    _train(trainer, texts, vocab_size=limit, max_token_length=MAX_CHARACTERS + 1)
    allowed = set(alphabet)
    merged = []
    for token in _tokens(trainer):
        text = token.removeprefix(_START)
        if len(text) > 1 and allowed.issuperset(text):
            merged.append(text if token.startswith(_START) else f"##{text}")
    tokens = [*_BERT, *alphabet, *(f"##{character}" for character in alphabet), *merged][:size]
    lines = "".join(f"{token}\n" for token in tokens)
    frequent = _first_words(merged, lambda token: not token.startswith("##"))
    return Subwords({"vocab.txt": lines.encode()}, len(tokens), frequent)


def byte_pairs(texts: Texts, characters: Characters, size: int, *, cased: bool) -> Subwords:
    """Trains a byte-level BPE vocabulary like RoBERTa's, always cased, with the files `vocab.json` and `merges.txt`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    first = len(_ROBERTA) + len(alphabet)
    _check_size(size, first + 1, f"{len(alphabet)} bytes")
    trainer = Tokenizer(models.BPE())
    trainer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    _train(
        trainer, texts, vocab_size=size - 1, max_token_length=MAX_CHARACTERS,
        initial_alphabet=alphabet, special_tokens=list(_ROBERTA),
    )  # fmt: skip
    tokens = [*_tokens(trainer), _MASK]
    merges = json.loads(trainer.to_str())["model"]["merges"]
    vocab = {token: number for number, token in enumerate(tokens)}
    files = {
        "vocab.json": json.dumps(vocab, ensure_ascii=False).encode(),
        "merges.txt": "".join(["#version: 0.2\n", *(f"{left} {right}\n" for left, right in merges)]).encode(),
    }
    return Subwords(files, len(tokens), _first_words(tokens[first:-1], lambda token: token.startswith(_SPACE)))


def unigram(texts: Texts, characters: Characters, size: int, *, cased: bool) -> Subwords:
    """Trains a Unigram vocabulary like XLM-RoBERTa's, always cased, with the file `sentencepiece.bpe.model`.

    If the corpus is long, only every second sentence is used, or every third, and so on.
    """
    import sentencepiece  # only here: no other command waits for this import

    counts: Counter[str] = Counter()
    for character, count in characters.counts.items():
        for normal in unicodedata.normalize("NFKC", character):
            counts[normal] += count
    needed, seen = 0, 0
    for _, count in counts.most_common():
        if seen >= _COVERAGE * counts.total():
            break
        needed, seen = needed + 1, seen + count
    _check_size(size, 3 + _FAIRSEQ + 1 + needed, f"{needed} characters of the corpus")
    step, written = -(-characters.total // _MAX_UNIGRAM), io.BytesIO()
    chosen = (text for number, text in enumerate(texts()) if number % step == 0)
    options: dict[str, Any] = {"model_type": "unigram", "vocab_size": size - _FAIRSEQ, "character_coverage": _COVERAGE}
    options |= {"max_sentence_length": 2**16, "hard_vocab_limit": False, "num_threads": 4, "minloglevel": 3}
    train = sentencepiece.SentencePieceTrainer.train
    try:
        _in_thread(lambda texts: train(sentence_iterator=texts, model_writer=written, **options), chosen)
    except RuntimeError as problem:
        raise ArgumentError(f"`size` is {size:,}, which sentencepiece cannot train ({problem})") from None
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    frequent = _first_words(pieces, lambda piece: piece.startswith(_START))
    return Subwords({"sentencepiece.bpe.model": written.getvalue()}, len(pieces) + 3 + _FAIRSEQ, frequent)


def _train(tokenizer: Tokenizer, texts: Texts, **options: Any) -> None:
    trainer = trainers.BpeTrainer(min_frequency=2, show_progress=False, **options)
    _in_thread(lambda texts: tokenizer.train_from_iterator(texts, trainer), texts())


def _in_thread(train: Callable[[Iterator[str]], object], texts: Iterable[str]) -> None:
    """Runs a trainer in another thread. If the trainer fails, raises its first error.

    Training takes minutes, during which this thread stays free to handle signals.
    """
    problems: list[Exception] = []
    stopped = threading.Event()

    def watched() -> Iterator[str]:
        try:
            yield from itertools.takewhile(lambda _: not stopped.is_set(), texts)
        except Exception as problem:
            problems.append(problem)
            raise

    def work() -> None:
        try:
            train(watched())
        except Exception as problem:
            problems.append(problem)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        thread.join()
    finally:
        stopped.set()
    if problems:
        raise problems[0]


def _tokens(trained: Tokenizer) -> list[str]:
    vocab = trained.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def _first_words(tokens: Iterable[str], begins: Callable[[str], bool]) -> tuple[str, ...]:
    """Returns the first ten tokens that begin a word and have at least three characters."""
    words = (token for token in tokens if begins(token) and len(token.strip(_START + _SPACE)) > 2)
    return tuple(itertools.islice(words, 10))


def _check_size(size: int, minimum: int, what: str) -> None:
    if size < minimum:
        raise ArgumentError(
            f"`size` is {size:,}, expected at least {minimum:,} for the special tokens and {what}",
            hint="choose a larger size, such as 30,000",
        )
