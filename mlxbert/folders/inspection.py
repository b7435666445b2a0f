"""The result classes of `inspect`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.frozen_dict import FrozenDict
from mlxbert.results.json import OMIT_IF_NONE, Each, listed, plain
from mlxbert.results.notebook import Shown, to_html


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
    """The maximum number of input tokens according to each source; `None` for no limit.

    Attributes:
        config: The number of positions that the model has.
        tokenizer: The limit that the tokenizer's files set.
        sentence_transformers: The limit that the files of sentence-transformers set; it applies only to vectors.
    """

    config: int
    tokenizer: int | None
    sentence_transformers: int | None


@dataclass(frozen=True)
class PartFacts(Shown):
    """Facts on a part of a model: the encoder, the pooler or a head.

    Attributes:
        in_file: The prefix that the names of its tensors have in the file.
        in_network: The prefix that the names of its tensors have in the network.
        tensors: The number of its tensors in the file.
        parameters: The number of its parameters in the network.
        problem: The reason why the part cannot be loaded; `None` if it can.
    """

    in_file: str
    in_network: str
    tensors: int
    parameters: int
    problem: str | None


@dataclass(frozen=True)
class UnusedTensor(Shown):
    """A tensor of the files that is not loaded, and the reason for that."""

    name: str
    why: str


@dataclass(frozen=True)
class AdapterFacts(Shown):
    """An adapter in a folder of its own, which is merged into the weights of its base.

    Attributes:
        folder: The folder of the adapter.
        base: The folder of the base.
        changed: The number of matrices of the base that it changes.
        replaced: The number of tensors of the base that it replaces, or adds, such as the tensors of a head.
        bytes: The size of its weights.
    """

    folder: Path
    base: Path
    changed: int
    replaced: int
    bytes: int


@dataclass(frozen=True)
class SkippedEntries(Shown):
    """The number of entries in weight files that are not tensors of a model, and the name of one of them.

    Such entries hold, for example, the state of an optimizer.
    """

    count: int
    example: str | None


@dataclass(frozen=True)
class WeightFacts(Shown):
    """Facts on the weights of a model.

    Attributes:
        format: The format of the weight files.
        storage: The dtypes in the files, or the kind of quantization.
        bytes: The total size of the weight files in bytes.
        files: The size of each weight file in bytes, by name.
        here: Whether all weight files are on this machine.
        with_nan: The tensors of the network that have NaN, by their names in the files, if the files are here.
    """

    format: str
    storage: str
    bytes: int
    files: FrozenDict[int]
    here: bool
    with_nan: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenizerFacts(Shown):
    """Facts on the tokenizer of a model.

    Attributes:
        kind: The kind of vocabulary: WordPiece, BPE or Unigram.
        vocab_size: The number of tokens in the vocabulary.
        word_embeddings: The number of word embeddings that the model has.
        special: The special tokens by role.
        lower_case: Whether the tokenizer lowercases texts.
        model_max_length: The maximum number of input tokens, if the tokenizer's files set a limit.
    """

    kind: str
    vocab_size: int
    word_embeddings: int
    special: FrozenDict[str]
    lower_case: bool
    model_max_length: int | None


@dataclass(frozen=True)
class ModuleFacts(Shown):
    """Facts on a module of sentence-transformers that follows the pooling.

    Attributes:
        kind: The kind of module: `Dense`, `LayerNorm` or `Normalize`.
        folder: The folder of the module, relative to the folder of the model.
        shapes: The shape of each tensor, by name.
        parameters: The number of parameters.
    """

    kind: str
    folder: str
    shapes: FrozenDict[tuple[int, ...]]
    parameters: int


@dataclass(frozen=True)
class EmbeddingFacts(Shown):
    """Facts on how a model makes vectors (for the other attributes, see `mlxbert.nn.embedder.EmbeddingConfig`).

    Attributes:
        max_length: The maximum number of input tokens.
        size: The number of dimensions of a vector.
        unit: Whether all vectors have length 1.
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
class TokenVectorFacts(Shown):
    """Facts on how a model makes vectors of tokens.

    Attributes:
        size: The number of values in a vector.
        similarity: How texts are compared: `maxsim` or `meanmaxsim`.
        query_tokens: The maximum number of tokens of a query.
        text_tokens: The maximum number of tokens of a text.
    """

    size: int
    similarity: str
    query_tokens: int
    text_tokens: int


@dataclass(frozen=True)
class NoEmbedding(Shown):
    """The reason why the model makes no vectors."""

    problem: str


@dataclass(frozen=True)
class TensorFacts(Shown):
    """Facts on a tensor in the weight files.

    Attributes:
        name: The name that transformers uses for the tensor.
        stored_as: The name in the file, if it is different.
        dtype: The dtype in the file.
        shape: The shape of the tensor.
        becomes: The name in the network, or the reason why the tensor is not used.
    """

    name: str
    stored_as: str | None = field(metadata=OMIT_IF_NONE)
    dtype: str
    shape: tuple[int, ...]
    becomes: str


@dataclass(frozen=True)
class Fit(Shown):
    """Conservative estimates of what fits into the memory of this machine; all sizes are in bytes.

    Attributes:
        device: The device that computes, `cpu` or `gpu`.
        dtype: The dtype in which the device computes by default.
        available: The memory of the device; `None` if unknown. For a GPU, it is the memory of the GPU, or on a Mac the
            limit that the system recommends. For a CPU, it is the memory of the machine, or the limit of the container.
        free: The part of this memory that neither other programs nor the arrays of this one hold; `None` if unknown.
        weights: The size of the weights in `dtype`.
        batch_tokens: The default number of tokens per batch.
        batch: The additional memory needed to compute such a batch, with texts of 512 tokens.
        fits: Whether the weights and a batch fit into the available memory; `None` if that is unknown.
        longest_tokens: The maximum number of input tokens.
        longest: The additional memory needed to compute one text of that length.
        longest_fits: Whether the weights and such a text fit; `None` if the available memory is unknown.
        finetuning: The memory needed to train all weights with 32 texts of 128 tokens per batch. It covers weights,
            gradients, the two moments of AdamW, and activations.
        finetuning_fits: Whether training fits; `None` if the available memory is unknown.
    """

    device: str
    dtype: str
    available: int | None
    free: int | None
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
        token_vectors: How the model makes vectors of tokens, or the reason why it cannot; `None` if its files do not
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
