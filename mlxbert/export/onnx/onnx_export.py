"""Writes a model for one task in ONNX, and compares the file with the model.

The file takes `input_ids` and `attention_mask`, and `token_type_ids` if the model has segments: int64 (B, L). Its
outputs have the names that transformers and sentence-transformers expect.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.config import Disentangled, RelativeBias
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.export.compare.compared_model import OpenedModel
from mlxbert.export.compare.facts import encoded
from mlxbert.export.compare.reports import OutputDifferences, VectorDifferences
from mlxbert.frozen_dict import FrozenDict
from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import FINE_TUNED, HEADS, TASKS, Network, missing_parts, task_parts, titles
from mlxbert.nn.ops import inference
from mlxbert.other_libraries import install_command, not_one_of
from mlxbert.paths import check_regular
from mlxbert.text.batch import make_batch
from mlxbert.weights import save
from mlxbert.weights.build import build_network
from mlxbert.weights.formats.file_names import ONNX

_LARGEST = 1_900_000_000  # bytes; larger weights are in a second file, because a message of protobuf ends at 2 GiB
_RECORDED = 12  # tokens in the longest batch that is recorded, unless the length decides about constants
_TASK = "mlxbert_task"  # the key of the task in the file
Arrays = dict[str, NDArray[Any]]


def import_package(name: str) -> Any:
    """Imports a package that the exports need; raises an error that says how to install it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise MlxbertError(
            f"ONNX needs the package {name}, which cannot be imported ({problem})", hint=install_command("onnx")
        ) from None


def choose_task(model: OpenedModel, task: str | None) -> str:
    """Returns the task to export: by default that of a fine-tuned head, else `embed` for embedding models."""
    able = [name for name in TASKS if _lacks(model, name) is None]
    if task is None:
        stated = isinstance(model.embedder, Embedder) and model.embedder.config.stated
        trained = [name for name in able if TASKS[name] in FINE_TUNED]
        task = next(iter(trained), "embed" if stated or len(able) == 1 else able[0])
    if task not in TASKS:
        raise not_one_of("task", task, TASKS)
    if (lacking := _lacks(model, task)) is not None:
        raise ArgumentError(f"`task` is {task!r}, but the model has no {lacking}", hint=f"it can do {', '.join(able)}")
    model.other_vectors(dense=TASKS[task] is None)  # refuses what would be another model
    return task


def _lacks(model: OpenedModel, task: str) -> str | None:
    """Names the parts that a task needs and the model lacks; `None` if it can do the task."""
    missing = missing_parts(task, model.config, model.parts)
    missing += [part for part in task_parts(task, model.config) if part in model.problems]
    return titles(missing) if missing else None


