"""The options of functions about many texts together. Each is declared once, for Python and the command line."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import COUNT, POINTS, SEED, Bounds, Option, check_fields
from mlxbert.tasks.options import WORD_LAYER, TaskOptions

Projection = Literal["auto", "pca", "tsne"]
Explained = Literal["classify", "tag", "fill-mask", "similarity", "rerank"]

_COSINE = Bounds(0, 1)


@dataclass(frozen=True, kw_only=True)
class DedupeOptions:
    """Which texts `dedupe` takes for duplicates, and which one of them it keeps."""

    threshold: Annotated[float, Option("Smallest cosine of a duplicate and the kept text.", bounds=_COSINE)] = 0.9
    exact: Annotated[
        bool,
        Option("Find texts that differ in case, white space, and forms of dashes or quotes. This needs no model."),
    ] = False
    prefer: Annotated[Literal["first", "longest"], Option("Which text of a group is kept.")] = "first"
    all_pairs: Annotated[
        bool,
        Option(
            "Compare all pairs. Without it, of more than 32,768 texts only near ones are compared, which is faster."
        ),
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("threshold", "all_pairs"):
            if self.exact and getattr(self, name) != getattr(DedupeOptions, name):
                raise ArgumentError(f"`exact` and `{name}` cannot be combined", hint=f"omit `{name}=`, or `exact=True`")


@dataclass(frozen=True, kw_only=True)
class ParaphraseOptions:
    """Which pairs `paraphrase_mining` returns."""

    max_pairs: Annotated[int, Option("Maximum number of pairs.", bounds=COUNT)] = 500_000
    min_score: Annotated[float, Option("Smallest cosine of a pair.", bounds=Bounds(-1, 1))] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """How `cluster` finds topics, and how it describes them."""

    clusters: Annotated[
        int | None,
        Option(
            "Number of topics, found by k-means. Without it, HDBSCAN decides how many topics there are, and which "
            "texts belong to none.",
            usual="decided by HDBSCAN",
            bounds=Bounds(1, 10_000),
        ),
    ] = None
    min_size: Annotated[int, Option("Smallest number of texts of a topic of HDBSCAN.", bounds=Bounds(2, 1_000_000))] = (
        10
    )
    words: Annotated[int, Option("Distinguishing words of a topic.", bounds=Bounds(0, 1_000))] = 10
    typical: Annotated[int, Option("Typical texts of a topic.", bounds=Bounds(0, 1_000))] = 3
    seed: Annotated[int, Option("Seed of random numbers.", bounds=SEED)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.clusters is not None and self.min_size != ClusterOptions.min_size:
            raise ArgumentError("`clusters` and `min_size` cannot be combined", hint="omit `clusters=`, or `min_size=`")


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """How `project` places texts."""

    method: Annotated[
        Projection,
        Option(
            "How texts are placed. auto is tsne if openTSNE is installed, otherwise pca, which shows much less.",
        ),
    ] = "auto"
    seed: Annotated[int, Option("Seed of random numbers.", bounds=SEED)] = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class SensesOptions(TaskOptions):
    """Options of `senses`."""

    senses: Annotated[
        int | None,
        Option("Number of senses.", usual="the number whose groups are most distinct", bounds=Bounds(1, 100)),
    ] = None
    mask: Annotated[
        bool | None,
        Option(
            "Put the mask in the place of the word. The vector then shows what could stand there.",
            usual="if the model predicts words",
            panel="Vectors",
        ),
    ] = None
    layer: Annotated[int, WORD_LAYER] = -1
    top_k: Annotated[int, Option("Number of words for each sense that could stand there.", bounds=COUNT)] = 8
    typical: Annotated[int, Option("Number of typical lines for each sense.", bounds=COUNT)] = 3
    match_case: Annotated[bool, Option("Distinguish upper and lower case in the word.")] = False


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Options of `explain`."""

    task: Annotated[
        Explained | None,
        Option("The task whose result is explained.", usual="the first that the model can do"),
    ] = None
    target: Annotated[
        str | None,
        Option(
            "The label to explain. For fill-mask it is a word.",
            "TEXT",
            usual="the one that the model chooses",
        ),
    ] = None
    at: Annotated[str | None, Option("The word of the text whose tag is explained.", "WORD")] = None
    method: Annotated[
        Literal["gradients", "occlusion"],
        Option("How to find out. gradients are integrated; occlusion hides one word after another."),
    ] = "gradients"
    steps: Annotated[
        int, Option("Points at which gradients are computed. More of them are slower and more exact.", bounds=POINTS)
    ] = 50

    def __post_init__(self) -> None:
        check_fields(self)
