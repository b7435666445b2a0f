"""The options of each task, without its objective: what the command line shows does not need MLX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from mlxbert.labels.schemes import Scheme
from mlxbert.options import Option
from mlxbert.training.options import ClassWeights, RerankLoss, TeacherOptions, TrainingOptions, VectorLossName


@dataclass(frozen=True)
class TextData:
    """Where texts and labels stand in a row."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column of the text; guessed if left out.")] = None
    pair_column: Annotated[str | None, Option("Column of the second text, if any.")] = None
    label_column: Annotated[str | None, Option("Column of the label; guessed if left out.")] = None
    max_length: Annotated[int | None, Option("Truncate inputs to N tokens; by default to what the model takes.")] = None


@dataclass(frozen=True)
class ClassOptions:
    """How labels are learned."""

    panel: ClassVar[str] = "Training"
    label_smoothing: Annotated[float, Option("Share of the target that is spread over all labels.")] = 0.0
    class_weights: Annotated[ClassWeights, Option("balanced: rare labels count more.")] = "none"
    few_shot: Annotated[bool, Option("For 8 to 64 examples per label: train on pairs of texts (SetFit).")] = False


@dataclass(frozen=True)
class Guidance:
    """From which model a task is learned, besides the labels."""

    panel: ClassVar[str] = "Training"
    teacher: Annotated[str | None, Option("Also learn from what a finished model predicts.")] = None


@dataclass(frozen=True)
class WordData:
    """Where words and tags stand in a row, and how long sentences become windows."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[
        str | None, Option("Column of the words or the text; of .conll its number, by default 1.")
    ] = None
    label_column: Annotated[
        str | None, Option("Column of the tags or the spans; of .conll its number, by default the last one.")
    ] = None
    max_length: Annotated[
        int | None, Option("Longest input in tokens, by default what the model takes; longer sentences become windows.")
    ] = None
    stride: Annotated[
        int | None, Option("Tokens that windows of a long sentence have in common.", usual="a quarter")
    ] = None


@dataclass(frozen=True)
class TagOptions:
    """How tags are learned."""

    panel: ClassVar[str] = "Training"
    scheme: Annotated[Scheme | None, Option("How the model writes entities.", usual="as the data, or the model")] = None
    crf: Annotated[bool, Option("Also learn which tag follows which (a CRF).")] = False
    label_all_pieces: Annotated[bool, Option("Train on all tokens of a word, not on its first.")] = False


@dataclass(frozen=True)
class QuestionData:
    """Where questions, contexts and answers stand in a row, and how contexts become windows."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column of the question.", usual="question")] = None
    pair_column: Annotated[str | None, Option("Column of the context.", usual="context")] = None
    label_column: Annotated[str | None, Option("Column of the answers.", usual="answers, or answer")] = None
    max_length: Annotated[
        int | None,
        Option(
            "Length of a window in tokens; longer contexts become several windows.",
            usual="384, or what the model takes",
        ),
    ] = None
    stride: Annotated[int | None, Option("Tokens that windows of a long context have in common.", usual="128")] = None
    max_words: Annotated[int, Option("Words of an answer, at most.")] = 30


@dataclass(frozen=True)
class RelatedData:
    """Where texts stand that belong together, and how similar they are."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column of the text, or query; guessed if left out.")] = None
    pair_column: Annotated[str | None, Option("Column of the text, or list of texts, that belongs to it.")] = None
    negative_column: Annotated[str | None, Option("Column of texts that do not belong to it.")] = None
    label_column: Annotated[str | None, Option("Column of how similar text and pair are.")] = None
    max_length: Annotated[int | None, Option("Truncate texts to N tokens; by default to what the model takes.")] = None


@dataclass(frozen=True)
class VectorOptions:
    """How vectors are learned."""

    panel: ClassVar[str] = "Training"
    teacher: Annotated[
        str | None, Option("Learn the vectors of this model instead, from texts alone.", usual="none")
    ] = None
    loss: Annotated[
        VectorLossName | None, Option("What is minimized.", usual="cosent with scores, otherwise in-batch")
    ] = None
    temperature: Annotated[float, Option("Divides the cosines of in-batch and cosent.")] = 0.05
    margin: Annotated[float, Option("How much farther a negative should be (triplet).")] = 5.0
    symmetric: Annotated[bool, Option("Pairs must find each other both ways (in-batch).")] = False
    dimensions: Annotated[
        tuple[int, ...] | None,
        Option("Train vectors that can be truncated to these sizes (Matryoshka): 384,192,96.", usual="all"),
    ] = None
    max_score: Annotated[float, Option("Score of the most similar pair; scores are divided by it.")] = 1.0
    chunk: Annotated[
        int | None,
        Option("Compute N examples of a batch at a time: a large batch then takes little memory.", usual="all"),
    ] = None
    pooling: Annotated[str | None, Option("How tokens become a vector, as in embed.", usual="the model's")] = None
    normalize: Annotated[bool | None, Option("Give vectors the length 1.", usual="as the model")] = None


@dataclass(frozen=True)
class QueryData:
    """Where queries, texts and labels stand in a row, and what labels are."""

    panel: ClassVar[str] = "Data"
    query_column: Annotated[str | None, Option("Column of the query; guessed if left out.")] = None
    text_column: Annotated[str | None, Option("Column of the text; guessed if left out.")] = None
    label_column: Annotated[str | None, Option("Column of the label or score; guessed if left out.")] = None
    max_length: Annotated[int | None, Option("Truncate pairs to N tokens; by default to what the model takes.")] = None
    max_score: Annotated[float, Option("Largest score in the data: all are divided by it.")] = 1.0


@dataclass(frozen=True)
class RerankOptions:
    """How scores are learned."""

    panel: ClassVar[str] = "Training"
    loss: Annotated[
        RerankLoss, Option("bce: cross-entropy, scores are probabilities; mse: squared error of the score itself.")
    ] = "bce"


# By task: the options of its data, which evaluation has, too; and those of training alone.
TASKS: Mapping[str, tuple[type, Sequence[type]]] = {
    "classify": (TextData, (ClassOptions, Guidance, TeacherOptions)),
    "multilabel": (TextData, (Guidance, TeacherOptions)),
    "regress": (TextData, (Guidance, TeacherOptions)),
    "tag": (WordData, (TagOptions, Guidance, TeacherOptions)),
    "answer": (QuestionData, (Guidance, TeacherOptions)),
    "embed": (RelatedData, (VectorOptions,)),
    "rerank": (QueryData, (RerankOptions, Guidance, TeacherOptions)),
}


def defaults_of(task: str) -> dict[str, Any]:
    """The defaults of all options of training for a task, by name; `epochs` and `lr` depend on data and model."""
    data, training = TASKS[task]
    found = {one.name: one.default for group in (TrainingOptions, data, *training) for one in fields(group)}
    return found | {"epochs": None, "lr": None}
