"""Heads: the layers that turn the encoder's output into logits, their registry, and the network of encoder and heads.

A head that is added here, with its tensors' names in the families, can be loaded, saved, converted and verified.

Shapes: B batch, L length, M masked positions, D hidden size, E embedding size, V vocabulary.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from mlxbert.config import EncoderConfig, HeadConfig, Transform
from mlxbert.errors import ArgumentError, CheckpointError, InputError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.activations import activate, check_activation
from mlxbert.nn.blocks import layer_norm
from mlxbert.nn.cpu import kernels
from mlxbert.nn.crf import CRF
from mlxbert.nn.dropout import Dropout
from mlxbert.nn.embedder import Embedder, EmbeddingConfig, parse_poolings
from mlxbert.nn.encoder import Batch, Encoder, EncoderOutput
from mlxbert.nn.pooling import pool


class Head(Protocol):
    """A head; all have the same signature."""

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits of the output of `encoder`; a tied decoder uses its word embeddings."""


class DenseTransform(nn.Module):
    """A dense layer, an activation, and optionally a norm."""

    def __init__(self, config: EncoderConfig, transform: Transform, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, width, bias=transform.bias)
        if transform.norm:
            self.norm = layer_norm(config, width)
        self.activation = check_activation(transform.activation)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, D) → (…, width)."""
        x = activate(self.activation, self.dense(x))
        return self.norm(x) if "norm" in self else x


class MaskedLM(nn.Module):
    """Scores of every token of the vocabulary; the decoder is tied to the word embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = DenseTransform(config, config.heads.masked_lm, config.embedding_size)
        if config.heads.masked_lm_bias:
            self.bias = mx.zeros(config.vocab_size)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (…, V) of hidden states (…, D).

        The product with the vocabulary is the most expensive of the model: `EncoderOutput.select` the tokens that
        matter first.
        """
        logits = encoder.embeddings.word.as_linear(self.transform(output.last_hidden_state))
        return logits + self.bias if "bias" in self else logits


class SentenceOrder(nn.Module):
    """Whether the second of two texts follows the first: class 0 means that it does."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 2)
        self.dropout = Dropout(config.heads.dropout.sentence_order)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (B, 2) of the pooler's output."""
        return self.dense(self.dropout(_pooled(output)))


class SequenceClassifier(nn.Module):
    """Scores of the classes of a whole input."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        heads = config.heads
        if heads.classifier is not None:
            self.transform = DenseTransform(config, heads.classifier, config.hidden_size)
            self.pooled_dropout = Dropout(heads.dropout.pooled)
        self.dropout = Dropout(heads.dropout.classifier)
        self.out = nn.Linear(config.hidden_size, heads.num_labels)
        self.pooling = heads.classifier_pooling

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (B, classes)."""
        if "transform" not in self:
            return self.out(self.dropout(_pooled(output)))
        pooled = pool(self.pooling, output).astype(output.last_hidden_state.dtype)
        return self.out(self.dropout(self.transform(self.pooled_dropout(pooled))))


class VectorClassifier(nn.Module):
    """Scores of the classes of a whole input: a linear function of its vector, where the labels have a pooling."""

    def __init__(self, config: EncoderConfig, pooling: str) -> None:
        super().__init__()
        self.embedder = Embedder(EmbeddingConfig(parse_poolings(pooling)), config.hidden_size)
        self.linear = nn.Linear(self.embedder.size, config.heads.num_labels)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (B, classes)."""
        return self.linear(self.embedder(output).astype(output.last_hidden_state.dtype))


def _sequence_classifier(config: EncoderConfig) -> Head:
    pooling = config.heads.head_pooling
    return SequenceClassifier(config) if pooling is None else VectorClassifier(config, pooling)


class TokenHead(nn.Module):
    """Scores of every token: of its classes, or of being the first and the last of an answer."""

    def __init__(self, config: EncoderConfig, classes: int, dropout: float | None) -> None:
        super().__init__()
        if config.heads.token is not None:
            self.transform = DenseTransform(config, config.heads.token, config.hidden_size)
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(config.hidden_size, classes)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (…, classes) of hidden states (…, D)."""
        hidden = output.last_hidden_state
        return self.out(self.dropout(self.transform(hidden) if "transform" in self else hidden))


class TokenClassifier(TokenHead):
    """Scores of the classes of every token.

    Its child `crf`, where the labels have one, scores sequences of classes on top: its loss and its decoding take the
    logits of the words.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, config.heads.num_labels, config.heads.dropout.token_classifier)
        if config.heads.labels is not None and config.heads.labels.crf:
            self.crf = CRF(config.heads.labels.names)


class QuestionAnswering(TokenHead):
    """Scores of every token as the first and as the last of the answer."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, 2, config.heads.dropout.question_answering)


