"""Everything before training: the data as examples, the report on them, the model."""

import hashlib
import itertools
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxbert.data.rows import Rows
from mlxbert.data.split import split
from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.model import Model, load
from mlxbert.nn.heads import HEADS
from mlxbert.training.data import describe
from mlxbert.training.data.report import DataReport
from mlxbert.training.objective import Objective, Part
from mlxbert.training.objectives.task import TaskObjective
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.folder import ModelFolder
from mlxbert.weights.sentence_transformers import read_embedder


@dataclass(frozen=True, kw_only=True)
class Source:
    """The model that training starts from.

    Attributes:
        name: Hub name, folder, or `builtin`.
        files: Its folder, and its adapter if it has one; found once, as a branch on the hub may move while a run takes
            hours.
        device: See `mlxbert.load`.
        revision: See `mlxbert.load`.
        packed: Whether quantized weights stay quantized, where the device computes with them: they cannot be trained.
    """

    name: str
    files: ModelFolder
    device: str = "auto"
    revision: str | None = None
    packed: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the model."""
        return self.files.path

    def load(self, **chosen: Any) -> Model:
        """The model in float32; see `mlxbert.load`."""
        return replace(
            load(
                self.folder,
                adapter=self.files.adapter,
                dtype="float32",
                device=self.device,
                quantized=self.packed,
                **chosen,
            ),
            source=self.name,
        )

    def keeps(self, heads: Mapping[str, Labels | None]) -> bool:
        """Whether the model has what is trained: one head, with the same labels; or none, for vectors."""
        if not heads:
            return True
        [(head, labels), *more] = heads.items()
        checkpoint = open_checkpoint(self.files)
        if more or head not in checkpoint.parts or HEADS[head].task is None:
            return False
        own = checkpoint.config.heads.labels if HEADS[head].labelled else None
        if own is None or labels is None:
            return own is labels
        # What a number, or the score of a cross-encoder, is called does not matter.
        numbers = own.problem_type == labels.problem_type and len(own) == len(labels) == 1
        same = numbers or ({*own.names} == {*labels.names} and own.crf == labels.crf)
        alike = own.problem_type in (None, labels.problem_type) and own.head_pooling == labels.head_pooling
        return alike and same

    def labels(self, head: str) -> Labels | None:
        """The labels of a head; `None` if the model does not have it."""
        checkpoint = open_checkpoint(self.files)
        return checkpoint.config.heads.labels if head in checkpoint.parts else None

    def pooling(self) -> str:
        """How the model makes the vector of a text; `mean` where its files do not say."""
        config = open_checkpoint(self.files).config
        return "+".join(read_embedder(self.files, config.hidden_size).config.poolings)

    def with_heads(self, heads: Mapping[str, Labels | None], seed: int) -> Model:
        """The model with the heads that are trained: its own, where it has the same labels, fresh ones otherwise."""
        if not heads:
            return self.load(task="embed")
        if self.keeps(heads):
            return self.load(task=HEADS[next(iter(heads))].task)
        return self.load(new_heads=heads, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained on what.

    Attributes:
        objective: The objective, bound to the model.
        heads: The heads that are trained.
        train: The training data.
        valid: The validation data.
        report: What the data look like; `None` for an objective of the user's own.
        valid_files: Where the validation data come from.
        sha256: The hashes of all files, and of what came from pipes and iterators.
    """

    objective: Objective[Any]
    heads: Mapping[str, Labels | None]
    train: Part
    valid: Part
    report: DataReport | None
    valid_files: tuple[str, ...]
    sha256: Mapping[str, str]


