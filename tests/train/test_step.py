"""Training on a GPU, whose paths are taken here: compiled gradients and updates, of which one is always ahead.

Nothing is compiled in fast tests, which would take a C++ compiler on a CPU: the functions compute what they are traced
from. The slow ones compile, where there is one.
"""

import itertools
import json
import logging
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import mlxbert
from mlxbert import memory_estimate
from mlxbert.errors import DivergedError
from mlxbert.goldens import golden_outputs
from mlxbert.machine import device
from mlxbert.machine.device import mx, nn, scalar
from mlxbert.nn.heads import Network
from mlxbert.tasks.runner import _BatchOrder
from mlxbert.text.batch import padded_length
from mlxbert.train.loop import compiled_functions, data_order
from mlxbert.train.loop.adamw import AdamW
from mlxbert.train.loop.compiled_functions import Compiled, joined, split
from mlxbert.train.loop.events import Evaluated, Saved, Step
from mlxbert.train.loop.gradients import Differentiator, Gradients
from mlxbert.train.loop.optimizer_steps import DeviceStep
from mlxbert.train.loop.saved_run import Progress
from mlxbert.train.loop.training_run import Run
from mlxbert.train.loop.updater import Updater, of_part
from mlxbert.train.objectives import make_objective
from tests.helpers import token_folders
from tests.helpers.cases import fast, together
from tests.helpers.cells import cells
from tests.helpers.gliner_models import FROZEN
from tests.helpers.graphs import Fused, Graph, forget_compiled, wrong
from tests.helpers.sparse_folder import save_splade
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.static_folders import model2vec
from tests.helpers.tiny import save
from tests.train import runs
from tests.train.files import data_file
from tests.train.pretraining import electras
from tests.train.pretraining.files import model_folder, text_file
from tests.train.runs import Parity, digest, make_run, steps
from tests.train.test_embed_objective import PAIRS
from tests.train.test_tag import _sentences as open_tags

COMPILER = shutil.which("g++") or shutil.which("clang++")
# The loop of a CPU with the operations and shapes of a GPU is what the loop of a GPU is compared with.
_LOOP = ("mlxbert.train.loop.training_run", "mlxbert.train.loop.gradients", "mlxbert.machine.device")


@pytest.fixture(autouse=True)
def pure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parity, "pure", True)


@contextmanager
def a_gpu(patch: pytest.MonkeyPatch, *, loop: bool = True, compiles: bool = False) -> Iterator[None]:
    """Within it all paths are those of a GPU; without `loop` those of the loop are a CPU's."""
    with patch.context() as within:
        if loop:
            within.setattr(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.gpu))
            within.setattr(mx, "set_default_device", lambda device: None)
        else:
            for name, module in [*sys.modules.items()]:
                if name.startswith("mlxbert.") and name not in _LOOP and "on_gpu" in vars(module):
                    within.setattr(module, "on_gpu", lambda: True)
        if not compiles:
            mx.disable_compile()
        try:
            yield
        finally:
            mx.enable_compile()
            forget_compiled()


def both(patch: pytest.MonkeyPatch, made: Callable[[], Any], *, compiles: bool = False) -> list[Any]:
    found = []
    for loop in (False, True):
        with a_gpu(patch, loop=loop, compiles=compiles and loop):
            found.append(made())
    return found


def assert_same(one: list[Step], other: list[Step], bound: float = 1e-5) -> None:
    assert [(a.step, a.epoch, a.lr) for a in one] == [(b.step, b.epoch, b.lr) for b in other]
    assert [a.loss for a in one] == pytest.approx([b.loss for b in other], rel=bound)
    for a, b in zip(one, other, strict=True):
        assert math.isfinite(a.gradient_norm) == math.isfinite(b.gradient_norm)
        assert a.terms == pytest.approx(b.terms, rel=bound)
        assert not math.isfinite(a.gradient_norm) or a.gradient_norm == pytest.approx(
            b.gradient_norm, rel=10 * bound, abs=1e-6
        )


# Parameters that change all scores alike: their gradients are 0 but for rounding, which Adam makes large.
_NOISE_OF_ALL = ("key.bias", "key_norm.bias")
_NOISE = {"answer": ("key.bias", "qa_outputs.bias", "layer.0.output.LayerNorm.bias")}