class Discriminator(nn.Module):
    """Whether each token replaces another one (ELECTRA, arXiv:2003.10555)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = DenseTransform(config, Transform(config.hidden_act), config.hidden_size)
        self.out = nn.Linear(config.hidden_size, 1)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (…), positive for a replaced token, of hidden states (…, D)."""
        return self.out(self.transform(output.last_hidden_state)).squeeze(-1)


@dataclass(frozen=True)
class HeadSpec:
    """Everything that is specific to a head.

    Attributes:
        name: Its name in the network.
        module: Builds its layers.
        scope: What it scores: the whole `text`, each `token`, the ends of a `span`, or each word of the `vocabulary`.
        class_name: The suffix of the transformers classes that have it.
        pooler: Whether it takes the output of the encoder's pooler.
        labelled: Whether its outputs are the classes that `config.json` names.
        facts: The fields of `HeadConfig` that it depends on.
        task: The task of the command line that needs it, if there is one.
        title: What users call it.
        hint: A model that has it, and how to make one.
    """

    name: str
    module: Callable[[EncoderConfig], Head]
    scope: Literal["text", "token", "span", "vocabulary"]
    class_name: str
    pooler: Callable[[HeadConfig], bool] = lambda facts: False
    labelled: bool = False
    facts: tuple[str, ...] = ()
    task: str | None = None
    title: str = ""
    hint: str = ""


def _always(facts: HeadConfig) -> bool:
    return True


HEADS: dict[str, HeadSpec] = {
    spec.name: spec
    for spec in (
        HeadSpec(
            *("masked_lm", MaskedLM, "vocabulary", "ForMaskedLM"),
            facts=("masked_lm", "masked_lm_bias"),
            task="fill-mask",
            title="masked-word head",
            hint="google-bert/bert-base-uncased has one",
        ),
        HeadSpec(
            *("next_sentence", SentenceOrder, "text", "ForNextSentencePrediction"),
            pooler=_always,
            task="next-sentence",
            title="next-sentence head",
            hint="google-bert/bert-base-uncased has one",
        ),
        HeadSpec(
            *("sentence_order", SentenceOrder, "text", "ForPreTraining"), pooler=_always, title="sentence-order head"
        ),
        HeadSpec(
            *("sequence_classifier", _sequence_classifier, "text", "ForSequenceClassification"),
            pooler=lambda facts: facts.classifier is None and facts.head_pooling is None,
            labelled=True,
            facts=("labels", "classifier", "classifier_pooling"),
            task="classify",
            title="classification head",
            hint="distilbert/distilbert-base-uncased-finetuned-sst-2-english has one; for your own labels: "
            "mlxbert finetune classify --train FILE --output FOLDER, or, without training, --labels A,B "
            "with an NLI model: --model FacebookAI/roberta-large-mnli",
        ),
        HeadSpec(
            *("token_classifier", TokenClassifier, "token", "ForTokenClassification"),
            labelled=True,
            facts=("labels", "token"),
            task="tag",
            title="tagging head",
            hint="dslim/bert-base-NER has one; for your own tags: mlxbert finetune tag --train FILE --output FOLDER",
        ),
        HeadSpec(
            *("question_answering", QuestionAnswering, "span", "ForQuestionAnswering"),
            facts=("token",),
            task="answer",
            title="question-answering head",
            hint="deepset/roberta-base-squad2 has one; for your own data: mlxbert finetune answer --train FILE "
            "--output FOLDER",
        ),
        HeadSpec(
            *("discriminator", Discriminator, "token", "ForPreTraining"),
            task="replaced",
            title="head for replaced tokens",
            hint="google/electra-small-discriminator has one",
        ),
    )
}

# By the name of a task, the head that it needs; `None` where the encoder is enough.
TASKS: dict[str, str | None] = {spec.task: spec.name for spec in HEADS.values() if spec.task} | {"embed": None}


def task_parts(task: str, facts: HeadConfig) -> tuple[str, ...]:
    """The optional parts of a model that a task needs: the pooler, heads."""
    head = TASKS[task]
    return () if head is None else head_parts(head, facts)


def missing_parts(task: str, facts: HeadConfig, parts: Container[str]) -> list[str]:
    """The parts that a task needs and a model with `parts` does not have; empty if the model can do the task."""
    return [part for part in task_parts(task, facts) if part not in parts]


def head_parts(head: str, facts: HeadConfig) -> tuple[str, ...]:
    """The optional parts of a model that a head needs, itself included."""
    return ("pooler", head) if HEADS[head].pooler(facts) else (head,)


def titles(parts: Sequence[str]) -> str:
    """What users call parts of a model: `pooler and next-sentence head`."""
    return " and ".join(HEADS[part].title if part in HEADS else part for part in parts)


