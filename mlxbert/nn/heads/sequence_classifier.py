"""The classification head of whole texts. Shapes: B batch."""

from dataclasses import dataclass

from mlxbert.config import EncoderConfig, HeadFacts
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, nn
from mlxbert.nn.dropout import Dropout
from mlxbert.nn.embedder import Embedder, EmbeddingConfig, parse_poolings
from mlxbert.nn.encoder import Encoder, EncoderOutput
from mlxbert.nn.heads.head import DenseTransform, Head, HeadSpec, OwnLayer, num_labels, pooled
from mlxbert.nn.pooling import POOLINGS, pool


@dataclass(frozen=True)
class Facts(HeadFacts):
    """The facts in which families differ; without a `transform` it takes the output of the encoder's pooler.

    Attributes:
        pooled_dropout: Rate of dropout on the pooled vector, before the transform.
        pooling: `cls` or `mean`, where it does not take the pooler.
    """

    pooled_dropout: float | None = None
    pooling: str = "cls"


class SequenceClassifier(nn.Module):
    """Scores of the classes of a whole input."""

    def __init__(self, config: EncoderConfig, facts: Facts, classes: int) -> None:
        super().__init__()
        if facts.transform is not None:
            self.transform = DenseTransform(config, facts.transform, config.hidden_size)
            self.pooled_dropout = Dropout(facts.pooled_dropout)
        self.dropout = Dropout(facts.dropout)
        self.out = nn.Linear(config.hidden_size, classes)
        self.pooling = facts.pooling

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (B, classes)."""
        if "transform" not in self:
            return self.out(self.dropout(pooled(output)))
        vector = pool(self.pooling, output).astype(output.last_hidden_state.dtype)
        return self.out(self.dropout(self.transform(self.pooled_dropout(vector))))


class VectorClassifier(nn.Module):
    """Scores of the classes of a whole input: a linear function of its vector, where the labels have a pooling."""

    def __init__(self, config: EncoderConfig, pooling: str) -> None:
        super().__init__()
        self.embedder = Embedder(EmbeddingConfig(parse_poolings(pooling)), config.hidden_size)
        self.linear = nn.Linear(self.embedder.size, num_labels(config))

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Logits (B, classes)."""
        return self.linear(self.embedder(output).astype(output.last_hidden_state.dtype))


def _build(config: EncoderConfig, facts: Facts) -> Head:
    if config.labels is not None and config.labels.head_pooling:
        return VectorClassifier(config, config.labels.head_pooling)
    return SequenceClassifier(config, facts, num_labels(config))


def _pooling_problem(labels: Labels) -> str | None:
    known = [name for name in POOLINGS if name != "attention"]
    if labels.head_pooling is None or {*str(labels.head_pooling).split("+")} <= {*known}:
        return None
    return f"one of {', '.join(known)}, or several joined by '+'"


_OWN = OwnLayer(
    option="head_pooling",
    stem="vector_classifier",
    problem=_pooling_problem,
    note="vector_classifier.safetensors holds the classifier, a logistic regression on the vectors of texts, which "
    "is mlxbert's own: other programs open the encoder alone, for vectors",
    alone=True,
)

SPEC = HeadSpec(
    module=_build,
    scope="text",
    class_names=("ForSequenceClassification",),
    facts=Facts(),
    stems={"out": "classifier", "linear": "vector_classifier"},
    pooler=lambda facts, labels: facts.transform is None and not _OWN.used(labels),
    labelled=True,
    own=_OWN,
    peft_type="SEQ_CLS",
    task="classify",
    title="classification head",
    hint="distilbert/distilbert-base-uncased-finetuned-sst-2-english has one; for your own labels: "
    "mlxbert finetune classify --train FILE --output FOLDER, or, without training, --labels A,B "
    "with an NLI model: --model FacebookAI/roberta-large-mnli",
)
