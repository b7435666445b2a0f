"""`mlxbert answer`."""

from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_questions
from mlxbert.cli.options import FileOptions, PairInputOptions, ServedOptions, Window
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import answer as view
from mlxbert.options import Option


def answer(
    model: ServedOptions,
    source: PairInputOptions,
    out: FileOptions,
    questions: Annotated[list[str] | None, typer.Argument(metavar="QUESTION…", help="Questions.")] = None,
    context: Annotated[str | None, Option("The text to answer from.", "TEXT")] = None,
    context_file: Annotated[str | None, Option("A file with the text; - is stdin.", "FILE")] = None,
    top_k: Annotated[int, Option("Spans per question.")] = 1,
    max_words: Annotated[int, Option("Most words of an answer.")] = 30,
    max_length: Annotated[
        int | None,
        Option("Tokens of a window.", usual="384, or the model's"),
    ] = None,
    stride: Annotated[
        int | None,
        Option("Overlap of windows, in tokens.", usual="128"),
    ] = None,
    no_answer_threshold: Annotated[
        float | None,
        Option('Threshold of "no answer".', usual="the model's"),
    ] = None,
    overflow: Annotated[Window, Option("Overlong texts. What happens to texts longer than a window.")] = "window",
) -> None:
    """Find the answers to questions in a text, if it has any.

    In a file they are the columns question and context, or others that you name.

    Example: mlxbert answer "When was it built?" --context-file a.txt -m DIR
    """
    check_output(out.output, out.overwrite, sources=source.input)
    opened = open_questions(questions or (), source, context, context_file)
    loaded = session.load_or_ask("answer", model)
    given: dict[str, Any] = {"top_k": top_k, "max_words": max_words, "overflow": overflow}
    given |= {"max_length": max_length, "stride": stride, "no_answer_threshold": no_answer_threshold}
    results = session.results("answer", loaded, opened, model, given)
    made_of = session.OutputManifest("answer", loaded, model, given)
    session.stream(opened, results, view.draw, out, task=made_of)
