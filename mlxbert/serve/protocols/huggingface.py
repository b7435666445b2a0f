"""The pipelines of Hugging Face, for its `InferenceClient`. All pipelines share the same routes.

A question, sentences to compare, or candidate labels in the body select the pipeline. Otherwise the pipeline of the
model's main task is used. Unsupported parameters that would change the results are an error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, structs

from mlxbert.results.text_results import Regression, Span
from mlxbert.serve.json_bodies import each, explain
from mlxbert.serve.protocol import STATUS, Protocol, Reply, RequestError, Route
from mlxbert.serve.protocols.embedding_requests import SentencesToCompare, all_in_form, overflow_of, similarities
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
    """The parameters for vectors. They are also accepted next to `inputs`, unlike the parameters of other pipelines.

    Attributes:
        normalize: Whether vectors are scaled to length 1; by default as in the model's files.
        prompt_name: The name of one of the model's own prompts.
        truncate: Whether texts that are too long are truncated; if false, they are an error. By default, the server's
            option decides.
        truncation_direction: The end of a text that is dropped.
        dimensions: The number of leading values to keep.
        encoding_format: `base64` returns little-endian float32 in base64.
    """

    normalize: bool | None = None
    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: Literal["right"] | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None


class Classes(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters for classification."""

    top_k: int | None = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None


