"""The description of a head, and layers that several heads share.

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

PRETRAINING = "ForPreTraining"  # the class in transformers with all the heads that a family is pre-trained with


class Head(Protocol):
    """A head; all have the same signature."""

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits of the output of `encoder`; a tied decoder uses its word embeddings."""


@dataclass(frozen=True, kw_only=True)
class OwnLayer:
    """A layer that transformers does not have; it has its own file, so that other programs can open the rest.

    Attributes:
        option: The field of `Labels` that enables the layer.
        stem: The name of the layer's file without suffix, the prefix of its tensors' names there, and the key of
            `config.json` that enables it.
        problem: Returns the expectation that labels with this option do not meet; `None` if they are valid.
        content: A sentence for users about the content of the file.
        others: A sentence about what other programs do with the folder, unless it is quantized.
        elsewhere: The program that opens the folder, and as which kind of model.
        instead: How to train a head that other programs have.
        alone: Whether the layer is the whole head. Then the encoder has its own subfolder: in the top folder,
            transformers would open it with a random head.
    """

    option: str
    stem: str
    problem: Callable[[Labels], str | None]
    content: str
    others: str
    elsewhere: str
    instead: str
    alone: bool = False

    @property
    def file(self) -> str:
        """The name of the layer's file."""
        return f"{self.stem}.safetensors"

    @property
    def note(self) -> str:
        """The note for users about the file, in a folder that is not quantized."""
        return f"{self.content}: {self.others}"

    def holds(self, tensor: str) -> bool:
        """Whether a tensor, by its name in files, belongs to the layer."""
        return tensor.startswith(f"{self.stem}.")

    def used(self, labels: Labels | None) -> bool:
        """Whether labels enable the layer."""
        return labels is not None and bool(getattr(labels, self.option))


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """Everything that is specific to a head.

    Attributes:
        module: Builds the head's layers from the encoder's configuration and the head's own facts in it.
        scope: What it scores: the whole `text`, each `token`, the ends of a `span`, or each word of the
            `vocabulary`; its last layer is then the table of word embeddings.
        class_names: The suffixes of the transformers classes with this head, the most specific first.
        facts: The head's facts in BERT, without dropout; other families state their differences.
        stems: The names of its layers in the files of most families; other families state their differences.
        pooler: Returns whether the head takes the output of the encoder's pooler, by its facts and labels.
        labelled: Whether its outputs are the classes that `config.json` names.
        keys: The keys of `config.json` about labels that the head uses, if it is not `labelled`.
        own: The layer that transformers does not have, if the head can have such a layer.
        peft_type: The `task_type` of its adapters in PEFT; without it, the head cannot be fine-tuned.
        task: The task of the command line that needs the head, if there is one.
        title: The name of the head for users.
        hint: A model with this head, and how to make such a model.
    """

    module: Callable[[EncoderConfig, Any], Head]
    scope: Literal["text", "token", "span", "vocabulary"]
    class_names: tuple[str, ...]
    title: str
    facts: HeadFacts = field(default_factory=HeadFacts)
    stems: dict[str, str] = field(default_factory=dict)
    pooler: Callable[[Any, Labels | None], bool] = lambda facts, labels: False
    labelled: bool = False
    keys: tuple[str, ...] = ()
    own: OwnLayer | None = None
    peft_type: str | None = None
    task: str | None = None
    hint: str = ""

    def is_own(self, labels: Labels | None) -> bool:
        """Whether transformers does not have the head for these labels."""
        return self.own is not None and self.own.alone and self.own.used(labels)


class DenseTransform(nn.Module):
    """A dense layer, an activation, and optionally a norm."""

    def __init__(self, config: EncoderConfig, transform: Transform, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, width, bias=transform.bias)
        if transform.norm:
            self.norm = build_norm(config, width)
        self.activation = check_activation(transform.activation)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, D) → (…, width)."""
        x = ops.activate(self.activation, self.dense(x))
        return self.norm(x) if "norm" in self else x


class TokenHead(nn.Module):
    """Scores of every token: for its classes, or for being the first and the last token of an answer."""

    def __init__(self, config: EncoderConfig, facts: HeadFacts, classes: int) -> None:
        super().__init__()
        if facts.transform is not None:
            self.transform = DenseTransform(config, facts.transform, config.hidden_size)
        self.dropout = KeyedDropout(facts.dropout)
        self.out = nn.Linear(config.hidden_size, classes)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (…, classes) of hidden states (…, D)."""
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
