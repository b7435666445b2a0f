"""The base model of a training: its files, its properties, and how it is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from mlxbert import memory_estimate
from mlxbert.labels.labels import Labels
from mlxbert.loading import ModelFiles
from mlxbert.machine import device as devices
from mlxbert.model import Model
from mlxbert.nn.embedder import EmbeddingConfig
from mlxbert.nn.heads import HEADS, OWN_LAYERS
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.weights.build import shapes
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from mlxbert.weights.sentence_transformers import read_embedder
from mlxbert.weights.vector_kinds import stated_kinds


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """The model that training starts from."""

    # Where to find the model, and the device to run it on. The model always computes in float32.
    ref: ModelRef
    # The paths of the model's files and of its adapter, if it has one. They are looked up once, because a branch on the
    # hub may move during a long run.
    files: ModelFolder
    # Whether quantized weights stay quantized if the device supports it. Weights that stay quantized cannot be trained.
    packed: bool = False

    @cached_property
    def _files(self) -> ModelFiles:
        adapter = self.files.adapter or self.files.own_adapter
        return ModelFiles(ModelRef(self.folder, adapter, dtype="float32", device=self.ref.device), self.files)

    @property
    def checkpoint(self) -> Checkpoint:
        """The weights and the configuration of the model. The checkpoint is opened only once."""
        return self._files.checkpoint

    @property
    def name(self) -> str:
        return str(self.ref.source)

    @property
    def public_name(self) -> str:
        """The name without the path of this machine: for a folder or a file, only its own name."""
        path = Path(self.name).expanduser()
        return path.resolve().name if path.exists() else self.name

    @property
    def folder(self) -> Path:
        return self.files.path

    def load(self, **options: Any) -> Model:
        """Loads the model in float32. The options are keyword arguments of `mlxbert.load`."""
        devices.use(self.ref.device)
        return replace(self._files.load(quantized=self.packed, **options), source=self.name)

    def warn_unless_it_fits(self, options: TrainingOptions) -> None:
        """Warns if training certainly needs more memory than the device has.

        The estimate is a lower bound: the weights of the model, with the gradients and moments of the trained layers.
        """
        checkpoint = self.checkpoint
        if self.packed and checkpoint.storage is not None:
            return  # the weights stay quantized
        sizes = {name: prod(shape) for name, shape in shapes(checkpoint, ()).items()}
        layers = range(0 if options.lora is not None else checkpoint.config.num_stored_layers)
        trained = sum(
            size for name, size in sizes.items()
            if name.startswith(tuple(f"encoder.layers.{layer}." for layer in layers[options.freeze or 0 :]))
        )  # fmt: skip
        needed = memory_estimate.of_trained(trained, sum(sizes.values()) - trained)
        memory_estimate.warn_unless_it_fits(f"{self.name}: training needs at least", needed)

    def keeps(self, heads: Mapping[str, Labels | None]) -> bool:
        """Returns whether training keeps the model's own head instead of making new heads.

        Training keeps this head if it is the only one to train and its labels include all labels of the data; few-shot
        training, which computes the head from the data, needs the same labels. The result is also true if vectors are
        trained, which need no head.
        """
        if not heads:
            return True
        [(head, labels), *others] = heads.items()
        checkpoint = self.checkpoint
        if others or head not in checkpoint.parts or HEADS[head].task is None:
            return False
        present = checkpoint.config.labels if HEADS[head].labelled else None
        if present is None or labels is None:
            return present is labels
        # The name of a regression target, or of the score of a cross-encoder, does not matter.
        single_numbers = present.problem_type == labels.problem_type and len(present) == len(labels) == 1
        missing, unknown = {*present.names} - {*labels.names}, {*labels.names} - {*present.names}
        same_names = single_numbers or not (unknown or (missing and labels.head_pooling is not None))
        same_layers = all(getattr(present, layer.option) == getattr(labels, layer.option) for layer in OWN_LAYERS)
        return same_names and same_layers and present.problem_type in (None, labels.problem_type)

    def labels(self, head: str) -> Labels | None:
        """Returns the labels of a head; `None` if the model does not have the head."""
        checkpoint = self.checkpoint
        return checkpoint.config.labels if head in checkpoint.parts else None

    def pooling(self) -> str:
        """Returns the pooling that the model's files specify, or else the default pooling of the model's family."""
        return "+".join(self._embedding.poolings)

    def embeds(self) -> bool:
        """Returns whether the model's files specify how it computes vectors."""
        return self._embedding.stated

    def vectors(self) -> tuple[str, ...]:
        """Returns the kinds of vectors that the model's files state (see `stated_kinds`)."""
        return stated_kinds(self.files)

    @property
    def _embedding(self) -> EmbeddingConfig:
        return read_embedder(self.files, self.checkpoint.config.hidden_size).config

    def with_heads(self, heads: Mapping[str, Labels | None], seed: int, needs: str = "embed") -> Model:
        """Loads the model with the heads to train: its own head if `keeps` allows it, otherwise new heads.

        Without heads, the model is loaded for the task `needs`. Prompts of the loaded model do not switch to adapters,
        because the adapters fit only the untrained weights.
        """
        if not heads:
            model = self.load(task=needs)
        elif self.keeps(heads):
            model = self.load(task=HEADS[next(iter(heads))].task)
        else:
            model = self.load(new_heads=heads, seed=seed)
        return replace(model, _load_with_adapter=None)
