"""What `inspect` returns."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.folders.compare.reports import all_config_facts
from mlxbert.frozen import FrozenDict
from mlxbert.results.json import OMIT_IF_NONE, Each, listed, plain
from mlxbert.results.notebook import Shown, to_html


@dataclass(frozen=True)
class LengthLimits(Shown):
    """The longest input in tokens by each source of a limit; `None` if it sets none.

    Attributes:
        config: The positions of the model.
        tokenizer: The files of the tokenizer.
        sentence_transformers: The files of sentence-transformers, for vectors alone.
    """

    config: int
    tokenizer: int | None
    sentence_transformers: int | None


@dataclass(frozen=True)
class PartFacts(Shown):
    """The encoder, the pooler or a head.

    Attributes:
        in_file: The common prefix of its tensors' names in the file.
        in_network: The common prefix of their names in the network.
        tensors: How many of its tensors the file has.
        parameters: How many numbers the network has for it.
        problem: Why it cannot be loaded, if so.
    """

    in_file: str
    in_network: str
    tensors: int
    parameters: int
    problem: str | None


@dataclass(frozen=True)
class UnusedTensor(Shown):
    """A tensor that is not loaded, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class SkippedEntries(Shown):
    """Entries of the files that are not tensors of a model, for example an optimizer's: how many, and one of them."""

    count: int
    example: str | None


@dataclass(frozen=True)
class WeightFacts(Shown):
    """The weights.

    Attributes:
        format: Their format.
        storage: The dtypes in which they are stored, or how they are quantized.
        bytes: The size of their files.
        files: The size of each file in bytes, by its name.
        here: Whether all of them are on this machine.
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
        vocab_size: The number of its tokens.
        word_embeddings: The number of tokens that the model has embeddings for.
        special: The special tokens by role.
        lower_case: Whether it lower-cases texts.
        model_max_length: The longest input in tokens, if its files limit it.
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
        folder: Its folder within that of the model.
        shapes: The shapes of its tensors, by name.
        parameters: How many numbers they hold.
    """

    kind: str
    folder: str
    shapes: FrozenDict[tuple[int, ...]]
    parameters: int


@dataclass(frozen=True)
class EmbeddingFacts(Shown):
    """How the model makes vectors; see `mlxbert.nn.embedder.EmbeddingConfig` for what is not described here.

    Attributes:
        max_length: The longest input in tokens.
        size: The number of values of a vector.
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
    """Why the model makes no vectors."""

    problem: str


@dataclass(frozen=True)
class TensorFacts(Shown):
    """A tensor of the files.

    Attributes:
        name: Its name in transformers.
        stored_as: Its name in the file, if that is another one.
        dtype: Its dtype in the file.
        shape: Its shape.
        becomes: Its name in the network, or why it is not used.
    """

    name: str
    stored_as: str | None = field(metadata=OMIT_IF_NONE)
    dtype: str
    shape: tuple[int, ...]
    becomes: str


@dataclass(frozen=True)
class Fit(Shown):
    """What fits into this machine, by estimates that err on the side of more; sizes in bytes.

    Attributes:
        device: `cpu` or `gpu`.
        dtype: The dtype in which the device computes by default.
        available: What the device has: of a GPU its own memory, on a Mac what the system recommends to use of it; of a
            CPU the machine's memory, or what a container may use of it. `None` if it is not known.
        weights: The weights in that dtype.
        batch_tokens: Tokens per batch, by default.
        batch: What computing such a batch takes besides, with texts of 512 tokens.
        fits: Whether weights and batch fit; `None` if it is not known what the device has.
        longest_tokens: The longest input in tokens.
        longest: What computing one text of that length takes besides the weights.
        longest_fits: Whether that and the weights fit; `None` if it is not known what the device has.
        finetuning: What training all weights takes with 32 texts of 128 tokens per batch: weights, gradients, the two
            moments of AdamW, and activations.
        finetuning_fits: Whether that fits; `None` if it is not known what the device has.
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
        because: Where the family is read from.
        architectures: The classes that `config.json` names, if it names some.
        config: The facts of the encoder and its heads.
        max_length: The longest input in tokens.
        limited_by: Which of `limits` set that.
        limits: The longest input by each source of a limit.
        parts: The encoder and each part that the weights hold.
        unused: Tensors that are not loaded.
        skipped: Entries of the files that are not tensors of the model.
        parameters: The number of parameters by part, and in `total`.
        memory: The bytes that the parameters take, by dtype.
        fit: What fits into this machine.
        weights: The weights.
        tokenizer: The tokenizer.
        embedding: How the model makes vectors, or why it does not.
        adapters: The model's own adapters for tasks, see `mlxbert.load`.
        labels: The names of the classes by their numbers, as in `config.json`.
        tasks: The tasks that the model can be used for.
        lacking: Why it cannot be used for the others.
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
        """The table of a notebook; the configuration and the tensors are too long for it."""
        return to_html({name: value for name, value in self.to_dict().items() if name not in ("config", "tensors")})

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """The inspection as plain dicts and lists; in `config` also the properties that follow from its fields."""
        return super().to_dict(each) | {"config": plain(all_config_facts(self.config))}
