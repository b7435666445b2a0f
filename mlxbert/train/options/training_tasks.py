"""The registry of the tasks that can be trained: everything about a task except its objective.

Commands, options and help texts are generated from this registry. It can be imported without MLX.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from mlxbert.labels.schemes import Scheme
from mlxbert.option_declarations import LENGTH, OVERLAP, RATE, SMALLEST, Bounds, Option, check_fields, declared_options
from mlxbert.tasks.options import AnswerOptions, VectorOptions
from mlxbert.train.options.loop_options import TeacherOptions, TrainingOptions, VectorLossName

SPARSE, TOKENS = "vectors=sparse", "vectors=tokens"  # the variants of `embed`
_ANSWERS, _VECTORS = declared_options(AnswerOptions), declared_options(VectorOptions)  # options shared with inference


@dataclass(frozen=True)
class TextData:
    """Data options: the columns of texts and labels."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column with the text.", usual="guessed")] = None
    pair_column: Annotated[str | None, Option("Column with the second text, if any.", usual="guessed")] = None
    label_column: Annotated[str | None, Option("Column with the label.", usual="guessed")] = None
    max_length: Annotated[int | None, Option("Truncate inputs to N tokens.", usual="the model's", bounds=LENGTH)] = None


@dataclass(frozen=True)
class ClassData(TextData):
    """Data options: the columns of texts and labels, and names for the labels."""

    label_names: Annotated[
        str | None, Option("Names for the labels, in order: no,yes for 0,1.", "NAMES", usual="the labels")
    ] = None


@dataclass(frozen=True)
class ClassLearning:
    """The training options of classification."""

    panel: ClassVar[str] = "Training"
    label_smoothing: Annotated[
        float, Option("Share of the target that is spread evenly over all labels.", bounds=RATE)
    ] = 0.0
    class_weights: Annotated[
        Literal["none", "balanced"], Option("Class weights in the loss. With balanced, rare labels count more.")
    ] = "none"
    few_shot: Annotated[
        bool | None,
        Option(
            "Train on pairs of examples (SetFit). Meant for few examples per label and an embedding model.",
            usual="if at most 64 per label",
        ),
    ] = None


@dataclass(frozen=True)
class Guidance:
    """The option that names a teacher, for tasks with labels."""

    panel: ClassVar[str] = "Training"
    teacher: Annotated[str | None, Option("Also learn from the predictions of a trained model.")] = None


@dataclass(frozen=True)
class VectorGuidance:
    """The option that names a teacher of vectors."""

    panel: ClassVar[str] = "Training"
    teacher: Annotated[str | None, Option("Imitate this model's vectors, on unlabelled texts.")] = None


@dataclass(frozen=True)
class NoOptions:
    """A placeholder for the training options of a task that has none."""


@dataclass(frozen=True)
class WordData:
    """Data options: the columns of words and tags, and the windows of long sentences."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[
        str | None, Option("Column with the words or the text. In .conll files, its number (default: 1).")
    ] = None
    label_column: Annotated[
        str | None, Option("Column with the tags or the spans. In .conll files, its number (default: the last).")
    ] = None
    max_length: Annotated[
        int | None,
        Option("Maximum input length in tokens. Longer sentences are split.", usual="the model's", bounds=LENGTH),
    ] = None
    stride: Annotated[
        int | None,
        Option(
            "Overlap of windows in tokens. Long sentences are split into windows.",
            usual="a quarter of a window",
            bounds=OVERLAP,
        ),
    ] = None


@dataclass(frozen=True)
class TagLearning:
    """The training options of tagging."""

    panel: ClassVar[str] = "Training"
    scheme: Annotated[
        Scheme | None, Option("Tagging scheme. By default, the model's; for a new head, the scheme of the data.")
    ] = None
    crf: Annotated[bool, Option("Also learn which tag follows which (a CRF).")] = False
    label_all_pieces: Annotated[bool, Option("Train on all tokens of a word, not just the first.")] = False
    open: Annotated[bool, Option("Train a model that finds entities of any types by their names (GLiNER).")] = False


@dataclass(frozen=True)
class QuestionData:
    """Data options: the columns of questions, contexts and answers, and the windows of long contexts."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column with the question.", usual="question")] = None
    pair_column: Annotated[str | None, Option("Column with the context.", usual="context")] = None
    label_column: Annotated[str | None, Option("Column with the answers.", usual="answers, or answer")] = None
    max_length: Annotated[int | None, _ANSWERS["max_length"][1]] = None
    stride: Annotated[int | None, _ANSWERS["stride"][1]] = None
    max_words: Annotated[int, _ANSWERS["max_words"][1]] = 30


