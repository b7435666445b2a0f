"""A reference to a model, and the thread that a model belongs to."""

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from tests.helpers.cases import together

TEXTS = ["the cat", "a dog", "the man sat"]
ROOT = Path(__file__).parents[1]
PROGRAMS = {  # what a thread does before it ends; on a Linux CPU, only `rotate` calls a compiled function
    "loads": "on_a_thread(lambda: (mlxbert.load().embed('a'), rotate()))",
    "adopts": "model = mlxbert.load(); on_a_thread(lambda: (model.adopt(), model.embed('a'), rotate()))",
    "inspects": "on_a_thread(mlxbert.inspect)",
    "trains": """
rows = [{"text": text, "label": text} for text in "abab"]
run = mlxbert.finetune("classify", train=rows, valid=rows, output=sys.argv[1], epochs=1)
on_a_thread(lambda: (list(run), rotate()))
""",
    "engine": "with mlxbert.Engine() as engine: engine.call('builtin', rotate_and_say).result()",
    "open engine": "engine = mlxbert.Engine(); engine.call('builtin', rotate_and_say).result()",
    "actor": """
import pyarrow
from mlxbert.scale import Embedder
class Actor(Embedder):
    def _compute(self, *args):
        rotate()
        return super()._compute(*args)
actor = Actor()
on_a_thread(lambda: actor(pyarrow.table({"text": ["a"]})))
""",
    "core": """
from mlxbert.cpu.cores import _worker
print(_worker(0).submit(lambda: mx.eval([mx.random.normal((3,)) for _ in range(500)])).result(), flush=True)
""",
}


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """Another thread, always the same one."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_reference_is_what_load_is_given(tiny_folder: Path) -> None:
    ref = mlxbert.ModelRef(tiny_folder, dtype="float16", device="cpu")
    sent = pickle.loads(pickle.dumps(ref))
    assert sent == ref and hash(sent) == hash(ref)
    found = mlxbert.embed(mlxbert.load(sent, task="embed"), TEXTS)
    given = mlxbert.load(tiny_folder, task="embed", dtype="float16", device="cpu")
    assert np.array_equal(found, mlxbert.embed(given, TEXTS))
    with pytest.raises(dataclasses.FrozenInstanceError):
        ref.source = "other"  # type: ignore[misc]


@together(
    ("name", "value", "said"),
    [
        ("source", 5, "source"), ("adapter", 5, "adapter"), ("revision", 5, "revision"),
        ("revision", "../x", "revision"),
        ("dtype", "float8", "`dtype` is 'float8', expected one of auto, float32, float16, bfloat16"),
        ("dtype", None, "dtype"), ("device", "tpu", "`device` is 'tpu', expected one of auto, gpu, cpu"),
    ],
)  # fmt: skip
def test_a_reference_and_load_refuse_the_same(name: str, value: Any, said: str, tiny_folder: Path) -> None:
    arguments: dict[str, Any] = {"source": tiny_folder, name: value}
    with pytest.raises(mlxbert.ArgumentError, match=said) as first:
        mlxbert.ModelRef(**arguments)
    with pytest.raises(mlxbert.ArgumentError) as second:
        mlxbert.load(**arguments)
    assert first.value.message == second.value.message


def test_load_takes_a_reference_or_its_fields(tiny_folder: Path) -> None:
    ref = mlxbert.ModelRef(tiny_folder)
    for more in ({"dtype": "float16"}, {"device": "cpu"}, {"adapter": "a"}, {"revision": "main"}, {"offline": True}):
        with pytest.raises(mlxbert.ArgumentError, match="ModelRef"):
            mlxbert.load(ref, **more)


def test_a_thread_adopts_a_model_which_outlives_the_thread(tiny: mlxbert.Model, thread: ThreadPoolExecutor) -> None:
    expected, renamed = mlxbert.embed(tiny, TEXTS), dataclasses.replace(tiny, source="other")
    stream = mlxbert.embed_stream(tiny, iter(TEXTS))
    assert isinstance(thread.submit(mlxbert.embed, tiny, TEXTS).exception(), mlxbert.ThreadError)
    thread.submit(tiny.adopt).result()
    assert np.array_equal(thread.submit(mlxbert.embed, tiny, TEXTS).result(), expected)
    for use in (tiny.check_thread, renamed.check_thread, lambda: mlxbert.embed(tiny, "the cat"), lambda: next(stream)):
        with pytest.raises(mlxbert.ThreadError):
            use()
    tiny.adopt()
    assert np.array_equal(mlxbert.embed(renamed, TEXTS), expected)
    assert isinstance(thread.submit(mlxbert.embed, tiny, TEXTS).exception(), mlxbert.ThreadError)
    model = thread.submit(mlxbert.load, tiny.folder, dtype="float32").result()
    thread.shutdown()
    model.adopt()
    assert np.array_equal(mlxbert.embed(model, TEXTS), expected)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_whose_thread_used_mlx_ends_without_an_abort(program: str, tmp_path: Path) -> None:
    """Left to itself, MLX frees Python objects of a thread while Python ends, and the process dies of SIGABRT."""
    code = f"""
import sys, threading, mlxbert
from mlxbert.machine.device import mx
from mlxbert.nn import gpu
def rotate():
    x, y = mx.ones((1, 2, 3, 4)), mx.ones((3, 4))
    mx.eval(gpu._fused_rotation()(x, x, y, y))
def rotate_and_say(_):
    print(rotate(), flush=True)
def on_a_thread(work):
    thread = threading.Thread(target=lambda: (work(), print(None, flush=True)))
    thread.start()
    thread.join()
{program}
"""
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_refuses_in_place_of_waiting_for_ever() -> None:
    code = """
import os, sys, mlxbert
if len(sys.argv) > 1:
    model = mlxbert.load()
    mlxbert.embed(model, "a")
if (child := os.fork()) == 0:
    status = 1
    try:
        print(mlxbert.embed(model if sys.argv[1:] == ["used"] else mlxbert.load(), "b").shape, flush=True)
        status = 0
    except mlxbert.ThreadError as problem:
        status = 7 if "spawn" in problem.hint else 1
    os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    for words, status in ((["used"], "7"), (["loaded again"], "7"), ([], "0")):  # before MLX is used, a fork may load
        said = subprocess.check_output([sys.executable, "-c", code, *words], text=True, timeout=60)
        assert said.splitlines()[-1] == status, said


def test_weights_that_are_not_computed_yet_stay_with_their_thread(
    tiny: mlxbert.Model, thread: ThreadPoolExecutor
) -> None:
    embeddings = tiny.network.encoder.embeddings
    embeddings.norm.weight = embeddings.norm.weight * 2
    assert isinstance(thread.submit(tiny.adopt).exception(), mlxbert.ThreadError)
    expected = mlxbert.embed(tiny, TEXTS)  # still works here, and computes them
    mx.eval(tiny.network.parameters())
    thread.submit(tiny.adopt).result()
    assert np.array_equal(thread.submit(mlxbert.embed, tiny, TEXTS).result(), expected)
