"""Makes the inputs of a model that computes token vectors, and tells which of their tokens have a vector."""

from dataclasses import replace

from mlxbert.errors import ArgumentError, TokenizerError, TooLongError
from mlxbert.nn.token_embedder import TokenSide
from mlxbert.text.encoding import Encoding, Pieces
from mlxbert.text.token_blocks import beginning
from mlxbert.text.tokenizer import Tokenizer


class TokenInputs:
    """Makes the inputs of queries, or of documents."""

    def __init__(self, tokenizer: Tokenizer, side: TokenSide) -> None:
        self._side = side
        self._marker = [] if not side.marker else [_id(tokenizer, side.marker, "the prefix")]
        self.markers = len(self._marker)  # the number of tokens that say of which kind the text is
        # The tokenizer, with the maximum length of these texts.
        self.tokenizer = tokenizer.adapted(max_length=side.limit)
        if side.expand > self.tokenizer.max_length:
            raise ArgumentError(
                f"queries are filled to {side.expand} tokens, but the model takes at most {self.tokenizer.max_length}"
            )
        if self.tokenizer.room(1) <= len(self._marker):
            raise ArgumentError(f"inputs of {self.tokenizer.max_length} tokens leave no room for text")
        self._filler = _filler(tokenizer, side) if side.expand else None
        absent = tokenizer.token_id(tokenizer.special.get("unk", "")) if side.skips_unknown else None
        ids = (tokenizer.token_id(word) for word in side.skipped)
        self._skipped = {absent if number is None else number for number in ids} - {None}
        self._kept = None if side.kept is None else {*side.kept}

    def text(self, text: str) -> str:
        """Returns a text with its prompt, as it is tokenized."""
        return self._side.prompt + text

    def encode(self, text: str, *, overflow: str = "truncate") -> Encoding:
        """Makes the input of a text: its tokens with the marker, filled up if the model does so with these texts.

        Raises:
            InputError: The text is too long and `overflow` is `error`, or is not valid Unicode.
        """
        tokenizer, marker = self.tokenizer, self._marker
        room = tokenizer.room(1) - len(marker)
        run = beginning(tokenizer.split, self.text(text), room)
        if len(run) > room and overflow == "error":
            least = len(run) + tokenizer.max_length - room
            raise TooLongError(
                f"the text has at least {least} tokens, but the model takes at most {tokenizer.max_length}"
            )
        first = next(slot for slot, (special, _) in enumerate(tokenizer.templates[0]) if special is None)
        marked = Pieces(marker, [(0, 0)] * len(marker), [None] * len(marker)) if marker else None
        pieces = run.slice(0, room)
        if marked is not None and first:
            pieces = replace(marked.then(pieces), before=0)
        elif marked is not None:  # the marker comes second, wherever special tokens are
            pieces = replace(pieces.slice(0, 1).then(marked).then(pieces.slice(1, len(pieces))), before=0)
        return self._filled(tokenizer.assemble([pieces], truncated=len(run) > room))

    def _filled(self, encoding: Encoding) -> Encoding:
        missing = self._side.expand - len(encoding)
        if missing <= 0:
            return encoding
        assert self._filler is not None
        start = len(encoding)
        return Encoding(
            encoding.ids + [self._filler] * missing,
            encoding.token_type_ids + [0] * missing,
            encoding.offsets + [(0, 0)] * missing,
            encoding.word_ids + [None] * missing,
            encoding.sequence_ids + [None] * missing,
            [*encoding.positions, *range(start, start + missing)],
            encoding.truncated,
            unattended=0 if self._side.attend else missing,
        )

    def places(self, encoding: Encoding) -> list[int]:
        """Returns the indices of the tokens of an input that have a vector."""
        return [
            place
            for place, number in enumerate(encoding.ids)
            if number not in self._skipped
            and (self._kept is None or number in self._kept)
            and not (place == 0 and self._side.skip_first)
        ]


def _id(tokenizer: Tokenizer, token: str, role: str) -> int:
    number = tokenizer.token_id(token)
    if number is None:
        raise TokenizerError(f"{role} {token!r:.60} is not a token of the vocabulary")
    return number


def _filler(tokenizer: Tokenizer, side: TokenSide) -> int:
    if side.filler is not None:
        return _id(tokenizer, side.filler, "the token that fills queries,")
    for role in ("mask", "eos", "sep", "pad"):
        if (number := tokenizer.token_id(tokenizer.special.get(role, ""))) is not None:
            return number
    raise TokenizerError("the vocabulary has no mask token, which queries are filled with")