def class_names(prefix: str, heads: Sequence[str]) -> list[str]:
    """The `architectures` of a `config.json` for a network with these heads.

    Args:
        prefix: The prefix of the family's class names.
        heads: Names of `HEADS`.
    """
    endings = [HEADS[head].class_name for head in heads] or ["Model"]
    if "ForPreTraining" in endings or {"masked_lm", "next_sentence"} <= {*heads}:
        pretraining = ("ForMaskedLM", "ForNextSentencePrediction")  # the pre-training class has these heads, too
        endings = ["ForPreTraining", *(ending for ending in endings if ending not in pretraining)]
    return [prefix + ending for ending in dict.fromkeys(endings)]


def probabilities(logits: mx.array) -> mx.array:
    """Softmax over the last axis, in float32, accurate for rows as long as a vocabulary, see `kernels.tree_sum`."""
    wide = logits.astype(mx.float32)
    shares = mx.exp(wide - wide.max(axis=-1, keepdims=True))
    return shares / kernels.tree_sum(shares)


class Network(nn.Module):
    """An encoder and the heads on it; calling it runs the encoder alone."""

    def __init__(self, config: EncoderConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.heads: dict[str, Head] = {name: HEADS[name].module(config) for name in heads}

    def __call__(
        self,
        input_ids: mx.array,
        attention_mask: mx.array | None = None,
        token_type_ids: mx.array | None = None,
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Runs the encoder on arrays that may come from anywhere; see `Encoder`.

        Their ids are checked, which waits for the device, except inside `mx.compile`, where arrays have no values yet.

        Raises:
            InputError: `input_ids` are not integers (B, L), another array has another shape, or an id is not a row of
                its table: MLX would read past it.
        """
        _check_inputs(self.encoder.config, input_ids, attention_mask, token_type_ids)
        return self.encoder(
            input_ids,
            attention_mask,
            token_type_ids,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )

    def logits(self, head: str, inputs: Batch | EncoderOutput) -> mx.array:
        """The scores of a head.

        Args:
            head: One of `HEADS` that the network has.
            inputs: A batch, which is run through the encoder; or the encoder's output, which several heads can share.

        Returns:
            (B, classes) for heads over texts, (…, classes) over tokens and spans, (…, V) over the vocabulary, (…) for
            the discriminator; see the head's class.

        Raises:
            ArgumentError: The network does not have this head, or `inputs` is neither.
            InputError: An array of the batch is invalid, see `__call__`.
        """
        if head not in self.heads:
            raise ArgumentError(
                f"head is {head!r:.60}, expected one of this network's: {', '.join(self.heads) or 'it has none'}"
            )
        if isinstance(inputs, Batch):
            inputs = self(inputs.input_ids, inputs.attention_mask, inputs.token_type_ids)
        if not isinstance(inputs, EncoderOutput):
            raise ArgumentError(f"inputs are {inputs!r:.60}, expected a Batch or the output of the network")
        return self.heads[head](inputs, self.encoder)


def _pooled(output: EncoderOutput) -> mx.array:
    if output.pooler_output is None:
        raise CheckpointError("the network has no pooler, whose output this head takes")
    return output.pooler_output


def _check_inputs(
    config: EncoderConfig, input_ids: mx.array, attention_mask: mx.array | None, token_type_ids: mx.array | None
) -> None:
    """Checks the inputs of `Network.__call__`."""
    integers = isinstance(input_ids, mx.array) and mx.issubdtype(input_ids.dtype, mx.integer) and input_ids.ndim == 2
    if not integers or not input_ids.size:
        raise InputError("input_ids: expected an mx.array of integers (B, L), not empty")
    for name, array in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
        if array is not None and (not isinstance(array, mx.array) or array.shape != input_ids.shape):
            found = array.shape if isinstance(array, mx.array) else f"that of {array!r:.60}"
            raise InputError(f"{name}: the shape is {found}, expected {input_ids.shape}, that of input_ids")
    _check_ids("input_ids", input_ids, config.vocab_size, "vocabulary")
    if token_type_ids is not None and config.type_vocab_size:  # a model without segments ignores them
        if not mx.issubdtype(token_type_ids.dtype, mx.integer):
            raise InputError(f"token_type_ids are {token_type_ids.dtype}, expected integers")
        _check_ids("token_type_ids", token_type_ids, config.type_vocab_size, "table of segments")


def _check_ids(name: str, ids: mx.array, rows: int, table: str) -> None:
    try:
        low, high = (cast(int, bound.item()) for bound in (ids.min(), ids.max()))
    except ValueError:  # MLX: "Attempting to eval an array during function transformations"
        return
    if not 0 <= low <= high < rows:
        raise InputError(f"{name} are from {low} to {high}, the {table} has ids from 0 to {rows - 1}")
