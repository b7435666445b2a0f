"""Texts as the model sees them."""

from collections.abc import Iterable, Iterator

from mlxbert.errors import ArgumentError, InputError
from mlxbert.results import Failure, Token, Tokens
from mlxbert.tasks.runner import run
from mlxbert.text.tokenizer import Tokenizer

OVERFLOWS = ("error", "truncate")


def tokenize(
    tokenizer: Tokenizer,
    texts: Iterable[str | InputError],
    *,
    pair: str | None = None,
    overflow: str = "error",
    on_error: str = "raise",
) -> Iterator[Tokens | Failure]:
    """Splits texts into tokens and adds the special tokens.

    Args:
        tokenizer: The tokenizer of a model.
        texts: Any number of texts.
        pair: A second text for each, in segment 1.
        overflow: A text too long for the model: `error` refuses it, `truncate` drops its end.
        on_error: `raise`, or `return` a Failure in place of a text that cannot be used.
    """
    if overflow not in OVERFLOWS:
        raise ArgumentError(f"overflow is {overflow!r}, expected one of {', '.join(OVERFLOWS)}")

    def prepare(text: str) -> Tokens:
        encoding = tokenizer.encode(text, pair, overflow=overflow)
        places = range(len(encoding))
        columns = zip(encoding.ids, encoding.token_type_ids, places, encoding.offsets, strict=True)
        tokens = (
            Token(tokenizer.token(number), number, segment, place, *span) for number, segment, place, span in columns
        )
        return Tokens(text, tuple(tokens), encoding.truncated)

    return run(texts, prepare, lambda done: done, on_error)