def assert_close(one: dict[str, mx.array], other: dict[str, mx.array], noise: tuple[str, ...] = _NOISE_OF_ALL) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert name.endswith(noise) or scalar(mx.abs(array - other[name]).max()) <= 1e-6, name


OPTIONS: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation": 2, "max_grad_norm": 0.5},
    {"checkpointing": True, "max_grad_norm": 0.0},
    {"weight_decay": 0.1, "layer_decay": 0.7, "freeze": 1, "layers": 2},
    {"dtype": mx.float16},
]


WITH_COMPILER = pytest.param(
    True, marks=[pytest.mark.slow, pytest.mark.skipif(COMPILER is None, reason="MLX compiles for a CPU with g++")]
)


@pytest.mark.parametrize("options", fast(OPTIONS, OPTIONS[1], OPTIONS[-1]), ids=str)
@pytest.mark.parametrize("compiles", [False, WITH_COMPILER])
def test_updates_are_those_of_a_cpu(options: dict[str, Any], compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiles and "dtype" in options:
        pytest.skip("compilers take minutes for float16")
    # Too large for the first updates in float16.
    monkeypatch.setattr("mlxbert.train.loop.training_run.FIRST_SCALE", 2.0**24)

    def made() -> tuple[Run, list[Step]]:
        run = make_run(evaluate=None, **options)
        return run, steps(run.events())

    (cpu, expected), (gpu, found) = both(monkeypatch, made, compiles=compiles)
    assert len(found) >= 4
    assert_same(found, expected, 1e-3 if "dtype" in options else 1e-5)
    assert_close(gpu.state.parameters, cpu.state.parameters)
    here, there = cpu.state.progress, gpu.state.progress
    assert (here.updates, here.scale, here.calm, here.decay) == (there.updates, there.scale, there.calm, there.decay)
    assert here.updates < here.step if "dtype" in options else here.updates == here.step


CLASSIFIERS = {family: head for family, head in golden_outputs.golden_models() if "Sequence" in head}


@pytest.mark.weekly
@pytest.mark.parametrize("family", fast(CLASSIFIERS, "modernbert"))
def test_every_family_is_traced(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = golden_outputs.write_model(family, CLASSIFIERS[family], tmp_path)

    def network(rate: float, layers: int) -> Network:
        made = golden_outputs.load_network(path)
        mx.eval(made.parameters())
        return made

    monkeypatch.setattr(runs, "network", network)
    search = Search(monkeypatch)

    def made() -> tuple[Run, list[Step]]:
        run = make_run(evaluate=None, epochs=1, lr=1e-4)
        return run, steps(run.events())

    (cpu, expected), (gpu, found) = both(monkeypatch, made)
    gradients = gpu.updater.gradients.differentiate._gradients
    assert isinstance(gradients, Compiled) and gradients.shapes > 0 and gradients._usable and not search.found
    assert_same(found, expected)
    assert_close(gpu.state.parameters, cpu.state.parameters)


TASKS: dict[str, dict[str, Any]] = {
    "classify": {"lora": 4},
    "tag": {},
    "answer": {},
    # Evaluated once: which of several evaluations is the best depends on the last digits.
    "embed": {"eval_every": 99},
    "embed, in chunks": {"chunk": 3, "eval_every": 99},
    "mlm": {"objective": "mlm,nsp", "length": "24", "batch_size": 8, "steps": 10, "eval_every": 4},
}


@pytest.mark.parametrize("task", fast(TASKS, "embed, in chunks"))
def test_models_are_those_of_a_cpu(
    task: str, base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "mlxbert")
    name, output = task.partition(",")[0], tmp_path / "out"

    def made() -> tuple[list[Step], dict[str, mx.array]]:
        common: dict[str, Any] = {"output": output, "overwrite": True, "dtype": "float32", "lr": 1e-4, "dropout": 0.0}
        more: dict[str, Any] = {"epochs": 2, "batch_size": 8} | TASKS[task]
        if task == "mlm":
            folder, text = model_folder(tmp_path / "tiny"), text_file(tmp_path / "text.txt")
            found = steps(mlxbert.pretrain(text, model=folder, **common, **TASKS[task]))
        else:
            data = data_file(tmp_path, name, 40)
            found = steps(mlxbert.finetune(name, train=data, model=base, **common, **more))
        [weights] = [path for path in output.glob("*.safetensors")]
        return found, dict(mx.load(str(weights)))  # type: ignore[arg-type]

    (expected, there), (found, here) = both(monkeypatch, made)
    assert len(found) >= 8
    assert_same(found, expected)
    assert_close(here, there, _NOISE.get(task, _NOISE_OF_ALL))
    assert 1 <= caplog.text.count("are compiled for") <= 6 and "not compiled" not in caplog.text


def test_a_batch_is_taken_apart_and_put_together() -> None:
    batch = [(mx.array([1, 2]), None), {"a": 2.5, "b": "text", "c": True}]
    arrays: list[mx.array] = []
    structure = split(batch, arrays)
    assert [array.tolist() for array in arrays] == [[1, 2], 2.5]
    other: list[mx.array] = []
    assert split([(mx.zeros(3), None), {"a": 1.0, "b": "text", "c": True}], other) == structure
    assert split([(mx.zeros(3), None), {"a": 1.0, "b": "other", "c": True}], other) != structure
    [(first, none), named] = joined(structure, iter(arrays))
    assert all(make_objective(task).pure for task in ("classify", "tag", "answer", "embed", "rerank", "regress"))
    assert first is arrays[0] and none is None and named == {"a": arrays[1], "b": "text", "c": True}


def test_only_some_shapes_are_compiled(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG, "mlxbert")
    compiled = mock.Mock(side_effect=lambda function: function)
    monkeypatch.setattr(compiled_functions, "MAX_SHAPES", 3)
    monkeypatch.setattr(mx, "compile", compiled)
    double = Compiled(lambda parameters, x: x * parameters["factor"], "products")
    for length in (4, 5, 6, 7, 8, 4, 5, 9):
        assert double({"factor": mx.array(2.0)}, mx.ones(length)).tolist() == [2.0] * length
    assert compiled.call_count == double.shapes == 3
    assert sum("shape" in record.message for record in caplog.records) == 4  # three, and that there are no more
    assert caplog.text.count("not compiled for more than 3 shapes") == 1


def test_what_cannot_be_traced_is_computed_and_said_once_and_an_error_of_the_device_is_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "mlxbert")
    read = Compiled(lambda parameters, x: x if x.sum().item() > 0 else -x, "sums")
    for length in (3, 4):
        assert read({}, mx.ones(length) * -1).tolist() == [1.0] * length
    assert caplog.text.count("sums are not compiled") == 1 and read.shapes == 0
    monkeypatch.setattr(mx, "compile", lambda function: function)
    failing = mock.Mock(side_effect=[RuntimeError("[METAL] … failed: Insufficient Memory"), mx.ones(2)])
    function = Compiled(failing, "sums")
    with pytest.raises(RuntimeError, match="Insufficient Memory"):
        function({}, mx.ones(2))
    assert function({}, mx.ones(2)).tolist() == [1.0, 1.0] and function.shapes == 1


@together("seed", range(3))
def test_the_parts_of_batches_have_few_shapes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("text.batch", "train.loop.data_order"):
        monkeypatch.setattr(f"mlxbert.{module}.on_gpu", lambda: True)
    rng = random.Random(seed)
    lengths = [min(3 + int(rng.lognormvariate(4, 1.2)), 512) for _ in range(10_007)]
    shapes = set()
    for batch in data_order.batches(len(lengths), 64, seed, 0):
        found = data_order.parts([lengths[number] for number in batch], 1)
        assert sorted(one for part in found for one in part) == [*range(len(batch))]
        shapes |= {(len(part), padded_length(max(lengths[batch[one]] for one in part), 512)) for part in found}
    last = {size - some for size in (44, 43) for some in (0, 11, 22, 33)}  # of an epoch: 10,007 is 155 · 64 + 44 + 43
    assert {rows for rows, _ in shapes} <= {16, 32, 48, 64, 11, 22, 33, *last}
    assert len(shapes) <= compiled_functions.MAX_SHAPES


@pytest.mark.parametrize(("streams", "options"), [(1, {}), (2, {"checkpointing": True}), (1, {"freeze": 1})])
def test_a_batch_that_does_not_fit_is_divided_and_has_the_same_gradients(
    streams: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(rate=0.0, data=16, layers=2, **options)
    trained, kept = sum(array.size for array in run.state.parameters.values()), 1 if options else 2

    def needed(texts: int, length: int) -> int:
        part = of_part(run.training.network.encoder.config, texts, length, kept, mx.float32)
        return memory_estimate.of_trained(trained, run.trained.count - trained) + streams * part

    def computed(memory: int | None) -> tuple[list[tuple[int, int]], Gradients]:
        monkeypatch.setattr(device, "available_memory", lambda: memory)
        run, parts = make_run(rate=0.0, data=16, layers=2, streams=streams, **options), []
        objective, collate = run.training.objective, run.training.objective.collate

        def recorded(examples: Sequence[Any], rng: random.Random) -> Any:
            parts.append((len(examples), padded_length(max(map(len, examples)), 32)))
            return collate(examples, rng)

        monkeypatch.setattr(objective, "collate", recorded)
        return parts, run.updater.gradients(run.state.parameters, [[*range(16)]], 0, 1.0)

    with a_gpu(monkeypatch) if streams == 1 else nullcontext():
        limit = needed(5, padded_length(11, 32))
        (whole, wanted), (divided, found) = computed(None), computed(limit)
        assert computed(max(needed(*part) for part in whole))[0] == whole
        assert [texts for texts, _ in computed(0)[0]] == [1] * 16
        assert max(needed(*part) for part in whole) > limit >= max(needed(*part) for part in divided)
    assert sum(texts for texts, _ in divided) == 16 and found.weight == wanted.weight
    for name, array in (wanted.arrays | {"loss": wanted.loss}).items():
        near = (found.arrays | {"loss": found.loss})[name]
        assert scalar(mx.abs(array - near).max()) <= 2e-6 * max(scalar(mx.abs(array).max()), 1), name


def test_an_update_is_started_before_the_one_before_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    options: dict[str, Any] = {"data": 50, "epochs": 1, "save_every": 5}
    for name in ("_start", "_finish"):
        usual = getattr(Run, name)

        def noted(run: Run, *given: Any, usual: Any = usual, name: str = name) -> Any:
            order.append(name)
            return usual(run, *given)

        monkeypatch.setattr(Run, name, noted)
    with a_gpu(monkeypatch):
        run = make_run(tmp_path, **options)
        found: list[Any] = [*run.events()]
    expected: list[Any] = [*make_run(tmp_path / "cpu", **options).events()]
    assert [(type(one), one.step) for one in found] == [(type(one), one.step) for one in expected]
    assert {type(one) for one in found} == {Step, Saved, Evaluated}
    start, finish = "_start", "_finish"  # of updates 1 to 5, then a state is saved; 6 and 7, then it is evaluated
    assert order[:14] == [start, *[start, finish] * 4, finish, start, start, finish, finish]
    assert order.count(start) == order.count(finish) == 14  # of both runs


def test_an_update_is_waited_for_while_the_next_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state before it is kept until then, and no other: two sets of parameters and moments at most."""
    waited: list[tuple[set[int], set[int]]] = []
    applied: list[int] = []
    with a_gpu(monkeypatch):
        run = make_run(evaluate=None, epochs=2)
        usual, update = mx.eval, DeviceStep.__call__

        def noting(*arrays: Any) -> None:
            if run.updater.started and run.updater.started[0].before is not None and len(arrays) == 4:
                following = run.updater.started[1].gradients if len(run.updater.started) > 1 else None
                ahead = {} if following is None else following.arrays
                waited.append(({id(one) for tree in arrays[1:] for one in tree.values()}, {*map(id, ahead.values())}))
                assert waited[-1][0] == {id(one) for one in [
                    *run.state.parameters.values(), *run.state.optimizer.means.values(),
                    *run.state.optimizer.squares.values(),
                ]}  # fmt: skip
            usual(*arrays)

        def counted(step: DeviceStep, *given: Any) -> Any:
            applied.append(sum(one.before is not None for one in run.updater.started))
            return update(step, *given)

        monkeypatch.setattr(mx, "eval", noting)
        monkeypatch.setattr(DeviceStep, "__call__", counted)
        count = len(steps(run.events()))
    assert applied == [0] * count and len(waited) == count
    assert sum(bool(ahead) for _, ahead in waited) >= count - 2 and not any(own & ahead for own, ahead in waited)


def test_an_interrupted_run_saves_what_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_gpu(monkeypatch):
        whole = make_run()
        expected = steps(whole.events())
        stream = make_run(tmp_path).events()
        found = [next(stream) for _ in range(2)]
        stream.close()  # type: ignore[attr-defined]
        resumed = make_run(tmp_path)
        assert resumed.state.progress.step == resumed.state.progress.updates == 3
        assert [loss for _, loss in resumed.state.progress.losses] == [one.loss for one in expected[:3]]
        found += steps(resumed.events())
    assert [one.loss for one in steps(iter(found))] == [one.loss for one in [*expected[:2], *expected[3:]]]
    assert digest(resumed) == digest(whole)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_interrupt_before_gradients_are_applied_saves_the_updates_before(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the update in front of them is finished, as until then it is held."""
    usual, calls = Updater.follow, itertools.count(1)

    def interrupted(updater: Updater) -> None:
        if next(calls) == number:
            raise KeyboardInterrupt
        usual(updater)

    monkeypatch.setattr(Updater, "follow", interrupted)
    with a_gpu(monkeypatch):
        with pytest.raises(KeyboardInterrupt):
            [*make_run(tmp_path).events()]
        progress = make_run(tmp_path).state.progress
    assert progress.step == progress.updates == number - 1


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_run_that_diverges_keeps_the_last_state(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Parity.loss

    def broken(self: Any, network: Network, batch: Any) -> Any:
        found, weight = usual(self, network, replace(batch, targets=batch.targets % 2))
        return mx.where((batch.targets > 1).any(), math.nan, found), weight

    def made() -> tuple[Run, list[Any], str]:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        run = make_run(folder, evaluate=None)
        for one in run.order.batches(number - 1)[0]:
            object.__setattr__(run.training.examples[one], "target", 3)
        events: list[Any] = []
        with pytest.raises(DivergedError) as problem:
            for event in run.events():
                events.append(event)
        assert number == 1 or make_run(folder).state.progress.step == number - 1
        return run, steps(iter(events)), problem.value.message

    monkeypatch.setattr(Parity, "loss", broken)
    (cpu, expected, message), (gpu, found, said) = both(monkeypatch, made)
    assert said == message and f"at step {number}, in the batch of" in said
    assert len(found) == number - 1 == gpu.state.progress.step == gpu.state.progress.updates
    assert_same(found, expected)
    assert_close(gpu.state.parameters, cpu.state.parameters)


def device_steps(*losses: float, scaled: bool, gradient: float = 1.0) -> tuple[list[dict[str, Any]], list[mx.array]]:
    device = DeviceStep({"a": 1.0, "b": 0.5}, {"a": 0.1, "b": 0.0}, 1.0, scaled=scaled)
    changed = {"a": mx.array([[1.0, -2.0]]), "b": mx.array([3.0])}
    optimizer = AdamW({name: array * 0.1 for name, array in changed.items()}, {n: a * a for n, a in changed.items()})
    counters = device.counters(Progress(scale=4.0 if scaled else 1.0, updates=3, calm=999))
    seen, states = [], []
    with a_gpu(pytest.MonkeyPatch()):
        for loss in losses:
            size = loss if math.isfinite(loss) else gradient
            gradients = {name: mx.ones_like(array) * size for name, array in changed.items()}
            found = Gradients(mx.array(loss if loss != math.inf else 1.0), mx.array(2.0), gradients)
            _, changed, optimizer, counters = device(changed, optimizer, found, counters, 0.1)
            seen.append({name: array.item() for name, array in counters.items()})
            arrays = (one for some in (changed, optimizer.means, optimizer.squares) for one in some.values())
            states.append(mx.concatenate([one.reshape(-1) for one in arrays]))
    return seen, states


def test_nothing_changes_after_an_update_that_is_not_finite_but_the_scale_of_float16() -> None:
    seen, states = device_steps(1.0, math.nan, 1.0, scaled=False, gradient=math.inf)
    assert [one["going"] for one in seen] == [True, False, False]
    assert [one["updates"] for one in seen] == [4, 4, 4]
    assert states[0].tolist() == states[1].tolist() == states[2].tolist()
    assert device_steps(1.0, 1.0, scaled=False)[1][1].tolist() != states[0].tolist()
    usable, overflow, infinite = 1.0, math.inf, math.nan  # the loss is finite where only gradients overflow
    seen, states = device_steps(usable, overflow, overflow, usable, overflow, overflow, scaled=True, gradient=math.inf)
    assert [one["scale"] for one in seen[:5]] == [8.0, 4.0, 2.0, 2.0, 1.0]
    assert [one["calm"] for one in seen[:5]] == [0, 0, 0, 1, 0]
    assert [one["going"] for one in seen] == [True] * 5 + [False]
    assert states[0].tolist() == states[2].tolist() != states[3].tolist() == states[5].tolist()
    assert [one["going"] for one in device_steps(usable, infinite, usable, scaled=True)[0]] == [True, False, False]


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="MLX compiles for a CPU with a C++ compiler")
def test_an_update_frees_what_it_changes_while_it_goes_on() -> None:
    size, names = 2**16, [f"{number}" for number in range(512)]  # MLX is up to 100 kernels ahead of a CPU

    def ones() -> dict[str, mx.array]:
        return {name: mx.ones((size // 4,)) * 2 for name in names}

    device = DeviceStep(dict.fromkeys(names, 1.0), dict.fromkeys(names, 0.1), 1.0, scaled=False)
    changed, optimizer, counters = ones(), AdamW(ones(), ones()), device.counters(Progress())
    mx.eval(changed, optimizer.means, optimizer.squares)

    def update() -> float:
        nonlocal changed, optimizer, counters
        found = Gradients(mx.array(1.0), mx.array(1.0), ones())
        numbers, changed, optimizer, counters = device(changed, optimizer, found, counters, 0.1)
        del found
        mx.eval(counters)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(numbers, changed, optimizer.means, optimizer.squares)
        return (mx.get_peak_memory() - before) / size

    update()
    held = changed, optimizer
    assert update() > 2 * len(names)  # somebody has the arrays
    del held
    assert update() < len(names)


# How many libraries of fused kernels a GPU has to build before the first update, see `benchmarks/step_kernels.py`.
MOST = {"bert-base": 12, "MiniLM": 12, "DeBERTa-v3": 12, "ELECTRA pre-training": 21}
DTYPES = ("float32", "bfloat16", "float16")
ARRAYS = 28  # Metal binds 31, of which shape and strides take up to 3


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="MLX compiles for a CPU with g++")
@pytest.mark.parametrize(("model", "dtype"), cells(MOST, DTYPES))
def test_a_step_has_few_libraries_of_few_arrays(model: str, dtype: str) -> None:
    command = [sys.executable, "-m", "benchmarks.step_kernels", model, "--dtype", dtype, "--json"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert 3 <= found["libraries"] <= MOST[model]
    assert found["update"]["libraries"] == 2  # AdamW, and a sum of sixteen numbers
    assert found["most_arrays"] <= ARRAYS


GLINER = Path(__file__).parents[1] / "tasks" / "gliner_goldens"
TEXTS = ["the cat sat on the mat .", "milk", "the dog went to the store in paris , " * 3]


class Search:
    """Searches graphs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, int] = {}  # how many graphs of each kind it was given
        self.found: set[str] = set()  # what MLX gets wrong in them
        self._fused = Fused(patch)
        self._traced(patch, Compiled, "_compiled", "gradients", lambda given: None)
        self._traced(patch, DeviceStep, "__call__", "updates", lambda given: mx.eval(given[2].arrays))
        lazy = _BatchOrder._lazy

        def started(batches: Any, group: Any) -> Any:
            self._fused.calls.clear()
            found = lazy(batches, group)
            self._search("passes", found)
            return found

        patch.setattr(_BatchOrder, "_lazy", started)
        run = Differentiator._run

        def ran(which: Differentiator, function: Any, *given: Any) -> Any:
            self._fused.calls.clear()
            found = run(which, function, *given)
            if not isinstance(function, Compiled):
                self._search("gradients", found)
            return found

        patch.setattr(Differentiator, "_run", ran)

    def _traced(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, kind: str, prepare: Callable[[tuple[Any, ...]], None]
    ) -> None:
        usual = getattr(owner, name)

        def traced(which: Any, *given: Any) -> Any:
            prepare(given)
            self._fused.calls.clear()
            mx.enable_compile()
            try:
                self._search(kind, usual(which, *given))
            finally:
                mx.disable_compile()
            return which.function(given[0], *given[1]) if isinstance(which, Compiled) else usual(which, *given)

        patch.setattr(owner, name, traced)

    def _search(self, kind: str, found: Any) -> None:
        plain = [vars(one) if hasattr(one, "means") else one for one in found] if isinstance(found, tuple) else found
        arrays = [one for one in dict(nn.utils.tree_flatten([plain])).values() if isinstance(one, mx.array)]
        self.found |= {f"{kind}: {one}" for one in wrong(Graph(arrays, self._fused.calls), training=kind != "passes")}
        self.seen[kind] = self.seen.get(kind, 0) + 1


@contextmanager
def searching(patch: pytest.MonkeyPatch) -> Iterator[Search]:
    with a_gpu(patch), patch.context() as within:
        yield Search(within)


# By name, whose first word is the task: options of training.
CALLS: dict[str, dict[str, Any]] = {
    "classify, LoRA": {"lora": 4},
    "classify, float16": {"dtype": "float16", "checkpointing": True},
    "classify, few labels": {"few_shot": True},
    "classify, a teacher": {"teacher": ""},
    "tag": {}, "answer": {}, "embed": {}, "embed, in chunks": {"chunk": 3},
    "embed, sparse": {"train": PAIRS, "vectors": "sparse", "query_flops": 1e-3, "document_flops": 1e-3},
    "embed, tokens": {"train": PAIRS, "vectors": "tokens", "dimensions": (16,), "max_length": 20},
    "tag, open": {"train": open_tags(16), "model": GLINER / "bert", "open": True},
    "pretrain": {"objective": "mlm,nsp"}, "distill": {}, "ELECTRA": {},
}  # fmt: skip


def training(name: str, base: Path, folder: Path) -> Any:
    if name == "ELECTRA":
        return electras.Folder(folder).run("out", steps=3, eval_every=3)
    task, options = name.partition(",")[0], CALLS[name] | {"output": folder / "out", "batch_size": 8}
    if task in ("pretrain", "distill"):
        options |= {"teacher" if task == "distill" else "model": model_folder(folder / "tiny"), "length": "24"}
        return getattr(mlxbert, task)(text_file(folder / "text.txt"), steps=3, eval_every=3, **options)
    if "few_shot" in options:
        base = save_st(folder / "start", pooling("mean", old=True), NORMALIZE)
    if name == "embed, sparse":
        base = save(folder / "model")
    usual: dict[str, Any] = {"train": options.get("train") or data_file(folder, task, 24), "model": base, "epochs": 1}
    if "teacher" in options:
        [*mlxbert.finetune(task, **usual, output=folder / "teacher")]
        options["teacher"] = folder / "teacher"
    return mlxbert.finetune(task, **usual | options)


@pytest.mark.parametrize("call", fast(CALLS, "classify, few labels", "embed, tokens"))
def test_no_graph_is_one_mlx_gets_wrong(call: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with searching(monkeypatch) as search:
        assert [*training(call, base, tmp_path)]
    assert {*search.seen} >= {"gradients", "updates"}
    assert search.found == set()


USES: dict[str, Callable[[Path], Any]] = {
    "sparse": lambda folder: mlxbert.load(save_splade(folder), task="embed-sparse").embed_sparse(TEXTS),
    "tokens": lambda folder: mlxbert.load(token_folders.PYLATE["usual"](folder)).embed_tokens(TEXTS, kind="query"),
    "MaxSim": lambda folder: mlxbert.load(token_folders.PYLATE["usual"](folder)).rerank("milk", TEXTS),
    "static": lambda folder: mlxbert.load(model2vec(folder)).embed_stream(TEXTS, pooling="max"),
} | {
    f"open labels, {kind}": lambda folder, kind=kind: mlxbert.load(GLINER / kind).tag(
        TEXTS, labels=["city", "animal"], threshold=0.3
    )
    for kind in FROZEN
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_no_graph_of_a_use_is_one_mlx_gets_wrong(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with searching(monkeypatch) as search:
        assert [*USES[use](tmp_path / "model")]
    assert search.seen.get("passes") and search.found == set()
