"""Inputs of GLiNER: labels, and the words of a text, which any number of labels can be searched for in.

An input is `[CLS] <<ENT>> label <<ENT>> label … <<SEP>> words [SEP]`. Long texts are split into windows of words, and
many labels into groups.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tokenizers import Tokenizer as Plain

from mlxbert.errors import ArgumentError, InputError, TokenizerError
from mlxbert.nn.heads.open_entities import OpenEntityFacts
from mlxbert.text.encoding import Encoding, Pieces
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.words import Span
from mlxbert.weights.tokenizers.library_guards import guarded
from mlxbert.weights.tokenizers.text_growth import check_size

_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
_TOGETHER = 4096  # words that are tokenized at once
_LABELS_SHARE = 2  # the labels of an input take up to 1 / 2 of its tokens, so that there is room for the text


def words_of(text: str) -> Iterator[Span]:
    """Yields the words of a text as GLiNER splits it: runs of letters and digits, and other characters one by one."""
    return (match.span() for match in _WORD.finditer(text))


@dataclass(frozen=True)
class WordWindow:
    """Some words of a text."""

    first: int  # the index of the first word
    end: int  # the index after the last word
    # The first and the last index + 1 of the words whose spans are judged in this window: those that begin with one of
    # these words. Each word of the text is judged in one window.
    judged: tuple[int, int]


class LabelledWordEncoder:
    """Encodes labels and words.

    Raises:
        TokenizerError: The vocabulary lacks the tokens around labels, or the configuration has another id for them.
    """

    def __init__(self, tokenizer: Tokenizer, facts: OpenEntityFacts) -> None:
        self._tokenizer, self._facts = tokenizer, facts
        ids = [tokenizer.token_id(token) for token in (facts.label_token, facts.end_token)]
        for token, number in zip((facts.label_token, facts.end_token), ids, strict=True):
            if number is None:
                raise TokenizerError(
                    f"the vocabulary has no token {token!r:.60}, which marks labels",
                    hint="use the tokenizer files of the GLiNER model, or set class_token_index to -1 in "
                    "gliner_config.json if the tokenizer is the encoder's own",
                )
        self._label, self._end = (number for number in ids if number is not None)
        if facts.label_token_id not in (None, self._label):
            raise TokenizerError(
                f"class_token_index is {facts.label_token_id}, but the vocabulary gives {facts.label_token!r:.60} the "
                f"id {self._label}",
                hint="use the tokenizer files of the same model",
            )

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raises ArgumentError if a label is empty, repeated, has no tokens, or contains a token that marks labels."""
        for label in labels:
            if not isinstance(label, str) or not label.strip():
                raise ArgumentError(f"label {label!r:.60} is empty, expected a word or a few")
            if list(labels).count(label) > 1:
                raise ArgumentError(f"label {label!r:.60} is given twice", hint="give each label once")
            inside = self.prompt([label])[1:-1]
            if not inside:
                raise ArgumentError(f"label {label!r:.60} has no tokens", hint="use letters")
            if {self._label, self._end} & {*inside}:
                raise ArgumentError(
                    f"label {label!r:.60} contains {self._facts.label_token} or {self._facts.end_token}, which mark "
                    "labels",
                    hint="give several labels as several values",
                )

    def groups(self, labels: Sequence[str]) -> list[list[str]]:
        """Splits labels into groups that leave room for text: one group, unless there are many labels.

        Raises ArgumentError if a label alone takes too many tokens.
        """
        limit = self._tokenizer.room(1) // _LABELS_SHARE
        groups: list[list[str]] = []
        room = 0
        for label in labels:
            size = len(self.prompt([label])) - 1
            if size >= limit:
                raise ArgumentError(f"label {label!r:.60} has {size - 1} tokens, expected at most {limit - 2}")
            if not groups or size > room:
                groups.append([])
                room = limit - 1
            groups[-1].append(label)
            room -= size
        return groups

    def words(self, text: str, spans: Sequence[Span]) -> list[list[int]]:
        """Returns the token ids of each word of a text; raises InputError if a word cannot be tokenized."""
        parts = [text[start:end] for start, end in spans]
        tokens: list[list[int]] = [[] for _ in parts]
        for start in range(0, len(parts), _TOGETHER):
            ids, words = self._split(parts[start : start + _TOGETHER])
            for number, word in zip(ids, words, strict=True):
                tokens[start + word].append(number)
        for part, numbers in zip(parts, tokens, strict=True):
            if {self._label, self._end} & {*numbers}:
                raise InputError(f"word {part!r:.60} contains a token that marks labels")
        return tokens

    def _split(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        tokenizer: Plain = self._tokenizer.files.tokenizer
        try:
            with guarded("the words", text=True):
                for word in words:
                    check_size(tokenizer, self._tokenizer.growth, word)
                (raw,) = tokenizer.encode_batch([list(words)], is_pretokenized=True, add_special_tokens=False)
        except TypeError:  # raised by the library for a string that cannot be encoded as UTF-8
            raise InputError("the text contains half of a surrogate pair, which is not a character") from None
        self._tokenizer.check(" ".join(words), raw.ids)
        return raw.ids, [0 if word is None else word for word in raw.word_ids]

    def prompt(self, labels: Sequence[str]) -> list[int]:
        """Returns the token ids before the words: each label after its token, and the token at the end."""
        words = [word for label in labels for word in (self._facts.label_token, label)]
        return self._split([*words, self._facts.end_token])[0]

    def windows(self, tokens: Sequence[Sequence[int]], labels: Sequence[str]) -> list[WordWindow]:
        """Splits the words of a text into windows that fit together with the longest of the groups of labels.

        Windows overlap by twice the maximum width of a span, or by half of the window. A span is judged in the window
        in which it is further from the edge.
        """
        room = self._tokenizer.room(1) - len(self.prompt(labels))
        most = self._facts.max_words
        windows: list[WordWindow] = []
        first = judged = 0
        while True:
            end, size = first, 0
            while end < len(tokens) and end - first < most and (size + len(tokens[end]) <= room or end == first):
                size += len(tokens[end])
                end += 1
            if end == len(tokens):
                windows.append(WordWindow(first, end, (judged, end)))
                return windows
            overlap = min(2 * self._facts.max_width, (end - first) // 2)
            middle = end - overlap + overlap // 2
            windows.append(WordWindow(first, end, (judged, middle)))
            first, judged = max(end - overlap, first + 1), middle

    def encode(self, tokens: Sequence[Sequence[int]], labels: Sequence[str], *, truncated: bool = False) -> Encoding:
        """Encodes labels and words as one input; the tokens of a single word that is too long are cut.

        `truncated` says whether the text continues after these words.
        """
        prompt = self.prompt(labels)
        before = self._tokenizer.prompt_length("")
        places = [before + place for place, token in enumerate(prompt) if token == self._label]
        room = self._tokenizer.room(1) - len(prompt)
        ids, starts = list(prompt), []
        for word in tokens:
            kept = list(islice(word, room))
            starts.append(before + len(ids) if kept else -1)
            ids += kept
            room -= len(kept)
        pieces = Pieces(ids, [(0, 0)] * len(ids), [None] * len(ids))
        return replace(self._tokenizer.assemble([pieces], truncated=truncated), labelled_words=(starts, places))
