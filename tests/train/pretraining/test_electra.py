"""ELECTRA: samples, what counts as replaced, what both networks share, resuming, and the folders."""

import json
import random
import shutil
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
from tests.helpers.tiny import CONFIG, tiny_config
from tests.train.pretraining.electras import Folder, examples, objective, with_draws

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


def test_the_first_and_the_last_number_give_words_of_the_vocabulary() -> None:
    logits = mx.array(np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32))
    found = np.array(sampled(logits, mx.array([[0.0, 0.0], [LAST, LAST], [0.0, LAST], [LAST, 0.0]])))
    assert found.tolist() == [0, 299, 255, 256]


def test_a_word_without_probability_is_never_drawn() -> None:
    logits = mx.broadcast_to(mx.array([-200.0, 0.0, -200.0, 0.0, -200.0]), (1000, 5))
    draws = np.random.default_rng(0).random((1000, 2), np.float32)
    assert set(np.array(sampled(logits, mx.array(draws))).tolist()) == {1, 3}


def test_a_sample_that_is_the_original_counts_as_original(folder: Folder) -> None:
    network, texts = folder.network(), examples((9, 20, *[32] * 10))
    task = objective(network)
    batch = task.collate(texts, random.Random(0))
    inputs = ElectraInputs(network, batch.inputs, batch.targets)
    ids, replaced, real = (np.array(array) for array in (inputs.ids, inputs.replaced, inputs.real))
    words, samples, start = np.array(inputs.words), np.array(inputs.samples), 0
    assert words.shape == (len(samples), CONFIG["vocab_size"])
    for row, example in enumerate(texts):
        expected = example.clean.copy()
        expected[example.places] = samples[start : start + len(example.places)]
        start += len(example.places)
        assert ids[row, : len(example)].tolist() == expected.tolist()
        assert replaced[row, : len(example)].tolist() == (expected != example.clean).tolist()
        assert real[row].sum() == len(example) and not replaced[row, len(example) :].any()
    assert 0 < replaced.sum() < sum(len(example.places) for example in texts)  # some are what stood there
    assert start < len(samples)  # the rest fills up the number


def test_accuracies_are_shares_of_real_tokens(folder: Folder) -> None:
    network = folder.network()
    task = objective(network)
    batch = task.collate(examples(), random.Random(0))
    inputs = ElectraInputs(network, batch.inputs, batch.targets)
    found = {name: [float(one) for one in pair] for name, pair in ReplacedTokens().counted(inputs).items()}
    scores, replaced, real = (np.array(array) for array in (inputs.scores, inputs.replaced, inputs.real))
    assert found["replaced_accuracy"] == [(scores > 0)[replaced].sum(), replaced.sum()]
    assert found["original_accuracy"] == [(scores <= 0)[real & ~replaced].sum(), (real & ~replaced).sum()]
    assert found["replaced_share"] == [replaced.sum(), real.sum()] and real.sum() == 9 + 20 + 14


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


def test_embeddings_are_shared_and_samples_give_no_gradient(folder: Folder) -> None:
    network, three = folder.network(), examples()
    task = objective(network)
    batch, totals = task.collate(three, random.Random(0)), task.totals(three)
    names = [*parameters(network)]
    tables = {"word.weight", "position.weight", "token_type.weight", "norm.weight", "norm.bias"}
    assert {name for name in names if name.removeprefix("encoder.embeddings.") in tables} == {
        f"encoder.embeddings.{table}" for table in tables
    }
    assert not any(name.endswith(tuple(tables)) for name in names if name.startswith("generator.encoder.embeddings"))
    network.eval()
    terms, both = _gradients(network, batch, totals)
    _, alone = _gradients(network, batch, totals | {"replaced": 1e30})  # the generator's term only
    assert set(terms) == {"mlm", "replaced"}
    for name, array in both.items():
        if name.startswith("generator."):  # the discriminator's loss changes nothing in it
            assert mx.allclose(array, alone[name], rtol=1e-5, atol=1e-7).item(), name
            assert scalar(mx.abs(array).max()) > 0, name
    assert scalar(mx.abs(both[WORD] - alone[WORD]).max()) > 1e-3  # but in what both share


def test_parts_of_a_batch_add_up(folder: Folder) -> None:
    network, three = folder.network(), examples()
    network.eval()
    task = objective(network)
    totals = task.totals(three)
    whole, expected = _gradients(network, task.collate(three, random.Random(0)), totals)
    parts = [_gradients(network, task.collate(some, random.Random(0)), totals) for some in (three[:1], three[1:])]
    for name, term in whole.items():
        assert term == pytest.approx(sum(terms[name] for terms, _ in parts), rel=1e-5)
    far = max(float(mx.abs(parts[0][1][n] + parts[1][1][n] - array).max()) for n, array in expected.items())
    assert far <= 1e-5 * max(float(mx.abs(array).max()) for array in expected.values())


