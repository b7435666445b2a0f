"""`mlxbert tokenize`."""

from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.options import FileOptions, ModelName, NoWindow, RecordOptions
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import progress, tokens as view
from mlxbert.options import Option
from mlxbert.weights.source import ModelRef


def tokenize(
    model: ModelName,
    source: RecordOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    pair: Annotated[str | None, Option("A second text, in segment B.", "TEXT")] = None,
    overflow: Annotated[NoWindow, Option("Overlong texts. What happens to texts too long for the model.")] = "error",
) -> None:
    """Show what the model sees: the tokens of a text, with their ids, segments and positions.

    Example: mlxbert tokenize 'Hello, playwrights!' --pair 'Goodbye.'
    """
    check_output(out.output, out.overwrite, sources=source.input)
    opened = open_input(texts or (), source, "text")
    from mlxbert.model import load_tokenizer_of
    from mlxbert.tasks.tokenize import tokenize as task

    with progress.download(model.model) as update:
        folder, tokenizer = load_tokenizer_of(ModelRef(model.model, None, model.revision, model.offline), update)
    session.keep(tokenizer)
    given: dict[str, Any] = {"pair": pair, "overflow": overflow}
    how: dict[str, Any] = {"texts": opened, "on_error": opened.on_error}
    results = task(tokenizer, **given, **how)
    session.stream(opened, results, view.draw_tokens, out, task=session.OutputManifest("tokenize", folder, None, given))
