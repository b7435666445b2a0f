"""`mlxbert tokenize`."""

from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.cli.shared_options import FileOptions, ModelName, RecordOptions
from mlxbert.cli.views import progress, tokens as view
from mlxbert.tasks.options import TokenizeOptions
from mlxbert.weights.model_source import ModelRef


def tokenize(
    model: ModelName,
    source: RecordOptions,
    out: FileOptions,
    chosen: TokenizeOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
) -> None:
    """Show what a model sees: the tokens of a text, with their ids, segments and positions.

    Example: mlxbert tokenize 'Hello, playwrights!' --pair 'Goodbye.'
    """
    check_output(out.output, out.overwrite, sources=source.input)
    records = open_input(texts or (), source, "text")
    from mlxbert.loading import load_tokenizer_of
    from mlxbert.tasks.tokenize import tokenize as task

    with progress.download(model.model) as update:
        folder, tokenizer = load_tokenizer_of(ModelRef(model.model, None, model.revision, model.offline), update)
    session.keep(tokenizer)
    arguments: dict[str, Any] = {**vars(chosen), "texts": records, "on_error": records.on_error}
    results = task(tokenizer, **arguments)
    manifest = session.OutputManifest("tokenize", folder, None, vars(chosen))
    session.stream(records, results, view.draw_tokens, out, task=manifest)
