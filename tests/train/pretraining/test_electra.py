"""ELECTRA: samples, what counts as replaced, what both networks share, resuming, and the folders."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError
from mlxbert.machine.device import mx, nn, scalar
from mlxbert.nn import dropout
from mlxbert.train.loop.events import Evaluated, Step
from mlxbert.train.pretraining.electra_pretraining import (
    GENERATOR,
    ElectraInputs,
    ReplacedTokens,
    generator_sizes,
    sampled,
)
from mlxbert.train.pretraining.initial_model import find_initial
from mlxbert.weights.build import parameters
from mlxbert.weights.model_source import ModelRef
from tests.helpers.cases import together
from tests.helpers.tiny import CONFIG, tiny_config
from tests.train.pretraining.electras import Folder, examples, objective

DRAWS = 5_000
LAST = float(np.nextafter(np.float32(1), np.float32(0)))
WORD = "encoder.embeddings.word.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("size", [7, 256, 1000])
def test_samples_follow_the_softmax(size: int) -> None:
    rng = np.random.default_rng(size)
    logits = (rng.normal(size=size) * 3).astype(np.float32)
    draws = mx.array(rng.random((DRAWS, 2), np.float32))
    found = np.array(sampled(mx.broadcast_to(mx.array(logits), (DRAWS, size)), draws))
    shares = np.exp(logits - logits.max(), dtype=np.float64)
    shares /= shares.sum()
    counts = np.bincount(found, minlength=size)
    assert len(counts) == size
    error = np.sqrt(DRAWS * shares * (1 - shares))
    assert (np.abs(counts - DRAWS * shares) <= 5 * error + 3).all()


def test_every_number_gives_a_word_of_the_vocabulary_that_has_a_probability() -> None:
    logits = mx.array(np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32))
    found = np.array(sampled(logits, mx.array([[0.0, 0.0], [LAST, LAST], [0.0, LAST], [LAST, 0.0]])))
    assert found.tolist() == [0, 299, 255, 256]
    logits = mx.broadcast_to(mx.array([-200.0, 0.0, -200.0, 0.0, -200.0]), (1000, 5))
    draws = np.random.default_rng(0).random((1000, 2), np.float32)
    assert set(np.array(sampled(logits, mx.array(draws))).tolist()) == {1, 3}


def test_a_sample_that_is_the_original_counts_as_original(folder: Folder) -> None:
    network, texts = folder.network(), examples((9, 20, *[32] * 10))
    batch = objective(network).collate(texts, random.Random(0))
    inputs = ElectraInputs(network, batch.inputs, batch.targets)
    ids, replaced, real = (np.array(array) for array in (inputs.ids, inputs.replaced, inputs.real))
    samples, start = np.array(inputs.samples), 0
    assert inputs.words.shape == (len(samples), CONFIG["vocab_size"])
    for row, example in enumerate(texts):
        expected = example.clean.copy()
        expected[example.places] = samples[start : start + len(example.places)]
        start += len(example.places)
        assert ids[row, : len(example)].tolist() == expected.tolist()
        assert replaced[row, : len(example)].tolist() == (expected != example.clean).tolist()
        assert real[row].sum() == len(example) and not replaced[row, len(example) :].any()
    assert 0 < replaced.sum() < sum(len(example.places) for example in texts)  # some are what stood there
    assert start < len(samples)  # the rest fills up the number
    # Accuracies are shares of real tokens.
    shares = {name: [float(one) for one in pair] for name, pair in ReplacedTokens().counted(inputs).items()}
    right = (np.array(inputs.scores) > 0) == replaced
    assert shares["replaced_accuracy"] == [right[replaced].sum(), replaced.sum()]
    assert shares["original_accuracy"] == [right[real & ~replaced].sum(), (real & ~replaced).sum()]
    assert shares["replaced_share"] == [replaced.sum(), real.sum()]
    # The numbers of the examples decide, and nothing else.
    for given, same in ((texts, True), ([replace(one, draws=np.zeros_like(one.draws)) for one in texts], False)):
        batch = objective(network).collate(given, random.Random(0))
        found = ElectraInputs(network, batch.inputs, batch.targets)
        assert (np.array(found.samples).tolist() == samples.tolist()) == same


def _gradients(network: Any, batch: Any, totals: Any) -> tuple[dict[str, float], dict[str, Any]]:
    task = objective(network)
    terms: dict[str, mx.array] = {}

    def loss(network: Any) -> mx.array:
        found, _ = task.terms(network, type(batch)(batch.inputs, batch.targets, totals=totals))
        terms.update(found)
        return mx.stack([*found.values()]).sum()

    with dropout.seeded(mx.random.key(0)):
        _, gradients = nn.value_and_grad(network, loss)(network)
    return {name: scalar(term) for name, term in terms.items()}, dict(nn.utils.tree_flatten(gradients))


def test_parts_of_a_batch_add_up_and_samples_give_no_gradient(folder: Folder) -> None:
    network, three = folder.network(), examples()
    network.eval()
    task = objective(network)
    batch, totals = task.collate(three, random.Random(0)), task.totals(three)
    terms, both = _gradients(network, batch, totals)
    assert set(terms) == {"mlm", "replaced"}
    parts = [_gradients(network, task.collate(some, random.Random(0)), totals) for some in (three[:1], three[1:])]
    for name, term in terms.items():
        assert term == pytest.approx(sum(terms[name] for terms, _ in parts), rel=1e-5)
    far = max(float(mx.abs(parts[0][1][n] + parts[1][1][n] - array).max()) for n, array in both.items())
    assert far <= 1e-5 * max(float(mx.abs(array).max()) for array in both.values())
    _, alone = _gradients(network, batch, totals | {"replaced": 1e30})  # the generator's term only
    for name, array in both.items():
        if name.startswith("generator."):  # the discriminator's loss changes nothing in it
            assert mx.allclose(array, alone[name], rtol=1e-5, atol=1e-7).item(), name
            assert scalar(mx.abs(array).max()) > 0, name
    assert scalar(mx.abs(both[WORD] - alone[WORD]).max()) > 1e-3  # but in what both share
    tables = {"word.weight", "position.weight", "token_type.weight", "norm.weight", "norm.bias"}
    shared = {name for name in parameters(network) if name.partition("embeddings.")[2] in tables}
    assert shared == {f"encoder.embeddings.{table}" for table in tables}


def test_the_metrics_while_it_runs_and_the_folder_of_two_models(folder: Folder) -> None:
    events = list(folder.run("out", steps=2, eval_every=1, fill=["the cat [MASK] on the mat"]))
    (last,) = [event for event in events if isinstance(event, Evaluated)][-1:]
    assert {"accuracy", "mlm_loss", "replaced_loss", "replaced_accuracy", "original_accuracy"} <= last.metrics.keys()
    assert last.metric == "mlm_loss" and last.filled and "[MASK]" not in last.filled[0]
    assert last.metrics["loss"] == pytest.approx(last.metrics["mlm_loss"] + 50 * last.metrics["replaced_loss"])
    (step, _) = [event for event in events if isinstance(event, Step)]
    assert step.loss == pytest.approx(step.terms["mlm"] + step.terms["replaced"])
    out = folder.folder / "out"
    one, two = mlxbert.load(out, dtype="float32"), mlxbert.load(out / GENERATOR, dtype="float32")
    assert set(one.network.heads) == {"discriminator"} and set(two.network.heads) == {"masked_lm"}
    assert (one.config.hidden_size, two.config.hidden_size) == (24, 8)
    ours, theirs = parameters(one.network), parameters(two.network)
    shared = [name for name in ours if name.startswith("encoder.embeddings.") and "projection" not in name]
    assert len(shared) == 5 and all(mx.array_equal(ours[name], theirs[name]) for name in shared)
    for inner, name in (("", "ElectraForPreTraining"), (GENERATOR, "ElectraForMaskedLM")):
        assert json.loads((out / inner / "config.json").read_text())["architectures"] == [name]
    assert not [*out.rglob(".unfinished")]
    assert len(list(mlxbert.replaced(one, "the cat sat").tokens)) == 3
    folder.train("out", overwrite=True, steps=1)  # all that was written is known, and may be replaced


@pytest.mark.slow
def test_a_run_continues_with_the_generator_of_the_folder_and_refuses_a_foreign_one(folder: Folder) -> None:
    def generator(output: Path) -> dict[str, mx.array]:
        return parameters(mlxbert.load(output / GENERATOR, dtype="float32").network)

    out, other = folder.train("out"), folder.train("other", seed=1)
    trained = generator(out)
    # A rate of 0 keeps what it began with.
    kept = generator(folder.train("again", model=out, steps=1, lr=1e-12, weight_decay=0))
    assert all(mx.allclose(array, trained[name], atol=1e-6) for name, array in kept.items())
    shutil.rmtree(out / GENERATOR)
    fresh = generator(folder.train("fresh", model=out, steps=1, lr=1e-12))
    assert mx.allclose(fresh[WORD], trained[WORD], atol=1e-6)
    name = "encoder.layers.0.feed_forward.up.weight"
    assert not mx.allclose(fresh[name], trained[name], atol=1e-3)
    shutil.copytree(other / GENERATOR, out / GENERATOR)
    with pytest.raises(CheckpointError, match="trained with the discriminator"):
        folder.train("foreign", model=out)


@together(
    "heads,share,expected",
    [(12, 0.25, (3, 192, 768)), (12, 1 / 3, (4, 256, 1024)), (4, 0.25, (1, 64, 256)), (2, 0.1, (1, 64, 256))],
)
def test_the_size_of_a_generator(heads: int, share: float, expected: tuple[int, ...]) -> None:
    width = 64 * heads
    sized = {"hidden_size": width, "intermediate_size": 4 * width, "embedding_size": width}
    sizes = generator_sizes(tiny_config(num_attention_heads=heads, **sized), share)
    assert (sizes["num_attention_heads"], sizes["hidden_size"], sizes["intermediate_size"]) == expected
    assert sizes["embedding_size"] == width


def test_sizes_by_name(folder: Folder) -> None:
    for size, expected in {"small": (12, 256, 128), "base": (12, 768, 768)}.items():
        config = find_initial(ModelRef(), size, folder.vocabulary, None, ["discriminator"]).config
        assert config is not None and config["model_type"] == "electra"
        assert (config["num_hidden_layers"], config["hidden_size"], config["embedding_size"]) == expected


def test_wrong_generators_are_refused(folder: Folder) -> None:
    given: dict[str, Any]
    for given in ({"objective": "mlm", "generator": 0.5}, {"generator": 0}, {"generator": 2}):
        with pytest.raises(ArgumentError, match="generator"):
            folder.train("out", **given)
