"""Finds and loads the teacher of a student that is pre-trained on plain text."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlxbert.errors import ArgumentError
from mlxbert.model import Model
from mlxbert.progress import OnProgress
from mlxbert.train.base_model import BaseModel
from mlxbert.train.pretraining.initial_model import InitialModel
from mlxbert.train.pretraining.loss_terms import Teacher
from mlxbert.weights.find_model import find_model


def find_teacher(
    teacher: str | Path | None, base: InitialModel, terms: Sequence[str], on_progress: OnProgress | None = None
) -> BaseModel | None:
    """Finds the teacher if a loss term needs one; by default it is the model that training starts from."""
    if not terms:
        if teacher is not None:
            raise ArgumentError(
                "teacher is given, but no loss of the objective uses a teacher",
                hint="use an objective such as mlm,soft",
            )
        return None
    if teacher is None and base.config is not None:
        raise ArgumentError(f"the loss {terms[0]} needs a teacher, but no teacher is given")
    if teacher is None or (str(teacher) == base.name and base.files.adapter is None and base.files.own_adapter is None):
        return base
    ref = replace(base.ref, source=teacher, adapter=None, revision=None)
    return BaseModel(ref=ref, files=find_model(ref, on_progress))


def load_teacher(source: BaseModel, terms: Sequence[str], student: Model) -> Teacher:
    """Loads the teacher; raises an error if the loss terms or the student cannot use it."""
    heads = ["masked_lm"] if "soft" in terms else []
    if heads and "masked_lm" not in source.checkpoint.parts:
        raise ArgumentError(
            f"{source.name}: the teacher has no masked-LM head, which the loss soft needs",
            hint="objective='vectors' learns the vectors of a teacher without this head",
        )
    model = source.load(heads=heads)
    if model.tokenizer.files.tokenizer.to_str() != student.tokenizer.files.tokenizer.to_str():
        raise ArgumentError(
            f"{source.name}: the vocabulary of the teacher differs from the vocabulary of the student",
            hint="start the student from the teacher's layers, or give the student the teacher's vocabulary",
        )
    if model.config.max_length < student.config.max_length or model.config.vocab_size != student.config.vocab_size:
        raise ArgumentError(
            f"{source.name}: the teacher takes {model.config.max_length} tokens with a vocabulary of "
            f"{model.config.vocab_size:,}, but the student takes {student.config.max_length} tokens with a vocabulary "
            f"of {student.config.vocab_size:,}",
            hint="start the student from layers of the teacher",
        )
    ours, theirs = student.config.hidden_size, model.config.hidden_size
    if ours != theirs and (names := [term for term in terms if term != "soft"]):
        raise ArgumentError(
            f"{source.name}: the loss {names[0]} compares states of the same width, but the teacher has the width "
            f"{theirs:,} and the student {ours:,}",
            hint="use the objective mlm,soft, which works with any width",
        )
    embedder = model.embedder if "vectors" in terms else None
    model.network.eval()
    return Teacher(model.network, embedder)
