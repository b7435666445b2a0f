"""The model that a student learns from."""

from collections.abc import Sequence

from mlxbert.errors import ArgumentError
from mlxbert.model import Model, load
from mlxbert.pretraining.terms.term import Teacher
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.folder import ModelFolder


def load_teacher(name: str, files: ModelFolder, terms: Sequence[str], student: Model, device: str) -> Teacher:
    """Loads a teacher.

    Args:
        name: What errors call it.
        files: Its folder.
        terms: The names of the terms that learn from it.
        student: The student.
        device: See `mlxbert.load`.

    Raises:
        ArgumentError: Its vocabulary or its width is not the student's, or it cannot do what a term needs.
    """
    heads = ["masked_lm"] if "soft" in terms else []
    if heads and "masked_lm" not in open_checkpoint(files).parts:
        raise ArgumentError(f"{name}: has no masked-word head, which the objective soft learns from")
    model = load(files.path, adapter=files.adapter, heads=heads, dtype="float32", device=device, quantized=False)
    if model.tokenizer.files.tokenizer.to_str() != student.tokenizer.files.tokenizer.to_str():
        raise ArgumentError(
            f"{name}: has another vocabulary than the student, which sees the same tokens",
            hint="begin the student from layers of the teacher, or with its vocabulary",
        )
    if model.config.max_length < student.config.max_length or model.config.vocab_size != student.config.vocab_size:
        raise ArgumentError(
            f"{name}: takes {model.config.max_length} tokens of {model.config.vocab_size:,} words, the student "
            f"{student.config.max_length} of {student.config.vocab_size:,}",
            hint="begin the student from layers of the teacher",
        )
    ours, theirs = student.config.hidden_size, model.config.hidden_size
    if ours != theirs and (narrow := [term for term in terms if term != "soft"]):
        raise ArgumentError(
            f"{name}: is {theirs} wide, the student {ours}, but {narrow[0]} compares states of the same width",
            hint="the objective mlm,soft works with any width",
        )
    embedder = model.embedder if "vectors" in terms else None
    model.network.eval()
    return Teacher(model.network, embedder)
