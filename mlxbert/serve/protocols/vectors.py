"""What the protocols share that give vectors: texts, prompts, truncation, and the forms of a vector."""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from mlxbert.serve.protocol import Problem
from mlxbert.serve.queue import Answered
from mlxbert.serve.service import Service
from mlxbert.tasks.embed import own_prompt
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


def texts_of(given: str | Sequence[str | int | list[int]], param: str) -> list[str]:
    """The texts of a request.

    Raises:
        Problem: There are none, or they are ids.
    """
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise Problem("empty", f"{param} is empty, expected at least one text", param=param)
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        raise Problem(
            "invalid", f"{param} has token ids, expected texts: ids of another tokenizer would give wrong vectors",
            hint="LangChain's OpenAIEmbeddings takes check_embedding_ctx_length=False", param=param,
        )  # fmt: skip
    return found


def overflow_of(truncate: bool | Truncate | None, param: str = "truncate") -> str:
    """What is done with a text that is too long.

    Raises:
        Problem: Its beginning is to be dropped.
    """
    if isinstance(truncate, str) and truncate.lower() == "start":
        raise Problem("invalid", f"{param} drops the beginning of a text, expected its end or nothing", param=param)
    return "truncate" if truncate is True or (truncate and truncate.lower() == "end") else "error"


def prompt_of(service: Service, model: str, given: str | None, param: str) -> str | None:
    """The name of the model's prompt for what the texts are: one of its own prompts, or what protocols call them.

    Raises:
        Problem: It is neither.
    """
    prompts = service.facts[model].prompts
    if given is None or given in prompts:
        return given
    if given not in _KINDS:
        known = ", ".join(dict.fromkeys([*prompts, *_KINDS]))
        raise Problem("invalid", f"{param} is {given!r:.60}, expected one of {known}", param=param)
    kind = _KINDS[given]
    return None if kind is None else own_prompt(prompts, kind)


async def embed(service: Service, model: str, texts: Sequence[str], task: str = "embed", **options: Any) -> Answered:
    """The vectors of texts; an option that is `None` is left out, so that batches are shared with whoever omits it."""
    return await service.run(model, task, texts, **{key: one for key, one in options.items() if one is not None})


def in_form(vector: "Vector", form: Form) -> list[float] | str:
    """A vector as JSON has it: numbers, or float32 in base64.

    Raises:
        ArgumentError: It cannot have this form.
    """
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    dtype = "float32" if form == "float" else form
    check_output_dtype(dtype, len(vector))
    return as_dtype(vector, dtype).tolist()
