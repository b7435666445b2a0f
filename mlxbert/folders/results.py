"""What `verify` and `convert` return, and how such results become JSON."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from mlxbert.config import EncoderConfig
from mlxbert.results.html import Shown
from mlxbert.version import __version__

V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class Table(Mapping[str, V], Generic[V]):
    """An immutable mapping: values by name, in a fixed order.

    Attributes:
        entries: The names and their values.
    """

    entries: tuple[tuple[str, V], ...] = ()

    def __getitem__(self, name: str) -> V:
        for own, value in self.entries:
            if own == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __hash__(self) -> int:
        return hash(self.entries)


def table(values: Mapping[str, V]) -> Table[V]:
    """An immutable copy of a mapping."""
    return Table(tuple(values.items()))


class Record(Shown):
    """Base of results that become a JSON object of their fields."""

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dicts and lists."""
        return {field.name: to_json(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


def frozen(value: object) -> Any:
    """An immutable copy of a JSON value: tuples for lists, a `Table` for an object."""
    if isinstance(value, Mapping):
        return Table(tuple((str(key), frozen(entry)) for key, entry in value.items()))
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def to_json(value: object) -> Any:
    """A value as plain JSON types.

    A dataclass that is not a `Record` becomes an object of its fields, with its name as `type`; infinity and NaN become
    strings.
    """
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        facts = {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__} | facts
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def config_facts(config: EncoderConfig) -> dict[str, Any]:
    """The facts of a model by their names in results, which have the labels among the heads."""
    facts = {name: value for name, value in vars(config).items() if name != "labels"}
    return facts | {"heads": {"labels": config.labels, **config.heads}}


def all_config_facts(config: EncoderConfig) -> dict[str, Any]:
    """The facts of a model by their names in results, and the properties that follow from them."""
    properties = [name for name, value in vars(type(config)).items() if isinstance(value, property)]
    return config_facts(config) | {name: getattr(config, name) for name in properties}


@dataclass(frozen=True)
class Difference(Record):
    """One difference between two models.

    Attributes:
        kind: `config`, `part`, `tokenizer`, `embedding`, `tensor` or `output`.
        name: What differs: a fact by its dotted name, a part, a tensor by its name in the network.
        a: Its value in the first model; of a tensor the number that differs most.
        b: Its value in the second model.
        text: The difference in one sentence.
    """

    kind: str
    name: str
    a: Any
    b: Any
    text: str


@dataclass(frozen=True)
class TensorCounts(Record):
    """How the tensors of two models compare.

    Attributes:
        compared: How many both models have.
        equal: How many of them are equal.
        rounded: How many more are equal once both are rounded to the coarser of their dtypes.
        different: How many are neither.
    """

    compared: int
    equal: int
    rounded: int
    different: int


@dataclass(frozen=True)
class VectorDifferences(Record):
    """How far the vectors of texts are apart: their cosines, and the largest difference of one value."""

    mean_cosine: float
    smallest_cosine: float
    largest_difference: float


@dataclass(frozen=True)
class MaskDifferences(Record):
    """How far the words for masks are apart.

    Attributes:
        masks: How many masks were filled.
        same_first_word: The share of them for which both models find the same word most probable.
        kept_probability: e to the minus divergence of the second model's words from the first's, the mean over masks:
            1 for equal ones. Only likely words are told apart.
        largest_score_difference: The largest difference of probabilities of words that both find likely.
    """

    masks: int
    same_first_word: float
    kept_probability: float
    largest_score_difference: float


@dataclass(frozen=True)
class OutputDifferences(Record):
    """How far the outputs of two models on fixed texts are apart; `None` for what cannot be compared.

    Attributes:
        texts: How many texts and pairs both models split into the same tokens; `None` if a model computes no numbers.
        last_hidden_state: The largest difference of hidden states at the tokens of these texts.
        heads: The largest difference of logits, by the names of heads that both models have.
        choices: How far heads choose the same, 0 to 1: the share of texts, tokens or spans with the same best class;
            of a head with one number, the correlation.
        vectors: The differences of the vectors of texts.
        fill_mask: The differences of the words for masks.
        tolerance: How far outputs may be apart; `None` if it is judged how much of their use is kept, see
            `mlxbert.folders.judge`.
    """

    texts: int | None = None
    last_hidden_state: float | None = None
    heads: Table[float] = Table()
    choices: Table[float] = Table()
    vectors: VectorDifferences | None = None
    fill_mask: MaskDifferences | None = None
    tolerance: float | None = None

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        found = [self.last_hidden_state or 0.0, *self.heads.values()]
        if self.vectors is not None:
            found += [self.vectors.largest_difference, 1 - self.vectors.smallest_cosine]
        if self.fill_mask is not None:
            found.append(self.fill_mask.largest_score_difference)
        return max(found)

    def to_dict(self) -> dict[str, Any]:
        """The differences without those that could not be measured."""
        left_out = {name for name, value in vars(self).items() if value is None and name != "tolerance"}
        left_out |= set() if self.texts else {"heads", "choices"}
        return {name: value for name, value in super().to_dict().items() if name not in left_out}


@dataclass(frozen=True)
class Verification(Record):
    """Whether two models agree; it is true if they do: `if mlxbert.verify(a, b):`.

    Attributes:
        agree: Whether there are no differences.
        a: The name or path of the first model.
        b: The name or path of the second model.
        differences: What differs.
        notes: What else is worth knowing: another storage, facts that change no output, what was not compared.
        tensors: How many tensors were compared, are equal, are equal once rounded alike, are different.
        outputs: How far the outputs are apart.
    """

    agree: bool
    a: str
    b: str
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    tensors: TensorCounts
    outputs: OutputDifferences

    def __bool__(self) -> bool:
        """Whether the models agree."""
        return self.agree


@dataclass(frozen=True)
class Conversion(Record):
    """What a conversion wrote, and how it differs from its source.

    Attributes:
        folder: The folder that was written.
        source: A name on the hub, `builtin`, or the name of a folder without its path.
        revision: The commit of a model on the hub.
        family: The family of the model.
        format: The format of the weights that were read.
        changed: What differs from the source, in sentences; empty if nothing does.
        left_out: Tensors of the source that were not written: copies, buffers, the state of an optimizer.
        read: SHA-256 of the files that were read, by name.
        written: SHA-256 of the files that were written, by name, without the manifest.
        bytes: The size of all files that were written.
        difference: The comparison of the source with the result.
    """

    folder: Path
    source: str
    revision: str | None
    family: str
    format: str
    changed: tuple[str, ...]
    left_out: tuple[str, ...]
    read: Table[str]
    written: Table[str]
    bytes: int
    difference: Verification

    def to_dict(self) -> dict[str, Any]:
        """The conversion as JSON and in the manifest: without its folder."""
        values = super().to_dict()
        names = ("source", "revision", "bytes", "family", "format", "changed", "left_out")
        compared = ("agree", "differences", "notes", "tensors", "outputs")
        return {
            "mlxbert": __version__,
            **{name: values[name] for name in names},
            "difference": {name: values["difference"][name] for name in compared},
            "read": values["read"],
            "written": values["written"],
        }
