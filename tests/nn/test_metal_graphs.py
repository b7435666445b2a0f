"""What MLX would run on a Mac's GPU: nothing that Metal refuses, and no more kernels than before.

The graphs of a forward pass, of a gradient and of AdamW's update, of every family and head, are built and not run.
`metal_graphs.json` has their kernels, see `kernels`, by model and dtype: forward, gradient, update. Functions of
`mx.fast` count as one kernel in a forward pass; in a gradient norms count as what a CPU unfolds them to, which is the
same work in more kernels (attention is not fused under gradients on Metal either). After a change that needs more:

    MLXBERT_WRITE_KERNELS=1 pytest -n0 -m '' tests/nn/test_metal_graphs.py
"""

import ast
import importlib.metadata
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import mlxbert
from mlxbert.goldens import golden_outputs
from mlxbert.machine.device import mx, on_gpu
from mlxbert.nn.crf import CRF
from mlxbert.nn.embedder import Embedder, EmbeddingConfig
from mlxbert.nn.encoder import Batch, KnownIds
from mlxbert.nn.heads import Network
from mlxbert.nn.ops import inference
from mlxbert.weights.build import parameters as parameters_of
from tests.helpers.cases import together
from tests.helpers.graphs import PATTERNS, Arrays, Fused, Graph, build_for_a_gpu, faults, kernels, refused, wrong
from tests.helpers.rooms import needs
from tests.helpers.tiny import random_network, tiny_config

if TYPE_CHECKING:
    from mlxbert.train.loop.gradients import Gradients

MLX = importlib.metadata.version("mlx")
BUDGET = Path(__file__).with_name("metal_graphs.json")
WRITE = bool(os.environ.get("MLXBERT_WRITE_KERNELS"))
MORE = 1.03
CRF_HEAD = "ForTokenClassification, CRF"
MODELS = [*golden_outputs.golden_models(), ("bert", CRF_HEAD)]
_FIRST = {family: head for family, head in reversed(MODELS)} | {"bert": "ForPreTraining", "electra": "ForPreTraining"}
_FAST = {"nomic-moe": "float32"}  # whose experts a CPU multiplies in float32 alone: a cast hides what they are given
CELLS = [
    pytest.param(
        family,
        head,
        dtype,
        marks=() if (head, dtype) == (_FIRST[family], _FAST.get(family, "float16")) else pytest.mark.slow,
    )
    for family, head in MODELS
    for dtype in ("float32", "float16")
]
_HIDDEN = 32
_eval = mx.eval
Loaded = tuple[Network, Batch, Arrays, Arrays]


def network_of(family: str, head: str, dtype: str, folder: Path) -> Network:
    """The network of a golden model; of a discriminator with a generator, as it is trained."""
    from mlxbert.train.pretraining.electra_pretraining import Electra

    network = golden_outputs.load_network(golden_outputs.write_model(family, head.split(",")[0], folder / head), dtype)
    if head == CRF_HEAD:
        network.heads["token_classifier"].crf = CRF(["O", "B-A", "I-A", "B-C"])  # type: ignore[attr-defined]
    if "discriminator" in network.heads:
        generator = network_of(family, "ForMaskedLM", dtype, folder)
        network = Electra(network, SimpleNamespace(network=generator))  # type: ignore[arg-type]
    mx.eval(network.parameters())
    return network


def batch_of(network: Network) -> Batch:
    config = network.encoder.config
    segments = max(config.type_vocab_size, 1)
    case = golden_outputs.make_cases(config.vocab_size, config.max_length, config.pad_token_id, segments)["pairs"]
    assert case.mask is not None and case.segments is not None
    made = mx.array(case.segments) if segments > 1 else None
    ids = KnownIds(frozenset(case.input_ids.flatten().tolist()), segments - 1)
    batch = Batch(mx.array(case.input_ids), mx.array(case.mask.astype(bool)), made, ids)
    mx.eval([batch.input_ids, batch.attention_mask, batch.token_type_ids])
    return batch


