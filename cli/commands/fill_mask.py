"""`mlxbert fill-mask`."""

import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.options import FileOptions, RecordOptions, ServedOptions, Window
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import fill_mask as view
from mlxbert.errors import ArgumentError
from mlxbert.options import Option


def fill_mask(
    model: ServedOptions,
    source: RecordOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts that contain [MASK].")] = None,
    top_k: Annotated[int | None, Option("Words per mask.", usual="5, or all targets")] = None,
    targets: Annotated[str | None, Option("Choose among these words only.", "A,B")] = None,
    text: Annotated[bool, Option("Repeat the filled text with each word.")] = True,
    overflow: Annotated[Window, Option("Overlong texts. What happens to texts too long for the model.")] = "window",
) -> None:
    """Find words that fit in place of [MASK].

    Several masks are filled independently: the others stay masked. In a text too long for the model, each mask is
    processed in a window around it. Scores are probabilities over the whole vocabulary. Only the first 49 masks come
    with the filled text.

    Example: mlxbert fill-mask "Tokyo is the largest city in [MASK]." --top-k 3
    """
    check_output(out.output, out.overwrite, sources=source.input)
    _check_quotes(texts or ())
    opened = open_input(texts or (), source, "text")
    loaded = session.load_or_ask("fill-mask", model)
    words = None if targets is None else _split(targets)
    given: dict[str, Any] = {"top_k": top_k, "targets": words, "text": text, "overflow": overflow}
    results = session.results("fill-mask", loaded, opened, model, given)
    session.stream(opened, results, view.draw, out, task=session.OutputManifest("fill-mask", loaded, model, given))


def _check_quotes(texts: Sequence[str]) -> None:
    """Refuses the words of a sentence that was not quoted."""
    without = [text for text in texts if "mask" not in text.lower()]
    if without and len(texts) > 1 and not any(" " in text for text in texts):
        raise ArgumentError(
            f"{len(without)} of {len(texts)} texts have no [MASK], and each is a single word: are quotes missing?",
            hint=f"mlxbert fill-mask {shlex.quote(' '.join(texts))}",
        )


def _split(targets: str) -> list[str]:
    words = [word.strip() for word in targets.split(",")]
    if not all(words):
        raise ArgumentError(f"target '' is not in the vocabulary: --targets {targets!r} has an empty word")
    return words
