"""The public face: names, laziness, errors, what `load` refuses, references and threads, hints on missing packages."""

import dataclasses
import importlib.metadata
import inspect
import os
import pickle
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from packaging.requirements import Requirement

import mlxbert
from mlxbert import errors
from mlxbert.machine import device
from mlxbert.machine.device import mx
from mlxbert.other_libraries import install_command, pip_install, required_packages
from tests.helpers.cases import together
from tests.helpers.rooms import public_names
from tests.helpers.tiny import CONFIG, VOCAB, random_network, save, tensors_of, tiny_config


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_every_public_name_is_there_and_has_a_docstring_and_the_builtin_model_needs_no_name() -> None:
    for name in public_names():
        value = getattr(mlxbert, name)
        assert name == "__version__" or value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'embedding'"):
        mlxbert.embedding  # type: ignore[attr-defined]  # noqa: B018
    for function in (mlxbert.load, mlxbert.inspect):
        assert inspect.signature(function).parameters["source"].default == "builtin"


def test_every_error_is_an_mlxbert_error_and_stands_in_the_drawing() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, mlxbert.MlxbertError) and kind.__name__ in (errors.__doc__ or "")
        assert kind.__name__ in dir(mlxbert)
    assert mlxbert.InputError("what", hint="how").hint == "how"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import mlxbert", {"mlx", "numpy", "tokenizers", "rich", "typer", "huggingface_hub"}),
        (
            "from mlxbert.cli.app import run; assert run(['fill-mask', 'a [MASK] .', '--top-k', '1', '--quiet']) == 0",
            {"huggingface_hub", "torch", "rich.table", "rich.console", "pydantic"},
        ),
        (
            "import mlxbert; model = mlxbert.load(task='embed'); mlxbert.embed(model, ['a', 'b' * 500])\n"
            "found = mlxbert.similarity(model, 'a', ['b'])",
            {"torch", "transformers", "sentence_transformers", "rich", "huggingface_hub"},
        ),
    ],
    ids=["the package", "a command in a pipe", "vectors"],
)
def test_nothing_heavy_is_imported(code: str, heavy: set[str]) -> None:
    done = _python(f"{code}\nimport sys; print('imported:', sorted({heavy} & {{*sys.modules}}))")
    *printed, last = done.stdout.splitlines()
    assert last == "imported: []" and len(printed) == ("fill-mask" in code) and done.stderr == ""


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if mx.is_available(mx.gpu):
        assert device.use("gpu").type == mx.DeviceType.gpu
        device.use("cpu")
    else:
        with pytest.raises(mlxbert.DeviceError, match="finds no GPU"):
            mlxbert.load("builtin", device="gpu")


def test_only_what_a_task_needs_is_loaded(tiny_folder: Path) -> None:
    assert set(mlxbert.load(str(tiny_folder), task="fill-mask").network.heads) == {"masked_lm"}
    whole = mlxbert.load(str(tiny_folder))
    assert set(whole.network.heads) == {"masked_lm", "next_sentence"} and whole.config.pooler
    assert whole.source == str(tiny_folder) and whole.labels is None and whole.folder == tiny_folder
    assert not whole.network.training
    tasks = "fill-mask, next-sentence, classify, tag, answer, replaced"
    with pytest.raises(mlxbert.ArgumentError, match=f"`task` is 'translate', expected one of {tasks}"):
        mlxbert.load("builtin", task="translate")


def test_a_loaded_model_can_be_tokenized_with_and_inspected(tiny: mlxbert.Model) -> None:
    one = mlxbert.tokenize(tiny, "the cat")
    assert [token.token for token in one.tokens] == ["[CLS]", "the", "cat", "[SEP]"]
    assert list(mlxbert.tokenize(tiny.tokenizer, ["the cat"])) == [one]
    mixed: list[Any] = ["a", 5]
    found = list(mlxbert.tokenize(tiny, mixed, on_error="return"))
    assert [type(result) for result in found] == [mlxbert.Tokens, mlxbert.Failure]
    assert mlxbert.inspect(tiny).folder == tiny.folder


