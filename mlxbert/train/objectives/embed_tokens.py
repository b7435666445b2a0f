"""The objective of token vectors: a query gets a higher MaxSim with its document than with other documents.

Shapes: T texts in a batch, L tokens of the longest possible input, W size of a vector.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlxbert.errors import ArgumentError, TokenizerError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.embedder import Dense, Normalize
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.nn.token_embedder import MAXSIM, TokenConfig, TokenEmbedder, TokenSide
from mlxbert.text.encoding import Encoding
from mlxbert.text.token_inputs import TokenInputs
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.related_texts import Related
from mlxbert.train.files.trained_model import check_writable
from mlxbert.train.nn.vector_losses import late_interaction
from mlxbert.train.objectives.embed import Embed
from mlxbert.train.objectives.objective import Predictions, Split
from mlxbert.train.objectives.vector_objective import TextGroup
from mlxbert.train.options.training_tasks import VectorLearning
from mlxbert.train.scores import vector_scores as scoring
from mlxbert.train.scores.evaluation_summary import Evaluation

_SIZE = 128  # as in PyLate
_QUERY, _DOCUMENT = 32, 180  # tokens, as in PyLate
_MARKERS = "[unused0]", "[unused1]"  # as in Stanford's ColBERT
_PUNCTUATION = tuple("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_OF_ONE_VECTOR = ("loss", "margin", "symmetric", "max_score", "pooling", "normalize")


class EmbedTokens(Embed):
    """Embedding of tokens, trained with in-batch negatives (ColBERT, arXiv:2004.12832).

    A model that already gives token vectors keeps its settings and its layers. Any other model gets a new linear
    layer and the settings of ColBERT.
    """

    embedder: TokenEmbedder  # type: ignore[assignment]
    usual_temperature = 1.0  # as in PyLate
    adds_layers = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in _OF_ONE_VECTOR:
            value = getattr(self.learning, name)
            if value not in (getattr(VectorLearning, name), "in-batch"):
                raise ArgumentError(f"`{name}` is {value!r:.60}, but token vectors have no such option")
        sizes = self.learning.dimensions
        if sizes is not None and len(sizes) != 1:
            raise ArgumentError(f"`dimensions` is {sizes!r:.60}, expected one number, the size of the token vectors")
        self._size = _SIZE if sizes is None else sizes[0]

    def read(self, rows: LabelledRows) -> list[Related]:
        records = super().read(rows)
        if any(record.label is not None or not record.positives for record in records):
            raise ArgumentError(
                "the data are not pairs of texts that belong together, which token vectors are trained on"
            )
        return records

    def check_teacher(self) -> None:
        raise ArgumentError("`teacher` cannot be combined with token vectors")

    def bind(self, model: Model) -> None:
        self.config = model.network.encoder.config
        if "token_embedder" not in model.network:
            model.network.token_embedder = (
                model.token_embedder if "tokens" in model.vectors else self._new(model.tokenizer)
            )
        self.embedder = model.network.token_embedder
        check_writable(self.embedder)
        config, tokenizer = self.embedder.config, model.tokenizer.adapted(lower_case=self.embedder.config.lower_case)
        self._inputs = {kind: TokenInputs(tokenizer, config.side(kind)) for kind in ("query", "document")}
        self.tokenizer = self._inputs["document"].tokenizer
        self._longest = max(inputs.tokenizer.max_length for inputs in self._inputs.values())
        self._queries = config.query.expand or self._inputs["query"].tokenizer.max_length
        self.width = self._longest * self.embedder.size
        if model.labels is not None:
            self.labels = model.labels

    def _new(self, tokenizer: Tokenizer) -> TokenEmbedder:
        """Makes the layers and the settings of a model that gave no token vectors before."""
        known = all(tokenizer.token_id(marker) is not None for marker in _MARKERS)
        query, document = _MARKERS if known else ("", "")
        if tokenizer.mask_token is None:
            raise TokenizerError("the vocabulary has no mask token, which queries are filled with")
        longest = min(self.max_length or _DOCUMENT, tokenizer.max_length)
        expand = min(_QUERY, longest)
        config = TokenConfig(
            query=TokenSide(marker=query, length=expand, expand=expand),
            document=TokenSide(marker=document, length=longest, skipped=_PUNCTUATION, skips_unknown=True),
            similarity=MAXSIM,
        )
        width = self.config.hidden_size
        dense = Dense(width, self._size, bias=False, activation="linear")
        bound = width**-0.5  # as in PyTorch
        dense.linear.weight = mx.random.uniform(-bound, bound, (self._size, width), key=mx.random.key(self.seed))
        return TokenEmbedder(config, width, [dense, Normalize()])

    def _encode(self, text: str, kind: str | None) -> Encoding:
        return self._inputs["query" if kind == "query" else "document"].encode(text)

    def outputs(self, network: Network, inputs: Batch) -> mx.array:
        """Computes the vectors of all tokens, padded to the longest possible input: float32 (T, L · W)."""
        vectors = self.predict(network, inputs)[:, : self._longest]  # a GPU gets longer batches, whose ends are padding
        padded = mx.pad(vectors, [(0, 0), (0, self._longest - vectors.shape[1]), (0, 0)])
        return padded.reshape(len(vectors), self.width)

    def targets(self, examples: Sequence[TextGroup]) -> dict[str, mx.array]:
        """Returns the targets of the loss, and which tokens of each text count, (T, L)."""
        texts = [(encoding, row == 0) for example in examples for row, encoding in enumerate(example.encodings)]
        counted = np.zeros((len(texts), self._longest), dtype=bool)
        for row, (encoding, is_query) in enumerate(texts):
            counted[row, self._inputs["query" if is_query else "document"].places(encoding)] = True
        return self._loss.targets(examples) | {"counted": mx.array(counted)}

    def compare(self, outputs: mx.array, targets: Mapping[str, mx.array]) -> tuple[mx.array, float]:
        vectors, counted = outputs.reshape(len(outputs), self._longest, -1), targets["counted"]
        anchors, candidates = targets["anchors"], targets["candidates"]
        loss = late_interaction(
            vectors[anchors, : self._queries], counted[anchors, : self._queries], vectors[candidates],
            counted[candidates], targets["excluded"], temperature=self.temperature,
        )  # fmt: skip
        return loss, float(len(anchors))

    def predict(self, network: Network, inputs: Batch) -> mx.array:
        """Computes the vectors of all tokens, float32 (T, length, W)."""
        hidden = network.encoder(inputs.input_ids, inputs.attention_mask, inputs.token_type_ids)
        vectors: mx.array = network.token_embedder(hidden.last_hidden_state)
        return vectors

    def _counted(self, examples: Sequence[TextGroup], predictions: Predictions) -> np.ndarray[Any, Any]:
        """Returns the token vectors that count, an array for each text."""
        texts = [
            (encoding, "query" if row == 0 else "document")
            for example in examples for row, encoding in enumerate(example.evaluated)
        ]  # fmt: skip
        arrays = np.empty(len(texts), dtype=object)
        for row, ((encoding, kind), vectors) in enumerate(zip(texts, predictions, strict=True)):
            arrays[row] = np.asarray(vectors)[self._inputs[kind].places(encoding)]
        return arrays

    def metrics(self, examples: Sequence[TextGroup], predictions: Predictions) -> dict[str, float]:
        return scoring.vector_scores(examples, self._counted(examples, predictions), MAXSIM).means()

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        about = {"metric": self.metric, "similarity": MAXSIM, **facts}
        return scoring.evaluation(part.records, part.examples, self._counted(part.examples, predictions), **about)

    def baselines(self, model: Model, train: Sequence[Related], valid: Sequence[Related]) -> dict[str, float]:
        """Returns nothing: before training, the new layer of the model is random."""
        return {}