def make_plan(
    objective: Objective[Any],
    source: Source,
    train: Rows,
    valid: Rows | None,
    validation_share: float | None,
    seed: int,
) -> Plan:
    """Reads, splits and tokenizes the data.

    Raises:
        InputError: A row cannot be used, or nothing can be learned from the data.
        ArgumentError: The share is invalid.
    """
    if isinstance(objective, TaskObjective):
        objective.start(source)
    placed = _placed(objective, train)
    if isinstance(objective, TaskObjective):
        objective.check([record for record, _ in placed])
    if valid is None:
        share = usual_share(len(placed)) if validation_share is None else validation_share
        held_in, held_out = split(placed, share, seed, key=_key, names=_names)
    else:
        held_in = placed
        held_out = _placed(objective, valid)
    if isinstance(objective, TaskObjective):
        objective.check_valid(*([record for record, _ in part] for part in (held_in, held_out)))
    heads = objective.heads([record for record, _ in held_in])
    objective.bind(source.with_heads(heads, seed))
    parts = [prepared(objective, part) for part in (held_in, held_out)]
    return Plan(
        objective=objective, heads=heads, train=parts[0], valid=parts[1],
        report=_report(objective, parts, train, valid),
        valid_files=(train if valid is None else valid).files,
        sha256=_hashes(train, valid),
    )  # fmt: skip


def _placed(objective: Objective[Any], rows: Rows) -> list[tuple[Any, str]]:
    """Records and where they stand; of a built-in task a row may be several."""
    records = objective.read(rows)
    if isinstance(objective, TaskObjective):
        return [(record, record.place) for record in records]
    return list(zip(records, (row.place for row in rows), strict=True))


def _hashes(train: Rows, valid: Rows | None) -> dict[str, str]:
    """The hashes of all data; where both are `records` of Python, the second ones are `valid records`."""
    hashes = dict(train.sha256)
    parts = [train] if valid is None else [train, valid]
    for name, found in parts[-1].sha256.items():
        hashes[name if hashes.get(name, found) == found else f"valid {name}"] = found
    if streams := [part for part in parts if not part.resumable]:
        digest = hashlib.sha256()
        for row in itertools.chain(*streams):
            digest.update(json.dumps(dict(row.values), default=str).encode() + b"\n")
        hashes["stream"] = digest.hexdigest()
    return hashes


def usual_share(examples: int) -> float:
    """The share of the examples that become validation data: a tenth, or as much as 20 need, up to a fifth."""
    return max(0.1, min(20 / max(examples, 1), 0.2))


def prepared(objective: Objective[Any], part: Sequence[tuple[Any, str]]) -> Part:
    """Tokenizes records; errors name their places."""
    examples: list[Any] = []
    owners: list[int] = []
    for number, (record, place) in enumerate(part):
        try:
            found = objective.examples(record)
        except InputError as problem:
            raise InputError(f"{place}: {problem.message}", hint=problem.hint) from None
        examples += found
        owners += [number] * len(found)
    return Part([record for record, _ in part], examples, owners, [part[owner][1] for owner in owners])


def _key(placed: tuple[Any, str]) -> Hashable:
    """What stays together: the same inputs, or more than these, if records have a `group`."""
    record, place = placed
    return getattr(record, "group", None) or getattr(record, "key", place)


def _names(placed: tuple[Any, str]) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(placed[0], "names", ())
    return names


def _report(objective: Objective[Any], parts: Sequence[Part], train: Rows, valid: Rows | None) -> DataReport | None:
    if not isinstance(objective, TaskObjective) or objective.columns is None:
        return None
    described = [
        describe.Part(name=name, files=files, records=part.records, lengths=_lengths(part), truncated=part.truncated)
        for name, files, part in zip(("train", "valid"), (train.files, (valid or train).files), parts, strict=True)
    ]
    found = describe.describe(
        *described,
        warn=objective.warnings,
        columns=objective.columns,
        unused=tuple(column for column in train.columns if column not in objective.columns.to_dict().values()),
        split_off=None if valid is not None else len(parts[1].records) / sum(len(part.records) for part in parts),
        max_length=objective.tokenizer.max_length,
    )
    return replace(found, facts=objective.facts(), warnings=(*objective.notes(), *found.warnings))


def _lengths(part: Part) -> list[int]:
    """Tokens of each record before truncation, special tokens included."""
    lengths = [0] * len(part.records)
    for owner, example in zip(part.owners, part.examples, strict=True):
        lengths[owner] = max(lengths[owner], *(one.positions[-1] + 1 for one in example.encodings))
    return lengths
