"""Texts as the model sees them."""

from collections.abc import Iterable, Iterator

from mlxbert.errors import ArgumentError, InputError
from mlxbert.results import Failure, Token, Tokens
from mlxbert.tasks.runner import check_on_error, run
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
    """Turns texts into tokens, special tokens included.

    Args:
        tokenizer: A model's.
        texts: Any number of texts.
        pair: A second text for each, in segment 1.
        overflow: A text too long for the model: `error` or `truncate`.
        on_error: `raise`, or `return` a Failure in the place of a text that cannot be used.
    """
    check_on_error(on_error)
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
