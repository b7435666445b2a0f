"""Converts text to token ids: special tokens, pairs, truncation, windows.

The `tokenizers` library splits the text. Special tokens are added here, so that any slice of a text can become a
complete input.
"""

import copy
import functools
import logging
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tokenizers import Encoding as Library, Tokenizer as Plain

from mlxbert.config import EncoderConfig
from mlxbert.errors import ArgumentError, InputError, TokenizerError, TooLongError, shown
from mlxbert.option_declarations import OVERLAP, is_whole
from mlxbert.text.encoding import Encoding, Pieces, Template, assemble, starts_around
from mlxbert.text.token_blocks import SIZE, beginning, has_more_tokens, words_between_spaces
from mlxbert.text.words import whole_spans
from mlxbert.weights.chat_template import PairPrompt
from mlxbert.weights.formats.static_table import MODEL2VEC
from mlxbert.weights.model_folder import ModelFolder, open_folder
from mlxbert.weights.tokenizers.library_guards import guarded, largest_id
from mlxbert.weights.tokenizers.text_growth import check_size, growth_of
from mlxbert.weights.tokenizers.tokenizer_files import (
    TokenizerFiles,
    has_words_between_spaces,
    lower_cased,
    read_tokenizer,
    without_special,
)

_LOG = logging.getLogger("mlxbert")
_SEGMENTS_KEPT = (
    "the second text of a pair is in segment 1, as in transformers 4, while transformers 5 would put both texts in "
    "segment 0, because no model_input_names is set"
)
_BATCH_SIZE = 2**17  # code points that are split at once
_PLACEHOLDERS = ("<image_soft_token>",)  # of Gemma 3, whose text models have no embedding for it
_MIN_ROOM = 32  # tokens of a pair and of the text in between, so that each text of the pair has some
_MIN_CACHED = 256  # code points; the tokens of a text this long are cached, since questions about it follow each other


