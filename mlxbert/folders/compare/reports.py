"""The result classes of `verify` and `convert`."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.frozen_dict import FrozenDict
from mlxbert.results.json import Each, listed
from mlxbert.results.notebook import Shown
from mlxbert.version import __version__


def finite_or_name(value: float) -> float | str:
    """Returns a finite number unchanged; infinity and NaN, which JSON lacks, as text."""
    return value if math.isfinite(value) else str(value)


def config_facts(config: EncoderConfig) -> dict[str, Any]:
    """Returns the facts of a model by their names in results, where the labels are in `heads`."""
    facts = {name: value for name, value in vars(config).items() if name != "labels"}
    return facts | {"heads": {"labels": config.labels, **config.heads}}


def all_config_facts(config: EncoderConfig) -> dict[str, Any]:
    """Returns the facts of a model by their names in results, and the properties that follow from them."""
    properties = [name for name, value in vars(type(config)).items() if isinstance(value, property)]
    return config_facts(config) | {name: getattr(config, name) for name in properties}


@dataclass(frozen=True)
class Difference(Shown):
    """One difference between two models.

    Attributes:
        kind: `config`, `part`, `tokenizer`, `embedding`, `tensor` or `output`.
        name: The dotted name of a fact, the name of a part, or the name of a tensor in the network.
        a: The value in the first model; for a tensor, the number that differs most.
        b: The value in the second model.
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
        compared: The number of tensors that both models have.
        equal: The number of equal ones.
        rounded: The number of further ones that are equal once both are rounded to the coarser dtype.
        different: The number of all others.
    """

    compared: int
    equal: int
    rounded: int
    different: int


@dataclass(frozen=True)
class VectorDifferences(Shown):
    """The differences of the vectors of texts: their cosines, and the largest difference of one value."""

    mean_cosine: float
    smallest_cosine: float
    largest_difference: float


@dataclass(frozen=True)
class MaskDifferences(Shown):
    """The differences of the words for masks.

    Attributes:
        masks: The number of masks that were filled.
        same_first_word: The share of masks whose most probable word is the same in both models.
        kept_probability: e to the minus divergence of the second model's words from the first's, averaged over masks:
            1 for equal ones. Only probable words are distinguished.
        largest_score_difference: The largest difference of the probabilities of words that are probable in both models.
    """

    masks: int
    same_first_word: float
    kept_probability: float
    largest_score_difference: float


@dataclass(frozen=True)
class OutputDifferences(Shown):
    """The differences of the outputs of two models on fixed texts; `None` for outputs that cannot be compared.

    Attributes:
        texts: The number of texts and pairs with the same tokens in both models; `None` if outputs are not numbers.
        last_hidden_state: The largest difference of hidden states at the tokens of these texts.
        heads: The largest difference of logits, by the names of heads that both models have.
        choices: How often heads choose the same, 0 to 1: the share of texts, tokens or spans with the same best class;
            for a head with one number, the correlation.
        vectors: The differences of the vectors of texts.
        fill_mask: The differences of the words for masks.
        tolerance: The allowed difference of outputs; `None` if results were judged instead, see
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
        differences = [self.last_hidden_state or 0.0, *self.heads.values()]
        if self.vectors is not None:
            differences += [self.vectors.largest_difference, 1 - self.vectors.smallest_cosine]
        if self.fill_mask is not None:
            differences.append(self.fill_mask.largest_score_difference)
        return max(differences)

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the differences that could be measured."""
        left_out = {name for name, value in vars(self).items() if value is None and name != "tolerance"}
        left_out |= set() if self.texts else {"heads", "choices"}
        return {name: value for name, value in super().to_dict(each).items() if name not in left_out}


@dataclass(frozen=True)
class Verification(Shown):
    """The result of a comparison; it is true if the models agree: `if mlxbert.verify(a, b):`.

    Attributes:
        agree: Whether there are no differences.
        a: The name or path of the first model.
        b: The name or path of the second model.
        differences: The differences.
        notes: Remarks: a different storage, facts that change no output, outputs that were not compared.
        tensors: The number of tensors that are equal, equal once rounded alike, or different.
        outputs: The differences of the outputs.
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
    """The files of a conversion, and its differences from the source.

    Attributes:
        folder: The folder that was written.
        source: A name on the hub, `builtin`, or the name of a folder without its path.
        revision: The commit of a model on the hub.
        family: The family of the model.
        format: The format of the weights that were read.
        changed: The changes from the source, in sentences; empty if there are none.
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
        """Returns the conversion for JSON and the manifest, without its folder."""
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
