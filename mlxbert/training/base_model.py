"""The model that training starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from mlxbert import memory
from mlxbert.labels.labels import Labels
from mlxbert.loading import ModelFiles
from mlxbert.machine import device as devices
from mlxbert.model import Model
from mlxbert.nn.embedder import EmbeddingConfig
from mlxbert.nn.heads import HEADS, OWN_LAYERS
from mlxbert.training.options.loop_options import TrainingOptions
from mlxbert.weights.build import shapes
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from mlxbert.weights.sentence_transformers import read_embedder


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """The model that training starts from.

    Attributes:
        ref: What it is called, and where it computes; it always computes in float32.
        files: Its folder, and its adapter if it has one; found and opened once, as a branch on the hub may move while a
            run takes hours.
        packed: Whether quantized weights stay quantized, where the device computes with them: they cannot be trained.
    """

    ref: ModelRef
    files: ModelFolder
    packed: bool = False

    @cached_property
    def _files(self) -> ModelFiles:
        adapter = self.files.adapter or self.files.own_adapter
        return ModelFiles(ModelRef(self.folder, adapter, dtype="float32", device=self.ref.device), self.files)

    @property
    def checkpoint(self) -> Checkpoint:
        """The opened weights and configuration; it is opened once."""
        return self._files.checkpoint

    @property
    def name(self) -> str:
        """Hub name, folder, or `builtin`."""
        return str(self.ref.source)

    @property
    def folder(self) -> Path:
        """The folder of the model."""
        return self.files.path

    def load(self, **chosen: Any) -> Model:
        """The model in float32; see `mlxbert.load`."""
        devices.use(self.ref.device)
        return replace(self._files.load(quantized=self.packed, **chosen), source=self.name)

    def warn_unless_it_fits(self, options: TrainingOptions) -> None:
        """Warns if weights, gradients and moments alone, without those of words, are more than the device has."""
        checkpoint = self.checkpoint
        if self.packed and checkpoint.storage is not None:
            return  # they stay as small as they are
        sizes = {name: prod(shape) for name, shape in shapes(checkpoint, ()).items()}
        layers = range(0 if options.lora is not None else checkpoint.config.num_stored_layers)
        trained = sum(
            size for name, size in sizes.items()
            if name.startswith(tuple(f"encoder.layers.{layer}." for layer in layers[options.freeze or 0 :]))
        )  # fmt: skip
        needed = memory.of_trained(trained, sum(sizes.values()) - trained)
        memory.warn_unless_it_fits(f"{self.name}: training needs at least", needed)

    def keeps(self, heads: Mapping[str, Labels | None]) -> bool:
        """Whether the model has what is trained: one head, with the same labels; or none, for vectors."""
        if not heads:
            return True
        [(head, labels), *more] = heads.items()
        checkpoint = self.checkpoint
        if more or head not in checkpoint.parts or HEADS[head].task is None:
            return False
        own = checkpoint.config.labels if HEADS[head].labelled else None
        if own is None or labels is None:
            return own is labels
        # What a number, or the score of a cross-encoder, is called does not matter.
        numbers = own.problem_type == labels.problem_type and len(own) == len(labels) == 1
        same = numbers or {*own.names} == {*labels.names}
        alike = all(getattr(own, each.option) == getattr(labels, each.option) for each in OWN_LAYERS)
        return same and alike and own.problem_type in (None, labels.problem_type)

    def labels(self, head: str) -> Labels | None:
        """The labels of a head; `None` if the model does not have it."""
        checkpoint = self.checkpoint
        return checkpoint.config.labels if head in checkpoint.parts else None

    def pooling(self) -> str:
        """How the model makes the vector of a text; that of its family where its files do not say."""
        return "+".join(self._embedding.poolings)

    def embeds(self) -> bool:
        """Whether the model's files say how it makes vectors."""
        return self._embedding.stated

    @property
    def _embedding(self) -> EmbeddingConfig:
        return read_embedder(self.files, self.checkpoint.config.hidden_size).config

    def with_heads(self, heads: Mapping[str, Labels | None], seed: int) -> Model:
        """The model with the heads that are trained: its own, where it has the same labels, fresh ones otherwise.

        Prompts choose none of its own adapters, which belong to the weights before training.
        """
        if not heads:
            model = self.load(task="embed")
        elif self.keeps(heads):
            model = self.load(task=HEADS[next(iter(heads))].task)
        else:
            model = self.load(new_heads=heads, seed=seed)
        return replace(model, _load_with_adapter=None)