def _check_overflow(overflow: str) -> None:
    if overflow not in ("error", "truncate"):
        raise ArgumentError(f"`overflow` is {overflow!r}, expected 'error' or 'truncate'")


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        files: The vocabulary files.
        max_length: The maximum input length in tokens, special tokens included.
        special: The special tokens in the vocabulary, by role: `cls`, `sep`, `pad`, `unk`, `mask`.
        growth: How much longer the steps of the tokenizer can make a text; this limits the length of texts.
        vocab_size: The number of tokens, added tokens included.
        templates: The special tokens around one text, and around a pair.
        prompt: The prompt around the texts of a pair, if the model has one.
    """

    def __init__(self, files: TokenizerFiles, config: EncoderConfig) -> None:
        self.files = files
        self._tokenizer = files.tokenizer
        self._rows = config.vocab_size
        self._segments = files.segments or (files.segments is None and config.type_vocab_size > 1)
        self._warnings: list[str] = []  # to be logged once; copies share the list
        self.special = files.special
        self._limit = config.max_length
        self.max_length = min(config.max_length, files.max_length or config.max_length)
        added = files.tokenizer.get_added_tokens_decoder()
        self._placeholder_ids = {n for n, token in added.items() if n >= self._rows and token.content in _PLACEHOLDERS}
        self.vocab_size: int = files.tokenizer.get_vocab_size() - len(self._placeholder_ids)
        # Other ids are checked where they leave this class: checking all here would take a third of the startup time.
        self._check_largest(max(self.vocab_size - 1, 0, *(added.keys() - self._placeholder_ids)))
        self._spelling, self.growth = files.spelling, growth_of(files.tokenizer)
        self.prompt: PairPrompt | None = None
        self._last: tuple[str, Pieces] | None = None
        self._ready: dict[str, Pieces] = {}
        self._known: tuple[Plain, list[int] | None] | None = None  # of `known_ids`, with its tokenizer
        self._plain: Plain | None = None
        mask = files.special.get("mask", "")
        with guarded("the vocabulary"):
            self._single, self._pair = self.templates = self._templates()
            separate, joined = (self._encode(text).ids for text in (f"a {mask}", f"a{mask}"))
        drops = files.static == MODEL2VEC and "unk" in files.special
        self._dropped = files.tokenizer.token_to_id(files.special["unk"]) if drops else None
        if files.segments is None and any(segment for _, segment in self._pair):
            self._warnings.append(_SEGMENTS_KEPT)
        self._mask_hides_space = separate == joined
        ends = files.tokenizer.post_processor
        self._trims = 0 if ends is None else ends.__getstate__().count(b'"trim_offsets":true')
        if self.max_length <= len(self._pair):
            raise TokenizerError(
                f"the maximum input length is {self.max_length} tokens, but special tokens take {len(self._pair) - 2}"
            )

    def _check_largest(self, largest: int) -> None:
        """Raises an error if the vocabulary's largest id has no embedding; MLX would read past the end of the table."""
        if largest >= self._rows:
            gaps = "" if largest < self.vocab_size else f" with ids up to {largest}"
            raise TokenizerError(
                f"the tokenizer has {self.vocab_size} tokens{gaps}, but the model has {self._rows} word embeddings, "
                "so the tokenizer belongs to a different model"
            )

    def _templates(self) -> tuple[Template, Template]:
        """Returns the special tokens around one text, and around a pair; static models have none."""
        if self.files.static is not None:
            return [(None, 0)], [(None, 0), (None, 0)]
        return self._template(pair=False), self._template(pair=True)

    def _template(self, *, pair: bool) -> Template:
        """Finds the special tokens that the tokenizer's post-processor adds, by encoding texts of a single token."""
        probe = self.special.get("unk", "a")
        encoded = self._encode(probe, probe if pair else None, special=True)
        slots = zip(encoded.ids, encoded.type_ids, encoded.sequence_ids, strict=True)
        template = [(number if text is None else None, segment * self._segments) for number, segment, text in slots]
        if sum(special is None for special, _ in template) != 1 + pair:
            raise TokenizerError(
                f"the tokenizer encodes {' and '.join([repr(probe)] * (1 + pair))} as {' '.join(encoded.tokens)}, "
                "expected one token for each text, plus special tokens"
            )
        return template

    def adapted(
        self, *, max_length: int | None = None, lower_case: bool = False, prompt: PairPrompt | None = None
    ) -> "Tokenizer":
        """Returns a copy of the tokenizer with the settings of an embedding model or of a reranker.

        Args:
            max_length: The maximum input length in tokens, limited by the positions of the model; `None` keeps it.
            lower_case: Whether to lowercase texts first.
            prompt: The prompt around the texts of a pair, which takes the place of special tokens.

        Raises:
            TokenizerError: `max_length` or the prompt leaves no room for text, or the vocabulary belongs to another
                model.
        """
        copied = copy.copy(self)
        if max_length is not None:
            copied.max_length = min(max_length, self._limit)
            if copied.max_length < len(self._single):
                raise TokenizerError(
                    f"the maximum input length is {max_length} tokens, but special tokens take {len(self._single) - 1}"
                )
        if lower_case:
            self._check_largest(largest_id(self._tokenizer, self._placeholder_ids))  # the copy lists all ids below it
            copied._tokenizer, copied._last, copied._plain = lower_cased(self._tokenizer), None, None
        copied._ready = {}
        if prompt is not None:
            before, after = (self.pieces(text) for text in (prompt.before, prompt.after))
            slots: Template = [(None, 0), (None, 0)]
            copied._pair = [*((token, 0) for token in before), *slots, *((token, 0) for token in after)]
            copied.templates, copied.prompt = (self._single, copied._pair), prompt
            expected = self.pieces(prompt.before + "".join(copied.inside("a", "a")) + prompt.after)
            if copied.room(2) >= _MIN_ROOM and copied.encode("a", "a").ids != expected:
                raise TokenizerError("the tokenizer does not separate the model's prompt from the texts at spaces")
        if copied.prompt is not None and copied.room(2) < _MIN_ROOM:
            raise TokenizerError(
                f"the maximum input length is {copied.max_length} tokens, but the model's prompt needs "
                f"{len(copied._pair) - 2} tokens and texts need at least {_MIN_ROOM}"
            )
        return copied

    def inside(self, text: str, pair: str) -> tuple[str, str]:
        """Returns the texts of a pair as they appear in the prompt; without a prompt, unchanged."""
        return (text, pair) if self.prompt is None else (f" {text}{self.prompt.between}", f" {pair}")

    @property
    def mask_token(self) -> str | None:
        """The mask token; `None` if the vocabulary has no mask token."""
        return self.special.get("mask")

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token; `None` if the token is not in the vocabulary.

        Raises:
            TokenizerError: The model has no word embedding for the token.
        """
        with suppress(UnicodeEncodeError):  # half of a surrogate pair
            number: int | None = self._tokenizer.token_to_id(token)
            if number in self._placeholder_ids:
                return None
            self._check_largest(number or 0)
            return number
        return None

    def known_ids(self) -> list[int] | None:
        """Returns the word embedding ids that have a token; `None` if all have one.

        In some checkpoints, the embedding table has more rows than there are tokens.
        """
        if (known := self._known) is not None and known[0] is self._tokenizer:  # the library takes ten milliseconds
            return known[1]
        self._check_largest(largest_id(self._tokenizer, self._placeholder_ids))
        ids = None
        if self.vocab_size != self._rows:
            ids = sorted({*self._tokenizer.get_vocab(with_added_tokens=True).values()} - self._placeholder_ids)
        self._known = self._tokenizer, ids
        return ids

    def token(self, number: int) -> str:
        """Returns the token with this id.

        Raises:
            ArgumentError: The vocabulary has no such id.
        """
        token: str | None = self._tokenizer.id_to_token(number) if 0 <= number < self._rows else None
        if token is None:
            raise ArgumentError(f"token id is {shown(number)}, but the vocabulary has {self.vocab_size} tokens")
        return token

    def shown(self, number: int) -> str:
        """Returns a token as readable text: " Paris" for "ĠParis", "Paris" for "▁Paris"; "##ing" is unchanged."""
        with guarded("the vocabulary"):
            return self._tokenizer.decode([number], skip_special_tokens=False)

    def decode(self, ids: int | Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Converts token ids to a text with the vocabulary's decoder; lowercased words stay lowercase.

        Args:
            ids: One id or several: a list, an array, `Encoding.ids`.
            skip_special_tokens: Whether to leave out special tokens such as `[CLS]`; as in transformers, they stay by
                default.

        Raises:
            ArgumentError: An id is not in the vocabulary.
        """
        values = getattr(ids, "tolist", lambda: ids)()  # an array of NumPy or MLX
        numbers = [values] if isinstance(values, int) else values
        if isinstance(numbers, str) or not isinstance(numbers, Iterable):
            raise ArgumentError(f"`ids` is {ids!r:.60}, expected token ids, which are whole numbers")
        numbers = [int(number) if is_whole(number) else number for number in numbers]
        for number in numbers:
            valid = is_whole(number) and 0 <= number < self._rows
            if not valid or self._tokenizer.id_to_token(number) is None:
                raise ArgumentError(
                    f"token id is {shown(number)}, expected one of the {self.vocab_size} token ids, which start at 0"
                )
        special = {self.token_id(token) for role, token in self.special.items() if role != "unk"}
        kept = [number for number in numbers if not (skip_special_tokens and number in special)]
        with guarded("the vocabulary"):
            return self._tokenizer.decode(kept, skip_special_tokens=skip_special_tokens)

    def filled(self, left: str, number: int, right: str) -> str:
        """Returns the text with a token in place of the mask between `left` and `right`.

        A token that continues a word is joined to the text on the left, unless the model saw a space there. Before a
        token that starts a word, whitespace is kept, or a space is added if the vocabulary marks word starts.
        """
        token, spelling = self.token(number), self._spelling
        word = self.shown(number).removeprefix(" ") if spelling.word_start else token
        if not spelling.is_continuation(token):
            gap = " " if spelling.word_start and left and not left[-1].isspace() else ""
            return left + gap + word + right
        before = left.rstrip() if self._mask_hides_space else left
        return before + word.removeprefix(spelling.continuation_prefix) + right

    def word_id(self, word: str) -> int | None:
        """Returns the id of a word that is a single token, as spelled in the vocabulary or as tokenized after a space.

        Returns `None` if the word is not a single token.

        Raises:
            InputError: The word is not valid Unicode.
        """
        exact, word_start = self.token_id(word), self._spelling.word_start
        if not word.strip() or (exact is not None and word.startswith(word_start)):
            return exact
        for text in (f" {word.lstrip()}", word) if word_start else (word,):
            pieces = self.pieces(text)
            if len(pieces) == 1 and pieces[0] != self.token_id(self.special.get("unk", "")):
                return pieces[0]
        return exact

    def unknown(self, encodings: Sequence[Encoding], before: int = 0) -> tuple[int, bool]:
        """Counts the unknown tokens of a text; also returns whether all its tokens are unknown or masks.

        The text is given as one or more inputs, which may overlap. The first `before` tokens of each input, such as a
        prompt, are not counted.
        """
        number = self.token_id(self.special["unk"]) if "unk" in self.special else None
        if self.files.static is not None:  # its encodings may have nothing but ids, and do not overlap
            ids = [token for encoding in encodings for token in encoding.ids[before:]]
            count = ids.count(number) if number is not None else 0
            return count + sum(encoding.dropped for encoding in encodings), self.are_unknown(ids)
        if all(owner is None for encoding in encodings for owner in encoding.sequence_ids[before:]):
            return 0, True  # an empty text
        if number is None or not any(number in encoding.ids for encoding in encodings):
            return 0, False
        by_position = {  # by position: windows overlap
            encoding.positions[place]: encoding.ids[place]
            for encoding in encodings
            for place in range(before, len(encoding))
            if encoding.sequence_ids[place] is not None
        }
        mask = self.token_id(self.mask_token) if self.mask_token else None
        count = sum(token == number for token in by_position.values())
        return count, all(token in (number, mask) for token in by_position.values())

    def are_unknown(self, ids: Sequence[int]) -> bool:
        """Whether there is no token but the unknown one."""
        return {*ids} <= {self.token_id(self.special.get("unk", ""))}

    def pieces(self, text: str) -> list[int]:
        """Returns the token ids of a text, without special tokens."""
        return self.split(text).ids

    def encode_many(self, texts: Sequence[str]) -> list[Library]:
        """Tokenizes many texts of valid Unicode on all cores; adds no special tokens and recognizes none in the texts.

        Returns the library's objects, which have `ids` and `word_ids`.
        """
        if self._plain is None:
            self._check_largest(largest_id(self._tokenizer, self._placeholder_ids))
            self._plain = without_special(self._tokenizer)
        with guarded("the vocabulary"):
            return list(self._plain.encode_batch(list(texts), add_special_tokens=False))

    @contextmanager
    def together(self, texts: Iterable[str]) -> Iterator[None]:
        """Splits texts in advance, on all cores, without blocking other threads; `split` uses the results in the block.

        If a text cannot be split, the error is raised by `split`.
        """
        self._ready = self._split_all(texts)
        try:
            yield
        finally:
            self._ready = {}

    def _split_all(self, texts: Iterable[str]) -> dict[str, Pieces]:
        ready: dict[str, Pieces] = {}
        for batch in batches({text: None for text in texts if isinstance(text, str) and len(text) <= SIZE}):
            with suppress(InputError, TypeError, TokenizerError):
                with guarded("texts", text=True):
                    for text in batch:
                        check_size(self._tokenizer, self.growth, text)
                    raw = self._tokenizer.encode_batch(batch, add_special_tokens=False)
                ready |= zip(batch, map(self._pieces, batch, raw), strict=True)
        return ready

    def _pieces(self, text: str, encoded: Library) -> Pieces:
        self.check(text, ids := encoded.ids)
        offsets = encoded.offsets
        if self._trims:
            offsets = [*whole_spans(text, encoded.tokens, offsets, self._trims)]
        if len(text) >= SIZE and self._between_spaces:  # so that the text can be tokenized in blocks
            return Pieces(ids, offsets, words_between_spaces(text, offsets))
        return Pieces(ids, offsets, encoded.word_ids)

    @functools.cached_property
    def _between_spaces(self) -> bool:
        with guarded("the vocabulary"):
            return has_words_between_spaces(self._tokenizer)

    def check(self, text: str, ids: list[int]) -> None:
        """Raises an error if the model has no word embedding for a token of a text."""
        largest = max(ids, default=0)
        if largest in self._placeholder_ids:
            token = self._tokenizer.id_to_token(largest)
            raise InputError(
                f"the text has {token}, for which the model has no embedding",
                hint="remove this token, or put a space in its spelling",
            )
        if largest >= self._rows:  # a special token that only the post-processor knows
            raise TokenizerError(
                f"the text {text!r:.60} gives token id {largest}, but the model has only {self._rows} word embeddings"
            )

    def _encode(self, text: str, pair: str | None = None, *, special: bool = False) -> Library:
        encoded = self._tokenizer.encode(text, pair, add_special_tokens=special)
        self.check(text, encoded.ids)
        return encoded

    def split(self, text: str) -> Pieces:
        """Returns the tokens of a text, without special tokens. The tokens of the last long text are cached."""
        if not isinstance(text, str):
            raise InputError(f"expected a text, found {type(text).__name__}")
        if (last := self._last) is not None and last[0] == text:  # read once: another thread may replace it
            return last[1]
        if (ready := self._ready.get(text)) is not None:
            return ready
        try:
            with guarded(f"{text!r:.60}", text=True):
                check_size(self._tokenizer, self.growth, text)
                if len(text) < SIZE:
                    raw = self._tokenizer.encode(text, add_special_tokens=False)
                else:  # a batch does not block the other threads of Python
                    (raw,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        except TypeError:  # raised by the library for a string that cannot be encoded as UTF-8
            raise InputError("the text contains half of a surrogate pair, which is not a character") from None
        pieces = self._pieces(text, raw)
        if len(text) >= _MIN_CACHED:
            self._last = text, pieces
        return pieces

    def assemble(self, texts: Sequence[Pieces], *, truncated: bool) -> Encoding:
        """Adds the special tokens to one or two slices of tokens."""
        encoding = assemble(self._single if len(texts) == 1 else self._pair, texts, truncated=truncated)
        if len(texts) == 2 and self._warnings:
            with suppress(IndexError):  # another thread has logged it
                _LOG.warning(self._warnings.pop())
        if self._dropped is not None:
            encoding = encoding.without(self._dropped)
        if not encoding.ids and self.files.static is None:
            raise InputError(
                "the text has no tokens, because the tokenizer drops all its characters and adds no special tokens"
            )
        return encoding

    def room(self, texts: int) -> int:
        """The number of tokens of text for which an input has room; `texts` is 1, or 2 for a pair."""
        return self.max_length - (len(self._single) - 1 if texts == 1 else len(self._pair) - 2)

    def encode(self, text: str, pair: str | None = None, *, overflow: str = "error") -> Encoding:
        """Encodes a text or a pair of texts as one input.

        Args:
            text: The text.
            pair: A second text, in segment 1 if the model has segments.
            overflow: What to do with a text that is too long for the model: raise an `error`, or `truncate` its end (in
                a pair, the longer text first).

        Raises:
            InputError: The text is too long, or is not valid Unicode.
            ArgumentError: `overflow` is unknown.
        """
        _check_overflow(overflow)
        inputs = [text] if pair is None else [*self.inside(text, pair)]
        room = self.room(len(inputs))
        if overflow == "truncate" and any(len(part) > self._most_characters(part) for part in inputs):
            inputs = [part[: self._most_characters(part)] for part in inputs]
            texts = [self.split(part) for part in inputs]
            return self.assemble([part.slice(0, room // len(texts)) for part in texts], truncated=True)
        texts = [beginning(self.split, part, room) for part in inputs]
        total, long = sum(map(len, texts)), any(len(part) > SIZE for part in inputs)
        if total <= room:
            return self.assemble(texts, truncated=False)
        if overflow == "error":
            raise self._too_long(total - room, long=long)
        if pair is None:
            return self.assemble([texts[0].slice(0, room)], truncated=True)
        shorter = min(*map(len, texts), room // 2)
        counts_suffice = not long or min(map(len, texts)) <= room  # to tell which text is longer
        longer = len(texts[0]) > len(texts[1]) if counts_suffice else has_more_tokens(self.split, *inputs)
        first = room - shorter if longer else shorter
        return self.assemble([self._truncate(texts[0], first), texts[1].slice(0, room - first)], truncated=True)

    def head_and_tail(self, text: str, pair: str | None = None) -> Encoding:
        """Encodes a text or a pair as one input; of a text that is too long, the beginning and the end are kept.

        In a pair, the longer text is shortened. If the shorter one alone is too long, both lose their ends.

        Raises:
            InputError: A text is not valid Unicode.
        """
        runs = [self.split(part) for part in ([text] if pair is None else self.inside(text, pair))]
        excess = sum(map(len, runs)) - self.room(len(runs))
        if excess <= 0:
            return self.assemble(runs, truncated=False)
        longer = max(range(len(runs)), key=lambda number: len(runs[number]))
        run = runs[longer]
        kept = len(run) - excess
        if kept < 1:
            return self.encode(text, pair, overflow="truncate")
        head = (kept + 1) // 2
        runs[longer] = run.slice(0, head).then(run.slice(len(run) - kept + head, len(run)))
        return self.assemble(runs, truncated=True)

    def _most_characters(self, text: str) -> int:
        """The number of characters to which a text is truncated before it is tokenized, as in model2vec."""
        if self.files.static != MODEL2VEC or not isinstance(text, str) or len(text) <= self.max_length:
            return len(text)
        return self.max_length * self._median

    @functools.cached_property
    def _median(self) -> int:
        return int(statistics.median(map(len, self._tokenizer.get_vocab())))

    def truncated_ids(self, texts: Sequence[str]) -> list[tuple[list[int], int, bool]]:
        """Truncates and tokenizes texts on all cores, faster than `encode`.

        Returns:
            For each text its token ids, the number of unknown tokens that were left out, and whether it was truncated.

        Raises:
            InputError: A text is too long for the tokenizer.
            TypeError: A text is not valid Unicode.
        """
        parts = [text[: self._most_characters(text)] for text in texts]
        results = []
        with guarded("texts", text=True):
            for text in parts:
                check_size(self._tokenizer, self.growth, text)
            raw = self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        for text, part, encoded in zip(texts, parts, raw, strict=True):
            self.check(text, ids := encoded.ids)
            truncated = len(ids) > self.max_length or len(part) < len(text)
            ids = kept = ids[: self.max_length] if truncated else ids
            if self._dropped is not None and self._dropped in ids:
                kept = [token for token in ids if token != self._dropped]
            results.append((kept, len(ids) - len(kept), truncated))
        return results

    def _truncate(self, first: Pieces, count: int) -> Pieces:
        """Truncates the first text of a pair to `count` tokens, but keeps the part of the prompt after the text."""
        if self.prompt is None or count >= len(first):
            return first.slice(0, count)
        between = self.split(self.prompt.between)
        return first.slice(0, count - len(between)).then(between)

    def encode_each(self, text: str, pairs: Sequence[str], *, overflow: str = "error") -> list[Encoding]:
        """Encodes a text together with each of several second texts; second texts are never truncated.

        Args:
            text: The text.
            pairs: The second texts, one for each input.
            overflow: What to do with inputs that are too long for the model: raise an `error`, or `truncate` the end of
                the first text.

        Raises:
            InputError: An input is too long, a second text leaves no room, or a text is not valid Unicode.
            ArgumentError: `overflow` is unknown.
        """
        _check_overflow(overflow)
        first, encodings = beginning(self.split, text, self.room(2)), []
        for pair in pairs:
            second = self.split(pair)
            room = self.room(2) - len(second)
            if len(first) > room and overflow == "error":
                raise self._too_long(len(first) - room, long=len(text) > SIZE)
            if len(first) > room and room < 1:
                raise InputError(
                    f"the second text {pair!r:.60} has {len(second)} tokens, which leaves no room for the first text"
                )
            encodings.append(self.assemble([first.slice(0, room), second], truncated=len(first) > room))
        return encodings

    def _too_long(self, excess: int, *, long: bool) -> TooLongError:
        length = f"{'at least ' * long}{self.max_length + excess} tokens"  # not all tokens of a long text are counted
        return TooLongError(f"the text has {length}, but the model takes at most {self.max_length}")

    def prompt_length(self, prompt: str) -> int:
        """The number of tokens before the text in an input: the leading special tokens and the tokens of `prompt`."""
        before = next(slot for slot, (special, _) in enumerate(self._single) if special is None)
        return before + (len(self.split(prompt)) if prompt else 0)

    def windows(
        self, text: str, pair: str | None = None, *, stride: int, prompt: str = "", longer: bool = False
    ) -> list[Encoding]:
        """Encodes a text of any length as overlapping inputs.

        Args:
            text: The text; with a `pair`, it is repeated in full in every window.
            pair: The text to split into windows, if there are two texts.
            stride: The number of tokens that consecutive windows have in common.
            prompt: Prepended to the text in every window; offsets count it as part of the text.
            longer: Whether to split the longer text of a pair instead of `pair`, and to repeat the other one.

        Raises:
            InputError: The repeated text leaves too little room, or a text is not valid Unicode.
            ArgumentError: `stride` is negative.
        """
        stride = OVERLAP.check_whole("stride", stride)
        if pair is not None:
            text, pair = self.inside(text, pair)
        fixed = [] if pair is None else [self.split(text)]
        run = self.split(prompt + (text if pair is None else pair))
        head = run.slice(0, len(self.split(prompt)) if prompt else 0)
        run = run.slice(len(head), len(run))
        swapped = longer and self.prompt is None and any(len(pieces) > len(run) for pieces in fixed)
        if swapped:
            fixed, run = [run], fixed[0]
        room = self.room(1 + len(fixed)) - sum(map(len, fixed)) - len(head)
        if room <= stride:
            if fixed and room <= 0:
                raise InputError(
                    f"the text in every window has {len(fixed[0])} tokens, which leaves no room for the text to split",
                    hint="`overflow='truncate'` truncates both texts",
                )
            raise InputError(f"windows of {room} tokens cannot overlap by {stride} tokens")
        encodings = []
        for start in range(0, max(len(run) - stride, 1), room - stride):
            texts = [*fixed, head.then(run.slice(start, start + room))]
            encodings.append(self.assemble(texts[::-1] if swapped else texts, truncated=start + room < len(run)))
        return encodings

    def around(self, text: str, number: int) -> tuple[list[Encoding], list[tuple[int, int]]]:
        """Encodes every token with the id `number` together with its context.

        A text that fits becomes a single input for all these tokens. In a longer text, an input is centered on one of
        these tokens. It is also used for the next ones, if at least a quarter of its tokens are to their right, or if
        it ends with the text.

        Returns:
            The inputs, and for each of these tokens, in the order of the text, its input and its index in that input.
        """
        run = self.split(text)
        places = [place for place, token in enumerate(run.ids) if token == number]
        room = self.room(1)
        starts = starts_around(places, room, len(run))
        numbers = {start: number for number, start in enumerate(sorted(set(starts)) or [0])}
        inputs = [self.assemble([run.slice(start, start + room)], truncated=len(run) > room) for start in numbers]
        before = self.prompt_length("")
        indices = [(numbers[start], before + place - start) for start, place in zip(starts, places, strict=True)]
        return inputs, indices


def batches(texts: Iterable[str], least: int = 2) -> Iterator[list[str]]:
    """Groups texts, so that the library's results for a group take limited memory.

    A last group with fewer than `least` texts is left out: a single text gains nothing from being split in advance.
    """
    batch, length = list[str](), 0
    for text in texts:
        batch.append(text)
        length += len(text)
        if length > _BATCH_SIZE:
            yield batch
            batch, length = [], 0
    if len(batch) >= least:
        yield batch


def load_tokenizer(folder: Path | ModelFolder, config: EncoderConfig) -> Tokenizer:
    """Loads the tokenizer from a model's folder."""
    folder = open_folder(folder)
    try:
        return Tokenizer(read_tokenizer(folder), config)
    except TokenizerError as problem:
        location, message = str(folder.transformer), problem.message
        raise TokenizerError(
            message if message.startswith(location) else f"{location}: {message}", hint=problem.hint
        ) from None
