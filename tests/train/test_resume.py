"""An interrupted run ends in the bits of one that was not, whatever it trains; a run of other options is refused."""

from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.train.loop.events import Saved, Started
from tests.helpers.cases import fast
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.train import test_answer_objective, test_embed_objective, test_few_shot, test_finetune, test_rerank

TEXTS = [{"text": text, "label": label} for text, label in test_finetune.rows(60)]
LORA = {"lora": 4, "lr": 2e-2}
# By name: the task, its data, options, and an option whose change makes another run.
CASES: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "answer": ("answer", test_answer_objective.records(40), {}, {"stride": 3}),
    "vectors in chunks": ("embed", test_embed_objective.pairs(40), {"chunk": 3}, {"temperature": 0.3}),
    "few shot": ("classify", test_few_shot.records(4, 8), {"few_shot": True, "lr": 1e-3}, {"few_shot": False}),
    "rerank": ("rerank", test_rerank.groups(30), {}, {"loss": "mse"}),
    "teacher": ("classify", TEXTS, {"teacher": "", "gradient_accumulation": 2}, {"teacher": None}),
    "teacher, weighted": ("classify", TEXTS, {"teacher": "", "class_weights": "balanced"}, {"temperature": 3.0}),
    "dora": ("classify", TEXTS, {**LORA, "lora_dropout": 0.2, "dora": True}, {"lora": 5}),
    "rslora": ("classify", TEXTS, {**LORA, "rslora": True, "lora_layers": "all-linear"}, {"lora_alpha": 5}),
}


@pytest.mark.parametrize("case", fast(CASES, "dora"))
def test_an_interrupted_run_ends_in_the_same_bits(case: str, base: Path, tmp_path: Path) -> None:
    task, data, changes, other = CASES[case]
    options: dict[str, Any] = {"model": base, "epochs": 2, "lr": 1e-2, "batch_size": 8, "device": "cpu"}
    if task == "embed" or "few_shot" in changes:
        options["model"] = save_st(tmp_path / "start", pooling("mean", old=True), NORMALIZE)
    if "teacher" in changes:
        [*mlxbert.finetune("classify", train=TEXTS, model=base, output=tmp_path / "teacher", epochs=1)]
        changes = changes | {"teacher": tmp_path / "teacher"}

    def start(name: str, **more: Any) -> Any:
        return mlxbert.finetune(task, train=data, output=tmp_path / name, save_every=2, **options | changes | more)

    [*start("whole")]
    stream = start("parts")
    next(event for event in stream if isinstance(event, Saved))
    stream.close()
    if "lora" in changes:  # the base is not written
        stored = [mx.load(str(path)) for path in (tmp_path / "parts.partial").rglob("*.safetensors")]
        assert stored and all("word" not in name for arrays in stored for name in arrays)
    with pytest.raises(ArgumentError, match="unfinished"):
        [*start("parts", **other)]
    [started, *_] = start("parts")
    assert isinstance(started, Started) and started.first_step > 0
    files = [*(tmp_path / "whole").rglob("*.safetensors")]
    assert files
    for path in files:
        assert (tmp_path / "parts" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()
