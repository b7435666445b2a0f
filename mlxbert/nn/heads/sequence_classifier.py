"""The classification head for whole texts. Shapes: B batch."""

from dataclasses import dataclass, replace

from mlxbert.config import EncoderConfig, HeadFacts
from mlxbert.labels.labels import VECTOR_CLASSIFIER, Labels
from mlxbert.machine.device import mx, nn
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.embedder import Embedder, EmbeddingConfig, parse_poolings
from mlxbert.nn.encoder import Encoder, EncoderOutput
from mlxbert.nn.heads.head import DenseTransform, Head, HeadSpec, OwnLayer, num_labels, pooled
from mlxbert.nn.ops import Linear
from mlxbert.nn.pooling import POOLINGS, pool


@dataclass(frozen=True)
class ClassifierFacts(HeadFacts):
    """The settings in which the classifiers of families differ."""

    pooled_dropout: float | None = None  # rate of dropout on the pooled vector, before the transform
    # How hidden states are pooled to one vector; `None` if the head takes the pooler's output.
    pooling: str | None = None
    late: bool = False  # whether the head scores every token and pools the scores, instead of pooling hidden states
    bias: bool = True  # whether the last layer has a bias
    # A token id that is never pooled, not even within a text; `None` if there is none. In transformers, classifiers of
    # language models recognize padding only by its id.
    skipped: int | None = None


class SequenceClassifier(nn.Module):
    """Scores the classes of a whole input."""

    def __init__(self, config: EncoderConfig, facts: ClassifierFacts, classes: int) -> None:
        super().__init__()
        if facts.transform is not None:
            self.transform = DenseTransform(config, facts.transform, config.hidden_size)
            self.pooled_dropout = KeyedDropout(facts.pooled_dropout)
        self.dropout = KeyedDropout(facts.dropout)
        self.out = Linear(config.hidden_size, classes, bias=facts.bias)
        self.pooling, self.late, self.skipped = facts.pooling, facts.late, facts.skipped

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (B, classes)."""
        if self.late:
            return self._pooled(replace(output, last_hidden_state=self._scores(output.last_hidden_state)))
        return self._scores(self._pooled(output))

    def _pooled(self, output: EncoderOutput) -> mx.array:
        if self.pooling is None:
            return pooled(output)
        mask = output.attention_mask
        if self.skipped is not None and output.input_ids is not None:
            kept = output.input_ids != self.skipped
            mask = kept if mask is None else mx.logical_and(mask != 0, kept)
        return pool(self.pooling, output, mask).astype(output.last_hidden_state.dtype)

    def _scores(self, x: mx.array) -> mx.array:
        x = self.transform(self.pooled_dropout(x)) if "transform" in self else x
        return self.out(self.dropout(x))


class VectorClassifier(nn.Module):
    """Scores the classes of a whole input by a linear layer over its vector, for labels that have a `head_pooling`."""

    def __init__(self, config: EncoderConfig, pooling: str) -> None:
        super().__init__()
        self.embedder = Embedder(EmbeddingConfig(parse_poolings(pooling)), config.hidden_size)
        self.linear = Linear(self.embedder.size, num_labels(config))

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (B, classes)."""
        return self.linear(self.embedder(output).astype(output.last_hidden_state.dtype))


def _build(config: EncoderConfig, facts: ClassifierFacts) -> Head:
    if config.labels is not None and config.labels.head_pooling:
        return VectorClassifier(config, config.labels.head_pooling)
    return SequenceClassifier(config, facts, num_labels(config))


def _pooling_problem(labels: Labels) -> str | None:
    names = [name for name in POOLINGS if name != "attention"]
    if labels.head_pooling is None or {*str(labels.head_pooling).split("+")} <= {*names}:
        return None
    return f"one of {', '.join(names)}, or several joined by '+'"


_OWN = OwnLayer(
    option="head_pooling",
    stem=VECTOR_CLASSIFIER,
    problem=_pooling_problem,
    content="vector_classifier.safetensors holds the classifier, a logistic regression on the vectors of texts, which "
    "is mlxbert's own",
    others="sentence-transformers opens the folder as an embedding model, transformers does not open it",
    elsewhere="sentence-transformers, as an embedding model",
    instead="`few_shot=False` trains a classifier that transformers opens",
    alone=True,
)

SPEC = HeadSpec(
    module=_build,
    scope="text",
    class_names=("ForSequenceClassification",),
    facts=ClassifierFacts(),
    stems={"out": "classifier", "linear": VECTOR_CLASSIFIER},
    pooler=lambda facts, labels: facts.pooling is None and not _OWN.used(labels),
    labelled=True,
    own=_OWN,
    peft_type="SEQ_CLS",
    task="classify",
    title="classification head",
    hint="distilbert/distilbert-base-uncased-finetuned-sst-2-english has one; for your own labels: "
    "`mlxbert.finetune('classify', train=FILE, output=FOLDER)`, or, without training, "
    "`mlxbert.classify(model, texts, labels=['A', 'B'])`, best with an NLI model: FacebookAI/roberta-large-mnli",
)
