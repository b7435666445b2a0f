"""The result classes of `inspect`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.folders.compare.reports import all_config_facts
from mlxbert.frozen_dict import FrozenDict
from mlxbert.results.json import OMIT_IF_NONE, Each, listed, plain
from mlxbert.results.notebook import Shown, to_html


@dataclass(frozen=True)
class LengthLimits(Shown):
    """The limits of the input in tokens; `None` for no limit.

    Attributes:
        config: The number of positions of the model.
        tokenizer: The limit in the files of the tokenizer.
        sentence_transformers: The limit in the files of sentence-transformers, which holds for vectors only.
    """

    config: int
    tokenizer: int | None
    sentence_transformers: int | None


@dataclass(frozen=True)
class PartFacts(Shown):
    """The encoder, the pooler or a head.

    Attributes:
        in_file: The common prefix of its tensor names in the file.
        in_network: The common prefix of its tensor names in the network.
        tensors: The number of its tensors in the file.
        parameters: The number of its parameters in the network.
        problem: The reason if it cannot be loaded.
    """

    in_file: str
    in_network: str
    tensors: int
    parameters: int
    problem: str | None


@dataclass(frozen=True)
class UnusedTensor(Shown):
    """A tensor that is not loaded, and the reason."""

    name: str
    why: str


@dataclass(frozen=True)
class SkippedEntries(Shown):
    """The number of entries that are not tensors of a model, such as the state of an optimizer, and an example."""

    count: int
    example: str | None


@dataclass(frozen=True)
class WeightFacts(Shown):
    """The weights.

    Attributes:
        format: The file format.
        storage: The dtypes in the files, or the kind of quantization.
        bytes: The size of all files.
        files: The size of each file in bytes, by name.
        here: Whether all files are on this machine.
    """

    format: str
    storage: str
    bytes: int
    files: FrozenDict[int]
    here: bool


@dataclass(frozen=True)
class TokenizerFacts(Shown):
    """The tokenizer.

    Attributes:
        kind: WordPiece, BPE or Unigram.
        vocab_size: The number of tokens in the vocabulary.
        word_embeddings: The number of word embeddings of the model.
        special: The special tokens by role.
        lower_case: Whether it lowercases texts.
        model_max_length: The limit of the input in tokens, if its files have one.
    """

    kind: str
    vocab_size: int
    word_embeddings: int
    special: FrozenDict[str]
    lower_case: bool
    model_max_length: int | None


@dataclass(frozen=True)
class ModuleFacts(Shown):
    """A module of sentence-transformers that follows the pooling.

    Attributes:
        kind: `Dense`, `LayerNorm` or `Normalize`.
        folder: Its folder, relative to the folder of the model.
        shapes: The shapes of its tensors, by name.
        parameters: The number of its parameters.
    """

    kind: str
    folder: str
    shapes: FrozenDict[tuple[int, ...]]
    parameters: int


@dataclass(frozen=True)
class EmbeddingFacts(Shown):
    """How the model makes vectors; for the other attributes see `mlxbert.nn.embedder.EmbeddingConfig`.

    Attributes:
        max_length: The limit of the input in tokens.
        size: The number of dimensions of a vector.
        unit: Whether vectors have length 1.
        modules: The modules that follow the pooling.
    """

    poolings: tuple[str, ...]
    include_prompt: bool
    dimensions: int | None
    normalize: bool
    prompts: FrozenDict[str]
    default_prompt_name: str | None
    max_length: int
    lower_case: bool
    similarity: str
    stated: bool
    size: int
    unit: bool
    modules: tuple[ModuleFacts, ...]


@dataclass(frozen=True)
class NoEmbedding(Shown):
    """The reason why the model makes no vectors."""

    problem: str


@dataclass(frozen=True)
class TensorFacts(Shown):
    """A tensor of the files.

    Attributes:
        name: The name in transformers.
        stored_as: The name in the file, if it differs.
        dtype: The dtype in the file.
        shape: The shape.
        becomes: The name in the network, or the reason why it is not used.
    """

    name: str
    stored_as: str | None = field(metadata=OMIT_IF_NONE)
    dtype: str
    shape: tuple[int, ...]
    becomes: str


@dataclass(frozen=True)
class Fit(Shown):
    """What fits into the memory of this machine, by conservative estimates; sizes in bytes.

    Attributes:
        device: `cpu` or `gpu`.
        dtype: The dtype in which the device computes by default.
        available: The memory of the device: for a GPU its own memory, on a Mac the system's recommended limit; for a
            CPU the memory of the machine, or the limit of a container. `None` if unknown.
        weights: The size of the weights in that dtype.
        batch_tokens: The default number of tokens per batch.
        batch: The additional memory for computing such a batch, with texts of 512 tokens.
        fits: Whether weights and batch fit; `None` if the available memory is unknown.
        longest_tokens: The limit of the input in tokens.
        longest: The additional memory for computing one text of that length.
        longest_fits: Whether weights and that text fit; `None` if the available memory is unknown.
        finetuning: The memory for training all weights with 32 texts of 128 tokens per batch: weights, gradients, the
            two moments of AdamW, and activations.
        finetuning_fits: Whether training fits; `None` if the available memory is unknown.
    """

    device: str
    dtype: str
    available: int | None
    weights: int
    batch_tokens: int
    batch: int
    fits: bool | None
    longest_tokens: int
    longest: int
    longest_fits: bool | None
    finetuning: int
    finetuning_fits: bool | None


@dataclass(frozen=True)
class Inspection(Shown):
    """The description of a model; see `mlxbert.inspect`.

    Attributes:
        folder: The folder.
        family: The family of the model.
        because: What the family was recognized by.
        architectures: The classes that `config.json` names, if any.
        config: The facts of the encoder and its heads.
        max_length: The limit of the input in tokens.
        limited_by: The names of the `limits` that set `max_length`.
        limits: The limit from each source.
        parts: The encoder and each other part in the weights.
        unused: Tensors that are not loaded.
        skipped: Entries of the files that are not tensors of the model.
        parameters: The number of parameters by part, and in `total`.
        memory: The size of the parameters in bytes, by dtype.
        fit: What fits into the memory of this machine.
        weights: The weights.
        tokenizer: The tokenizer.
        embedding: How the model makes vectors, or the reason why it does not.
        adapters: The model's own adapters for tasks, see `mlxbert.load`.
        labels: The labels by number, as in `config.json`.
        tasks: The tasks that the model can be used for.
        lacking: The other tasks, with the reasons.
        tensors: All tensors of the files.
    """

    folder: Path
    family: str
    because: str
    architectures: tuple[str, ...] | None
    config: EncoderConfig = field(repr=False)
    max_length: int
    limited_by: tuple[str, ...]
    limits: LengthLimits
    parts: FrozenDict[PartFacts]
    unused: tuple[UnusedTensor, ...]
    skipped: SkippedEntries
    parameters: FrozenDict[int]
    memory: FrozenDict[int]
    fit: Fit
    weights: WeightFacts
    tokenizer: TokenizerFacts
    embedding: EmbeddingFacts | NoEmbedding
    adapters: tuple[str, ...]
    labels: Any
    tasks: tuple[str, ...]
    lacking: FrozenDict[str]
    tensors: tuple[TensorFacts, ...] = field(repr=False)

    def _repr_html_(self) -> str:
        """Returns a table for notebooks, without the configuration and the tensors, which are too long."""
        return to_html({name: value for name, value in self.to_dict().items() if name not in ("config", "tensors")})

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns plain dicts and lists; `config` includes the properties that follow from its fields."""
        return super().to_dict(each) | {"config": plain(all_config_facts(self.config))}
