"""The public face: names, laziness, errors, what `load` refuses."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import errors
from mlxbert.machine import device
from mlxbert.machine.device import mx
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
