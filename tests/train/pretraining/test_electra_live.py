"""ELECTRA next to transformers: the first step of both networks, and the folders that a run writes."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.goldens.golden_outputs import load_network
from mlxbert.machine.device import mx
from mlxbert.train.files.trained_model import write_trained
from mlxbert.train.objectives.objective import TrainBatch
from mlxbert.train.pretraining.electra_pretraining import (
    GENERATOR,
    ElectraInputs,
    discriminator_of,
    generator_of,
    write_generator,
)
from tests.helpers.gradients import arrays_of, assert_same_gradients, our_step
from tests.train.pretraining.electras import Folder, examples, objective

torch = pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
transformers = pytest.importorskip("transformers", reason="live parity needs transformers")

pytestmark = pytest.mark.slow

BOUND = 2e-5
KINDS = {"": "ElectraForPreTraining", GENERATOR: "ElectraForMaskedLM"}


def opened(folder: Path, kind: str) -> Any:
    """A model of transformers with nothing missing and nothing left."""
    model, report = getattr(transformers, kind).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert {name: list(problems) for name, problems in report.items() if problems} == {}
    return model


def _their_models(folder: Path) -> tuple[Any, Any]:
    """Discriminator and generator in double precision, with the same embeddings."""
    found, writes = (opened(folder / inner, kind).double().train() for inner, kind in KINDS.items())
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
        setattr(writes.electra.embeddings, name, getattr(found.electra.embeddings, name))
    # A sample may be the token of padding: torch leaves its row without a gradient, the authors' code does not.
    found.electra.embeddings.word_embeddings.padding_idx = None
    writes.generator_lm_head.weight = found.electra.embeddings.word_embeddings.weight
    return found, writes


def _their_loss(found: Any, writes: Any, batch: TrainBatch, ids: Any) -> Any:
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


def _their_gradients(models: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The gradients by our names: they are saved in the place of the weights and loaded as such."""
    gradients: dict[str, Any] = {}
    for model in models.values():
        for parameter in model.parameters():
            parameter.data = parameter.grad.to(parameter.dtype)
    for inner, model in models.items():
        model.float().save_pretrained(folder / inner)
        prefix = "generator." if inner else ""
        found = arrays_of(load_network(folder / inner).parameters())
        gradients |= {prefix + name: array for name, array in found.items()}
    return gradients


@pytest.mark.parametrize("width", [16, 24, 8])  # with both projections, and with that of one network alone
def test_the_first_step_is_that_of_torch(width: int, tmp_path: Path) -> None:
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, out = Folder(tmp_path).model(embedding_size=width, **rates), tmp_path / "out"
    out.mkdir()

    def describe(folder: Path) -> dict[str, str]:
        write_generator(model, folder)
        return {}

    write_trained(discriminator_of(model), out, describe)
    network, texts = model.network, examples((9, 32, 14, 21))
    task = objective(network)
    batch = TrainBatch(*_parts(task.collate(texts, random.Random(0))), totals=task.totals(texts))
    network.train()
    ids = ElectraInputs(network, batch.inputs, batch.targets).ids
    found, writes = _their_models(out)
    loss = _their_loss(found, writes, batch, ids)
    loss.backward()
    theirs = _their_gradients({"": found, GENERATOR: writes}, tmp_path / "gradients")

    def ours(network: Any) -> mx.array:
        return mx.stack([*task.terms(network, batch)[0].values()]).sum()

    value, gradients = our_step(network, ours)
    assert value == pytest.approx(loss.item(), rel=1e-6)
    assert gradients.keys() <= theirs.keys()
    shared = theirs.keys() - gradients.keys()  # each once in ours
    assert {name.removeprefix("generator.") for name in shared} < gradients.keys() and len(shared) == 5
    assert_same_gradients(gradients, {name: theirs[name] for name in gradients}, BOUND)


def _parts(batch: TrainBatch) -> tuple[Any, Any]:
    return batch.inputs, batch.targets


def test_transformers_opens_both_models(tmp_path: Path) -> None:
    out = Folder(tmp_path).train("out", steps=12)
    tokenizer = transformers.BertTokenizerFast(vocab_file=str(out / "vocab.txt"))
    for inner, kind in KINDS.items():
        theirs, ours = opened(out / inner, kind).eval(), mlxbert.load(out / inner, dtype="float32")
        (head,) = ours.network.heads
        given = tokenizer("the cat sat on [MASK] in paris", return_tensors="pt")
        with torch.no_grad():
            wanted = theirs(**given).logits[0].numpy()
        found = np.array(ours.network.encoder(mx.array(given["input_ids"].numpy())).last_hidden_state)
        assert np.isfinite(found).all()
        logits = ours.network.logits(head, ours.network(mx.array(given["input_ids"].numpy())))
        assert np.array(logits[0]) == pytest.approx(wanted, abs=1e-5, rel=1e-5)


def test_the_generator_alone_is_the_one_that_is_trained(tmp_path: Path) -> None:
    network = (model := Folder(tmp_path).model()).network
    network.eval()
    task = objective(network)
    batch = task.collate(examples(), random.Random(0))
    inputs = ElectraInputs(network, batch.inputs, batch.targets)
    alone = generator_of(model).network.logits("masked_lm", batch.inputs)[batch.targets.rows, batch.targets.columns]
    assert mx.allclose(alone, inputs.words, rtol=1e-6, atol=1e-6)