@dataclass(frozen=True)
class OnnxExport:
    """A model and the task to export."""

    model: OpenedModel
    task: str

    @cached_property
    def network(self) -> Network:
        """The network in float32, with the parts that the task needs."""
        network = build_network(self.model.checkpoint, task_parts(self.task, self.model.config), mx.float32)
        network.eval()
        return network

    @property
    def head(self) -> str | None:
        """The head of the task; `None` for vectors."""
        return TASKS[self.task]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the file's inputs."""
        names = "input_ids", "attention_mask", "token_type_ids"
        return names if self.model.config.type_vocab_size > 1 else names[:2]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the file's outputs."""
        if self.head is None:
            vectors = ("sentence_embedding",) if isinstance(self.model.embedder, Embedder) else ()
            return "last_hidden_state", *vectors
        return ("start_logits", "end_logits") if HEADS[self.head].scope == "span" else ("logits",)

    @property
    def left_out(self) -> tuple[str, ...]:
        """A noun phrase for each thing in the model that the file does not give."""
        others = [HEADS[part].title for part in self.model.parts if part in HEADS and part != self.head]
        own = None if self.head is None else HEADS[self.head].own
        if own is not None and own.used(self.model.config.labels) and not own.alone:
            others.append(f"{own.stem.upper()}, which only mlxbert has")
        if self.head is None and isinstance(self.model.embedder, Embedder) and self.model.embedder.config.prompts:
            others.append("the prompts, which the calling program puts before the texts")
        return (*others, *self.model.other_vectors(dense=self.head is None))

    def changes(self) -> Iterator[str]:
        """Yields sentences on what the file is, and on what the model has and the file does not."""
        yield f"weights: {self.model.checkpoint.weights.format} → {ONNX}, for {self.task}, in float32"
        yield from (f"left out: {part}" for part in self.left_out)
        if (adapter := self.model.checkpoint.adapter) is not None:
            yield f"weights: the adapter {adapter.folder.resolve().name} is merged into them"

    def config_changes(self) -> dict[str, Any]:
        """Returns the keys of `config.json` that say what the file computes; `None` leaves a key out."""
        checkpoint, labels = self.model.checkpoint, self.model.config.labels
        changed: dict[str, Any] = {
            "architectures": save.classes_of(checkpoint, [] if self.head is None else [self.head])
        }
        if self.head is not None and HEADS[self.head].labelled and labels is not None:
            changed |= replace(labels, head_pooling=None, crf=False).to_config()
        return changed

    def run(self, input_ids: mx.array, attention_mask: mx.array, token_type_ids: mx.array | None = None) -> Any:
        """Computes the outputs with MLX, for arrays (B, L)."""
        network, embedder = self.network, self.model.embedder
        pools = self.head is None and isinstance(embedder, Embedder)
        output = network.encoder(
            input_ids,
            attention_mask,
            token_type_ids,
            output_attentions=pools and isinstance(embedder, Embedder) and embedder.needs_attentions,
        )
        if self.head is None:
            vectors = [embedder(output, attention_mask)] if isinstance(embedder, Embedder) else []
            return [output.last_hidden_state, *vectors]
        logits = network.logits(self.head, output)
        return [logits[..., 0], logits[..., 1]] if HEADS[self.head].scope == "span" else [logits]

    def write(self, path: Path) -> None:
        """Writes the file; its weights are in a second file next to it if they are too large for one."""
        onnx = import_package("onnx")
        from mlxbert.export.onnx import graphs, onnx_operators

        config = self.model.config
        tables = isinstance(config.positions, Disentangled | RelativeBias)
        longest = config.max_length if tables else min(config.max_length, _RECORDED)
        mx.eval(self.network.parameters())
        with inference():
            graph = graphs.record(self.run, len(self.inputs), longest)
        written = onnx_operators.write(graph, self.inputs, self.outputs, f"A model for the task {self.task}.")
        onnx.helper.set_model_props(written, {_TASK: self.task})
        path.parent.mkdir(parents=True, exist_ok=True)
        apart = sum(len(tensor.raw_data) for tensor in written.graph.initializer) > _LARGEST
        onnx.save_model(written, path, save_as_external_data=apart, location=f"{path.name}_data" if apart else None)

    @cached_property
    def _batches(self) -> list[Arrays]:
        """The fixed texts as one batch with padding, and the longest of them alone."""
        encodings = encoded(self.model)
        groups = [encodings, [max(encodings, key=len)]]
        return [self._arrays(group) for group in groups]

    def _arrays(self, encodings: Sequence[Any]) -> Arrays:
        batch = make_batch(encodings, self.model.config)
        ids = np.array(batch.input_ids, np.int64)
        masks = [batch.attention_mask, batch.token_type_ids]
        filled = [
            np.full_like(ids, fill) if array is None else np.array(array, np.int64)
            for array, fill in zip(masks, (1, 0), strict=True)
        ]
        return dict(zip(self.inputs, (ids, *filled), strict=False))

    def compare(self, path: Path) -> OutputDifferences:
        """Runs the file with onnxruntime and the model with MLX on the fixed texts, and measures the differences."""
        session = open_session(path)
        if (names := tuple(output.name for output in session.get_outputs())) != self.outputs:
            raise CheckpointError(f"{path}: has the outputs {', '.join(names)}, expected {', '.join(self.outputs)}")
        ours, theirs = list[Arrays](), list[Arrays]()
        for batch in self._batches:
            real = batch["attention_mask"].astype(bool)
            try:
                found = session.run(None, batch)
            except Exception as problem:  # onnxruntime has a class of errors for each status
                raise CheckpointError(f"{path}: onnxruntime cannot run the file ({problem})") from None
            theirs.append(_without_padding(dict(zip(self.outputs, found, strict=True)), real))
            with inference():
                arrays = self.run(*(mx.array(batch[name]) for name in self.inputs))
                computed = [np.array(array.astype(mx.float32)) for array in arrays]
            ours.append(_without_padding(dict(zip(self.outputs, computed, strict=True)), real))
        return self._differences(ours, theirs)

    def _differences(self, ours: Sequence[Arrays], theirs: Sequence[Arrays]) -> OutputDifferences:
        apart = {
            name: max(_largest(a[name], b[name]) for a, b in zip(ours, theirs, strict=True)) for name in self.outputs
        }
        texts = len(self._batches[0]["input_ids"])
        if self.head is not None:
            return OutputDifferences(texts, heads=FrozenDict({self.head: max(apart.values())}))
        vectors = None
        if "sentence_embedding" in apart:
            a, b = (np.concatenate([one["sentence_embedding"] for one in side]) for side in (ours, theirs))
            cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
            vectors = VectorDifferences(float(cosines.mean()), float(cosines.min()), apart["sentence_embedding"])
        return OutputDifferences(texts, apart["last_hidden_state"], vectors=vectors)


def _without_padding(arrays: Mapping[str, NDArray[Any]], real: NDArray[np.bool_]) -> Arrays:
    return {name: array[real] if array.shape[:2] == real.shape else array for name, array in arrays.items()}


def _largest(a: NDArray[Any], b: NDArray[Any]) -> float:
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    return float(np.abs(a - b).max(initial=0.0))


def open_session(path: Path) -> Any:
    """Opens a file in onnxruntime, on a CPU."""
    onnxruntime = import_package("onnxruntime")
    check_regular(path, path.stat().st_mode)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # see `OnnxExport.compare`
        raise CheckpointError(f"{path}: onnxruntime cannot open the file ({problem})") from None


def task_of(path: Path) -> str:
    """Returns the task of a file that `OnnxExport.write` wrote."""
    task = open_session(path).get_modelmeta().custom_metadata_map.get(_TASK)
    if task not in TASKS:
        raise CheckpointError(f"{path}: was not written by mlxbert")
    return str(task)
