"""The pipelines of Hugging Face, as its `InferenceClient` asks for them: one address, and the model decides.

What a client sends says which pipeline it wants where it can: a question, sentences to compare, labels to choose from.
Else it is that of the model's main task. A parameter that would change numbers and that we do not have is refused.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, structs

from mlxbert.results.answer import Span
from mlxbert.results.classify import Regression
from mlxbert.serve.json_stream import each
from mlxbert.serve.protocol import STATUS, Protocol, Reply, RequestError, Route
from mlxbert.serve.protocols.embedding_requests import SentencesToCompare, overflow_of, similarities
from mlxbert.serve.request_bodies import explain
from mlxbert.serve.service import EMBED, ModelFacts, Service
from mlxbert.tasks.catalogue import CATALOGUE, TaskEntry
from mlxbert.tasks.fill_mask import DEFAULT_TOP_K
from mlxbert.tasks.options import (
    AnswerOptions,
    ClassifyOptions,
    EmbedOptions,
    FillMaskOptions,
    SimilarityOptions,
    TagOptions,
    TaskOptions,
)


class Features(Struct, kw_only=True, forbid_unknown_fields=True):
    """How texts become vectors; only these parameters stand next to the inputs.

    Attributes:
        normalize: Whether vectors are scaled to length 1; by default as the model's files say.
        prompt_name: The name of one of the model's own prompts.
        truncate: Whether texts that are too long are truncated, or refused; by default as the server was started.
        truncation_direction: Which end is dropped.
        dimensions: Keep only the first values.
        encoding_format: `base64` for little-endian float32 in base64.
    """

    normalize: bool | None = None
    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: Literal["right"] | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None


class Classes(Struct, kw_only=True, forbid_unknown_fields=True):
    """How texts are classified."""

    top_k: int | None = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None


class ZeroShot(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which labels texts are given."""

    candidate_labels: tuple[str, ...]
    hypothesis_template: str | None = None
    multi_label: bool | None = None


class Tags(Struct, kw_only=True, forbid_unknown_fields=True):
    """How tokens are tagged; long texts are covered by windows whose overlap is our own, whatever `stride` says."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    ignore_labels: list[str] | None = None
    stride: int | None = None


class Masks(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which words masks are filled with."""

    targets: tuple[str, ...] | None = None
    top_k: int | None = None


