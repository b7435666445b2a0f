"""Everything before training: the data as examples, the report on them, the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxbert.config import Labels
from mlxbert.data.rows import Rows
from mlxbert.data.split import split
from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model, load
from mlxbert.nn.heads import HEADS
from mlxbert.training.objective import Objective
from mlxbert.training.objectives.texts import TextObjective
from mlxbert.training.report import DataReport, check_labels, describe
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.folder import ModelFolder
from mlxbert.weights.source import find_folder


@dataclass(frozen=True, kw_only=True)
class Source:
    """The model that training starts from, and how it is loaded.

    Attributes:
        name: Hub name, folder, or `builtin`.
        device: See `mlxbert.load`.
        revision: See `mlxbert.load`.
        offline: See `mlxbert.load`.
    """

    name: str
    device: str = "auto"
    revision: str | None = None
    offline: bool = False

    @property
    def folder(self) -> Path:
        """The folder with its files, downloaded if need be."""
        return find_folder(self.name, revision=self.revision, offline=self.offline)

    def fetched(self, on_progress: Callable[[int, int], None]) -> Path:
        """The folder; `on_progress` is called with the bytes of a download."""
        return find_folder(self.name, revision=self.revision, offline=self.offline, on_progress=on_progress)

    def load(self, **chosen: Any) -> Model:
        """The model in float32; see `mlxbert.load`."""
        return load(
            self.name, dtype="float32", device=self.device, revision=self.revision, offline=self.offline, **chosen
        )

    def with_heads(self, heads: Mapping[str, Labels | None], seed: int) -> Model:
        """The model with the heads that are trained: its own, where it has the same labels, fresh ones otherwise."""
        checkpoint = open_checkpoint(ModelFolder(self.folder))
        own = checkpoint.config.heads.labels
        kept = len(heads) == 1 and all(
            head in checkpoint.parts and HEADS[head].task and labels is not None and own is not None
            and {*own.names} == {*labels.names} and own.problem_type in (None, labels.problem_type)
            for head, labels in heads.items()
        )  # fmt: skip
        return self.load(task=HEADS[next(iter(heads))].task) if kept else self.load(new_heads=heads, seed=seed)


@dataclass(frozen=True)
class Part:
    """Training or validation data: records, where they stand, and examples, in the same order."""

    records: Sequence[Any]
    places: Sequence[str]
    examples: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained on what.

    Attributes:
        objective: The objective, bound to the model.
        heads: The heads that are trained.
        train: The training data.
        valid: The validation data.
        report: What the data look like; `None` for an objective that is not over texts.
        valid_files: Where the validation data come from.
        sha256: The hashes of all files.
        resumable: Whether they can be read again.
    """

    objective: Objective[Any]
    heads: Mapping[str, Labels | None]
    train: Part
    valid: Part
    report: DataReport | None
    valid_files: tuple[str, ...]
    sha256: Mapping[str, str]
    resumable: bool


def make_plan(
    objective: Objective[Any],
    source: Source,
    train: Rows,
    valid: Rows | None,
    validation_share: float,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Reads, splits and tokenizes the data.

    Raises:
        InputError: A row cannot be used.
        ArgumentError: The share is invalid.
    """
    if isinstance(validation_share, bool) or not 0 < validation_share < 1:
        raise ArgumentError(f"validation_share is {validation_share!r:.60}, expected a number between 0 and 1")
    records = list(objective.read(train))
    if not records:
        raise InputError(f"{', '.join(train.files) or 'train'}: there is no example")
    placed = list(zip(records, (row.place for row in train), strict=True))
    if valid is None:
        held_in, held_out = split(placed, validation_share, seed)
    else:
        held_in, held_out = placed, list(zip(objective.read(valid), (row.place for row in valid), strict=True))
        if not held_out:
            raise InputError(f"{', '.join(valid.files) or 'valid'}: there is no example")
    heads = objective.heads([record for record, _ in held_in])
    if isinstance(objective, TextObjective):
        check_labels(held_in, held_out)
    objective.bind(source.with_heads(heads, seed))
    parts = [prepared(objective, part) for part in (held_in, held_out)]
    return Plan(
        objective=objective, heads=heads, train=parts[0], valid=parts[1],
        report=_report(objective, parts, train, valid, validation_share),
        valid_files=(train if valid is None else valid).files,
        sha256={**train.sha256, **(valid.sha256 if valid is not None else {})},
        resumable=train.resumable and (valid is None or valid.resumable),
    )  # fmt: skip


def prepared(objective: Objective[Any], part: Sequence[tuple[Any, str]]) -> Part:
    """Tokenizes records; errors name their places."""
    examples = []
    for record, place in part:
        try:
            examples.append(objective.prepare(record))
        except InputError as problem:
            raise InputError(f"{place}: {problem.message}", hint=problem.hint) from None
    return Part([record for record, _ in part], [place for _, place in part], examples)


def _report(
    objective: Objective[Any], parts: Sequence[Part], train: Rows, valid: Rows | None, share: float
) -> DataReport | None:
    if not isinstance(objective, TextObjective) or objective.columns is None:
        return None
    return describe(
        *(part.records for part in parts),
        task=objective.name,
        lengths=[[len(example) for example in part.examples] for part in parts],
        truncated=[sum(example.encoding.truncated for example in part.examples) for part in parts],
        files=[train.files, (train if valid is None else valid).files],
        columns=objective.columns,
        split_off=share if valid is None else None,
        max_length=objective.tokenizer.max_length,
    )
