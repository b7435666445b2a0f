"""The routes of Hugging Face's Text Embeddings Inference (TEI)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.results.json import plain
from mlxbert.results.text_results import Regression
from mlxbert.serve.engine.next_batch import Answered
from mlxbert.serve.json_bodies import each
from mlxbert.serve.protocol import STATUS, Protocol, Reply, RequestError, Route
from mlxbert.serve.protocols.embedding_requests import SentencesToCompare, Texts, overflow_of, similarities, texts_of
from mlxbert.serve.service import EMBED, RERANK, Service
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.classify import ClassifyTask
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.options import ClassifyOptions, EmbedOptions, RerankOptions, SimilarityOptions, SparseOptions
from mlxbert.tasks.task import RESULT_BYTES, PreparedItem, check_no_window
from mlxbert.text.batch import default_batch_tokens
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.text.usage import Usage
from mlxbert.version import __version__

if TYPE_CHECKING:
    from mlxbert.tasks.embed import Vector

# Status and type of errors; others have the status of HTTP and the type `Validation`.
_ERRORS = {
    "invalid": (422, "Validation"),
    "empty": (400, "Empty"),
    "bad_text": (422, "Tokenizer"),
    "too_long": (413, "Validation"),
    "overloaded": (429, "Overloaded"),
    "internal": (424, "Backend"),
    "unavailable": (503, "Unhealthy"),
}


_CLASSIFY, _EMBED_SPARSE = CATALOGUE["classify"], CATALOGUE["embed-sparse"]
# Tasks of this protocol only, without a command or function: vectors of all tokens, and logits of classes.
_EMBED_TOKENS = replace(EMBED, name="embed-all", task="mlxbert.serve.protocols.tei:EmbedTokensTask")
_CLASSIFY_LOGITS = replace(_CLASSIFY, name="classify-logits", task="mlxbert.serve.protocols.tei:ClassifyLogitsTask")
_TOKEN_BYTES = 300  # the memory of a `SimpleToken`
_ID_BYTES = 30  # the memory of the text of an id


class EmbedTokensTask(EmbedTask):
    """Computes the vectors (L, D) of the L tokens of a text and its prompt."""

    def __init__(self, model: Model, options: EmbedOptions, *, usage: Usage | None = None) -> None:
        check_no_window(options)
        super().__init__(model, options, usage=usage)

    @property
    def output_bytes(self) -> int:
        return 4 * self.model.config.hidden_size * self.tokenizer.max_length

    def size(self, item: str, units: int) -> int:
        return RESULT_BYTES + 4 * self.model.config.hidden_size * units

    def most_units(self, item: str) -> int:
        return min(self.prompt_length + super().most_units(item), self.tokenizer.max_length)

    def forward(self, batch: Batch, parts: Sequence[tuple[PreparedItem[str], int]]) -> mx.array:
        """Returns the hidden states (B, L, D)."""
        output = self.model.network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return output.last_hidden_state.astype(mx.float32)

    def read(self, arrays: mx.array, parts: Sequence[tuple[PreparedItem[str], int]]) -> Sequence["Vector"]:
        """Returns the token vectors of each row, without padding."""
        rows = super().read(arrays, parts)
        return [row[: len(job.encodings[number])] for row, (job, number) in zip(rows, parts, strict=True)]


class ClassifyLogitsTask(ClassifyTask):
    """Classification with the logits of the model as scores."""

    logits = True


class OfModel(Struct, kw_only=True):
    """The model of a request, which TEI itself, a server of one model, does not have.

    Attributes:
        model: The name of the model; by default, the first one that can do the task.
    """

    model: str | None = None


class Truncation(Struct, kw_only=True):
    """What to do with texts that are too long.

    Attributes:
        truncate: Whether they are truncated; if false, they are an error. By default, the server's option decides.
        truncation_direction: The end of a text that is dropped; only `right` is supported.
    """

    shorten: ClassVar[str] = '"truncate": true truncates it'
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right", "left", "Left"] | None = "right"

    def overflow(self, service: Service) -> Literal["truncate", "error"]:
        """The value of the option `overflow`."""
        left = bool(self.truncate) and (self.truncation_direction or "").lower() == "left"
        return overflow_of(service, "START" if left else self.truncate, "truncation_direction")


class TruncatingBody(Truncation, kw_only=True):
    """Texts for a model, which may be too long for it.

    Attributes:
        model: The name of the model; by default, the first one that can do the task.
    """

    model: str | None = None


class EmbedAllBody(TruncatingBody, kw_only=True):
    """Texts to embed token by token.

    Attributes:
        inputs: A text, or a list of texts.
        prompt_name: The name of one of the model's own prompts.
    """

    inputs: Texts
    prompt_name: str | None = None


class SparseValue(Struct):
    """A token of the vocabulary, and its weight."""

    index: int
    value: float


class TeiEmbedBody(EmbedAllBody, kw_only=True):
    """Texts to embed.

    Attributes:
        normalize: Whether vectors are scaled to length 1.
        dimensions: The number of leading values to keep.
    """

    normalize: bool | None = True
    dimensions: int | None = None


class SimilarityParameters(Truncation, kw_only=True):
    """The options for embedding. By default, the model's own prompts for queries and documents are used."""

    prompt_name: str | None = None


