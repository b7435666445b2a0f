"""Common parts of the protocols with vectors: texts, prompts, truncation, and the formats of a vector."""

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from mlxbert.results.result import Failure
from mlxbert.serve.engine.next_batch import Answered
from mlxbert.serve.json_bodies import each
from mlxbert.serve.protocol import Reply, RequestError
from mlxbert.serve.service import EMBED, Service
from mlxbert.tasks.options import SimilarityOptions
from mlxbert.tasks.prompt_kinds import own_prompt
from mlxbert.tasks.query_ranking import Scored, scores_of_pairs
from mlxbert.tasks.similarity import embed_tasks
from mlxbert.tasks.vector_dtype import as_dtype, check_output_dtype

if TYPE_CHECKING:
    from mlxbert.tasks.embed import Vector

# One or several texts; token ids are part of the type so that they are refused with a better message.
Texts = str | list[str | int | list[int]]
Form = Literal["float", "base64", "int8", "binary"]
Truncate = Literal["NONE", "END", "START", "none", "end", "start"]
# Kinds of texts by the protocols' names; `None` for kinds without a prompt, unless the model has one with that name.
_KINDS = {
    "query": "query", "search_query": "query", "retrieval.query": "query",
    "document": "document", "passage": "document", "search_document": "document", "retrieval.passage": "document",
    "classification": None, "clustering": None, "separation": None, "text-matching": None,
}  # fmt: skip


class SentencesToCompare(Struct):
    """A sentence, and the sentences to compare with it."""

    source_sentence: str
    sentences: list[str]


def texts_of(inputs: str | Sequence[str | int | list[int]], param: str) -> list[str]:
    """Returns the texts of a request; raises RequestError for token ids or an empty list."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not texts:
        raise RequestError("empty", f"{param} is empty, expected at least one text", param=param)
    checked = [text for text in texts if isinstance(text, str)]
    if len(checked) < len(texts):
        raise RequestError(
            "invalid", f"{param} has token ids, expected texts, because ids of other tokenizers give wrong vectors",
            hint="in LangChain, use `OpenAIEmbeddings(check_embedding_ctx_length=False)`", param=param,
        )  # fmt: skip
    return checked


def overflow_of(
    service: Service, truncate: bool | Truncate | None, param: str = "truncate"
) -> Literal["truncate", "error"]:
    """Returns the option `overflow` of a request; the server's default if the request does not set it."""
    if isinstance(truncate, str) and truncate.lower() == "start":
        raise RequestError(
            "invalid",
            f"{param} would drop the beginning of a text, but only the end of a text can be dropped",
            param=param,
        )
    if truncate is None:
        truncate = service.options.truncate
    return "truncate" if truncate is True or (truncate and truncate.lower() == "end") else "error"


def prompt_of(service: Service, model: str, name: str | None, param: str) -> str | None:
    """Returns the name of the model's prompt that `name` selects, either by the prompt's name or by a kind of texts."""
    prompts = service.facts[model].prompts
    if name is None or name in prompts:
        return name
    if name not in _KINDS:
        names = ", ".join(dict.fromkeys([*prompts, *_KINDS]))
        raise RequestError("invalid", f"{param} is {name!r:.60}, expected one of {names}", param=param)
    kind = _KINDS[name]
    return None if kind is None else own_prompt(prompts, kind)


async def compare(
    service: Service, model: str, query: str, texts: Sequence[str], options: SimilarityOptions, on_error: str = "raise"
) -> tuple[Answered[Any], Answered[Any], list[Scored | Failure]]:
    """Embeds a query and texts; returns both answers, and the similarities as in `mlxbert.similarity`."""
    asking, task = await asyncio.wrap_future(
        service.engine.call(model, lambda loaded: embed_tasks(loaded, options, None))
    )
    asked, answered = await asyncio.gather(
        service.run(model, EMBED, [query], asking.options), service.run(model, EMBED, texts, task.options, on_error)
    )
    first = asked.results[0].embedding

    def scored(result: Any) -> Scored | Failure:
        if isinstance(result, Failure):
            return result
        score = float(scores_of_pairs(task.similarity, first, result.embedding))
        return Scored(score, result.text, result.truncated, result.unknown_tokens)

    return asked, answered, [scored(result) for result in answered.results]


async def similarities(service: Service, model: str, body: SentencesToCompare, options: SimilarityOptions) -> Reply:
    """Returns the similarity of each sentence to a source sentence, in order, as in `mlxbert.similarity`."""
    sentences = texts_of(body.sentences, "sentences")
    asked, answered, scored = await compare(service, model, body.source_sentence, sentences, options)
    scores = [score.score for score in scored if isinstance(score, Scored)]
    return Reply(scores, asked.tokens + answered.tokens, len(asked.truncated) + len(answered.truncated))


def check_forms(forms: Sequence[Form], answered: Answered[Any]) -> None:
    """Raises ArgumentError if the vectors cannot have one of the formats; called before the first vector is sent."""
    for form in forms:
        in_form(answered.results[0].embedding, form)


def in_form(vector: "Vector", form: Form) -> Any:
    """Converts a vector to a format: an array of numbers, or float32 in base64."""
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    dtype = "float32" if form == "float" else form
    check_output_dtype(dtype, len(vector))
    return as_dtype(vector, dtype)


def all_in_form(results: Sequence[Any], form: Form) -> Any:
    """Converts the vectors of results to a format while they are encoded (see `each`)."""
    return each(results, lambda result: in_form(result.embedding, form))
