"""The first step next to transformers in double precision: the loss and every gradient."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.goldens.golden_outputs import load_network
from mlxbert.machine.device import mx, scalar
from mlxbert.train.loop.gradients import Differentiator, dropout_key
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.pretraining.chunks import full_sentences, sentence_pairs
from mlxbert.train.pretraining.objective import TERMS, Pretraining, read_terms
from mlxbert.weights.build import parameters
from tests.helpers.gradients import assert_same_gradients, their_gradients
from tests.train.pretraining.corpora import WORDS, examples, random_corpus
from tests.train.pretraining.files import model_folder, text_file

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")
from tests.helpers.authors import neobert  # noqa: E402 - it imports torch

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 80,
    "max_position_embeddings": 80, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1, "layer_norm_eps": 1e-5, "pad_token_id": 0,
}  # fmt: skip
_OF_NEOBERT = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("initializer_range", "pad_token_id"),
)
# By objectives, and what else is special.
CASES = {
    "mlm": (transformers.BertForMaskedLM, transformers.BertConfig(**SIZES)),
    "mlm,nsp": (transformers.BertForPreTraining, transformers.BertConfig(**SIZES)),
    "mlm,sop": (
        transformers.AlbertForPreTraining,
        transformers.AlbertConfig(**SIZES, embedding_size=16, classifier_dropout_prob=0.0),
    ),
    "mlm of NeoBERT": (
        neobert.NeoBERTLMHead,
        neobert.NeoBERTConfig(**{key: SIZES[key] for key in _OF_NEOBERT}, max_length=80, norm_eps=1e-5),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_step_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    (kind, config), objective = CASES[case], case.partition(" ")[0]
    model = kind(config).double()
    model.float().save_pretrained(tmp_path / "start")
    model = model.double()
    found = random_corpus(60)
    pairs: Any = {"mlm": None, "mlm,nsp": "next", "mlm,sop": "order"}[objective]
    chunks = full_sentences(found, 60) if pairs is None else sentence_pairs(found, 60, 0)
    some = examples(found, chunks, pairs=pairs)[0][:12]
    network = load_network(tmp_path / "start")
    network.train()
    ours = Pretraining({TERMS[name](): weight for name, weight in read_terms(objective).items()})
    ours.use(network.encoder.config)
    totals = ours.totals(some)

    def part(numbers: range) -> tuple[TrainBatch, mx.array]:
        batch = ours.collate([some[number] for number in numbers], random.Random(0))
        return replace(batch, totals=totals), dropout_key(0)

    weights = parameters(network)
    got = Differentiator(network, ours, mx.float32)(weights, [lambda: part(range(5)), lambda: part(range(5, 12))])
    loss = _their_loss(model, objective, some)
    loss.backward()
    assert scalar(got.loss) == pytest.approx(float(loss), rel=1e-5)
    assert scalar(got.weight) == pytest.approx(1.0)
    found_arrays = {name: np.array(array) for name, array in got.arrays.items()}
    assert_same_gradients(found_arrays, their_gradients(model, tmp_path / "gradients"), 2e-5)


def _their_loss(model: Any, objective: str, some: list[Any]) -> Any:
    length = max(map(len, some))

    def rows(name: str) -> Any:
        padded = [np.pad(getattr(one, name), (0, length - len(one))) for one in some]
        return torch.tensor(np.stack(padded).astype(np.int64))

    labels = torch.full((len(some), length), -100)
    for row, one in enumerate(some):
        labels[row, one.places] = torch.tensor(one.originals.astype(np.int64))
    mask = torch.tensor([[1] * len(one) + [0] * (length - len(one)) for one in some])
    inputs = {"input_ids": rows("ids"), "attention_mask": mask, "token_type_ids": rows("segments")}
    if objective == "mlm":
        return model(**inputs, labels=labels).loss
    second = {"mlm,nsp": "next_sentence_label", "mlm,sop": "sentence_order_label"}[objective]
    return model(**inputs, labels=labels, **{second: torch.tensor([one.label for one in some])}).loss


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_opens_in_transformers(case: str, tmp_path: Path) -> None:
    (kind, config), objective = CASES[case], case.partition(" ")[0]
    values = {**config.to_dict(), "vocab_size": 60, "max_position_embeddings": 40}
    (tmp_path / "config.json").write_text(json.dumps(values))
    text = text_file(tmp_path / "text.txt")
    vocabulary = model_folder(tmp_path / "vocabulary")
    for _ in mlxbert.pretrain(
        text, output=tmp_path / "out", config=tmp_path / "config.json", vocabulary=vocabulary, objective=objective,
        steps=2, length=24,
    ):  # fmt: skip
        pass
    theirs, report = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ours = mlxbert.load(tmp_path / "out", dtype="float32")
    ids = [[2, 7, 9, 4, 3]]
    output = theirs.eval()(torch.tensor(ids))
    logits = output.logits if objective == "mlm" else output.prediction_logits
    mine = np.array(ours.network.logits("masked_lm", ours.network(mx.array(ids))))
    assert np.abs(mine - logits.detach().numpy()).max() < 1e-4