class SimilarityBody(OfModel, kw_only=True):
    """Sentences to compare."""

    shorten: ClassVar[str] = '"parameters": {"truncate": true} truncates it'
    inputs: SentencesToCompare
    parameters: SimilarityParameters | None = None


class TeiRerankBody(TruncatingBody, kw_only=True):
    """Texts to rank.

    Attributes:
        query: The query.
        texts: The texts.
        raw_scores: Whether scores are the raw outputs of the model.
        return_text: Whether each result contains its text.
    """

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False


class Rank(Struct):
    """A ranked text."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class PredictBody(TruncatingBody, kw_only=True):
    """Texts to label.

    Attributes:
        inputs: A text, a pair of texts, or a batch: a list of lists with one or two texts each.
        raw_scores: Whether scores are the raw outputs of the model.
    """

    inputs: str | list[str | list[str]]
    raw_scores: bool = False


class PredictedLabel(Struct):
    """A label with its score."""

    label: str
    score: float


class TokenizeBody(OfModel, kw_only=True):
    """Texts to tokenize."""

    inputs: str | list[str]
    add_special_tokens: bool = True


class SimpleToken(Struct):
    """A token and its position in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class DecodeBody(OfModel, kw_only=True):
    """The token ids of one or several texts."""

    ids: list[int | list[int]]
    skip_special_tokens: bool = True


def _reply(value: Any, answered: Answered[Any]) -> Reply:
    return Reply(value, answered.tokens, len(answered.truncated))


async def vectors(service: Service, body: TeiEmbedBody) -> Reply:
    """Returns the vectors of texts."""
    options = EmbedOptions(
        overflow=body.overflow(service), normalize=body.normalize, dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )  # fmt: skip
    name = service.find(body.model, EMBED.name)
    answered = await service.run(name, EMBED, texts_of(body.inputs, "inputs"), options)
    return _reply(lambda: each(answered.results, lambda result: result.embedding), answered)


async def token_vectors(service: Service, body: EmbedAllBody) -> Reply:
    """Returns the token vectors of texts."""
    options = EmbedOptions(overflow=body.overflow(service), prompt_name=body.prompt_name)
    name = service.find(body.model, EMBED.name)
    answered = await service.run(name, _EMBED_TOKENS, texts_of(body.inputs, "inputs"), options)
    return _reply(lambda: each(answered.results, lambda result: result.embedding), answered)


async def sparse(service: Service, body: EmbedAllBody) -> Reply:
    """Returns the sparse vectors of texts: the ids of tokens with their weights, in the order of the ids."""
    options = SparseOptions(overflow=body.overflow(service), prompt_name=body.prompt_name)
    name = service.find(body.model, _EMBED_SPARSE.name)
    answered = await service.run(name, _EMBED_SPARSE, texts_of(body.inputs, "inputs"), options)
    return _reply(lambda: each(answered.results, _weights), answered)