def test_other_numbers_give_other_samples(folder: Folder) -> None:
    network, (one, *_) = folder.network(), examples()
    task = objective(network)
    found = []
    for draws in (one.draws, one.draws, np.zeros_like(one.draws)):
        batch = task.collate([with_draws(one, draws)], random.Random(0))
        found.append(np.array(ElectraInputs(network, batch.inputs, batch.targets).samples)[: len(one.places)].tolist())
    assert found[0] == found[1] != found[2]


def test_the_metrics_while_it_runs(folder: Folder) -> None:
    events = list(folder.run("out", steps=2, eval_every=1, fill=["the cat [MASK] on the mat"]))
    (last,) = [event for event in events if isinstance(event, Evaluated)][-1:]
    assert {"accuracy", "mlm_loss", "replaced_loss", "replaced_accuracy", "original_accuracy"} <= last.metrics.keys()
    assert last.metric == "mlm_loss" and last.filled and "[MASK]" not in last.filled[0]
    assert last.metrics["loss"] == pytest.approx(last.metrics["mlm_loss"] + 50 * last.metrics["replaced_loss"])
    (step, _) = [event for event in events if isinstance(event, Step)]
    assert step.loss == pytest.approx(step.terms["mlm"] + step.terms["replaced"])


def test_the_folder_is_two_models(folder: Folder) -> None:
    out = folder.train("out")
    one, two = mlxbert.load(out, dtype="float32"), mlxbert.load(out / GENERATOR, dtype="float32")
    assert set(one.network.heads) == {"discriminator"} and set(two.network.heads) == {"masked_lm"}
    assert (one.config.hidden_size, two.config.hidden_size) == (24, 8)
    ours, theirs = parameters(one.network), parameters(two.network)
    shared = [name for name in ours if name.startswith("encoder.embeddings.") and "projection" not in name]
    assert len(shared) == 5 and all(mx.array_equal(ours[name], theirs[name]) for name in shared)
    assert [json.loads((out / inner / "config.json").read_text())["architectures"] for inner in ("", GENERATOR)] == [
        ["ElectraForPreTraining"],
        ["ElectraForMaskedLM"],
    ]
    assert not [*out.rglob(".unfinished")]
    assert len(list(mlxbert.replaced(one, "the cat sat").tokens)) == 3
    folder.train("out", overwrite=True, steps=1)  # all that was written is known, and may be replaced


@pytest.mark.slow
def test_a_run_continues_with_the_generator_of_the_folder(folder: Folder) -> None:
    out = folder.train("out")
    trained = parameters(mlxbert.load(out / GENERATOR, dtype="float32").network)
    # A rate of 0 keeps what it began with.
    again = folder.train("again", model=out, steps=1, lr=1e-12, weight_decay=0)
    kept = parameters(mlxbert.load(again / GENERATOR, dtype="float32").network)
    assert all(mx.allclose(array, trained[name], atol=1e-6) for name, array in kept.items())
    shutil.rmtree(out / GENERATOR)
    fresh = parameters(
        mlxbert.load(folder.train("fresh", model=out, steps=1, lr=1e-12) / GENERATOR, dtype="float32").network
    )
    assert mx.allclose(fresh[WORD], trained[WORD], atol=1e-6)
    name = "encoder.layers.0.feed_forward.up.weight"
    assert not mx.allclose(fresh[name], trained[name], atol=1e-3)


@pytest.mark.slow
def test_a_foreign_generator_is_refused(folder: Folder) -> None:
    out, other = folder.train("out"), folder.train("other", seed=1)
    shutil.rmtree(out / GENERATOR)
    shutil.copytree(other / GENERATOR, out / GENERATOR)
    with pytest.raises(CheckpointError, match="trained with the discriminator"):
        folder.train("again", model=out)


@pytest.mark.parametrize(
    ("heads", "share", "expected"),
    [(12, 0.25, (3, 192, 768)), (12, 1 / 3, (4, 256, 1024)), (4, 0.25, (1, 64, 256)), (2, 0.1, (1, 64, 256))],
)
def test_the_size_of_a_generator(heads: int, share: float, expected: tuple[int, ...]) -> None:
    width = 64 * heads
    config = tiny_config(
        num_attention_heads=heads, hidden_size=width, intermediate_size=4 * width, embedding_size=width
    )
    sizes = generator_sizes(config, share)
    assert (sizes["num_attention_heads"], sizes["hidden_size"], sizes["intermediate_size"]) == expected
    assert sizes["embedding_size"] == width


@pytest.mark.parametrize("size", ["small", "base"])
def test_sizes_by_name(folder: Folder, size: str) -> None:
    config = find_initial(ModelRef(), size, folder.vocabulary, None, ["discriminator"]).config
    assert config is not None and config["model_type"] == "electra"
    found = (config["num_hidden_layers"], config["hidden_size"], config["embedding_size"])
    assert found == {"small": (12, 256, 128), "base": (12, 768, 768)}[size]


@pytest.mark.parametrize("given", [{"objective": "mlm", "generator": 0.5}, {"generator": 0}, {"generator": 2}])
def test_wrong_generators_are_refused(folder: Folder, given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="generator"):
        folder.train("out", **given)
