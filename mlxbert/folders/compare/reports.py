"""What `verify` and `convert` return."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.frozen import FrozenDict
from mlxbert.results.json import Each, listed
from mlxbert.results.notebook import Shown
from mlxbert.version import __version__


def finite_or_name(value: float) -> float | str:
    """A number; infinity and NaN, for which JSON has no numbers, as text."""
    return value if math.isfinite(value) else str(value)


def config_facts(config: EncoderConfig) -> dict[str, Any]:
    """The facts of a model by their names in results, which have the labels among the heads."""
    facts = {name: value for name, value in vars(config).items() if name != "labels"}
    return facts | {"heads": {"labels": config.labels, **config.heads}}


def all_config_facts(config: EncoderConfig) -> dict[str, Any]:
    """The facts of a model by their names in results, and the properties that follow from them."""
    properties = [name for name, value in vars(type(config)).items() if isinstance(value, property)]
    return config_facts(config) | {name: getattr(config, name) for name in properties}


@dataclass(frozen=True)
class Difference(Shown):
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
class TensorCounts(Shown):
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
class VectorDifferences(Shown):
    """How far the vectors of texts are apart: their cosines, and the largest difference of one value."""

    mean_cosine: float
    smallest_cosine: float
    largest_difference: float


@dataclass(frozen=True)
class MaskDifferences(Shown):
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
class OutputDifferences(Shown):
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
            `mlxbert.folders.compare.quantized_outputs`.
    """

    texts: int | None = None
    last_hidden_state: float | None = None
    heads: FrozenDict[float] = field(default_factory=FrozenDict)
    choices: FrozenDict[float] = field(default_factory=FrozenDict)
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

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """The differences without those that could not be measured."""
        left_out = {name for name, value in vars(self).items() if value is None and name != "tolerance"}
        left_out |= set() if self.texts else {"heads", "choices"}
        return {name: value for name, value in super().to_dict(each).items() if name not in left_out}


@dataclass(frozen=True)
class Verification(Shown):
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
class Conversion(Shown):
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
    read: FrozenDict[str]
    written: FrozenDict[str]
    bytes: int
    difference: Verification

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """The conversion as JSON and in the manifest: without its folder."""
        values = super().to_dict(each)
        names = ("source", "revision", "bytes", "family", "format", "changed", "left_out")
        compared = ("agree", "differences", "notes", "tensors", "outputs")
        return {
            "mlxbert": __version__,
            **{name: values[name] for name in names},
            "difference": {name: values["difference"][name] for name in compared},
            "read": values["read"],
            "written": values["written"],
        }
