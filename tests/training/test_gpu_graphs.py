"""Every graph that a GPU is given by a call of the library, searched for what MLX gets wrong there.

The calls take the paths of a GPU. Compiled functions are traced, and their graphs searched; then what they are traced
from is computed, as compiling takes a C++ compiler on a CPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.machine.device import mx, nn
from mlxbert.tasks.runner import _BatchOrder
from mlxbert.training.loop.compiled_functions import Compiled
from mlxbert.training.loop.gpu_updater import DeviceStep
from tests.helpers.graphs import Fused, Graph, wrong
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.pretraining import electras
from tests.pretraining.files import model_folder, text_file
from tests.training import test_finetune
from tests.training.files import data_file
from tests.training.test_step import a_gpu


class Search:
    """Searches graphs.

    Attributes:
        seen: How many graphs of each kind it was given.
        found: What MLX gets wrong in them.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, int] = {}
        self.found: set[str] = set()
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


def classify(base: Path, folder: Path, **options: Any) -> Any:
    data = [{"text": text, "label": label} for text, label in test_finetune.rows(24)]
    return mlxbert.finetune(
        "classify", train=data, model=base, output=folder / "out", epochs=1, batch_size=8, **options
    )


def task(name: str, base: Path, folder: Path, **options: Any) -> Any:
    data = data_file(folder, name, 24)
    return mlxbert.finetune(name, train=data, model=base, output=folder / "out", epochs=1, batch_size=8, **options)


def few(base: Path, folder: Path) -> Any:
    start = save_st(folder / "start", pooling("mean", old=True), NORMALIZE)
    return classify(start, folder, few_shot=True)


def taught(base: Path, folder: Path) -> Any:
    [*classify(base, folder / "teacher")]
    return classify(base, folder, teacher=folder / "teacher" / "out")


def pretrain(folder: Path, call: Callable[..., Any], **options: Any) -> Any:
    given: dict[str, Any] = {"length": "24", "batch_size": 8, "steps": 3, "eval_every": 3}
    return call(text_file(folder / "text.txt"), output=folder / "out", **given, **options)


CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "classify, LoRA": lambda base, folder: classify(base, folder, lora=4),
    "classify, float16": lambda base, folder: classify(base, folder, dtype="float16", checkpointing=True),
    "classify, few labels": few,
    "classify, a teacher": taught,
    "tag": lambda base, folder: task("tag", base, folder),
    "answer": lambda base, folder: task("answer", base, folder),
    "embed": lambda base, folder: task("embed", base, folder),
    "embed, in chunks": lambda base, folder: task("embed", base, folder, chunk=3),
    "masked words": lambda base, folder: pretrain(
        folder, mlxbert.pretrain, model=model_folder(folder / "tiny"), objective="mlm,nsp"
    ),
    "replaced words": lambda base, folder: electras.Folder(folder).run("out", steps=3, eval_every=3),
    "distillation": lambda base, folder: pretrain(folder, mlxbert.distill, teacher=model_folder(folder / "tiny")),
}  # fmt: skip


@pytest.mark.parametrize(
    "call", [pytest.param(name, marks=[] if name == "classify, few labels" else pytest.mark.slow) for name in CALLS]
)
def test_no_graph_of_a_call_has_what_mlx_gets_wrong(
    call: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teacher").mkdir()
    with searching(monkeypatch) as search:
        assert [*CALLS[call](base, tmp_path)]
    assert {*search.seen} >= {"gradients", "updates"}
    assert search.found == set()