def test_token_ids_become_text_again(tiny: mlxbert.Model) -> None:
    tokenizer, ids = tiny.tokenizer, tiny.tokenizer.encode("the cat sat").ids
    assert tokenizer.decode(ids) == "[CLS] the cat sat [SEP]"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the cat sat"
    assert tokenizer.decode(np.array(ids)) == tokenizer.decode(mx.array(ids)) == tokenizer.decode(ids)  # type: ignore[arg-type]
    assert tokenizer.decode(ids[1]) == "the" and tokenizer.decode([]) == ""
    wrong: list[Any] = [-1, 10**9, 1.5, "the", None, [ids], [True], 2**40]
    for bad in wrong:
        with pytest.raises(mlxbert.ArgumentError, match="id"):
            tokenizer.decode(bad)


def test_what_is_wrong_for_embed_is_said_before_anything_is_computed(tiny: mlxbert.Model) -> None:
    def texts() -> Iterator[str]:
        raise AssertionError("read")
        yield ""

    for options in ({"pooling": "median"}, {"dimensions": 25}, {"prompt_name": "query"}, {"overflow": "cut"}):
        with pytest.raises(mlxbert.ArgumentError):
            mlxbert.embed_stream(tiny, texts(), **options)
        with pytest.raises(mlxbert.ArgumentError):
            mlxbert.similarity(tiny, "a", texts(), **options)


# A program, variables, and what it writes to stderr.
FAILURES = {
    "no BLAS": (
        "import mlxbert; mlxbert.load('builtin')",
        {"MLXBERT_BLAS": "/nowhere/libblas.so"}, ["DeviceError", "MLXBERT_BLAS=/nowhere/libblas.so"],
    ),
    "MLX comes first": (
        "import logging; logging.basicConfig(); import mlx.core; from mlxbert.machine import device; device.use()",
        {}, ["before mlx"],
    ),
    "no MLX": (
        "import sys, platform; sys.modules['mlx'] = sys.modules['mlx.core'] = None\n"
        "platform.system, platform.machine = (lambda: 'Darwin'), (lambda: 'x86_64')\n"
        "from mlxbert.cli.app import run\nassert run(['fill-mask', 'a [MASK]']) == 1",
        {}, ["error: MLX cannot be loaded on Darwin x86_64", "hint: mlxbert runs on Apple silicon"],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILURES)
def test_a_machine_on_which_mlx_does_not_run_is_told_why(name: str) -> None:
    if sys.platform != "linux" and name != "no MLX":
        pytest.skip("the choice of a BLAS is Linux's")
    code, environment, said = FAILURES[name]
    stderr = _python(code, **environment).stderr
    assert all(part in stderr for part in said) and ("Traceback" in stderr) == (name == "no BLAS")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"vocab_size": 2 * len(VOCAB) + 1}, "word embeddings"), ({"vocab_size": 2 * len(VOCAB)}, None),
        ({"pad_token_id": 3}, "pads with token 0, but pad_token_id in config.json is 3"), ({}, None),
    ],
)  # fmt: skip
def test_a_tokenizer_that_looks_like_another_models_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, Any], said: str | None
) -> None:
    facts = CONFIG | config
    network = random_network(tiny_config(vocab_size=facts["vocab_size"], pad_token_id=facts["pad_token_id"]))
    folder = save(tmp_path / "model", tensors_of(network), facts)
    with caplog.at_level("WARNING", logger="mlxbert"):
        mlxbert.load(folder, task="fill-mask")
    assert ("another model" in caplog.text) == (said is not None) and (said or "") in caplog.text


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


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@together("extra", sorted(EXTRAS.keys() - {"test", "dev"}))
def test_the_command_installs_what_the_extra_requires(extra: str) -> None:
    packages = shlex.split(required_packages(extra))
    assert install_command(extra) == pip_install(required_packages(extra))
    found, expected = (
        {(one.name, one.specifier) for one in map(Requirement, each)} for each in (packages, EXTRAS[extra])
    )
    assert found == expected


def test_source_that_was_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert required_packages("mcp") == '"mlxbert[mcp]"'
