"""The options and the result of comparing a model's vectors with another program's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from mlxbert.option_declarations import COUNT, Option, check_fields
from mlxbert.results.json import OMIT_IF_ZERO
from mlxbert.results.result import Shown


@dataclass(frozen=True, kw_only=True)
class VectorCheckOptions:
    """Options that say which vectors are compared with which of the model's."""

    panel: ClassVar[str] = "Vectors of another program"
    prompt_name: Annotated[
        str | None,
        Option("Name of the prompt that is expected.", usual="the file's or the model's"),
    ] = None
    text_column: Annotated[str | None, Option("Column of the file of vectors with the text.", usual="guessed")] = None
    vector_column: Annotated[str | None, Option("Column of the file with the vector.", usual="guessed")] = None
    server_model: Annotated[str | None, Option("Name of the model on the server.", usual="its only one")] = None
    max_texts: Annotated[int, Option("Compare at most N texts. They are evenly spaced.", bounds=COUNT)] = 500

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class CosineRange(Shown):
    """A band of cosines, and how many texts lie in it.

    Attributes:
        least: The lower end of the band, which belongs to it. The upper end is the lower end of the band before.
        texts: The number of texts.
    """

    least: float
    texts: int


@dataclass(frozen=True)
class Cosines(Shown):
    """The cosines between the model's vectors and the other ones, one for each text.

    Attributes:
        lowest: The lowest cosine.
        median: The median.
        mean: The mean.
        ranges: How many texts lie in which band, from the highest band to the lowest.
    """

    lowest: float
    median: float
    mean: float
    ranges: tuple[CosineRange, ...]


@dataclass(frozen=True)
class DifferingText(Shown):
    """A text with different vectors.

    Attributes:
        index: The index of the text, from 0.
        text: The text.
        tokens: The number of its tokens, special tokens included and without any limit.
        cosine: The cosine between both vectors.
    """

    index: int
    text: str
    tokens: int
    cosine: float


@dataclass(frozen=True)
class VectorSizes(Shown):
    """Sizes of vectors.

    Attributes:
        width: The number of values in a vector.
        stored: What the numbers are: `float32`, `float16`, `bfloat16`, `int8`, or `binary`, which is one bit per value.
        shortest: The lowest length (Euclidean norm).
        longest: The highest length.
    """

    width: int
    stored: str
    shortest: float
    longest: float


@dataclass(frozen=True)
class VectorCause(Shown):
    """A change of the model's computation that leads to the other vectors.

    Attributes:
        kind: `limit`, `last_part`, `windows`, `prompt`, `case`, `special_tokens`, `padding`, `pooling`, `layer`,
            `later_layers`, `normalization`, `dimensions`, `quantization` or `order`.
        text: The cause in words.
        texts: The number of texts that it affects.
    """

    kind: str
    text: str
    texts: int


@dataclass(frozen=True)
class VectorVerification(Shown):
    """The result of comparing vectors, which is true if they agree: `if mlxbert.verify_vectors(model, against):`.

    Attributes:
        agrees: Whether the vectors are those of the model.
        model: The name or path of the model.
        against: The URL or the file of the other vectors.
        texts: The number of compared texts.
        differ: The number of texts whose vectors have another direction.
        cosine: The cosines between both vectors of each text.
        cause: What explains the differences, in words; `None` if the vectors agree or nothing explains them.
        causes: The causes one by one.
        cosine_explained: The cosines after the model computes with the causes.
        alternatives: Other explanations that fit these texts equally well.
        worst: The texts with the lowest cosines, the lowest first.
        ours: The sizes of the model's vectors.
        theirs: The sizes of the other vectors.
        notes: What these texts cannot show, texts that were not compared, and other remarks.
        tried: The number of changes of the computation that were tried.
    """

    agrees: bool
    model: str
    against: str
    texts: int
    differ: int
    cosine: Cosines
    cause: str | None
    causes: tuple[VectorCause, ...]
    cosine_explained: Cosines | None
    alternatives: tuple[str, ...]
    worst: tuple[DifferingText, ...]
    ours: VectorSizes
    theirs: VectorSizes
    notes: Sequence[str]
    tried: int = field(default=0, metadata=OMIT_IF_ZERO)

    def __bool__(self) -> bool:
        """Whether the vectors agree."""
        return self.agrees
