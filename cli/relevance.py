"""Options of training and evaluation on queries with texts, in groups as in `training`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxbert.cli.options import ModelOptions
from mlxbert.cli.training import EvaluateOptions, FormatOption, Group, column, length
from mlxbert.errors import ArgumentError
from mlxbert.training.options import RerankLoss

_DATA, _TRAINING = "Data", "Training"


@dataclass(frozen=True)
class QueryColumns(Group):
    """Where queries, texts and labels stand in a row."""

    query_column: Annotated[str | None, column("Column of the query; guessed if left out.")] = None
    text_column: Annotated[str | None, column("Column of the text; guessed if left out.")] = None
    label_column: Annotated[str | None, column("Column of the label or score; guessed if left out.")] = None
    format: FormatOption = None
    max_length: Annotated[int | None, length("Truncate pairs to N tokens; by default to what the model takes.")] = None


@dataclass(frozen=True)
class ScoreOptions(Group):
    """What labels are."""

    max_score: Annotated[
        float,
        typer.Option(metavar="X", help="Largest score in the data: all are divided by it.", rich_help_panel=_DATA),
    ] = 1.0


@dataclass(frozen=True)
class RerankOptions(Group):
    """What differs where a cross-encoder is trained."""

    loss: Annotated[
        RerankLoss,
        typer.Option(
            help="bce: cross-entropy, scores are probabilities; mse: squared error of the score itself.",
            rich_help_panel=_TRAINING,
        ),
    ] = "bce"


@dataclass(frozen=True)
class RetrievalOptions:
    """Whether documents are found by an embedder first."""

    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Rank what this model finds: --data is a folder of BEIR or SMART, or records of texts.",
            rich_help_panel=_DATA,
        ),
    ] = None
    top_k: Annotated[
        int, typer.Option(metavar="N", help="Documents per query that are ranked.", rich_help_panel=_DATA)
    ] = 100
    split: Annotated[
        str,
        typer.Option(metavar="NAME", help="Judgements of BEIR: the name of their file.", rich_help_panel=_DATA),
    ] = "test"

    def check(self, data: list[str], columns: QueryColumns, scores: ScoreOptions) -> None:
        """Refuses options that do not go together.

        Raises:
            ArgumentError: There are such.
        """
        if self.embedder is None:
            folder = next((path for path in data if Path(path).is_dir()), None)
            if folder is not None:
                raise ArgumentError(f"{folder} is a folder, expected a file", hint="retrieval data need --embedder")
            for name in ("top_k", "split"):
                if getattr(self, name) != getattr(RetrievalOptions, name):
                    raise ArgumentError(f"--{name.replace('_', '-')} is given, which works only with --embedder")
            return
        if len(data) > 1:
            raise ArgumentError(f"--embedder takes one --data, {len(data)} are given")
        given = columns.given() | scores.given()
        for name, usual in (QueryColumns().given() | ScoreOptions().given()).items():
            if name != "format" and given[name] != usual:
                raise ArgumentError(f"--{name.replace('_', '-')} cannot be combined with --embedder")

    def model(self, options: ModelOptions) -> ModelOptions:
        """The options with the embedder in place of the model."""
        assert self.embedder is not None
        return replace(options, model=self.embedder, revision=None, adapter=None)

    def given(self, options: EvaluateOptions) -> dict[str, Any]:
        """The arguments of the library."""
        metric = {} if options.test.metric is None else {"metric": options.test.metric}
        computing = {"batch_tokens": options.model.batch_tokens}
        return {"data": options.test.data[0], "split": self.split, "top_k": self.top_k} | metric | computing
