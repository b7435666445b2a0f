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
from mlxbert.train.loop.compiled_functions import Compiled
from mlxbert.train.loop.gradients import Differentiator
from mlxbert.train.loop.optimizer_steps import DeviceStep
from tests.helpers import token_folders
from tests.helpers.gliner_models import FROZEN
from tests.helpers.graphs import Fused, Graph, wrong
from tests.helpers.sparse_folder import save_splade
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.static_folders import model2vec
from tests.helpers.tiny import save
from tests.train.files import data_file
from tests.train.pretraining import electras
from tests.train.pretraining.files import model_folder, text_file
from tests.train.test_embed_objective import PAIRS
from tests.train.test_open_tag import _sentences as open_tags
from tests.train.test_step import a_gpu

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


def task(name: str, base: Path, folder: Path, data: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {"train": data or data_file(folder, name, 24), "model": base, "output": folder / "out"}
    return mlxbert.finetune(name, **given, epochs=1, batch_size=8, **options)


def few(base: Path, folder: Path) -> Any:
    start = save_st(folder / "start", pooling("mean", old=True), NORMALIZE)
    return task("classify", start, folder, few_shot=True)


def taught(base: Path, folder: Path) -> Any:
    [*task("classify", base, folder / "teacher")]
    return task("classify", base, folder, teacher=folder / "teacher" / "out")


def pretrain(folder: Path, call: Callable[..., Any], **options: Any) -> Any:
    given: dict[str, Any] = {"length": "24", "batch_size": 8, "steps": 3, "eval_every": 3}
    return call(text_file(folder / "text.txt"), output=folder / "out", **given, **options)


CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "classify, LoRA": lambda base, folder: task("classify", base, folder, lora=4),
    "classify, float16": lambda base, folder: task("classify", base, folder, dtype="float16", checkpointing=True),
    "classify, few labels": few,
    "classify, a teacher": taught,
    "tag": lambda base, folder: task("tag", base, folder),
    "answer": lambda base, folder: task("answer", base, folder),
    "embed": lambda base, folder: task("embed", base, folder),
    "embed, in chunks": lambda base, folder: task("embed", base, folder, chunk=3),
    "embed, sparse": lambda base, folder: task(
        "embed", save(folder / "model"), folder, PAIRS, vectors="sparse", query_flops=1e-3, document_flops=1e-3
    ),
    "embed, tokens": lambda base, folder: task(
        "embed", base, folder, PAIRS, vectors="tokens", dimensions=(16,), max_length=20
    ),
    "tag, open": lambda base, folder: task("tag", GLINER / "bert", folder, open_tags(16), open=True),
    "masked words": lambda base, folder: pretrain(
        folder, mlxbert.pretrain, model=model_folder(folder / "tiny"), objective="mlm,nsp"
    ),
    "replaced words": lambda base, folder: electras.Folder(folder).run("out", steps=3, eval_every=3),
    "distillation": lambda base, folder: pretrain(folder, mlxbert.distill, teacher=model_folder(folder / "tiny")),
}  # fmt: skip


_QUICK = "classify, few labels", "embed, tokens"


@pytest.mark.parametrize(
    "call", [pytest.param(name, marks=[] if name in _QUICK else pytest.mark.slow) for name in CALLS]
)
def test_no_graph_of_a_call_has_what_mlx_gets_wrong(
    call: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teacher").mkdir()
    with searching(monkeypatch) as search:
        assert [*CALLS[call](base, tmp_path)]
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
def test_no_graph_of_other_vectors_and_open_labels_has_what_mlx_gets_wrong(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with searching(monkeypatch) as search:
        assert [*USES[use](tmp_path / "model")]
    assert search.seen.get("passes") and search.found == set()
