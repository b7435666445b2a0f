"""The first step next to transformers in double precision: the loss and every gradient; and the folders of a run."""

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.goldens.golden_outputs import load_network
from mlxbert.machine.device import mx, scalar
from mlxbert.train.files.trained_model import write_trained
from mlxbert.train.loop.gradients import Differentiator, dropout_key
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.pretraining.chunks import full_sentences, sentence_pairs
from mlxbert.train.pretraining.electra_pretraining import (
    GENERATOR,
    ElectraInputs,
    discriminator_of,
    generator_of,
    write_generator,
)  # fmt: skip
from mlxbert.train.pretraining.objective import TERMS, Pretraining, read_terms
from mlxbert.weights.build import parameters
from tests.helpers.gradients import assert_same_gradients, our_step, their_gradients
from tests.train.pretraining import electras
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
    some = [*examples(found, chunks, pairs=pairs)[0]][:12]
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
    given: dict[str, Any] = {"config": tmp_path / "config.json", "vocabulary": model_folder(tmp_path / "vocabulary")}
    text = text_file(tmp_path / "text.txt")
    assert [*mlxbert.pretrain(text, output=tmp_path / "out", objective=objective, steps=2, length=24, **given)]
    theirs = opened(tmp_path / "out", kind)
    output = theirs(torch.tensor(IDS))
    same_logits(tmp_path / "out", output.logits if objective == "mlm" else output.prediction_logits)


IDS = [[2, 7, 9, 4, 3]]


def opened(folder: Path, kind: Any) -> Any:
    """A model of transformers with nothing missing and nothing left."""
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert {name: list(problems) for name, problems in report.items() if problems} == {}
    return model.eval()


def same_logits(folder: Path, theirs: Any) -> None:
    ours = mlxbert.load(folder, dtype="float32")
    head = next(iter(ours.network.heads))
    logits = np.array(ours.network.logits(head, ours.network(mx.array(IDS))))
    assert np.abs(logits - theirs.detach().numpy()).max() < 1e-5


KINDS = {"": transformers.ElectraForPreTraining, GENERATOR: transformers.ElectraForMaskedLM}


def _their_models(folder: Path) -> tuple[Any, Any]:
    """Discriminator and generator in double precision, with the same embeddings."""
    found, writes = (opened(folder / inner, kind).double().train() for inner, kind in KINDS.items())
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
        setattr(writes.electra.embeddings, name, getattr(found.electra.embeddings, name))
    # A sample may be the token of padding: torch leaves its row without a gradient, the authors' code does not.
    found.electra.embeddings.word_embeddings.padding_idx = None
    writes.generator_lm_head.weight = found.electra.embeddings.word_embeddings.weight
    return found, writes


def _loss_of_electra(found: Any, writes: Any, batch: TrainBatch, ids: Any) -> Any:
    """The loss as in the authors' code, for the samples of ours."""
    inputs, targets = batch.inputs, batch.targets
    mask, segments, replaced, clean, rows, columns, originals = (
        torch.tensor(np.array(array)).long()
        for array in (
            *(inputs.attention_mask, inputs.token_type_ids, ids, targets.clean),
            *(targets.rows, targets.columns, targets.originals),
        )
    )
    hidden = torch.tensor(np.array(targets.counted)) > 0
    given = {"attention_mask": mask, "token_type_ids": segments}
    words = writes(torch.tensor(np.array(inputs.input_ids)).long(), **given).logits[rows, columns][hidden]
    scores = found(replaced, **given).logits
    labels = (replaced != clean).double()
    binary = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    return torch.nn.functional.cross_entropy(words, originals[hidden]) + 50 * (binary * mask).sum() / mask.sum()


@pytest.mark.parametrize("width", [16, 24, 8])  # with both projections, and with that of one network alone
def test_the_first_step_of_electra_is_that_of_torch(width: int, tmp_path: Path) -> None:
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, out = electras.Folder(tmp_path).model(embedding_size=width, **rates), tmp_path / "out"
    out.mkdir()
    write_trained(discriminator_of(model), out, partial(write_generator, model))
    network, texts = model.network, electras.examples((9, 32, 14, 21))
    task = electras.objective(network)
    batch = replace(task.collate(texts, random.Random(0)), totals=task.totals(texts))
    network.train()
    inputs = ElectraInputs(network, batch.inputs, batch.targets)
    alone = generator_of(model).network.logits("masked_lm", batch.inputs)[batch.targets.rows, batch.targets.columns]
    assert mx.allclose(alone, inputs.words, rtol=1e-6, atol=1e-6)
    found, writes = _their_models(out)
    loss = _loss_of_electra(found, writes, batch, inputs.ids)
    loss.backward()
    theirs = their_gradients(found, tmp_path / "gradients")
    written = their_gradients(writes, tmp_path / "gradients" / GENERATOR)
    theirs |= {f"generator.{name}": array for name, array in written.items()}

    def ours(network: Any) -> mx.array:
        return mx.stack([*task.terms(network, batch)[0].values()]).sum()

    value, gradients = our_step(network, ours)
    assert value == pytest.approx(loss.item(), rel=1e-6)
    assert gradients.keys() <= theirs.keys()
    shared = theirs.keys() - gradients.keys()  # each once in ours
    assert {name.removeprefix("generator.") for name in shared} < gradients.keys() and len(shared) == 5
    assert_same_gradients(gradients, {name: theirs[name] for name in gradients}, 2e-5)


def test_transformers_opens_both_models_of_electra(tmp_path: Path) -> None:
    out = electras.Folder(tmp_path).train("out")
    for inner, kind in KINDS.items():
        same_logits(out / inner, opened(out / inner, kind)(torch.tensor(IDS)).logits)
