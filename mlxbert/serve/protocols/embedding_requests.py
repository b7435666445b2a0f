"""What the protocols share that give vectors: texts, prompts, truncation, and the forms of a vector."""

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from mlxbert.results.result import Failure
from mlxbert.serve.engine.request_queue import Answered
from mlxbert.serve.protocol import Reply, RequestError
from mlxbert.serve.service import EMBED, Service
from mlxbert.tasks.options import SimilarityOptions
from mlxbert.tasks.prompt_kinds import own_prompt
from mlxbert.tasks.query_ranking import Scored, scores_of_pairs
from mlxbert.tasks.similarity import embed_tasks
from mlxbert.tasks.vector_dtype import as_dtype, check_output_dtype

if TYPE_CHECKING:
    from mlxbert.tasks.embed import Vector

# A text or texts; ids are refused, with a better message than that of the wrong type.
Texts = str | list[str | int | list[int]]
Form = Literal["float", "base64", "int8", "binary"]
Truncate = Literal["NONE", "END", "START", "none", "end", "start"]
# What the texts are, by the names of the protocols; `None` for what has no prompt unless the model names it so.
_KINDS = {
    "query": "query", "search_query": "query", "retrieval.query": "query",
    "document": "document", "passage": "document", "search_document": "document", "retrieval.passage": "document",
    "classification": None, "clustering": None, "separation": None, "text-matching": None,
}  # fmt: skip


class SentencesToCompare(Struct):
    """A sentence, and others that it is compared with."""

    source_sentence: str
    sentences: list[str]


def texts_of(given: str | Sequence[str | int | list[int]], param: str) -> list[str]:
    """The texts of a request."""
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise RequestError("empty", f"{param} is empty, expected at least one text", param=param)
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        raise RequestError(
            "invalid", f"{param} has token ids, expected texts: ids of another tokenizer would give wrong vectors",
            hint="LangChain's OpenAIEmbeddings takes check_embedding_ctx_length=False", param=param,
        )  # fmt: skip
    return found


def overflow_of(
    service: Service, truncate: bool | Truncate | None, param: str = "truncate"
) -> Literal["truncate", "error"]:
    """What is done with a text that is too long; what the server was started with, if the request says nothing."""
    if isinstance(truncate, str) and truncate.lower() == "start":
        raise RequestError(
            "invalid", f"{param} drops the beginning of a text, expected its end or nothing", param=param
        )
    if truncate is None:
        truncate = service.options.truncate
    return "truncate" if truncate is True or (truncate and truncate.lower() == "end") else "error"


def prompt_of(service: Service, model: str, given: str | None, param: str) -> str | None:
    """The name of the model's prompt for what the texts are: one of its own prompts, or what protocols call them."""
    prompts = service.facts[model].prompts
    if given is None or given in prompts:
        return given
    if given not in _KINDS:
        known = ", ".join(dict.fromkeys([*prompts, *_KINDS]))
        raise RequestError("invalid", f"{param} is {given!r:.60}, expected one of {known}", param=param)
    kind = _KINDS[given]
    return None if kind is None else own_prompt(prompts, kind)


async def compare(
    service: Service, model: str, query: str, texts: Sequence[str], options: SimilarityOptions, on_error: str = "raise"
) -> tuple[Answered, Answered, list[Scored | Failure]]:
    """The vectors of a query and of texts, and how similar each text is to the query, as in `mlxbert.similarity`.

    Args:
        service: The service.
        model: The name of the model.
        query: The query.
        texts: The texts.
        options: How the query and the texts become vectors.
        on_error: See `Service.run`.
    """
    asking, task = await asyncio.wrap_future(service.engine.call(model, lambda one: embed_tasks(one, options, None)))
    asked, answered = await asyncio.gather(
        service.run(model, EMBED, [query], asking.options),
        service.run(model, EMBED, texts, task.options, on_error),
    )
    first = asked.results[0].embedding

    def scored(found: Any) -> Scored | Failure:
        if isinstance(found, Failure):
            return found
        score = float(scores_of_pairs(task.similarity, first, found.embedding))
        return Scored(score, found.text, found.truncated, found.unknown_tokens)

    return asked, answered, [scored(one) for one in answered.results]


async def similarities(service: Service, model: str, given: SentencesToCompare, options: SimilarityOptions) -> Reply:
    """How similar sentences are to one, in their order; the scores of `mlxbert.similarity`."""
    sentences = texts_of(given.sentences, "sentences")
    asked, answered, found = await compare(service, model, given.source_sentence, sentences, options)
    scores = [one.score for one in found if isinstance(one, Scored)]
    return Reply(scores, asked.tokens + answered.tokens, len(asked.truncated) + len(answered.truncated))


def check_forms(forms: Sequence[Form], answered: Answered) -> None:
    """Refuses forms that the vectors cannot have, before the first is sent."""
    for form in forms:
        in_form(answered.results[0].embedding, form)


def in_form(vector: "Vector", form: Form) -> Any:
    """A vector as JSON has it: numbers, in an array, or float32 in base64."""
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    dtype = "float32" if form == "float" else form
    check_output_dtype(dtype, len(vector))
    return as_dtype(vector, dtype)
