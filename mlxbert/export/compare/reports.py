"""The result classes of `verify`, `convert` and `convert_to_gguf`."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.frozen_dict import FrozenDict
from mlxbert.results.json import Each, listed
from mlxbert.results.result import Shown
from mlxbert.version import __version__


def finite_or_name(value: float) -> float | str:
    """Returns a finite number unchanged, and infinity or NaN as text, because JSON cannot express them."""
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class Difference(Shown):
    """A difference between two models.

    Attributes:
        kind: The kind of difference: `config`, `part`, `tokenizer`, `embedding`, `tensor` or `output`.
        name: The dotted name of a fact, the name of a part, or the name of a tensor in the network.
        a: The value in the first model. For a tensor, it is the number with the largest difference.
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
    """The number of tensors of two models that are equal or differ."""

    compared: int  # the number of tensors that both models have
    equal: int  # the number of tensors that are equal
    rounded: int  # the number of tensors that become equal when both are rounded to the coarser dtype
    different: int  # the number of tensors that differ even then


@dataclass(frozen=True)
class VectorDifferences(Shown):
    """How the vectors of the fixed texts differ: the cosines, and the largest difference of a single value."""

    mean_cosine: float
    smallest_cosine: float
    largest_difference: float


@dataclass(frozen=True)
class MaskDifferences(Shown):
    """How the words that two models predict for masks differ."""

    masks: int  # the number of masks that were filled
    same_first_word: float  # the share of masks whose most probable word is the same in both models
    # How close the second model's probabilities are to the first model's: exp(-divergence), averaged over masks; 1 if
    # they are equal. Improbable words are lumped together.
    kept_probability: float
    # The largest difference of a word's probabilities, among words that are probable in both models.
    largest_score_difference: float


@dataclass(frozen=True)
class OutputDifferences(Shown):
    """How the outputs of two models on the fixed texts differ; `None` stands for outputs that cannot be compared."""

    # The number of compared texts and pairs, which are those with the same tokens in both models; `None` if a model
    # computes NaN or infinite numbers.
    texts: int | None = None
    last_hidden_state: float | None = None  # the largest difference of hidden states
    # The largest difference of logits for each head that both models have.
    heads: FrozenDict[float] = field(default_factory=FrozenDict)
    # How often each head makes the same choice in both models, from 0 to 1: the share of texts, tokens or spans with
    # the same best class. For a head with a single output, it is the correlation.
    choices: FrozenDict[float] = field(default_factory=FrozenDict)
    vectors: VectorDifferences | None = None  # how the vectors of the texts differ
    fill_mask: MaskDifferences | None = None  # how the words for masks differ
    # The allowed difference of outputs; `None` if the results were judged instead (see
    # `mlxbert.export.compare.outputs`).
    tolerance: float | None = None

    @property
    def largest(self) -> float:
        """The largest of all differences between outputs, whichever output it belongs to."""
        differences = [self.last_hidden_state or 0.0, *self.heads.values()]
        if self.vectors is not None:
            differences += [self.vectors.largest_difference, 1 - self.vectors.smallest_cosine]
        if self.fill_mask is not None:
            differences.append(self.fill_mask.largest_score_difference)
        return max(differences)

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the measured differences as a dict, without outputs that could not be compared."""
        left_out = {name for name, value in vars(self).items() if value is None and name != "tolerance"}
        left_out |= set() if self.texts else {"heads", "choices"}
        return {name: value for name, value in super().to_dict(each).items() if name not in left_out}


@dataclass(frozen=True)
class Verification(Shown):
    """The result of a comparison, which is true if the models agree: `if mlxbert.verify(a, b):`.

    Attributes:
        agree: Whether no differences were found.
        a: The name or path of the first model.
        b: The name or path of the second model.
        differences: All differences that were found.
        notes: Remarks on different storage, on facts that affect no output, and on outputs that were not compared.
        tensors: The number of tensors that are equal, equal after rounding, or different.
        outputs: How the outputs differ.
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
    """A report on a conversion: the files, and the differences between the result and the source.

    Attributes:
        folder: The folder that was written.
        source: The source: a name on the hub, `builtin`, or the name of a folder without its path.
        revision: The commit, for a model on the hub.
        family: The family of the model.
        format: The format of the weights that were read.
        changed: A sentence for each change from the source; empty if nothing changed.
        left_out: The tensors of the source that were not written: copies, buffers, the state of an optimizer. For a
            file in ONNX, a noun phrase for each thing in the model that the file does not give.
        read: The SHA-256 of each file that was read, by name.
        written: The SHA-256 of each file that was written, by name, except the manifest.
        bytes: The total size of the files that were written, in bytes.
        difference: The result of comparing the source with the written model.
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
        """Returns the report as a dict for JSON and the manifest, without the folder."""
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


@dataclass(frozen=True)
class GgufConversion(Shown):
    """A report on a GGUF file.

    Attributes:
        file: The file that was written.
        source: The source: a name on the hub, `builtin`, or the name of a folder without its path.
        family: The family of the model.
        architecture: The architecture of llama.cpp that runs the file.
        pooling: How llama.cpp pools hidden states: `mean`, `cls`, `last_token`, or `classifier`, which gives scores.
        type: The type of the matrices: `F32`, `F16`, `BF16` or `Q8_0`.
        tensors: The number of tensors.
        left_out: A noun phrase for each thing in the model that the file does not give.
        bytes: The size of the file in bytes.
        sha256: The SHA-256 of the file.
    """

    file: Path
    source: str
    family: str
    architecture: str
    pooling: str
    type: str
    tensors: int
    left_out: tuple[str, ...]
    bytes: int
    sha256: str
