"""The registry of heads, and the network, which consists of an encoder and heads.

A head is the layers that turn the encoder's output into logits; each has its own file here. Model families define the
names of tensors and the settings in which they differ.

Shapes: B batch, L length, V vocabulary.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import cast

from mlxbert.config import EncoderConfig, Rotary
from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import clear_when_thread_ends, mx, nn
from mlxbert.nn.encoder import Batch, Encoder, EncoderOutput, check_rows
from mlxbert.nn.heads import (
    discriminator,
    masked_lm,
    next_sentence,
    open_entities,
    question_answering,
    sentence_order,
    sequence_classifier,
    token_classifier,
)
from mlxbert.nn.heads.head import PRETRAINING, Head, HeadSpec
from mlxbert.nn.ops import backend

HEADS: dict[str, HeadSpec] = {
    "masked_lm": masked_lm.SPEC,
    "next_sentence": next_sentence.SPEC,
    "sentence_order": sentence_order.SPEC,
    "sequence_classifier": sequence_classifier.SPEC,
    "token_classifier": token_classifier.SPEC,
    "question_answering": question_answering.SPEC,
    "discriminator": discriminator.SPEC,
    "open_entities": open_entities.SPEC,
}

# The head that each task needs, by the name of the task; `None` where the encoder is enough. A model whose family has
# another head for the task needs that one (see `head_of`).
TASKS: dict[str, str | None] = {}
for _name, _spec in HEADS.items():
    if _spec.task is not None:
        TASKS.setdefault(_spec.task, _name)
TASKS["embed"] = None
OWN_LAYERS = tuple(spec.own for spec in HEADS.values() if spec.own is not None)
FINE_TUNED = tuple(name for name, spec in HEADS.items() if spec.peft_type is not None)


def is_tied(parts: Iterable[str]) -> bool:
    """Whether one of these heads uses the word embedding table as its last layer; `parts` may include the pooler."""
    return any(part in HEADS and HEADS[part].scope == "vocabulary" for part in parts)


def has_own(heads: Iterable[str], labels: Labels | None) -> bool:
    """Whether at least one of these heads, with these labels, does not exist in transformers."""
    return any(HEADS[head].is_own(labels) for head in heads if head in HEADS)


def head_of(task: str, config: EncoderConfig) -> str | None:
    """Returns the head that a task needs in a model with this configuration; `None` if the encoder is enough."""
    heads = (name for name, spec in HEADS.items() if spec.task == task and name in config.heads)
    return next(heads, TASKS[task])


def task_parts(task: str, config: EncoderConfig) -> tuple[str, ...]:
    """Returns the optional parts of a model that a task needs: the pooler and heads."""
    head = head_of(task, config)
    return () if head is None else head_parts(head, config)


def missing_parts(task: str, config: EncoderConfig, parts: Container[str]) -> list[str]:
    """Returns the parts that a task needs and a model with `parts` lacks; empty if the model can do the task."""
    return [part for part in task_parts(task, config) if part not in parts]


def head_parts(head: str, config: EncoderConfig) -> tuple[str, ...]:
    """Returns the optional parts of a model that a head needs, including the head itself."""
    return ("pooler", head) if takes_pooler(head, config) else (head,)


def takes_pooler(head: str, config: EncoderConfig) -> bool:
    """Whether a head takes the pooler's output."""
    spec = HEADS[head]
    return spec.pooler(config.heads.get(head, spec.facts), config.labels)


def titles(parts: Sequence[str]) -> str:
    """Names the parts of a model in words for users: `pooler and next-sentence head`."""
    return " and ".join(HEADS[part].title if part in HEADS else part for part in parts)


def class_names(prefix: str, heads: Sequence[str]) -> list[str]:
    """Returns the `architectures` of a `config.json` for a network with these heads.

    Args:
        prefix: The prefix of the family's class names.
        heads: Keys of `HEADS`.
    """
    suffixes = [HEADS[head].class_names for head in heads] or [("Model",)]
    pretraining = [names for names in suffixes if PRETRAINING in names]
    # The class for pre-training, if the model has several of its heads, or a head that no other class has.
    joint = len(pretraining) > 1 or (PRETRAINING,) in pretraining
    chosen = [PRETRAINING] if joint else []
    chosen += [names[0] for names in suffixes if not (joint and names in pretraining)]
    return [prefix + suffix for suffix in dict.fromkeys(chosen)]


def probabilities(logits: mx.array) -> mx.array:
    """Softmax over the last axis, in float32, accurate for rows as long as a vocabulary."""
    return backend().softmax(logits.astype(mx.float32))