class ZeroShot(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters for zero-shot classification."""

    candidate_labels: tuple[str, ...]
    hypothesis_template: str | None = None
    multi_label: bool | None = None


class Tags(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters for tagging. `stride` is ignored: windows with a fixed overlap cover long texts."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    ignore_labels: list[str] | None = None
    stride: int | None = None


class Masks(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters for filling masks."""

    targets: tuple[str, ...] | None = None
    top_k: int | None = None


class Answers(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters for answers. An answer consists of whole tokens, with at most `max_answer_len` words."""

    top_k: int | None = None
    max_answer_len: int | None = None
    max_seq_len: int | None = None
    doc_stride: int | None = None
    handle_impossible_answer: bool | None = None
    align_to_words: Literal[False] | None = None


class TextPair(Struct, forbid_unknown_fields=True):
    """A pair of texts to classify."""

    text: str
    text_pair: str


class QuestionWithContext(Struct, forbid_unknown_fields=True):
    """A question and the text that contains its answer."""

    question: str
    context: str


class PipelineBody(Features, kw_only=True, forbid_unknown_fields=False):
    """Inputs of a pipeline.

    Attributes:
        inputs: An input of the pipeline, or a list of inputs: a text; a question with its context; or a sentence with
            sentences to compare.
        parameters: The parameters of the pipeline.
        model: The name of a model; by default the first that can do the task.
    """

    shorten: ClassVar[str] = (
        'for vectors, "truncate": true truncates it; /api/classify and /api/similarity truncate, too'
    )
    inputs: str | list[Any] | dict[str, Any]
    parameters: dict[str, Any] | None = None
    model: str | None = None


@dataclass(frozen=True)
class _Pipeline:
    entry: TaskEntry  # the task that computes the results
    inputs: Any
    parameters: type[Struct]
    options: Callable[[Service, Any], TaskOptions]  # converts parameters to the options of the task
    show: Callable[[Sequence[Any], Any, ModelFacts], Any]  # converts results to the values of the answer
    always: bool = False  # whether the answer to a single input is a list of one value


def _show_vectors(results: Sequence[Any], params: Features, facts: ModelFacts) -> Any:
    return all_in_form(results, params.encoding_format or "float")


def _show_classes(results: Sequence[Any], params: Classes | ZeroShot, facts: ModelFacts) -> Any:
    """Returns all labels of each text, or the values of a regression."""

    def own_function(result: Any) -> str:
        if isinstance(result, Regression):
            return "none"
        return "sigmoid" if len(facts.labels) == 1 or result.labels[0].chosen is not None else "softmax"

    requested = getattr(params, "function_to_apply", None)
    for result in results:
        if requested not in (None, own_function(result)):
            raise RequestError(
                "invalid", f"function_to_apply is {requested!r}, expected {own_function(result)!r}, the function "
                "of the model", hint="leave function_to_apply out", param="function_to_apply",
            )  # fmt: skip
    return [_labels(result, facts) for result in results]


def _labels(result: Any, facts: ModelFacts) -> Any:
    if isinstance(result, Regression):
        return [{"label": name, "score": score} for name, score in result.values or [(facts.labels[0], result.value)]]
    return each(result.labels, lambda label: {"label": label.label, "score": label.score})


def _show_tags(results: Sequence[Any], params: Tags, facts: ModelFacts) -> list[Any]:
    """Returns entities or tokens, except those with ignored labels."""
    name, ignored = "entity" if params.aggregation_strategy == "none" else "entity_group", params.ignore_labels or ()

    def entity(tag: Any) -> dict[str, Any]:
        return {name: tag.label, "score": tag.score, "word": tag.text, "start": tag.start, "end": tag.end}

    return [each([tag for tag in result.entities if tag.label not in ignored], entity) for result in results]


def _show_fills(results: Sequence[Any], params: Masks, facts: ModelFacts) -> list[Any]:
    """Returns the words for the mask of each text; if a text has several masks, a list for each mask."""

    def word(fill: Any) -> dict[str, Any]:
        return {"score": fill.score, "token": fill.token_id, "token_str": fill.token, "sequence": fill.text or ""}

    masks = [[each(mask.fills, word) for mask in result.masks] for result in results]
    return [lists[0] if len(lists) == 1 else lists for lists in masks]


def _show_answers(results: Sequence[Any], params: Answers, facts: ModelFacts) -> list[Any]:
    """Returns the best answer or answers to each question.

    The score of an empty answer is the probability that the context has no answer.
    """

    def best(result: Any) -> Any:
        spans = [*result.spans]
        if params.handle_impossible_answer or not spans:  # a context without tokens has no spans
            spans.append(Span("", 0, 0, result.no_answer_score or 0.0))
        spans.sort(key=lambda span: -span.score)
        several = (params.top_k or 1) > 1
        return each(spans[: params.top_k], vars) if several else vars(spans[0])

    return [best(result) for result in results]


def _vector_options(service: Service, params: Features) -> EmbedOptions:
    return EmbedOptions(
        normalize=params.normalize, prompt_name=params.prompt_name, dimensions=params.dimensions,
        overflow=overflow_of(service, params.truncate),
    )  # fmt: skip


def _class_options(service: Service, params: Classes) -> ClassifyOptions:
    return ClassifyOptions(top_k=params.top_k, overflow=overflow_of(service, None))


def _zero_shot_options(service: Service, params: ZeroShot) -> ClassifyOptions:
    return ClassifyOptions(
        labels=params.candidate_labels, hypothesis=params.hypothesis_template, multi=bool(params.multi_label)
    )


def _tag_options(service: Service, params: Tags) -> TagOptions:
    if params.ignore_labels is not None and "O" not in params.ignore_labels:
        raise RequestError("invalid", "ignore_labels has no 'O', but tokens with the label 'O' are always left out")
    return TagOptions(aggregation=params.aggregation_strategy or "simple")


def _mask_options(service: Service, params: Masks) -> FillMaskOptions:
    return FillMaskOptions(targets=params.targets, top_k=DEFAULT_TOP_K if params.top_k is None else params.top_k)


def _answer_options(service: Service, params: Answers) -> AnswerOptions:
    options: dict[str, Any] = {
        "top_k": params.top_k, "max_words": params.max_answer_len, "max_length": params.max_seq_len,
        "stride": params.doc_stride,
    }  # fmt: skip
    return AnswerOptions(**{name: value for name, value in options.items() if value is not None})


_ZERO_SHOT = _Pipeline(CATALOGUE["classify"], str | list[str], ZeroShot, _zero_shot_options, _show_classes)
_CLASSES = _Pipeline(
    CATALOGUE["classify"], str | TextPair | list[str | TextPair], Classes, _class_options, _show_classes, always=True
)
_ANSWERS = _Pipeline(
    CATALOGUE["answer"], QuestionWithContext | list[QuestionWithContext], Answers, _answer_options, _show_answers
)
# The pipelines by the main task of a model.
_PIPELINES: Mapping[str, _Pipeline] = MappingProxyType({
    "embed": _Pipeline(EMBED, str | list[str], Features, _vector_options, _show_vectors, always=True),
    "classify": _CLASSES,
    "rerank": _CLASSES,
    "tag": _Pipeline(CATALOGUE["tag"], str | list[str], Tags, _tag_options, _show_tags),
    "fill-mask": _Pipeline(CATALOGUE["fill-mask"], str | list[str], Masks, _mask_options, _show_fills),
    "answer": _ANSWERS,
})  # fmt: skip


def _choose(service: Service, body: PipelineBody) -> tuple[str, _Pipeline]:
    first = body.inputs[0] if isinstance(body.inputs, list) and body.inputs else body.inputs
    keys = {*first, *(body.parameters or ())} if isinstance(first, dict) else {*(body.parameters or ())}
    for key, pipeline in {"question": _ANSWERS, "candidate_labels": _ZERO_SHOT}.items():
        if key in keys:
            return service.find(body.model, pipeline.entry.name, labels=pipeline is _ZERO_SHOT), pipeline
    model = service.find(body.model)
    return model, _PIPELINES[service.facts[model].main]


def _converted(value: Any, kind: Any) -> Any:
    """Converts a value to a type; raises a `RequestError` if it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        raise explain(problem, kind) from None


async def infer(service: Service, body: PipelineBody) -> Reply:
    """Returns the results of a pipeline."""
    if isinstance(body.inputs, dict) and "source_sentence" in body.inputs:
        if body.parameters:
            raise RequestError("invalid", "parameters cannot be combined with source_sentence", param="parameters")
        sentences = _converted(body.inputs, SentencesToCompare)
        options = SimilarityOptions(normalize=True, prompt="", overflow=overflow_of(service, None))  # no query prompt
        return await similarities(service, service.find(body.model, EMBED.name), sentences, options)
    model, pipeline = _choose(service, body)
    values = body.parameters or {}
    if pipeline.parameters is Features:
        values = {name: getattr(body, name) for name in Features.__struct_fields__} | values
    parameters = _converted(values, pipeline.parameters)
    inputs = _converted(body.inputs, pipeline.inputs)
    input_list = inputs if isinstance(inputs, list) else [inputs]
    items = [item if isinstance(item, str) else structs.astuple(item) for item in input_list]
    answered = await service.run(model, pipeline.entry, items, pipeline.options(service, parameters))
    facts = service.facts[model]

    def value() -> Any:
        outputs = pipeline.show(answered.results, parameters, facts)
        return outputs if pipeline.always or isinstance(inputs, list) else outputs[0]

    return Reply(value, answered.tokens, len(answered.truncated))


def shape(problem: RequestError) -> tuple[int, Any]:
    """Returns an error in the format that the client expects."""
    return STATUS[problem.kind], {"error": problem.text}


PROTOCOL = Protocol(
    "huggingface",
    (
        Route("POST", "/", infer, "The results of the model's pipeline", PipelineBody, Any),
        Route("POST", "/models/{model:path}", infer, "The results of a named model's pipeline", PipelineBody, Any),
    ),
    shape,
)
