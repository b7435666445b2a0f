"""Options of training and evaluation of vectors, in groups as in `training`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxbert.cli.training import FormatOption, Group, column, length
from mlxbert.errors import ArgumentError
from mlxbert.training.options import VectorLossName

_DATA, _TRAINING = "Data", "Training"


def _number(text: str, metavar: str = "X", default: Any = True, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_TRAINING, show_default=default, **more)


@dataclass(frozen=True)
class RelatedColumns(Group):
    """Where texts stand that belong together, and how similar they are."""

    text_column: Annotated[str | None, column("Column of the text, or query; guessed if left out.")] = None
    pair_column: Annotated[str | None, column("Column of the text, or list of texts, that belongs to it.")] = None
    negative_column: Annotated[str | None, column("Column of texts that do not belong to it.")] = None
    label_column: Annotated[str | None, column("Column of how similar text and pair are.")] = None
    format: FormatOption = None
    max_length: Annotated[int | None, length("Truncate texts to N tokens; by default to what the model takes.")] = None


@dataclass(frozen=True)
class VectorOptions(Group):
    """How vectors are compared while training."""

    teacher: Annotated[
        str | None, _number("Learn the vectors of this model instead, from texts alone.", "NAME", "none")
    ] = None
    loss: Annotated[
        VectorLossName | None,
        typer.Option(
            help="What is minimized.", rich_help_panel=_TRAINING, show_default="cosent with scores, otherwise in-batch"
        ),
    ] = None
    temperature: Annotated[float, _number("Divides the cosines of in-batch and cosent.")] = 0.05
    margin: Annotated[float, _number("How much farther a negative should be (triplet).")] = 5.0
    symmetric: Annotated[
        bool,
        typer.Option("--symmetric", help="Pairs must find each other both ways (in-batch).", rich_help_panel=_TRAINING),
    ] = False
    dimensions: Annotated[
        str | None,
        _number("Train vectors that can be truncated to these sizes (Matryoshka): 384,192,96.", "N,N,…", "all"),
    ] = None
    max_score: Annotated[float, _number("Score of the most similar pair; scores are divided by it.")] = 1.0
    chunk: Annotated[
        int | None,
        _number("Compute N examples of a batch at a time: a large batch then takes little memory.", "N", "all"),
    ] = None
    pooling: Annotated[str | None, _number("How tokens become a vector, as in embed.", "NAME", "the model's")] = None
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Give vectors the length 1.",
            rich_help_panel=_TRAINING,
            show_default="as the model",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library, `dimensions` as numbers."""
        found = super().given()
        if self.dimensions is not None:
            try:
                found["dimensions"] = [int(size) for size in self.dimensions.split(",")]
            except ValueError:
                raise ArgumentError(
                    f"--dimensions is {self.dimensions!r:.60}, expected sizes such as 384,192,96"
                ) from None
        return found


@dataclass(frozen=True)
class SearchOptions:
    """What is read of a folder of queries, documents and judgements."""

    split: Annotated[
        str, typer.Option(metavar="NAME", help="Judgements of BEIR: the name of their file.", rich_help_panel=_DATA)
    ] = "test"

    def folder(self, data: Sequence[str], columns: RelatedColumns) -> str | None:
        """The folder that is evaluated on; `None` where the data are files.

        Raises:
            ArgumentError: There are other data or columns beside a folder.
        """
        folder = next((path for path in data if Path(path).is_dir()), None)
        if folder is None and self.split != SearchOptions.split:
            raise ArgumentError("--split is given, but --data is no folder of queries, documents and judgements")
        if folder is not None and (len(data) > 1 or columns != RelatedColumns()):
            raise ArgumentError(f"--data {folder} is a folder, which goes with no other data, columns or --max-length")
        return folder
