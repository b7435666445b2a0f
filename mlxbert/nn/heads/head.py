"""The properties of a head, and the layers that several heads share.

Shapes: B batch, L length, D hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mlxbert.config import EncoderConfig, HeadFacts, Transform
from mlxbert.errors import CheckpointError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, nn
from mlxbert.nn import ops
from mlxbert.nn.activations import check_activation
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.encoder import Encoder, EncoderOutput
from mlxbert.nn.norms import build_norm
from mlxbert.nn.ops import backend

PRETRAINING = "ForPreTraining"  # the class in transformers with all the heads that a family is pre-trained with


class Head(Protocol):
    """The interface that all heads share."""

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Computes logits from the output of `encoder`; a tied decoder uses the encoder's word embeddings."""


@dataclass(frozen=True, kw_only=True)
class OwnLayer:
    """A layer that transformers does not have, stored in its own file, so that other programs can open the rest."""

    option: str  # the field of `Labels` that enables the layer
    # The name of the layer's file without its extension; also the prefix of the tensor names in the file, and the key
    # of `config.json` that enables the layer.
    stem: str
    # Returns what is expected of the labels, for an error message; `None` if they are valid.
    problem: Callable[[Labels], str | None]
    content: str  # a sentence for users about the content of the file
    others: str  # a sentence about what other programs do with the folder if it is not quantized
    elsewhere: str  # which other program can open the folder, and as which kind of model
    instead: str  # how to train a head that other programs can use, too
    # Whether the layer is the whole head. If so, the encoder is stored in a subfolder, because transformers would open
    # an encoder in the top folder with a random head.
    alone: bool = False

    @property
    def file(self) -> str:
        return f"{self.stem}.safetensors"

    @property
    def note(self) -> str:
        """The note about the file for users, if the folder is not quantized."""
        return f"{self.content}: {self.others}"

    def holds(self, tensor: str) -> bool:
        """Whether a tensor, named as in files, belongs to the layer."""
        return tensor.startswith(f"{self.stem}.")

    def used(self, labels: Labels | None) -> bool:
        return labels is not None and bool(getattr(labels, self.option))


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """Everything that is specific to a head."""

    # Builds the head's layers from the encoder's configuration and the head's own facts in it.
    module: Callable[[EncoderConfig, Any], Head]
    # What the head scores: the whole `text`, each `token`, the ends of a `span`, or each word of the `vocabulary`. For
    # `vocabulary`, the last layer is the word embedding table.
    scope: Literal["text", "token", "span", "vocabulary"]
    class_names: tuple[str, ...]  # the suffixes of the transformers classes with this head, the most specific first
    title: str  # the name of the head for users
    # The head's facts in BERT, without dropout; other families state their differences.
    facts: HeadFacts = field(default_factory=HeadFacts)
    # The names of the head's layers in the files of most families; other families state their differences.
    stems: dict[str, str] = field(default_factory=dict)
    # Returns, from the head's facts and labels, whether it takes the pooler's output.
    pooler: Callable[[Any, Labels | None], bool] = lambda facts, labels: False
    labelled: bool = False  # whether the outputs are the classes that `config.json` names
    keys: tuple[str, ...] = ()  # the keys of `config.json` about labels that the head uses, if it is not `labelled`
    own: OwnLayer | None = None  # the head's layer that transformers does not have, if there is one
    # The `task_type` of the head's adapters in PEFT; a head without one cannot be fine-tuned.
    peft_type: str | None = None
    task: str | None = None  # the task of the command line that needs the head, if there is one
    hint: str = ""  # the hint for users who lack the head: a model that has it, and how to make one

    def is_own(self, labels: Labels | None) -> bool:
        """Whether transformers lacks the head with these labels."""
        return self.own is not None and self.own.alone and self.own.used(labels)


class DenseTransform(nn.Module):
    """A dense layer, an activation, and optionally a norm."""

    def __init__(self, config: EncoderConfig, transform: Transform, width: int) -> None:
        super().__init__()
        self.dense = ops.Linear(config.hidden_size, width, bias=transform.bias)
        if transform.norm:
            self.norm = build_norm(config, width)
        self.activation = check_activation(transform.activation)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, D) → (…, width)."""
        x = backend().activate(self.activation, self.dense(x))
        return self.norm(x) if "norm" in self else x


class TokenHead(nn.Module):
    """Scores every token: for its classes, or as the first and as the last token of an answer."""

    def __init__(self, config: EncoderConfig, facts: HeadFacts, classes: int) -> None:
        super().__init__()
        if facts.transform is not None:
            self.transform = DenseTransform(config, facts.transform, config.hidden_size)
        self.dropout = KeyedDropout(facts.dropout)
        self.out = ops.Linear(config.hidden_size, classes)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Hidden states (…, D) → logits (…, classes)."""
        hidden = output.last_hidden_state
        return self.out(self.dropout(self.transform(hidden) if "transform" in self else hidden))


def num_labels(config: EncoderConfig) -> int:
    """The number of outputs of a head with labels."""
    return 2 if config.labels is None else len(config.labels)


def pooled(output: EncoderOutput) -> mx.array:
    """The pooler's output (B, D)."""
    if output.pooler_output is None:
        raise CheckpointError("the network has no pooler, but this head takes the pooler's output")
    return output.pooler_output
