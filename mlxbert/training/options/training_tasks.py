"""The tasks: what each is besides its objective. A task is registered here, and nowhere else.

Commands, their options and their help are made of it, and do not need MLX.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from mlxbert.labels.schemes import Scheme
from mlxbert.options import LENGTH, OVERLAP, RATE, SMALLEST, Bounds, Option, declared_options
from mlxbert.tasks.options import AnswerOptions, VectorOptions
from mlxbert.training.options.loop_options import TeacherOptions, TrainingOptions, VectorLossName

_ANSWERS, _VECTORS = declared_options(AnswerOptions), declared_options(VectorOptions)  # of the tasks themselves


@dataclass(frozen=True)
class TextData:
    """Where texts and labels stand in a row."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column of the text.", usual="guessed")] = None
    pair_column: Annotated[str | None, Option("Column of the second text, if any.", usual="guessed")] = None
    label_column: Annotated[str | None, Option("Column of the label.", usual="guessed")] = None
    max_length: Annotated[int | None, Option("Truncate inputs to N tokens.", usual="the model's", bounds=LENGTH)] = None


@dataclass(frozen=True)
class ClassData(TextData):
    """The same, and what the labels are called."""

    label_names: Annotated[
        str | None, Option("Names of the labels in order: no,yes for 0,1.", "NAMES", usual="the labels")
    ] = None


@dataclass(frozen=True)
class ClassLearning:
    """How labels are learned."""

    panel: ClassVar[str] = "Training"
    label_smoothing: Annotated[
        float, Option("Share of the target for all labels. It is spread evenly.", bounds=RATE)
    ] = 0.0
    class_weights: Annotated[
        Literal["none", "balanced"], Option("Weights of labels. With balanced, rare labels count more.")
    ] = "none"
    few_shot: Annotated[
        bool | None,
        Option(
            "Train on pairs: SetFit. For few examples per label; the model should be one that makes vectors.",
            usual="up to 64 per label",
        ),
    ] = None


@dataclass(frozen=True)
class Guidance:
    """From which model a task is learned, besides the labels."""

    panel: ClassVar[str] = "Training"
    teacher: Annotated[str | None, Option("Also learn from what a finished model predicts.")] = None


@dataclass(frozen=True)
class VectorGuidance:
    """From which model vectors are learned."""

    panel: ClassVar[str] = "Training"
    teacher: Annotated[str | None, Option("Learn this model's vectors, from texts alone.")] = None


@dataclass(frozen=True)
class NoOptions:
    """A task without options of training."""


@dataclass(frozen=True)
class WordData:
    """Where words and tags stand in a row, and how long sentences become windows."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[
        str | None, Option("Column of the words or the text. In .conll its number, by default 1.")
    ] = None
    label_column: Annotated[
        str | None, Option("Column of the tags or the spans. In .conll its number, by default the last one.")
    ] = None
    max_length: Annotated[
        int | None,
        Option("Longest input in tokens. Longer sentences become windows.", usual="the model's", bounds=LENGTH),
    ] = None
    stride: Annotated[
        int | None,
        Option("Overlap of windows, in tokens. Long sentences have them.", usual="a quarter", bounds=OVERLAP),
    ] = None


@dataclass(frozen=True)
class TagLearning:
    """How tags are learned."""

    panel: ClassVar[str] = "Training"
    scheme: Annotated[
        Scheme | None, Option("Tagging scheme. By default the model's, or for a new head the data's.")
    ] = None
    crf: Annotated[bool, Option("Also learn which tag follows which (a CRF).")] = False
    label_all_pieces: Annotated[bool, Option("Train on all tokens of a word, not only its first.")] = False


@dataclass(frozen=True)
class QuestionData:
    """Where questions, contexts and answers stand in a row, and how contexts become windows."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column of the question.", usual="question")] = None
    pair_column: Annotated[str | None, Option("Column of the context.", usual="context")] = None
    label_column: Annotated[str | None, Option("Column of the answers.", usual="answers, or answer")] = None
    max_length: Annotated[int | None, _ANSWERS["max_length"][1]] = None
    stride: Annotated[int | None, _ANSWERS["stride"][1]] = None
    max_words: Annotated[int, _ANSWERS["max_words"][1]] = 30


