"""Finds and loads the teacher of a student that is pre-trained on plain text."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlxbert.errors import ArgumentError
from mlxbert.model import Model
from mlxbert.pretraining.initial_model import InitialModel
from mlxbert.pretraining.loss_terms import Teacher
from mlxbert.progress import OnProgress
from mlxbert.training.base_model import BaseModel
from mlxbert.weights.find_model import find_model


def find_teacher(
    teacher: str | Path | None, base: InitialModel, terms: Sequence[str], on_progress: OnProgress | None = None
) -> BaseModel | None:
    """Finds the teacher if a loss term needs one; by default it is the model that training starts from."""
    if not terms:
        if teacher is not None:
            raise ArgumentError("teacher is given, but no loss learns from it", hint="for example mlm,soft")
        return None
    if teacher is None and base.config is not None:
        raise ArgumentError(f"the objective has {terms[0]}, which learns from a teacher, but none is given")
    if teacher is None or (str(teacher) == base.name and base.files.adapter is None and base.files.own_adapter is None):
        return base
    ref = replace(base.ref, source=teacher, adapter=None, revision=None)
    return BaseModel(ref=ref, files=find_model(ref, on_progress))


def load_teacher(source: BaseModel, terms: Sequence[str], student: Model) -> Teacher:
    """Loads the teacher; raises an error if the loss terms or the student cannot use it."""
    heads = ["masked_lm"] if "soft" in terms else []
    if heads and "masked_lm" not in source.checkpoint.parts:
        raise ArgumentError(f"{source.name}: has no masked-LM head, which the loss soft learns from")
    model = source.load(heads=heads)
    if model.tokenizer.files.tokenizer.to_str() != student.tokenizer.files.tokenizer.to_str():
        raise ArgumentError(
            f"{source.name}: has a different vocabulary from the student; they must be the same",
            hint="start the student from the teacher's layers, or give the student the teacher's vocabulary",
        )
    if model.config.max_length < student.config.max_length or model.config.vocab_size != student.config.vocab_size:
        raise ArgumentError(
            f"{source.name}: takes up to {model.config.max_length} tokens (vocabulary of {model.config.vocab_size:,}), "
            f"the student {student.config.max_length} ({student.config.vocab_size:,})",
            hint="start the student from layers of the teacher",
        )
    ours, theirs = student.config.hidden_size, model.config.hidden_size
    if ours != theirs and (names := [term for term in terms if term != "soft"]):
        raise ArgumentError(
            f"{source.name}: is {theirs} wide, the student {ours}, but {names[0]} compares states of the same width",
            hint="the objective mlm,soft works with any width",
        )
    embedder = model.embedder if "vectors" in terms else None
    model.network.eval()
    return Teacher(model.network, embedder)