class Answers(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which parts of a text may be the answer: whole tokens, and as many words as `max_answer_len` says."""

    top_k: int | None = None
    max_answer_len: int | None = None
    max_seq_len: int | None = None
    doc_stride: int | None = None
    handle_impossible_answer: bool | None = None
    align_to_words: Literal[False] | None = None


class TextPair(Struct, forbid_unknown_fields=True):
    """Two texts that are classified together."""

    text: str
    text_pair: str


class QuestionWithContext(Struct, forbid_unknown_fields=True):
    """A question, and the text that answers it."""

    question: str
    context: str


class PipelineBody(Features, kw_only=True, forbid_unknown_fields=False):
    """What is asked for.

    Attributes:
        inputs: What the pipeline of the model takes, or a list of it: a text; a question with its context; a sentence
            with others to compare it with.
        parameters: Those of the pipeline.
        model: The name of a model; by default the first that can do what is asked for.
    """

    shorten: ClassVar[str] = (
        'of a request for vectors "truncate": true truncates it; /api/classify and /api/similarity truncate, too'
    )
    inputs: str | list[Any] | dict[str, Any]
    parameters: dict[str, Any] | None = None
    model: str | None = None


@dataclass(frozen=True)
class _Pipeline:
    """What a pipeline takes, computes, and gives.

    Attributes:
        entry: The task that computes it.
        inputs: The type of its inputs.
        parameters: The type of its parameters.
        options: The options of the task.
        show: The values of results.
        always: Whether a single input gets a list of one value.
    """

    entry: TaskEntry
    inputs: Any
    parameters: type[Struct]
    options: Callable[[Service, Any], TaskOptions]
    show: Callable[[Sequence[Any], Any, ModelFacts], Any]
    always: bool = False


def _show_vectors(results: Sequence[Any], given: Features, facts: ModelFacts) -> Any:
    if given.encoding_format == "base64":
        return each(results, lambda one: base64.b64encode(one.embedding.tobytes()).decode())
    return each(results, lambda one: one.embedding)


def _show_classes(results: Sequence[Any], given: Classes | ZeroShot, facts: ModelFacts) -> Any:
    """All labels of each text, or the number in the place of their scores."""

    def own(result: Any) -> str:
        if isinstance(result, Regression):
            return "none"
        return "sigmoid" if len(facts.labels) == 1 or result.labels[0].chosen is not None else "softmax"

    wanted = getattr(given, "function_to_apply", None)
    for result in results:
        if wanted not in (None, own(result)):
            raise RequestError(
                "invalid", f"function_to_apply is {wanted!r}, the model has {own(result)!r}",
                hint="leave it out", param="function_to_apply",
            )  # fmt: skip
    return [_labels(one, facts) for one in results]


def _labels(result: Any, facts: ModelFacts) -> Any:
    if isinstance(result, Regression):
        return [{"label": name, "score": score} for name, score in result.values or [(facts.labels[0], result.value)]]
    return each(result.labels, lambda one: {"label": one.label, "score": one.score})


def _show_tags(results: Sequence[Any], given: Tags, facts: ModelFacts) -> list[Any]:
    """Entities, or tokens, without those labels that are to be ignored."""
    name, ignored = "entity" if given.aggregation_strategy == "none" else "entity_group", given.ignore_labels or ()

    def entity(one: Any) -> dict[str, Any]:
        return {name: one.label, "score": one.score, "word": one.text, "start": one.start, "end": one.end}

    return [each([one for one in result.entities if one.label not in ignored], entity) for result in results]


def _show_fills(results: Sequence[Any], given: Masks, facts: ModelFacts) -> list[Any]:
    """The words of the mask of each text; of several masks a list for each."""

    def word(one: Any) -> dict[str, Any]:
        return {"score": one.score, "token": one.token_id, "token_str": one.token, "sequence": one.text or ""}

    masks = [[each(mask.fills, word) for mask in result.masks] for result in results]
    return [found[0] if len(found) == 1 else found for found in masks]


def _show_answers(results: Sequence[Any], given: Answers, facts: ModelFacts) -> list[Any]:
    """The best answer of each question, or a list of several; an empty one is as good as there is no answer."""

    def best(result: Any) -> Any:
        spans = [*result.spans]
        if given.handle_impossible_answer or not spans:  # of a context without tokens there is none
            spans.append(Span("", 0, 0, result.no_answer_score or 0.0))
        spans.sort(key=lambda span: -span.score)
        several = (given.top_k or 1) > 1
        return each(spans[: given.top_k], vars) if several else vars(spans[0])

    return [best(result) for result in results]


def _vector_options(service: Service, given: Features) -> EmbedOptions:
    return EmbedOptions(
        normalize=given.normalize, prompt_name=given.prompt_name, dimensions=given.dimensions,
        overflow=overflow_of(service, given.truncate),
    )  # fmt: skip


def _class_options(service: Service, given: Classes) -> ClassifyOptions:
    return ClassifyOptions(top_k=given.top_k, overflow=overflow_of(service, None))


def _zero_shot_options(service: Service, given: ZeroShot) -> ClassifyOptions:
    return ClassifyOptions(
        labels=given.candidate_labels, hypothesis=given.hypothesis_template, multi=bool(given.multi_label)
    )


def _tag_options(service: Service, given: Tags) -> TagOptions:
    if given.ignore_labels is not None and "O" not in given.ignore_labels:
        raise RequestError("invalid", "ignore_labels has no 'O', expected it: tokens outside are left out")
    return TagOptions(aggregation=given.aggregation_strategy or "simple")


def _mask_options(service: Service, given: Masks) -> FillMaskOptions:
    return FillMaskOptions(targets=given.targets, top_k=DEFAULT_TOP_K if given.top_k is None else given.top_k)


def _answer_options(service: Service, given: Answers) -> AnswerOptions:
    options: dict[str, Any] = {
        "top_k": given.top_k, "max_words": given.max_answer_len, "max_length": given.max_seq_len,
        "stride": given.doc_stride,
    }  # fmt: skip
    return AnswerOptions(**{name: value for name, value in options.items() if value is not None})


_ZERO_SHOT = _Pipeline(CATALOGUE["classify"], str | list[str], ZeroShot, _zero_shot_options, _show_classes)
_CLASSES = _Pipeline(
    CATALOGUE["classify"], str | TextPair | list[str | TextPair], Classes, _class_options, _show_classes, always=True
)
_ANSWERS = _Pipeline(
    CATALOGUE["answer"], QuestionWithContext | list[QuestionWithContext], Answers, _answer_options, _show_answers
)
# By the main task of a model.
_PIPELINES: Mapping[str, _Pipeline] = MappingProxyType({
    "embed": _Pipeline(EMBED, str | list[str], Features, _vector_options, _show_vectors, always=True),
    "classify": _CLASSES,
    "rerank": _CLASSES,
    "tag": _Pipeline(CATALOGUE["tag"], str | list[str], Tags, _tag_options, _show_tags),
    "fill-mask": _Pipeline(CATALOGUE["fill-mask"], str | list[str], Masks, _mask_options, _show_fills),
    "answer": _ANSWERS,
})  # fmt: skip


def _choose(service: Service, body: PipelineBody) -> tuple[str, _Pipeline]:
    """The model and the pipeline of a request."""
    first = body.inputs[0] if isinstance(body.inputs, list) and body.inputs else body.inputs
    keys = {*first, *(body.parameters or ())} if isinstance(first, dict) else {*(body.parameters or ())}
    for key, pipeline in {"question": _ANSWERS, "candidate_labels": _ZERO_SHOT}.items():
        if key in keys:
            return service.find(body.model, pipeline.entry.name), pipeline
    model = service.find(body.model)
    return model, _PIPELINES[service.facts[model].main]


def _converted(given: Any, kind: Any) -> Any:
    """What is given as a type of ours."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as problem:
        raise explain(problem, kind) from None


async def infer(service: Service, body: PipelineBody) -> Reply:
    """What a pipeline gives."""
    if isinstance(body.inputs, dict) and "source_sentence" in body.inputs:
        if body.parameters:
            raise RequestError("invalid", "there are parameters, expected none", param="parameters")
        sentences = _converted(body.inputs, SentencesToCompare)
        options = SimilarityOptions(normalize=True, prompt="", overflow=overflow_of(service, None))  # none is a query
        return await similarities(service, service.find(body.model, EMBED.name), sentences, options)
    model, pipeline = _choose(service, body)
    given = body.parameters or {}
    if pipeline.parameters is Features:
        given = {name: getattr(body, name) for name in Features.__struct_fields__} | given
    parameters = _converted(given, pipeline.parameters)
    inputs = _converted(body.inputs, pipeline.inputs)
    many = inputs if isinstance(inputs, list) else [inputs]
    items = [one if isinstance(one, str) else structs.astuple(one) for one in many]
    answered = await service.run(model, pipeline.entry, items, pipeline.options(service, parameters))
    facts = service.facts[model]

    def value() -> Any:
        shown = pipeline.show(answered.results, parameters, facts)
        return shown if pipeline.always or isinstance(inputs, list) else shown[0]

    return Reply(value, answered.tokens, len(answered.truncated))


def shape(problem: RequestError) -> tuple[int, Any]:
    """An error, as the client reads it."""
    return STATUS[problem.kind], {"error": problem.text}


PROTOCOL = Protocol(
    "huggingface",
    (
        Route("POST", "/", infer, "What the pipeline of the model gives", PipelineBody, Any),
        Route(
            "POST", "/models/{model:path}", infer, "What the pipeline of one of several models gives", PipelineBody, Any
        ),
    ),
    shape,
)
