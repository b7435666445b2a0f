"""Options of training and evaluation on words with tags and on questions, in groups as in `training`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from mlxbert.cli.training import FormatOption, Group, column, length
from mlxbert.labels.schemes import Scheme

_TRAINING = "Training"


@dataclass(frozen=True)
class WordColumns(Group):
    """Where words and tags stand in a row, and how long sentences become windows."""

    text_column: Annotated[
        str | None, column("Column of the words or the text; of .conll its number, by default 1.")
    ] = None
    label_column: Annotated[
        str | None, column("Column of the tags or the spans; of .conll its number, by default the last one.")
    ] = None
    format: FormatOption = None
    max_length: Annotated[
        int | None,
        length("Longest input in tokens, by default what the model takes; longer sentences become windows."),
    ] = None
    stride: Annotated[int | None, length("Tokens that windows of a long sentence have in common.", "a quarter")] = None


@dataclass(frozen=True)
class TagOptions(Group):
    """What differs where tags are predicted."""

    scheme: Annotated[
        Scheme | None,
        typer.Option(
            help="How the model writes entities.", rich_help_panel=_TRAINING, show_default="as the data, or the model"
        ),
    ] = None
    crf: Annotated[
        bool,
        typer.Option("--crf", help="Also learn which tag follows which (a CRF).", rich_help_panel=_TRAINING),
    ] = False
    label_all_pieces: Annotated[
        bool,
        typer.Option(
            "--label-all-pieces", help="Train on all tokens of a word, not on its first.", rich_help_panel=_TRAINING
        ),
    ] = False


@dataclass(frozen=True)
class AnswerColumns(Group):
    """Where questions, contexts and answers stand in a row."""

    text_column: Annotated[str | None, column("Column of the question.", "question")] = None
    pair_column: Annotated[str | None, column("Column of the context.", "context")] = None
    label_column: Annotated[str | None, column("Column of the answers.", "answers, or answer")] = None
    format: FormatOption = None
    max_length: Annotated[
        int | None,
        length("Length of a window in tokens; longer contexts become several windows.", "384, or what the model takes"),
    ] = None


@dataclass(frozen=True)
class AnswerOptions(Group):
    """How contexts become windows, and how long answers are."""

    stride: Annotated[int | None, length("Tokens that windows of a long context have in common.", "128")] = None
    max_words: Annotated[int, length("Words of an answer, at most.")] = 30