@dataclass(frozen=True)
class RelatedData:
    """Data options: the columns of related texts and of their similarity scores."""

    panel: ClassVar[str] = "Data"
    text_column: Annotated[str | None, Option("Column with the text or query.", usual="guessed")] = None
    pair_column: Annotated[str | None, Option("Column with the texts that match the text or query (positives).")] = None
    negative_column: Annotated[
        str | None, Option("Column with texts that do not match the text or query (negatives).")
    ] = None
    label_column: Annotated[str | None, Option("Column with the similarity score.")] = None
    max_length: Annotated[int | None, Option("Truncate texts to N tokens.", usual="the model's", bounds=LENGTH)] = None


_FLOPS = Bounds(0, 1_000_000)


@dataclass(frozen=True)
class VectorLearning:
    """The training options of `embed`."""

    panel: ClassVar[str] = "Training"
    loss: Annotated[VectorLossName | None, Option("Loss. By default cosent with scores, otherwise in-batch.")] = None
    temperature: Annotated[
        float | None,
        Option(
            "Temperature of in-batch and cosent losses.",
            usual="0.05; not dense: 1",
            bounds=Bounds(SMALLEST, 1_000_000),
        ),
    ] = None
    margin: Annotated[float, Option("Margin of the triplet loss, a distance.", bounds=Bounds(SMALLEST, 1_000_000))] = (
        5.0
    )
    symmetric: Annotated[bool, Option("Make the in-batch loss symmetric. It also matches positives to texts.")] = False
    dimensions: Annotated[
        tuple[int, ...] | None,
        Option(
            "Sizes to truncate vectors to (Matryoshka). For example 384,192,96. Of tokens, one size.",
            bounds=Bounds(1, 1_000_000),
        ),
    ] = None
    max_score: Annotated[
        float, Option("Score of a perfect match. All scores are divided by it.", bounds=Bounds(SMALLEST, 1_000_000))
    ] = 1.0
    chunk: Annotated[
        int | None,
        Option(
            "Examples to compute at a time. Reduces the memory of a large batch.",
            usual="all",
            bounds=Bounds(1, 1_000_000),
        ),
    ] = None
    pooling: Annotated[str | None, _VECTORS["pooling"][1]] = None
    normalize: Annotated[bool | None, _VECTORS["normalize"][1]] = None
    vectors: Annotated[
        Literal["auto", "dense", "sparse", "tokens"],
        Option(
            "Kind of vectors. auto is the kind that the model's files state. sparse needs a masked-LM head; tokens is "
            "a vector per token (ColBERT)."
        ),
    ] = "auto"
    query_flops: Annotated[
        float, Option("Weight of the FLOPS regularizer of sparse queries. Higher is sparser.", bounds=_FLOPS)
    ] = 5e-5
    document_flops: Annotated[
        float, Option("Weight of the FLOPS regularizer of sparse documents. Higher is sparser.", bounds=_FLOPS)
    ] = 3e-5
    flops_warmup: Annotated[
        float, Option("Share of the training in which the FLOPS weights rise.", usual="a third", bounds=Bounds(0, 1))
    ] = 1 / 3


@dataclass(frozen=True)
class QueryData:
    """Data options: the columns of queries, texts and labels, and the range of the labels."""

    panel: ClassVar[str] = "Data"
    query_column: Annotated[str | None, Option("Column with the query.", usual="guessed")] = None
    text_column: Annotated[str | None, Option("Column with the text.", usual="guessed")] = None
    label_column: Annotated[str | None, Option("Column with the label or score.", usual="guessed")] = None
    max_length: Annotated[int | None, Option("Truncate pairs to N tokens.", usual="the model's", bounds=LENGTH)] = None
    max_score: Annotated[
        float, Option("Highest possible score. All scores are divided by it.", bounds=Bounds(SMALLEST, 1_000_000))
    ] = 1.0


