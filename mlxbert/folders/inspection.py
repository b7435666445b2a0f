"""The result classes of `inspect`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.frozen_dict import FrozenDict
from mlxbert.results.json import OMIT_IF_NONE, Each, listed, plain
from mlxbert.results.result import Shown, to_html


def config_facts(config: EncoderConfig) -> dict[str, Any]:
    """Returns the settings of a configuration by name, in the form that the results of `inspect` and `verify` use.

    The key `heads` holds the settings of the heads, and the labels.
    """
    facts = {name: value for name, value in vars(config).items() if name != "labels"}
    return facts | {"heads": {"labels": config.labels, **config.heads}}


def all_config_facts(config: EncoderConfig) -> dict[str, Any]:
    """Returns the same settings as `config_facts`, and also the values that the configuration derives from them."""
    properties = [name for name, value in vars(type(config)).items() if isinstance(value, property)]
    return config_facts(config) | {name: getattr(config, name) for name in properties}


@dataclass(frozen=True)
class LengthLimits(Shown):
    """The maximum number of input tokens according to each source; `None` for no limit."""

    config: int  # the number of positions that the model has
    tokenizer: int | None  # the limit that the tokenizer's files set
    # The limit that the files of sentence-transformers set; it applies only to vectors.
    sentence_transformers: int | None


@dataclass(frozen=True)
class PartFacts(Shown):
    """Facts on a part of a model: the encoder, the pooler or a head."""

    in_file: str  # the prefix that the names of its tensors have in the file
    in_network: str  # the prefix that the names of its tensors have in the network
    tensors: int  # the number of its tensors in the file
    parameters: int  # the number of its parameters in the network
    problem: str | None  # the reason why the part cannot be loaded; `None` if it can


@dataclass(frozen=True)
class UnusedTensor(Shown):
    """A tensor of the files that is not loaded, and the reason for that."""

    name: str
    why: str


@dataclass(frozen=True)
class AdapterFacts(Shown):
    """An adapter in a folder of its own, which is merged into the weights of its base."""

    folder: Path
    base: Path  # the folder of the base
    changed: int  # the number of matrices of the base that it changes
    replaced: int  # the number of tensors of the base that it replaces, or adds, such as the tensors of a head
    bytes: int  # the size of its weights


@dataclass(frozen=True)
class SkippedEntries(Shown):
    """The number of entries in weight files that are not tensors of a model, and the name of one of them.

    Such entries hold, for example, the state of an optimizer.
    """

    count: int
    example: str | None


@dataclass(frozen=True)
class WeightFacts(Shown):
    """Facts on the weights of a model."""

    format: str  # the format of the weight files
    storage: str  # the dtypes in the files, or the kind of quantization
    bytes: int  # the total size of the weight files in bytes
    files: FrozenDict[int]  # the size of each weight file in bytes, by name
    here: bool  # whether all weight files are on this machine
    # The tensors of the network that have NaN, by their names in the files, if the files are here.
    with_nan: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenizerFacts(Shown):
    """Facts on the tokenizer of a model."""

    kind: str  # the kind of vocabulary: WordPiece, BPE or Unigram
    vocab_size: int  # the number of tokens in the vocabulary
    word_embeddings: int  # the number of word embeddings that the model has
    special: FrozenDict[str]  # the special tokens by role
    lower_case: bool  # whether the tokenizer lowercases texts
    model_max_length: int | None  # the maximum number of input tokens, if the tokenizer's files set a limit


@dataclass(frozen=True)
class ModuleFacts(Shown):
    """Facts on a module of sentence-transformers that follows the pooling."""

    kind: str  # the kind of module: `Dense`, `LayerNorm` or `Normalize`
    folder: str  # the folder of the module, relative to the folder of the model
    shapes: FrozenDict[tuple[int, ...]]  # the shape of each tensor, by name
    parameters: int  # the number of parameters


@dataclass(frozen=True)
class EmbeddingFacts(Shown):
    """Facts on how a model makes vectors (for the other attributes, see `mlxbert.nn.embedder.EmbeddingConfig`)."""

    poolings: tuple[str, ...]
    include_prompt: bool
    dimensions: int | None
    normalize: bool
    prompts: FrozenDict[str]
    default_prompt_name: str | None
    max_length: int  # the maximum number of input tokens
    lower_case: bool
    similarity: str
    stated: bool
    size: int  # the number of dimensions of a vector
    unit: bool  # whether all vectors have length 1
    modules: tuple[ModuleFacts, ...]  # the modules that follow the pooling


@dataclass(frozen=True)
class TokenVectorFacts(Shown):
    """Facts on how a model makes token vectors."""

    size: int  # the number of values in a vector
    similarity: str  # how texts are compared: `maxsim` or `meanmaxsim`
    query_tokens: int  # the maximum number of tokens of a query
    text_tokens: int  # the maximum number of tokens of a text


@dataclass(frozen=True)
class NoEmbedding(Shown):
    """The reason why the model makes no vectors."""

    problem: str


@dataclass(frozen=True)
class TensorFacts(Shown):
    """Facts on a tensor in the weight files."""

    name: str  # the name that transformers uses for the tensor
    stored_as: str | None = field(metadata=OMIT_IF_NONE)  # the name in the file, if it is different
    dtype: str  # the dtype in the file
    shape: tuple[int, ...]
    becomes: str  # the name in the network, or the reason why the tensor is not used


@dataclass(frozen=True)
class Fit(Shown):
    """Conservative estimates of what fits into the memory of this machine; all sizes are in bytes."""

    device: str  # the device that computes, `cpu` or `gpu`
    dtype: str  # the dtype in which the device computes by default
    # The memory of the device; `None` if unknown. For a GPU, it is the memory of the GPU, or on a Mac the limit that
    # the system recommends. For a CPU, it is the memory of the machine, or the limit of the container.
    available: int | None
    # The part of this memory that neither other programs nor the arrays of this one hold; `None` if unknown.
    free: int | None
    weights: int  # the size of the weights in `dtype`
    batch_tokens: int  # the default number of tokens per batch
    batch: int  # the additional memory needed to compute such a batch, with texts of 512 tokens
    fits: bool | None  # whether the weights and a batch fit into the available memory; `None` if that is unknown
    longest_tokens: int  # the maximum number of input tokens
    longest: int  # the additional memory needed to compute one text of that length
    longest_fits: bool | None  # whether the weights and such a text fit; `None` if the available memory is unknown
    # The memory needed to train all weights with 32 texts of 128 tokens per batch. It covers weights, gradients, the
    # two moments of AdamW, and activations.
    finetuning: int
    finetuning_fits: bool | None  # whether training fits; `None` if the available memory is unknown


@dataclass(frozen=True)
class Inspection(Shown):
    """The description of a model that `mlxbert.inspect` returns.

    Attributes:
        folder: The folder of the model.
        family: The family of the model.
        because: How the family was recognized.
        architectures: The classes that `config.json` names, if any.
        config: The configuration of the encoder and its heads.
        max_length: The maximum number of input tokens.
        limited_by: The names of the `limits` that set `max_length`.
        limits: The maximum number of input tokens according to each source.
        parts: Facts on the encoder and on each other part in the weights, by name.
        unused: The tensors that are not loaded.
        skipped: Entries of the weight files that are not tensors of the model.
        parameters: The number of parameters by part, and the sum as `total`.
        memory: The size of all parameters in bytes, by dtype.
        fit: Estimates of what fits into the memory of this machine.
        weights: Facts on the weight files.
        tokenizer: Facts on the tokenizer.
        embedding: How the model makes vectors, or the reason why it does not.
        token_vectors: How the model makes token vectors, or the reason why it cannot; `None` if its files do not
            state such vectors.
        adapter: The adapter, if the folder holds one in PEFT's format.
        adapters: The names of the model's own adapters for tasks (see `mlxbert.load`).
        labels: The labels by number, as in `config.json`.
        tasks: The tasks that the model can be used for.
        lacking: Maps each other task to the reason why the model cannot be used for it.
        tensors: Facts on every tensor in the weight files.
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
    token_vectors: TokenVectorFacts | NoEmbedding | None
    adapter: AdapterFacts | None
    adapters: tuple[str, ...]
    labels: Any
    tasks: tuple[str, ...]
    lacking: FrozenDict[str]
    tensors: tuple[TensorFacts, ...] = field(repr=False)

    def _repr_html_(self) -> str:
        """Returns an HTML table for notebooks; it omits the configuration and the tensors, which are too long."""
        return to_html({name: value for name, value in self.to_dict().items() if name not in ("config", "tensors")})

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the description as plain dicts and lists; `config` then also has the properties of its class."""
        return super().to_dict(each) | {"config": plain(all_config_facts(self.config))}