def forward(network: Network, batch: Batch) -> list[mx.array]:
    with inference():
        output = network(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        if not network.heads:
            return [output.last_hidden_state, *([] if output.pooler_output is None else [output.pooler_output])]
        return [network.logits(head, output) for head in network.heads]


def gradient(network: Network, batch: Batch, dtype: str) -> "Callable[[Arrays], Gradients]":
    """The gradients of the loss that the network's heads are trained with, by the parameters."""
    from mlxbert.train.loop.gradients import Differentiator
    from mlxbert.train.objectives import make_objective
    from mlxbert.train.objectives.objective import TrainBatch
    from mlxbert.train.pretraining import loss_terms
    from mlxbert.train.pretraining.electra_pretraining import Electra, GeneratedWords, ReplacedTokens
    from mlxbert.train.pretraining.objective import Pretraining

    network.train()
    rows, length = batch.input_ids.shape
    key, scale, labels = mx.random.key(7), 1024.0, mx.array([0, 1, 1, 0])
    known_terms: dict[str, type[loss_terms.Term]] = {
        "masked_lm": loss_terms.MaskedWords, "next_sentence": loss_terms.NextSentenceTerm,
        "sentence_order": loss_terms.SentenceOrderTerm, "discriminator": ReplacedTokens,
    }  # fmt: skip
    terms: dict[loss_terms.Term, float] = {known_terms[name](): 1.0 for name in network.heads if name in known_terms}
    if isinstance(network, Electra):
        terms[GeneratedWords()] = 1.0
    given: TrainBatch
    objective: Any
    if terms:
        row, column, word = (mx.array([place % most for place in range(_HIDDEN)]) for most in (rows, length, _HIDDEN))
        ones, draws = mx.array([1.0] * _HIDDEN), mx.array([[0.5, 0.5]] * _HIDDEN)
        targets = loss_terms.PretrainingTargets(row, column, word, ones, labels, batch.input_ids, draws)
        given = TrainBatch(batch, targets, totals={term.name: 1.0 for term in terms} | {"": rows})
        objective = Pretraining(terms)
    elif not network.heads:
        return _vectors(network, batch, dtype)
    else:
        (head,) = network.heads
        words = [[[1, 2, 3, 4, 0]] * rows, [[0, 1, 2, 0, -1]] * rows]  # of a CRF: places and tags of each text
        task, wanted = {
            "sequence_classifier": ("classify", labels),
            "token_classifier": (
                "tag",
                mx.array(words if hasattr(network.heads[head], "crf") else [[0, 1, 2, 3], [0, 1, 0, 1]]),
            ),
            "question_answering": ("answer", mx.array([[0, 1], [2, 3], [0, 0], [1, 1]])),
        }[head]
        given, objective = TrainBatch(batch, wanted), make_objective(task)
    return lambda found: Differentiator(network, objective, getattr(mx, dtype))(found, [lambda: (given, key)], scale)


def _vectors(network: Network, batch: Batch, dtype: str) -> "Callable[[Arrays], Gradients]":
    """Those of `finetune embed`: half of the texts find the others."""
    from mlxbert.train.loop.gradients import ComparedBatch, Differentiator
    from mlxbert.train.nn.vector_losses import in_batch_negatives
    from mlxbert.train.objectives import make_objective
    from mlxbert.train.objectives.objective import ContrastiveObjective, TrainBatch

    objective: Any = make_objective("embed")
    assert isinstance(objective, ContrastiveObjective)
    width = network.encoder.config.hidden_size
    objective.embedder = Embedder(EmbeddingConfig(), width)
    half = batch.input_ids.shape[0] // 2
    none, key = mx.array([[False] * half] * half), mx.random.key(7)

    def compare(vectors: mx.array, none: mx.array) -> tuple[mx.array, float]:
        return in_batch_negatives(vectors[:half], vectors[half:], none, temperature=0.05), float(half)

    part = [lambda: (TrainBatch(batch, mx.zeros(0)), key)]
    return lambda found: Differentiator(network, objective, getattr(mx, dtype)).compared(
        found, part, [2 * half], ComparedBatch(compare, none, None, width)
    )


def update(network: Network, found: Arrays) -> Callable[[Arrays], list[mx.array]]:
    """The parameters and the optimizer's memory after an update, and the numbers that are read of it."""
    from mlxbert.train.loop.adamw import AdamW
    from mlxbert.train.loop.gradients import Gradients
    from mlxbert.train.loop.optimizer_steps import DeviceStep
    from mlxbert.train.loop.saved_run import Progress
    from mlxbert.train.loop.trained_parameters import weight_decays
    from mlxbert.train.options.loop_options import TrainingOptions

    optimizer = AdamW(found, found)  # of the same shapes
    decays = weight_decays(found, network.encoder.config, TrainingOptions())
    device = DeviceStep(dict.fromkeys(found, 1.0), decays, 1.0, scaled=True)
    counters = device.counters(Progress(scale=1024.0))
    known = mx.array(1.0), mx.array(2.0)
    _eval(counters, known)

    def updated(gradients: Arrays) -> list[mx.array]:
        numbers, changed, state, after = device(found, optimizer, Gradients(*known, gradients), counters, 1e-3)
        moments = (*state.means.values(), *state.squares.values())
        return [numbers, *moments, *changed.values(), *after.values()]

    return updated


@pytest.fixture
def loaded(family: str, head: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A network, a batch, the trained parameters in float32 and zeros like them; from here on nothing is evaluated."""
    network = network_of(family, head, dtype, tmp_path)
    found = {name: array.astype(mx.float32) for name, array in parameters_of(network).items()}
    zeros = {name: mx.zeros_like(array) for name, array in found.items()}
    mx.eval(found, zeros)
    made = network, batch_of(network), found, zeros
    build_for_a_gpu(monkeypatch)
    return made


@pytest.mark.weekly
@needs("train")
@pytest.mark.sampled("nomic-moe-ForMaskedLM-float32")
@pytest.mark.parametrize(("family", "head", "dtype"), CELLS)
def test_metal_computes_each_graph_with_few_kernels(
    family: str, head: str, dtype: str, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.train.loop.gradients import install

    network, batch, found, zeros = loaded
    with monkeypatch.context() as patch:
        fused = Fused(patch)
        passed, surplus = Graph(forward(network, batch), [*fused.calls]), fused.surplus
        fused.calls.clear()
        derived = gradient(network, batch, dtype)
        gradients = derived(found)
    updated = update(network, found)
    graphs = passed, Graph(_of(gradients), fused.calls), Graph(updated(zeros))
    assert [refused(graph) for graph in graphs] == [[]] * 3
    assert [wrong(graph, training=graph is not passed) for graph in graphs] == [[]] * 3
    if dtype == "float32":  # a cast would hide a transposed view, which the update would read out of memory order
        last = {name: Graph([array]).nodes[-1].name for name, array in gradients.arrays.items()}
        assert [name for name, kind in last.items() if kind == "Transpose"] == []
    first, *others = map(kernels, graphs)
    assert_within_the_budget(f"{family} {head}", dtype, [first - surplus, *others])

    def passed_with(**parameters: mx.array) -> list[mx.array]:
        install(network, {name: array.astype(getattr(mx, dtype)) for name, array in parameters.items()})
        return forward(network, batch)

    assert faults(monkeypatch, lambda **gradients: updated(gradients), zeros) == []
    if network.encoder.config.experts is None:  # the exporter does not take a product in segments, either
        assert faults(monkeypatch, lambda **parameters: _of(derived(parameters)), found) == []
    network.eval()
    assert faults(monkeypatch, passed_with, found) == []


def _of(found: "Gradients") -> list[mx.array]:
    return [found.loss, found.weight, *found.terms.values(), *found.arrays.values()]


def assert_within_the_budget(model: str, dtype: str, counts: list[int]) -> None:
    budget = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    if WRITE:
        budget["mlx"] = MLX
        budget.setdefault(model, {})[dtype] = counts
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(budget[name])}" for name in sorted(budget))
        BUDGET.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    elif budget["mlx"] == MLX:  # graphs of another version may differ
        allowed = zip(("forward", "gradient", "update"), counts, budget[model][dtype], strict=True)
        assert not {name: f"{count}, budget {most}" for name, count, most in allowed if count > most * MORE}


@needs("train")
@pytest.mark.parametrize("layers", [2, 24])
def test_nor_has_the_graph_of_a_deeper_model(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With bert-large's 393 parameters."""
    network = random_network(tiny_config(layer_schedule=tuple(range(layers)), pooler=True), ("sequence_classifier",))
    batch, found = batch_of(network), parameters_of(network)
    zeros = {name: mx.zeros_like(array) for name, array in found.items()}
    mx.eval(found, zeros)
    build_for_a_gpu(monkeypatch)
    assert len(found) == 9 + 16 * layers
    assert wrong(Graph(_of(gradient(network, batch, "float32")(found)))) == []
    updated = Graph(update(network, found)(zeros))
    assert wrong(updated) == []
    assert max(node.arrays for node in updated.nodes if node.name == "Compiled") == 17  # sixteen numbers and their sum


def _selected(count: int) -> Graph:
    """One of `count` numbers, by a tree of choices among three, which is fused into few kernels."""

    def choose(*numbers: mx.array) -> mx.array:
        if len(numbers) == 1:
            return numbers[0]
        third = -(-len(numbers) // 3)
        parts = [choose(*numbers[at : at + third]) for at in range(0, len(numbers), third)]
        return mx.where(parts[0] > parts[1], parts[1], parts[-1])

    return Graph([mx.compile(choose, shapeless=True)(*map(mx.array, map(float, range(count))))])


def _gathered(*, inserted: bool) -> Graph:
    rows, matrices, which = mx.ones((5, 4)), mx.ones((2, 4, 3)), mx.zeros(5, mx.uint32)
    mx.eval(rows)
    given = mx.stop_gradient(rows[:, None] if inserted else rows.reshape(5, 1, 4))
    return Graph([mx.gather_mm(given, matrices, rhs_indices=which).reshape(5, 3) + 1])


def _sorted(*, transposed: bool) -> Graph:
    x = mx.random.normal((3, 4, 5))
    mx.eval(x)
    return Graph([mx.sort(x.transpose(0, 2, 1)[:2] if transposed else x.transpose(0, 2, 1) + 1)])


def _called(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, width: int) -> Graph:
    with monkeypatch.context() as patch:
        seen = Fused(patch)
        k = mx.zeros((1, 1, keys, 64))
        found = mx.fast.scaled_dot_product_attention(k[:, :, :queries], k, k, scale=1.0)
        return Graph([found, mx.fast.layer_norm(mx.zeros((2, width)), None, None, 1e-5)], seen.calls)


def test_each_pattern_is_found_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    right = [_selected(27), _gathered(inserted=False), _sorted(transposed=False)]
    right += [_called(monkeypatch, *sizes) for sizes in ((9, 1024, 32), (8, 1023, 32))]
    assert [wrong(graph) for graph in right] == [[]] * len(right)
    planted = [_selected(40), _gathered(inserted=True), _sorted(transposed=True)]
    planted += [_called(monkeypatch, *sizes) for sizes in ((8, 1024, 32), (9, 9, 30))]
    assert [wrong(graph) for graph in planted] == [[f"{one.name} ({one.report})"] for one in PATTERNS]


@together("name", ["qr", "svd", "inv", "cholesky", "eigvals", "eigvalsh", "lu_factor"])
def test_what_metal_refuses_is_found(name: str) -> None:
    with mx.stream(mx.cpu):
        made = getattr(mx.linalg, name)(mx.eye(3))
        assert refused([made[0] if isinstance(made, tuple) else made])


def test_wrong_dtypes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(x: mx.array) -> list[mx.array]:
        ids = mx.zeros(4, dtype=mx.int64).at[mx.array([1, 2])].add(1)
        return [mx.compile(lambda y: mx.exp(y.astype(mx.float64)).astype(mx.float32))(x), ids]

    with mx.stream(mx.cpu):
        found = faults(monkeypatch, wide, {"x": mx.ones(3)})
    assert {"Exp of mlx.core.float64", "Scatter of mlx.core.int64"} <= {*found}


def test_fused_functions_count_as_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.ones((2, 3, 8))
    mx.eval(x)
    fused = Fused(monkeypatch)
    counts = kernels([mx.fast.layer_norm(x, None, None, 1e-5)])
    assert counts - fused.surplus == 1 and (on_gpu() or counts > 1)


def test_a_stream_of_another_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a graph and, as this machine's CPU has one stream for all other operations, in the code of operations."""
    build_for_a_gpu(monkeypatch)
    with pytest.raises(AssertionError, match="another stream"), mx.stream(mx.cpu):
        pass
    folders = [Path(mlxbert.__file__).parent / name for name in ("nn", "tasks", "train")]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    assert paths
    for path in paths:
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "stream=" in source else ():
            if isinstance(node, ast.Call):
                assert "stream" not in {keyword.arg for keyword in node.keywords}, f"{path.name}, line {node.lineno}"