def _weights(result: Any) -> list[SparseValue]:
    pairs = zip(result.ids.tolist(), plain(result.values), strict=True)
    return [SparseValue(index, value) for index, value in pairs]


async def similarity(service: Service, body: SimilarityBody) -> Reply:
    """Returns the similarity of each sentence to a source sentence, in order."""
    parameters = body.parameters or SimilarityParameters()
    options = SimilarityOptions(overflow=parameters.overflow(service), prompt_name=parameters.prompt_name)
    return await similarities(service, service.find(body.model, EMBED.name), body.inputs, options)


async def rerank(service: Service, body: TeiRerankBody) -> Reply:
    """Returns texts ranked by their relevance to a query, best first."""
    texts = texts_of(body.texts, "texts")
    options = RerankOptions(overflow=body.overflow(service))
    best, _, answered = await service.rerank(service.find(body.model, RERANK.name), body.query, texts, options)
    scores = [ranked.logit if body.raw_scores and ranked.logit is not None else ranked.score for ranked in best]
    ranks = [
        Rank(ranked.number, score, ranked.text if body.return_text else UNSET)
        for ranked, score in zip(best, scores, strict=True)
    ]
    return _reply(ranks, answered)


async def predict(service: Service, body: PredictBody) -> Reply:
    """Returns the labels of texts or pairs, with their scores."""
    inputs = body.inputs
    batch = isinstance(inputs, list) and any(isinstance(item, list) for item in inputs)
    if inputs == []:
        raise RequestError("empty", "inputs is empty, expected at least one text", param="inputs")
    pairs = [_item(item) for item in (inputs if batch else [[inputs] if isinstance(inputs, str) else inputs])]
    name, entry = service.find(body.model, _CLASSIFY.name), _CLASSIFY_LOGITS if body.raw_scores else _CLASSIFY
    answered = await service.run(name, entry, pairs, ClassifyOptions(overflow=body.overflow(service)))
    predictions = [_predictions(item, service.facts[name].labels) for item in answered.results]
    return _reply(predictions if batch else predictions[0], answered)


def _item(texts: Any) -> Any:
    """Converts a list of one or two texts to a text or a pair."""
    if isinstance(texts, str) or not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
        raise RequestError(
            "invalid",
            "inputs is invalid, expected a text, a pair [text, text], or a list of [text] and [text, text]",
            param="inputs",
        )
    return texts[0] if len(texts) == 1 else tuple(texts)


def _predictions(result: Any, labels: Sequence[str]) -> list[PredictedLabel]:
    if isinstance(result, Regression):
        return [PredictedLabel(name, value) for name, value in result.values or ((labels[0], result.value),)]
    return [PredictedLabel(label.label, label.score) for label in result.labels]


async def tokenize(service: Service, body: TokenizeBody) -> Reply:
    """Returns the tokens of texts of any length."""
    texts = texts_of(body.inputs, "inputs")

    def split(tokenizer: Tokenizer) -> list[list[SimpleToken]]:
        tokens, count = [], 0
        for text in texts:
            tokens.append(_tokens(tokenizer, text, special=body.add_special_tokens))
            count += len(tokens[-1])
            service.check_answer(count * _TOKEN_BYTES, f"{count:,} tokens", "ask for fewer texts at once")
        return tokens

    tokens = await _with_tokenizer(service, body.model, split, texts, _TOKEN_BYTES)
    return Reply(lambda: each(tokens, each), tokens=sum(map(len, tokens)))


def _tokens(tokenizer: Tokenizer, text: str, *, special: bool) -> list[SimpleToken]:
    pieces = tokenizer.split(text)
    if not special:
        places = zip(pieces.ids, pieces.offsets, strict=True)
        return [SimpleToken(id, text[start:end], False, start, end) for id, (start, end) in places]
    assembled = tokenizer.assemble([pieces], truncated=False)
    return [
        SimpleToken(id, text[slice(*span)], False, *span)
        if sequence == 0
        else SimpleToken(id, tokenizer.token(id), True, None, None)
        for id, span, sequence in zip(assembled.ids, assembled.offsets, assembled.sequence_ids, strict=True)
    ]


