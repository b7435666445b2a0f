"""Tokenization: texts as the model sees them."""

from collections.abc import Iterable, Iterator
from typing import Literal

from mlxbert.errors import InputError
from mlxbert.model import Model
from mlxbert.results.result import Failure
from mlxbert.results.text_results import Token, Tokens
from mlxbert.tasks.argument_checks import check_inputs, check_model
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import TokenizeOptions
from mlxbert.tasks.runner import check_on_error, run
from mlxbert.text.encoding import Encoding
from mlxbert.text.tokenizer import Tokenizer


@takes_keywords
def tokenize(
    model: Model | Tokenizer,
    texts: str | Iterable[str | InputError],
    *,
    options: TokenizeOptions,
    on_error: Literal["raise", "return"] = "raise",
) -> Tokens | Iterator[Tokens | Failure]:
    """Splits texts into tokens and adds the special tokens.

    Example:
        >>> model = mlxbert.load()
        >>> result = mlxbert.tokenize(model, "Hello, playwrights!")
        >>> [token.token for token in result.tokens]
        >>> model.tokenizer.decode([token.id for token in result.tokens])

    Args:
        model: A model, or its tokenizer.
        texts: One text, or any number of texts.
        options: See `TokenizeOptions`.
        on_error: `raise`, or `return` a Failure in place of an unusable text.

    Returns:
        One result for one text; for several an iterator in their order, in constant memory.

    Raises:
        InputError: The input is not a text, or is too long with `overflow="error"`.
        ArgumentError: An argument has an invalid value.
    """
    if not isinstance(model, Tokenizer):
        check_model(model, texts)
    tokenizer = model if isinstance(model, Tokenizer) else model.tokenizer
    check_on_error(on_error)

    def prepare(text: str) -> Tokens:
        encoding = tokenizer.encode(text, options.pair, overflow=options.overflow)
        return Tokens(text, tokens_of(tokenizer, encoding), encoding.truncated)

    if isinstance(texts, str):
        return prepare(texts)
    return run(check_inputs(texts, "texts", "one text or an iterable of texts"), prepare, lambda done: done, on_error)


def tokens_of(tokenizer: Tokenizer, encoding: Encoding) -> tuple[Token, ...]:
    """Returns the tokens of an encoding, including special tokens."""
    columns = zip(encoding.ids, encoding.token_type_ids, range(len(encoding)), encoding.offsets, strict=True)
    return tuple(Token(tokenizer.token(id), id, segment, place, *span) for id, segment, place, span in columns)
