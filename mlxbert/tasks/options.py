"""The options of the tasks. Each is declared once, for the functions, the command line and the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, cast

from mlxbert.option_declarations import (
    COUNT,
    LENGTH,
    OVERLAP,
    POOLINGS,
    Bounds,
    Option,
    check_fields,
    declared_options,
)

Kind = Literal["query", "document"]
OutputDType = Literal["float32", "float16", "int8", "binary"]
Aggregation = Literal["none", "simple", "first", "average", "max"]  # as transformers calls them

Truncating = Literal["truncate", "window", "error"]


def _truncated(window: str, end: str = "the end") -> Option:
    return Option(
        f"Overlong texts. truncate drops {end}; window {window}; error refuses the text.",
        panel="Input",
    )


_PROMPT = Option("Text to put before each text.", "TEXT")
_PROMPT_NAME = Option("Name of one of the model's own prompts.")
_KIND = Option("Use the model's own prompt. For models with a prompt for queries and another for documents.")
_OUTPUT_DTYPE = Option("Dtype of the vectors. binary is one bit per dimension; float16 is only for token vectors.")
_WINDOWED = Option(
    "Overlong texts. window computes all of it in windows; truncate drops the end; error refuses the text.",
    panel="Input",
)
_UNWINDOWED = Option(
    "Overlong texts. truncate drops the end (of a pair: of the longer text); error refuses the text.",
    panel="Input",
)
WORD_LAYER = Option(
    "Layer to take word vectors from. 0 is the embeddings, 1 the first layer, -1 the last.",
    usual="the last",
    panel="Vectors",
    bounds=Bounds(-1000, 1000),
)


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of every task."""

    batch_tokens: Annotated[
        int | None,
        Option(
            "Tokens per batch. Padding counts. By default 2048 on a CPU; 4096 on a Mac's GPU (8192 on Pro, 16384 on "
            "Max and Ultra); 16384 on CUDA.",
            usual="depends on the device",
            bounds=COUNT,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_fields(self)

    def deciding(self) -> dict[str, Any]:
        """Returns the values of `deciding_options` by name."""
        return {name: getattr(self, name) for name in deciding_options(type(self))}


def deciding_options(options: type[TaskOptions]) -> Mapping[str, tuple[Any, Option]]:
    """Returns the options that affect a task's results: all but the common ones, which only affect its speed."""
    common, all_options = (declared_options(cast(Any, kind)) for kind in (TaskOptions, options))
    return {name: declared for name, declared in all_options.items() if name not in common}


class OptionsWithOverflow(Protocol):
    """Options of a task whose texts may be too long for the model."""

    @property
    def batch_tokens(self) -> int | None:
        """The number of tokens per batch."""

    @property
    def overflow(self) -> str:
        """What to do with texts that are too long."""


@dataclass(frozen=True, kw_only=True)
class TruncatingOptions(TaskOptions):
    """Options of a task that by default truncates texts that are too long for the model."""

    overflow: Annotated[Truncating, _truncated("takes each token from the window with the most text around it")] = (
        "truncate"
    )


@dataclass(frozen=True, kw_only=True)
class WindowedOptions(TaskOptions):
    """Options of a task that by default splits texts that are too long for the model into windows."""

    overflow: Annotated[Literal["window", "truncate", "error"], _WINDOWED] = "window"


@dataclass(frozen=True, kw_only=True)
class VectorOptions(TruncatingOptions):
    """How texts become vectors; the defaults are the settings in the model's own files."""

    panel: ClassVar[str] = "Vectors"
    overflow: Annotated[Truncating, _truncated("averages the vectors of windows")] = "truncate"
    pooling: Annotated[
        str | None,
        Option("How tokens become a vector. Join several with +: mean+max.", usual="the model's", values=POOLINGS),
    ] = None
    normalize: Annotated[bool | None, Option("Scale vectors to length 1.", usual="the model's")] = None
    dimensions: Annotated[
        int | None, Option("Keep only the first N values of each vector (Matryoshka).", bounds=Bounds(1, 1_000_000))
    ] = None
    prompt: Annotated[str | None, _PROMPT] = None
    prompt_name: Annotated[str | None, _PROMPT_NAME] = None


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(VectorOptions):
    """Options of `embed` and `embed_stream`."""

    kind: Annotated[Kind | None, _KIND] = None
    output_dtype: Annotated[OutputDType, _OUTPUT_DTYPE] = "float32"


@dataclass(frozen=True, kw_only=True)
class SparseOptions(TruncatingOptions):
    """Options of `embed_sparse`; the defaults are the settings in the model's own files."""

    panel: ClassVar[str] = "Vectors"
    overflow: Annotated[Truncating, _truncated("takes the largest weight of each token")] = "truncate"
    top_k: Annotated[
        int | None,
        Option("Keep the N heaviest tokens of a sparse vector.", usual="the model's, or all", bounds=COUNT),
    ] = None
    prompt: Annotated[str | None, _PROMPT] = None
    prompt_name: Annotated[str | None, _PROMPT_NAME] = None
    kind: Annotated[Kind | None, _KIND] = None


@dataclass(frozen=True, kw_only=True)
class TokenVectorOptions(TaskOptions):
    """Options of `embed_tokens`."""

    panel: ClassVar[str] = "Vectors"
    overflow: Annotated[Literal["truncate", "error"], _UNWINDOWED] = "truncate"
    kind: Annotated[
        Kind | None,
        Option(
            "Kind of the texts. Models for late interaction read queries and documents differently.", usual="document"
        ),
    ] = None
    output_dtype: Annotated[OutputDType, _OUTPUT_DTYPE] = "float32"


@dataclass(frozen=True, kw_only=True)
class SimilarityOptions(VectorOptions):
    """Options of `similarity_pairs` and `similarity_matrix`."""

    query_prompt: Annotated[str | None, Option("Text to put before the query, not before the texts.", "TEXT")] = None
    query_prompt_name: Annotated[str | None, Option("One of the model's own prompts, for the query only.")] = None


@dataclass(frozen=True, kw_only=True)
class RankingOptions(SimilarityOptions):
    """Options of `similarity`."""

    top_k: Annotated[int | None, Option("Keep only the N most similar texts.", panel="", bounds=COUNT)] = None


@dataclass(frozen=True, kw_only=True)
class EmbedWordsOptions(TruncatingOptions):
    """Options of `embed_words`."""

    layer: Annotated[int, WORD_LAYER] = -1


@dataclass(frozen=True, kw_only=True)
class FillMaskOptions(WindowedOptions):
    """Options of `fill_mask`."""

    top_k: Annotated[int | None, Option("Number of words per mask.", usual="5, or all targets", bounds=COUNT)] = None
    targets: Annotated[
        tuple[str, ...] | None,
        Option("Consider these words only. Scores stay probabilities over the whole vocabulary."),
    ] = None
    text: Annotated[bool, Option("Show the filled text for each word. Only for the first 49 masks of a text.")] = True


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(TaskOptions):
    """Options of `classify`; with `labels`, of zero-shot classification."""

    overflow: Annotated[
        Literal["truncate", "head-tail", "window", "window-max", "error"],
        Option(
            "Overlong texts. truncate drops the end (of a pair: of the longer text); head-tail drops the middle; "
            "window averages the scores of windows; window-max takes the largest score of each label; error refuses "
            "the text. With labels, an embedding model takes truncate, window and error, an NLI model no window.",
            panel="Input",
        ),
    ] = "truncate"
    top_k: Annotated[
        int | None, Option("Number of labels per text.", usual="all, or 5 in a terminal", bounds=COUNT)
    ] = None
    labels: Annotated[
        tuple[str, ...] | None,
        Option("Labels to choose from. Needs an NLI model or an embedding model.", panel="Zero-shot"),
    ] = None
    hypothesis: Annotated[
        str | None,
        Option(
            "Sentence for a label. {} stands for the label. By default, 'This example is {}.' for an NLI model, and "
            "'This text is about {}.' for an embedding model.",
            "TEXT",
            usual="depends on the model",
            panel="Zero-shot",
        ),
    ] = None
    multi: Annotated[bool, Option("Score each label on its own. Several may be right.", panel="Zero-shot")] = False

    def deciding(self) -> dict[str, Any]:
        """Returns the values of `deciding_options`; leaves out options of zero-shot classification without `labels`."""
        zero_shot = () if self.labels is not None else ("labels", "hypothesis", "multi")
        return {name: value for name, value in super().deciding().items() if name not in zero_shot}


@dataclass(frozen=True, kw_only=True)
class TagOptions(WindowedOptions):
    """Options of `tag`."""

    aggregation: Annotated[
        Aggregation | None,
        Option(
            "How to join tokens into words. Values as in transformers; by default, words are tagged as in training."
        ),
    ] = None
    labels: Annotated[
        tuple[str, ...] | None,
        Option("Types of entities to find. Needs a GLiNER model.", panel="Any labels"),
    ] = None
    threshold: Annotated[
        float | None,
        Option(
            "Lowest probability of an entity. Of GLiNER models.", usual="0.5", panel="Any labels", bounds=Bounds(0, 1)
        ),
    ] = None
    nested: Annotated[bool, Option("Also find entities inside others. Of GLiNER models.", panel="Any labels")] = False

    def deciding(self) -> dict[str, Any]:
        """Returns the values of `deciding_options`; leaves out those of GLiNER models without `labels`."""
        open_options = () if self.labels is not None else ("labels", "threshold", "nested")
        return {name: value for name, value in super().deciding().items() if name not in open_options}


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(WindowedOptions):
    """Options of `answer`."""

    overflow: Annotated[Literal["window", "truncate", "error"], _WINDOWED] = "window"
    top_k: Annotated[int, Option("Number of spans per question.", bounds=COUNT)] = 1
    max_words: Annotated[int, Option("Maximum number of words in an answer.", bounds=Bounds(1, 10_000))] = 30
    max_length: Annotated[
        int | None,
        Option(
            "Tokens per window. A longer text is split into several windows.",
            usual="384, or the model's if lower",
            bounds=LENGTH,
        ),
    ] = None
    stride: Annotated[
        int | None,
        Option("Overlap of windows in tokens. Short windows overlap by a third instead.", usual="128", bounds=OVERLAP),
    ] = None
    no_answer_threshold: Annotated[
        float | None, Option('Threshold of "no answer".', usual="the model's, or 0.5", bounds=Bounds(0, 1))
    ] = None


@dataclass(frozen=True, kw_only=True)
class RerankOptions(TruncatingOptions):
    """Options of `rerank`."""

    overflow: Annotated[
        Truncating,
        _truncated("takes the score of the best window", end="the end of the query or the text, whichever is longer"),
    ] = "truncate"
    top_k: Annotated[int | None, Option("Keep only the N best texts.", bounds=COUNT)] = None
    prompt: Annotated[str | None, Option("Instruction for models that take one, such as Qwen3-Reranker.", "TEXT")] = (
        None
    )


@dataclass(frozen=True, kw_only=True)
class NextSentenceOptions(TaskOptions):
    """Options of `next_sentence`."""

    overflow: Annotated[Literal["truncate", "error"], _UNWINDOWED] = "truncate"


@dataclass(frozen=True, kw_only=True)
class ReplacedOptions(WindowedOptions):
    """Options of `replaced`."""


@dataclass(frozen=True, kw_only=True)
class TokenizeOptions:
    """Options of `tokenize` and `attention`."""

    pair: Annotated[str | None, Option("A second text, in segment B.", "TEXT")] = None
    overflow: Annotated[Literal["error", "truncate"], _UNWINDOWED] = "error"

    def __post_init__(self) -> None:
        check_fields(self)
