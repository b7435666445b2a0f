"""`mlxbert pretrain` and `distill`, and the vocabulary of a new model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.events.run import open_sinks, resumable, send
from mlxbert.cli.events.sink import Sink
from mlxbert.cli.options import OutputOptions
from mlxbert.cli.pretraining import DistillOptions, Documents, PretrainOptions
from mlxbert.cli.views import progress, vocabulary as views
from mlxbert.training.events import Event


def pretrain(context: typer.Context, options: PretrainOptions) -> None:
    """Train a model on plain text: continue one on your own documents, or begin a new one.

    If training is interrupted, with Ctrl-C or otherwise, the same command resumes it from the last saved state.

    Example: mlxbert pretrain notes.txt --model bert-base-uncased --output my-bert
    """
    given, source = options.given(), context.get_parameter_source("model")
    if options.new.config is None:
        session.note_builtin("pretrain", options.model)
    elif source is None or source.name != "COMMANDLINE":  # of the environment, or the default
        given["model"] = None
    with ExitStack() as opened:
        sinks = open_sinks(options.out, options.corpus.sources, dry=False, opened=opened)
        from mlxbert.pretraining.pretrain import pretrain as train

        _follow(train, given, options.model.model, sinks, opened)


def distill(options: DistillOptions) -> None:
    """Train a smaller model on plain text to predict what a larger one predicts.

    The student begins with every other layer of its teacher. Interrupted, the same command resumes.

    Example: mlxbert distill notes.txt --teacher bert-base-uncased --output my-student
    """
    with ExitStack() as opened:
        sinks = open_sinks(options.out, options.corpus.sources, dry=False, opened=opened)
        from mlxbert.pretraining.distill import distill as train

        _follow(train, options.given(), options.student.teacher, sinks, opened)


def _follow(
    train: Callable[..., Iterator[Event]], given: dict[str, Any], model: str, sinks: list[Sink], opened: ExitStack
) -> None:
    """Trains, and shows how it goes on."""
    reading = opened.enter_context(progress.transfer("reading the corpus"))
    update = opened.enter_context(progress.download(model))
    events = train(**given, on_progress=update, on_read=reading)
    with resumable(Path(given["output"]), opened):
        send(events, sinks, lambda: None)


class VocabularyKind(StrEnum):
    """The kind of a vocabulary: `mlxbert.pretraining.vocabulary.KINDS`."""

    wordpiece = "wordpiece"
    bpe = "bpe"
    unigram = "unigram"


def vocabulary(
    out: OutputOptions,
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Texts: .txt or .jsonl, also .gz or .xz.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write.")],
    kind: Annotated[
        VocabularyKind, typer.Option(help="As of BERT, RoBERTa or XLM-RoBERTa.")
    ] = VocabularyKind.wordpiece,
    size: Annotated[int, typer.Option(metavar="N", help="Number of tokens, special tokens included.")] = 30_000,
    cased: Annotated[
        bool, typer.Option("--cased", help="Distinguish case in a wordpiece vocabulary; the others always do.")
    ] = False,
    documents: Annotated[
        Documents, typer.Option(help="Where documents of a .txt end: at a blank line, or at each line.")
    ] = Documents.blank,
    field: Annotated[str, typer.Option(metavar="NAME", help="Field of a .jsonl file.")] = "text",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier vocabulary.")] = False,
) -> None:
    """Train the vocabulary of a new model.

    mlxbert.new_model and transformers open the folder. The same files give the same vocabulary.

    Example: mlxbert vocabulary articles.txt --size 8000 --output my-vocabulary
    """
    from mlxbert.pretraining.vocabulary import vocabulary as train

    with progress.transfer("reading the corpus twice") as update:
        found = train(
            files,
            output,
            kind=kind.value,
            size=size,
            cased=cased,
            field=field,
            documents=documents.value,
            overwrite=overwrite,
            on_progress=update,
        )
    value = {"folder": str(found.folder)} | found.to_dict()
    session.show_object(value, lambda: views.vocabulary(found), out)
