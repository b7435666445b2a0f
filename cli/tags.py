"""Options of training and evaluation on words with tags, in groups as in `training`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from mlxbert.cli.training import Group
from mlxbert.data.records import Format
from mlxbert.tagging import Scheme

_DATA, _TRAINING = "Data", "Training"


@dataclass(frozen=True)
class WordColumns(Group):
    """Where words and tags stand in a row."""

    text_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column of the words or the text; of .conll its number, by default 1.",
            rich_help_panel=_DATA,
        ),
    ] = None
    label_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column of the tags or the spans; of .conll its number, by default the last one.",
            rich_help_panel=_DATA,
        ),
    ] = None
    format: Annotated[
        Format | None,
        typer.Option(help="Format of the files; by default taken from their endings.", rich_help_panel=_DATA),
    ] = None
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Longest input in tokens, by default what the model takes; longer sentences become windows.",
            rich_help_panel=_DATA,
        ),
    ] = None
    stride: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Tokens that windows of a long sentence have in common.",
            rich_help_panel=_DATA,
            show_default="a quarter",
        ),
    ] = None


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