async def decode(service: Service, body: DecodeBody) -> Reply:
    """Returns the texts of token ids."""
    lists = sum(isinstance(item, list) for item in body.ids)
    if lists not in (0, len(body.ids)):
        raise RequestError(
            "invalid", "ids has both numbers and lists of numbers, expected only numbers or only lists", param="ids"
        )
    id_lists: list[Any] = body.ids if lists else [body.ids]

    def join(tokenizer: Tokenizer) -> list[str]:
        return [tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens) for ids in id_lists]

    return Reply(await _with_tokenizer(service, body.model, join, id_lists, _ID_BYTES))


async def _with_tokenizer(
    service: Service, model: str | None, work: Callable[[Tokenizer], Any], items: Sequence[Any], unit: int
) -> Any:
    """Runs a function with a model's tokenizer on a separate thread, so that no other request waits.

    A character of the items, or an id in them, takes at most `unit` bytes in the result.
    """
    size = sum(map(len, items))
    service.check_size(len(items), size)
    await service.claim(min(size * unit, service.room.max_bytes))
    facts = service.facts[service.find(model)]
    tokenizer = await asyncio.wrap_future(service.engine.call(facts.name, facts.tokenizer))
    return await asyncio.to_thread(work, tokenizer)


async def info(service: Service, path: dict[str, str]) -> Reply:
    """Returns the facts about the first model and the limits of the server."""
    facts, limits = service.facts[service.find(None)], service.engine.options
    labels = {"id2label": dict(enumerate(facts.labels)), "label2id": {name: id for id, name in enumerate(facts.labels)}}
    kinds = {"rerank": {"reranker": labels}, "classify": {"classifier": labels}}
    description = {
        "model_id": facts.name, "model_sha": None, "model_dtype": facts.dtype,
        "model_type": kinds.get(facts.main, {"embedding": {"pooling": facts.pooling}}),
        "max_concurrent_requests": limits.max_queue, "max_input_length": facts.max_length,
        "max_batch_tokens": limits.max_batch_tokens or default_batch_tokens(),
        "max_client_batch_size": service.options.max_texts, "auto_truncate": service.options.truncate,
        "version": __version__,
    }  # fmt: skip
    return Reply(description)


def shape(problem: RequestError) -> tuple[int, Any]:
    """Returns an error in TEI's format. If no model can do the task, the error is reported as `Backend`."""
    status, kind = _ERRORS.get(problem.kind, (STATUS[problem.kind], "Validation"))
    if problem.param == "model":
        status, kind = 424, "Backend"
    return status, {"error": problem.text, "error_type": kind}


PROTOCOL = Protocol(
    "tei",
    (
        Route("POST", "/embed", vectors, "Vectors of texts", TeiEmbedBody, list[list[float]]),
        Route("POST", "/embed_all", token_vectors, "Token vectors", EmbedAllBody, list[list[list[float]]]),
        Route("POST", "/embed_sparse", sparse, "Sparse vectors of texts", EmbedAllBody, list[list[SparseValue]]),
        Route("POST", "/similarity", similarity, "Similarities to a sentence", SimilarityBody, list[float]),
        Route("POST", "/rerank", rerank, "Texts ranked by relevance to a query", TeiRerankBody, list[Rank]),
        Route("POST", "/predict", predict, "Labels of texts", PredictBody, list[PredictedLabel | list[PredictedLabel]]),
        Route("POST", "/tokenize", tokenize, "Tokens of texts", TokenizeBody, list[list[SimpleToken]]),
        Route("POST", "/decode", decode, "Texts of ids", DecodeBody, list[str]),
        Route("GET", "/info", info, "The first model, and the limits of the server", reply=dict[str, Any]),
    ),
    shape,
)
