"""`mlxbert tokenize`."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input, single
from mlxbert.cli.options import Cut, FileOptions, InputOptions, ModelName
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import progress, tokens
from mlxbert.errors import InputError
from mlxbert.results import Failure, Tokens


def tokenize(
    model: ModelName,
    source: InputOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    pair: Annotated[str | None, typer.Option(metavar="TEXT", help="A second text, in segment B.")] = None,
    overflow: Annotated[Cut, typer.Option(help="What to do with a text too long for the model.")] = Cut.error,
) -> None:
    """Show what the model sees: its input is the sum of a vector for the token, the segment and the position.

    Example: mlxbert tokenize "Hello, playwrights!" --pair "Goodbye."
    """
    check_output(out.output, out.overwrite, source=source.input)
    opened = open_input(texts or (), source, ("text",))
    from mlxbert.model import load_tokenizer_of
    from mlxbert.tasks.tokenize import tokenize as task

    with progress.download(model.model) as update:
        folder, tokenizer = load_tokenizer_of(model.model, model.revision, model.offline, update)

    def work(records: Iterable[tuple[str, ...] | InputError]) -> Iterator[Tokens | Failure]:
        return task(tokenizer, single(records), pair=pair, overflow=overflow.value, on_error=opened.on_error)

    options = {"pair": pair, "overflow": overflow.value}
    session.stream(
        opened, work, session.View(tokens.draw_tokens), out, task=session.Task("tokenize", folder, None, options)
    )