@dataclass(frozen=True)
class RerankLearning:
    """The training options of reranking."""

    panel: ClassVar[str] = "Training"
    loss: Annotated[
        Literal["bce", "mse"],
        Option("Loss. bce (cross-entropy) trains scores that are probabilities; mse is the squared error."),
    ] = "bce"


def options_of_variant(variant: str) -> dict[str, Any]:
    """Returns the option that chooses a variant of a task, and its value."""
    name, _, value = variant.partition("=")
    return {name: value or True}


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The declaration of a task."""

    # Where to find the class of the objective: a module of `mlxbert.train.objectives`, and a name in it.
    objective: tuple[str, str]
    # Alternative objectives, keyed by the option that chooses them, as in `few_shot` or `vectors=sparse`.
    variants: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # The metrics of the task. The first one is the main metric, which selects the best model.
    metrics: tuple[str, ...]
    by_data: str = ""  # a phrase that describes the main metric, if the main metric depends on the data
    formats: tuple[str, ...] = ()  # the file formats that the task reads, besides texts and tables
    minimized: tuple[str, ...] = ("log_loss", "mse", "mae")  # metrics for which lower is better
    # Metrics that are shares of independent examples. Their intervals are Wilson's; the intervals of other metrics come
    # from a bootstrap. Words are not independent, and neither are pairs if a threshold is tuned on them.
    shares: tuple[str, ...] = ()
    # The class of the data options, which training and evaluation share. The objective holds them as `data`.
    data: type = TextData
    # The class of the options that only training has. The objective holds them as `learning`.
    learning: type = NoOptions
    teacher: tuple[type, ...] = (Guidance, TeacherOptions)  # the classes of the teacher options
    finetune: str  # the help text of the command that trains
    evaluate: str  # the help text of the command that evaluates
    needs: str = "classify"  # the `task` with which `mlxbert.load` loads a model for this task
    use: str = "classify"  # the command that uses a trained model
    arguments: str = '"…"'  # example arguments for the command that uses a trained model
    # The `problem_type` of the labels of trained models; `None` if the labels have no `problem_type`.
    problem_type: str | None = None
    # Whether the models predict numbers. The name of a model's only output is then meaningless.
    numeric: bool = False
    of_words: bool = False  # whether labels belong to words instead of whole examples
    # What `Mistake.score` measures. `class` and `answer` mean the confidence in the wrong prediction; `labels`, the
    # confidence in the prediction for a single label; `ranks`, the difference between two ranks as a share of the
    # number of ranks, or 1 - nDCG. If numbers are predicted, the field is not used, and the score is the difference
    # between the numbers.
    mistakes: Literal["class", "answer", "labels", "ranks"] = "answer"

    @property
    def usual_metric(self) -> str:
        """A phrase that describes the default of the option `metric`."""
        return self.by_data or self.metrics[0]

    def perfect(self, metric: str) -> float:
        return 0.0 if metric in self.minimized else 1.0

    @property
    def groups(self) -> tuple[type, ...]:
        return self.data, self.learning, *self.teacher

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of all training options, keyed by name.

        `epochs` and `lr` are `None`, because they depend on the data and the model.
        """
        groups = (TrainingOptions, *self.groups)
        return {field.name: field.default for group in groups for field in fields(group)} | {"epochs": None, "lr": None}


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
        finetune="""Train a model to give each text or pair of texts one of several labels.

        If training is interrupted, by Ctrl-C or otherwise, the same command resumes it from the last saved state.

        Example: mlxbert finetune classify --train reviews.csv --output my-model
        """,
        evaluate="""Measure how often a model gives the right label: metrics, scores per label, confusions, mistakes.

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
        finetune="""Train a model to give each text or pair of texts any number of labels.

        Each label has its own threshold, which is tuned on the validation data.

        Example: mlxbert finetune multilabel --train emotions.jsonl --output my-model
        """,
        evaluate="""Measure how well a model finds all labels of texts: metrics, scores per label, worst mistakes.

        Example: mlxbert evaluate multilabel --data test.jsonl --model my-model
        """,
    ),
    "regress": TaskSpec(
        objective=("regress", "Regress"),
        metrics=("spearman", "pearson", "mse", "mae", "r2"),
        problem_type="regression",
        numeric=True,
        finetune="""Train a model that predicts a number for each text or pair of texts.

        Example: mlxbert finetune regress --train ratings.csv --pair-column answer --output my-model
        """,
        evaluate="""Measure how close predicted numbers are to the right ones: metrics, worst mistakes.

        Example: mlxbert evaluate regress --data test.csv --model my-model
        """,
    ),
    "tag": TaskSpec(
        objective=("tag", "Tag"),
        variants={"open": ("open_tag", "OpenTag")},
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

        Data are CoNLL or CoNLL-U files, lists of words and tags, or texts with spans.

        Example: mlxbert finetune tag --train train.conll --output my-model
        """,
        evaluate="""Measure how well a model finds entities or tags words: metrics, scores per type, worst mistakes.

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

        Data are .json files in the format of SQuAD 1.1 or 2.0, or rows of question, context and answers. Long contexts
        are split into windows of --max-length tokens.

        Example: mlxbert finetune answer --train train-v2.0.json --output my-model
        """,
        evaluate="""Measure how often a model answers questions correctly: exact match and F1 as SQuAD defines them,
        worst mistakes.

        Example: mlxbert evaluate answer --data dev-v2.0.json --model my-model
        """,
    ),
    "embed": TaskSpec(
        objective=("embed", "Embed"),
        variants={SPARSE: ("embed_sparse", "EmbedSparse"), TOKENS: ("embed_tokens", "EmbedTokens")},
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

        Data are pairs of texts that belong together, optionally with negatives; pairs with similarity scores; or texts
        alone.

        Example: mlxbert finetune embed --train pairs.csv --output my-model
        """,
        evaluate="""Measure how well vectors tell which texts belong together: against similarity scores, or by search.

        A BEIR folder has queries, documents and judgements: every query ranks all documents.

        Example: mlxbert evaluate embed --data test.csv --model my-model
        """,
    ),
    "rerank": TaskSpec(
        objective=("rerank", "Rerank"),
        metrics=("average_precision", "f1", "accuracy", "spearman", "pearson", "ndcg@10", "map", "mrr@10"),
        by_data="average_precision, or spearman for scores",
        data=QueryData,
        learning=RerankLearning,
        use="rerank",
        arguments='"…" --input FILE',
        numeric=True,
        finetune="""Train a cross-encoder to score how well a text answers a query.

        Data are rows of a query, a text and a label from 0 to 1, or records {"query": …, "positives": […], "negatives":
        […]}. All texts of a query go into the training data, or all into the validation data.

        Example: mlxbert finetune rerank --train pairs.jsonl --output my-model
        """,
        evaluate="""Measure how well a cross-encoder scores pairs of query and text; or how well it reranks.

        With --embedder, the data are a BEIR folder, or records of query, positives and negatives. The embedder finds
        --top-k documents for each query, and the model reranks them; metrics named before_… are the embedder's.

        Example: mlxbert evaluate rerank --data scifact --embedder BAAI/bge-small-en-v1.5 --model my-model
        """,
    ),
}


@dataclass(frozen=True, kw_only=True)
class MiningOptions:
    """Which texts `mine` chooses as negatives."""

    negatives: Annotated[int, Option("Maximum number of negatives per query.", bounds=Bounds(1, 10_000))] = 5
    margin: Annotated[
        float,
        Option(
            "How much less similar negatives must be. Compared with the least similar positive of the query.",
            bounds=Bounds(-1000, 1000),
        ),
    ] = 0.05
    skip: Annotated[int, Option("Skip the N most similar texts.", bounds=Bounds(0, 1_000_000))] = 0

    def __post_init__(self) -> None:
        check_fields(self)