class Network(nn.Module):
    """An encoder with heads; calling it runs the encoder only."""

    def __init__(self, config: EncoderConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        clear_when_thread_ends()  # MLX's layers begin with random numbers
        self.encoder = Encoder(config)
        self.heads: dict[str, Head] = {name: HEADS[name].module(config, config.heads[name]) for name in heads}

    def __call__(
        self,
        input_ids: mx.array,
        attention_mask: mx.array | None = None,
        token_type_ids: mx.array | None = None,
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Runs the encoder on arrays from any source (see `Encoder`).

        The ids are checked, for which the device has to finish its work once. Inside `mx.compile`, arrays have no
        values yet, and nothing is checked. `encode` takes batches whose ids are known.
        """
        _check_inputs(self.encoder.config, input_ids, attention_mask, token_type_ids)
        return self.encoder(
            input_ids,
            attention_mask,
            token_type_ids,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )

    def encode(self, batch: Batch, *, output_attentions: bool = False) -> EncoderOutput:
        """Runs the encoder on a batch, without waiting for the device if the batch has `ids`."""
        run: Callable[..., EncoderOutput] = self
        if batch.ids is not None:
            batch.ids.check(self.encoder.config)
            run = self.encoder
        arrays = batch.input_ids, batch.attention_mask, batch.token_type_ids
        output = run(*arrays, output_attentions=output_attentions)
        return output if batch.labelled_words is None else replace(output, labelled_words=batch.labelled_words)

    def logits(self, head: str, inputs: Batch | EncoderOutput) -> mx.array:
        """Computes the scores of a head.

        Args:
            head: One of `HEADS` that the network has.
            inputs: A batch for the encoder, or the encoder's output, which several heads can share.

        Returns:
            (B, classes) for heads over texts, (…, classes) for heads over tokens and spans, (…, V) for heads over the
            vocabulary, (…) for the discriminator; see the head's class.
        """
        if head not in self.heads:
            expected = f"expected one of {', '.join(self.heads)}" if self.heads else "but the network has no heads"
            raise ArgumentError(f"`head` is {head!r:.60}, {expected}")
        if isinstance(inputs, Batch):
            inputs = self.encode(inputs)
        if not isinstance(inputs, EncoderOutput):
            raise ArgumentError(f"`inputs` are {inputs!r:.60}, expected a Batch or the output of the network")
        return self.heads[head](inputs, self.encoder)


def _check_inputs(
    config: EncoderConfig, input_ids: mx.array, attention_mask: mx.array | None, token_type_ids: mx.array | None
) -> None:
    """Checks the inputs of `Network.__call__`."""
    integers = isinstance(input_ids, mx.array) and mx.issubdtype(input_ids.dtype, mx.integer) and input_ids.ndim == 2
    if not integers or not input_ids.size:
        raise InputError("`input_ids` must be a non-empty mx.array of integers of shape (B, L)")
    for name, array in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
        if array is not None and (not isinstance(array, mx.array) or array.shape != input_ids.shape):
            actual = f"has shape {array.shape}" if isinstance(array, mx.array) else f"is {array!r:.60}"
            raise InputError(f"`{name}` {actual}, expected an mx.array of the shape of `input_ids`, {input_ids.shape}")
    tables = [("input_ids", input_ids, config.vocab_size, "vocabulary")]
    if token_type_ids is not None and config.type_vocab_size:  # a model without segments ignores them
        if not mx.issubdtype(token_type_ids.dtype, mx.integer):
            raise InputError(f"`token_type_ids` has dtype {token_type_ids.dtype}, expected integers")
        tables.append(("token_type_ids", token_type_ids, config.type_vocab_size, "table of segments"))
    real = mx.ones((1, 1)) if attention_mask is None else (attention_mask != 0).astype(mx.int64)
    bounds = [bound.astype(mx.int64) for _, ids, _, _ in tables for bound in (ids.min(), ids.max())]
    bounds.append((real[:, 1:] > real[:, :-1]).any().astype(mx.int64))
    try:
        *limits, padded_left = cast(list[int], mx.stack(bounds).tolist())
    except ValueError:  # MLX: "Attempting to eval an array during function transformations"
        return
    if padded_left and isinstance(config.positions, Rotary) and config.positions.causal:
        raise InputError(
            "`attention_mask` has padding before tokens, but the model attends to earlier positions",
            hint="put all padding after the tokens",
        )
    for (name, _, rows, table), low, high in zip(tables, limits[::2], limits[1::2], strict=True):
        check_rows(name, low, high, rows, table)
