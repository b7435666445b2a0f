"""Computes token vectors of texts, for late interaction.

Shapes: B batch, L tokens of an input, T tokens that have a vector, W size of a vector.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.other_libraries import not_one_of
from mlxbert.results.embed import TokenVectors
from mlxbert.tasks.argument_checks import check_inputs, check_model
from mlxbert.tasks.keywords import UsageOptions, takes_keywords
from mlxbert.tasks.maxsim import maxsim
from mlxbert.tasks.options import TokenVectorOptions, TruncatingOptions
from mlxbert.tasks.task import PreparedItem, Task, check_finite
from mlxbert.tasks.vector_dtype import TOKEN_DTYPES, check_output_dtype, rows_as_dtype
from mlxbert.text.token_inputs import TokenInputs
from mlxbert.text.usage import Usage

Vectors: TypeAlias = "NDArray[np.float32]"


class TokenVectorsTask(Task[str, PreparedItem[str], "Vectors", TokenVectors]):
    """Computes the vectors (T, W) of the tokens of a text."""

    name = "embed"
    options: TokenVectorOptions

    def __init__(self, model: Model, options: TokenVectorOptions, *, usage: Usage | None = None) -> None:
        super().__init__(model, options, usage=usage)
        self.embedder = model.token_embedder  # turns hidden states into vectors
        self.part_bytes = 4 * self.embedder.size
        self.similarity = self.embedder.config.similarity  # one of `TOKEN_SIMILARITIES`
        check_output_dtype(options.output_dtype, self.embedder.size, TOKEN_DTYPES)
        if options.output_dtype in ("int8", "binary") and not self.embedder.unit:
            raise ArgumentError(
                f"`output_dtype` is {options.output_dtype!r}, which keeps no lengths, but the vectors have any length"
            )
        config = self.embedder.config
        tokenizer = model.tokenizer.adapted(lower_case=config.lower_case)
        self.inputs_of = TokenInputs(tokenizer, config.side(options.kind))  # makes the inputs of texts
        self.tokenizer = self.inputs_of.tokenizer

    @property
    def output_bytes(self) -> int:
        return 4 * self.embedder.size * self.tokenizer.max_length

    def most_units(self, item: str) -> int:
        return self.tokenizer.max_length

    def texts(self, item: str) -> list[str]:
        return [self.inputs_of.text(item)] if isinstance(item, str) else []

    def prepare(self, item: str) -> PreparedItem[str]:
        if not isinstance(item, str):
            raise InputError(f"expected a text, found {type(item).__name__}")
        encoding = self.inputs_of.encode(item, overflow=self.options.overflow)
        unknown, only = self.tokenizer.unknown([encoding])
        return PreparedItem(item, [encoding], encoding.truncated, unknown=unknown, only_unknown=only)

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """Returns the vectors of all tokens, (B, L, W)."""
        output = self.model.network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return self.embedder(output.last_hidden_state)

    def read(self, arrays: mx.array, parts: Sequence[tuple[PreparedItem[str], int]]) -> Sequence["Vectors"]:
        """Returns the vectors (T, W) of the tokens of each row that have one."""
        rows = np.array(arrays)
        places = (self.inputs_of.places(job.encodings[number]) for job, number in parts)
        return [row[kept] for row, kept in zip(rows, places, strict=False)]

    def result(self, job: PreparedItem[str], outputs: Sequence["Vectors"]) -> TokenVectors:
        stored = rows_as_dtype(check_finite(outputs[0], "vectors"), self.options.output_dtype)
        tokens = len(job.encodings[0])
        return TokenVectors(job.item, stored, tokens, job.truncated, job.unknown, job.only_unknown)

    def score(self, query: TokenVectors, text: TokenVectors) -> float:
        return float(maxsim(query.embeddings, [text.embeddings], similarity=self.similarity)[0])


@takes_keywords
def embed_tokens(
    model: Model, texts: str | Iterable[str], *, options: TokenVectorOptions, call: UsageOptions
) -> "list[NDArray[Any]] | NDArray[Any]":
    """Computes a vector for each token of texts, with a model for late interaction such as ColBERT.

    Tokens that the model leaves out, such as punctuation, have no vector; many models fill queries up with mask tokens,
    whose vectors count like those of the text. `maxsim` scores documents with these vectors.

    Example:
        >>> model = mlxbert.load("lightonai/GTE-ModernColBERT-v1")
        >>> documents = mlxbert.embed_tokens(model, ["A man eats.", "It rains."])
        >>> query = mlxbert.embed_tokens(model, "Who has lunch?", kind="query")  # (32, 128)
        >>> mlxbert.maxsim(query, documents)  # (2,)

    Args:
        model: A model for late interaction.
        texts: One text, or an iterable of texts.
        options: See `TokenVectorOptions`.
        call: See `UsageOptions`.

    Returns:
        (T, W) for one text with T tokens that have vectors of size W, a list of such arrays for several.

    Raises:
        ArgumentError: An argument has an invalid value.
        ConfigError: The model gives no token vectors.
        InputError: A text is unusable.
    """
    check_model(model, texts)
    task = TokenVectorsTask(model, options, usage=call.usage)
    if isinstance(texts, str):
        return task.compute([task.job(texts)])[0].embeddings
    checked = check_inputs(texts, "texts", "one text or an iterable of texts")
    return [cast(TokenVectors, result).embeddings for result in task.run(checked, early=False)]


def token_tasks(
    model: Model, options: TruncatingOptions, usage: Usage | None = None
) -> tuple[TokenVectorsTask, TokenVectorsTask]:
    """Makes the tasks that compute the token vectors of queries and of texts, to compare them by MaxSim."""
    if options.overflow == "window":
        raise not_one_of("overflow", options.overflow, ("truncate", "error"))
    chosen = TokenVectorOptions(overflow=options.overflow, batch_tokens=options.batch_tokens)
    query = replace(chosen, kind="query", overflow="truncate")
    return TokenVectorsTask(model, query, usage=usage), TokenVectorsTask(model, chosen, usage=usage)