@dataclass(frozen=True)
class RelatedData:
    """Where texts stand that belong together, and how similar they are."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column of the text, or query.", usual="guessed")] = None
    pair_column: Annotated[str | None, Option("Column of the text, or texts, that belong to it.")] = None
    negative_column: Annotated[str | None, Option("Column of texts that do not belong to it.")] = None
    label_column: Annotated[str | None, Option("Column of the similarity score.")] = None
    max_length: Annotated[int | None, Option("Truncate texts to N tokens.", usual="the model's", bounds=LENGTH)] = None


@dataclass(frozen=True)
class VectorLearning:
    """How vectors are learned."""

    panel: ClassVar[str] = "Training"
    loss: Annotated[VectorLossName | None, Option("Loss. By default cosent with scores, otherwise in-batch.")] = None
    temperature: Annotated[
        float, Option("Divides the cosines. Of in-batch and cosent.", bounds=Bounds(SMALLEST, 1_000_000))
    ] = 0.05
    margin: Annotated[
        float, Option("Margin of triplet. How much farther a negative should be.", bounds=Bounds(SMALLEST, 1_000_000))
    ] = 5.0
    symmetric: Annotated[bool, Option("Also match positives to texts, in in-batch. Not only texts to positives.")] = (
        False
    )
    dimensions: Annotated[
        tuple[int, ...] | None,
        Option("Sizes that vectors can be truncated to. Matryoshka: 384,192,96.", bounds=Bounds(1, 1_000_000)),
    ] = None
    max_score: Annotated[
        float, Option("Score of the most similar pair. Scores are divided by it.", bounds=Bounds(SMALLEST, 1_000_000))
    ] = 1.0
    chunk: Annotated[
        int | None,
        Option(
            "Examples that are computed at a time. A large batch then takes little memory.",
            usual="all",
            bounds=Bounds(1, 1_000_000),
        ),
    ] = None
    pooling: Annotated[str | None, _VECTORS["pooling"][1]] = None
    normalize: Annotated[bool | None, _VECTORS["normalize"][1]] = None


@dataclass(frozen=True)
class QueryData:
    """Where queries, texts and labels stand in a row, and what labels are."""

    panel: ClassVar[str] = "Data"
    query_column: Annotated[str | None, Option("Column of the query.", usual="guessed")] = None
    text_column: Annotated[str | None, Option("Column of the text.", usual="guessed")] = None
    label_column: Annotated[str | None, Option("Column of the label or score.", usual="guessed")] = None
    max_length: Annotated[int | None, Option("Truncate pairs to N tokens.", usual="the model's", bounds=LENGTH)] = None
    max_score: Annotated[
        float, Option("Largest score in the data. All are divided by it.", bounds=Bounds(SMALLEST, 1_000_000))
    ] = 1.0


@dataclass(frozen=True)
class RerankLearning:
    """How scores are learned."""

    panel: ClassVar[str] = "Training"
    loss: Annotated[
        Literal["bce", "mse"],
        Option("Loss. With bce, scores are probabilities (cross-entropy); mse is the squared error of the score."),
    ] = "bce"


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task.

    Attributes:
        objective: The class of its objective: a module of `mlxbert.training.objectives`, and a name there.
        variants: Other objectives for it, each by the option that chooses it.
        metrics: Its metrics; the first is the main one, which chooses the best model.
        by_data: Which metric is the main one, in words, where that depends on the data.
        formats: The formats of files that it has besides texts and tables.
        minimized: The metrics of which less is better.
        shares: The metrics that are shares of independent examples: they have Wilson's interval, others a bootstrap.
            Words are not independent, nor are pairs with a threshold that is tuned on them.
        data: The options of its data, which evaluation has, too; an objective has their values as `data`.
        learning: Those of training alone, which an objective has as `learning`.
        teacher: Those of a teacher.
        finetune: The help of the command that trains.
        evaluate: The help of the command that evaluates.
        needs: What the model must be able to do, as `mlxbert.load` calls it.
        use: The command that uses the model.
        arguments: What follows that command.
        problem_type: That of the labels of its models; `None` where it says nothing.
        numeric: Whether numbers are predicted, so that the name of the output says nothing.
        of_words: Whether labels belong to words, not to examples.
        mistakes: What the score of a mistake is: how sure the model was of the wrong `class`, of the wrong `answer`, or
            of one of several `labels`; or the share of the `ranks` that were missed. Of numbers it is the distance.
    """

    objective: tuple[str, str]
    variants: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    metrics: tuple[str, ...]
    by_data: str = ""
    formats: tuple[str, ...] = ()
    minimized: tuple[str, ...] = ("log_loss", "mse", "mae")
    shares: tuple[str, ...] = ()
    data: type = TextData
    learning: type = NoOptions
    teacher: tuple[type, ...] = (Guidance, TeacherOptions)
    finetune: str
    evaluate: str
    needs: str = "classify"
    use: str = "classify"
    arguments: str = '"…"'
    problem_type: str | None = None
    numeric: bool = False
    of_words: bool = False
    mistakes: Literal["class", "answer", "labels", "ranks"] = "answer"

    @property
    def usual_metric(self) -> str:
        """The default of `metric`, in words."""
        return self.by_data or self.metrics[0]

    def perfect(self, metric: str) -> float:
        """The value of a metric that no model exceeds."""
        return 0.0 if metric in self.minimized else 1.0

    @property
    def groups(self) -> tuple[type, ...]:
        """All options of training that are the task's own."""
        return self.data, self.learning, *self.teacher

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of all options of training by name; `epochs` and `lr` depend on data and model."""
        groups = (TrainingOptions, *self.groups)
        return {one.name: one.default for group in groups for one in fields(group)} | {"epochs": None, "lr": None}


TASKS: Mapping[str, TaskSpec] = {
    "classify": TaskSpec(
        objective=("classify", "Classify"),
        variants={"few_shot": ("few_shot", "FewShot")},
        metrics=("accuracy", "macro_f1", "weighted_f1", "macro_precision", "macro_recall", "matthews", "log_loss"),
        shares=("accuracy",),
        data=ClassData,
        learning=ClassLearning,
        mistakes="class",
        problem_type="single_label_classification",
        finetune="""Train a model to give each text, or pair, one of several labels.

        If training is interrupted, with Ctrl-C or otherwise, the same command resumes it from the last saved state.

        Example: mlxbert finetune classify --train reviews.csv --output my-model
        """,
        evaluate="""Measure how often a model gives the right label: metrics, each label, confusions, worst mistakes.

        Example: mlxbert evaluate classify --data test.csv --model my-model
        """,
    ),
    "multilabel": TaskSpec(
        objective=("multilabel", "Multilabel"),
        metrics=(
            *("macro_f1", "micro_f1", "weighted_f1", "micro_precision", "micro_recall", "subset_accuracy", "log_loss"),
        ),
        shares=("subset_accuracy",),
        data=ClassData,
        problem_type="multi_label_classification",
        mistakes="labels",
        finetune="""Train a model to give each text, or pair, any number of labels.

        The score above which a label is given is tuned for each label on the validation data.

        Example: mlxbert finetune multilabel --train emotions.jsonl --output my-model
        """,
        evaluate="""Measure how well a model finds all labels of texts: metrics, each label, worst mistakes.

        Example: mlxbert evaluate multilabel --data test.jsonl --model my-model
        """,
    ),
    "regress": TaskSpec(
        objective=("regress", "Regress"),
        metrics=("spearman", "pearson", "mse", "mae", "r2"),
        problem_type="regression",
        numeric=True,
        finetune="""Train a model to give each text, or pair of texts, a number.

        Example: mlxbert finetune regress --train ratings.csv --pair-column answer --output my-model
        """,
        evaluate="""Measure how close predicted numbers are to the right ones: metrics, worst mistakes.

        Example: mlxbert evaluate regress --data test.csv --model my-model
        """,
    ),
    "tag": TaskSpec(
        objective=("tag", "Tag"),
        metrics=(
            *("f1", "precision", "recall", "accuracy"),
            *("macro_f1", "weighted_f1", "macro_precision", "macro_recall"),
        ),
        by_data="f1; accuracy for plain tags",
        formats=("conll", "conllu"),
        data=WordData,
        learning=TagLearning,
        needs="tag",
        use="tag",
        of_words=True,
        finetune="""Train a model to tag words: names and other entities, parts of speech, chunks.

        Data are sentences of CoNLL or CoNLL-U, lists of words and tags, or texts with spans.

        Example: mlxbert finetune tag --train train.conll --output my-model
        """,
        evaluate="""Measure how well a model finds entities, or tags words: metrics, each type or tag, worst mistakes.

        Example: mlxbert evaluate tag --data test.conll --model my-model
        """,
    ),
    "answer": TaskSpec(
        objective=("answer", "AnswerObjective"),
        metrics=("f1", "exact_match"),
        formats=("squad",),
        data=QuestionData,
        needs="answer",
        use="answer",
        arguments='"…" --context-file FILE',
        finetune="""Train a model to answer questions with a part of a text; or to say that the text has no answer.

        Data are .json files of SQuAD, 1.1 or 2.0, or rows of question, context and answers. Long contexts are split
        into windows of --max-length tokens.

        Example: mlxbert finetune answer --train train-v2.0.json --output my-model
        """,
        evaluate="""Measure how often a model answers questions correctly: exact match and F1 as SQuAD defines them,
        worst mistakes.

        Example: mlxbert evaluate answer --data dev-v2.0.json --model my-model
        """,
    ),
    "embed": TaskSpec(
        objective=("embed", "Embed"),
        metrics=(*("spearman", "pearson", "ndcg@10", "map", "mrr@10", "recall@10", "recall@100", "triplet_accuracy"),),
        by_data="ndcg@10; spearman for scores",
        shares=("triplet_accuracy",),
        data=RelatedData,
        learning=VectorLearning,
        teacher=(VectorGuidance,),
        needs="embed",
        use="embed",
        mistakes="ranks",
        finetune="""Train a model to give similar texts similar vectors: for search and comparison.

        Data are pairs of texts that belong together, also with texts that do not; pairs with scores of how similar they
        are; or texts alone.

        Example: mlxbert finetune embed --train pairs.csv --output my-model
        """,
        evaluate="""Measure how well vectors say which texts belong together: against scores of pairs, or by search.

        A folder of BEIR has queries, documents and judgements: every query ranks all documents.

        Example: mlxbert evaluate embed --data test.csv --model my-model
        """,
    ),
    "rerank": TaskSpec(
        objective=("rerank", "Rerank"),
        metrics=("average_precision", "f1", "accuracy", "spearman", "pearson", "ndcg@10", "map", "mrr@10"),
        by_data="average_precision or spearman",
        data=QueryData,
        learning=RerankLearning,
        use="rerank",
        arguments='"…" --input FILE',
        numeric=True,
        finetune="""Train a cross-encoder to score how well a text answers a query.

        Data are rows of a query, a text and a label from 0 to 1, or records {"query": …, "positives": […], "negatives":
        […]}. All texts of a query are in the training data, or all in the validation data.

        Example: mlxbert finetune rerank --train pairs.jsonl --output my-model
        """,
        evaluate="""Measure how well a cross-encoder scores pairs of query and text; or ranks what an embedder finds.

        With --embedder, the data are a folder of BEIR, or records of query, positives and negatives. The
        embedder finds --top-k documents for each query, and the model ranks them anew; metrics called before_… are the
        embedder's.

        Example: mlxbert evaluate rerank --data scifact --embedder BAAI/bge-small-en-v1.5 --model my-model
        """,
    ),
}
