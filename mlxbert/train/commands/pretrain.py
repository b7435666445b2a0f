"""`mlxbert pretrain`, `mlxbert distill` and `mlxbert vocabulary`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import ComputingOptions, Encoding, OutputOptions, options_of, with_options
from mlxbert.cli.views import progress
from mlxbert.option_declarations import COUNT, Option, OutputPath
from mlxbert.readers.text_lines import UTF8
from mlxbert.train.command_options import (
    CorpusFiles,
    EventOptions,
    NewModelOptions,
    PretrainingOptions,
    SavingOptions,
    StudentOptions,
    with_changes,
)
from mlxbert.train.event_outputs import Sink, naming, open_sinks, resumable, send
from mlxbert.train.loop.events import Event
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.pretraining.pretraining_settings import DISTILLED, Documents, Settings
from mlxbert.train.views import report

Kind = Literal["wordpiece", "bpe", "unigram"]  # kinds of vocabularies
_LORA = ("lora", "lora_alpha", "lora_dropout", "lora_layers", "dora", "rslora")
_LEFT_OUT = ("epochs", "eval_every", "patience", "freeze", "layer_decay")
_SHARED = [
    *options_of(CorpusFiles, SavingOptions, PretrainingOptions),
    *options_of(TrainingOptions, without=(*_LEFT_OUT, *_LORA)),
]


def _pretrain(context: typer.Context, out: EventOptions, **values: Any) -> None:
    name, source = values["model"], context.get_parameter_source("model")
    if values["config"] is None:
        session.note_builtin("pretrain", name)
    elif source is None or source.name != "COMMANDLINE":  # from the environment, or the default
        values["model"] = None
    with ExitStack() as opened:
        sinks = _sinks(out, values, opened)
        from mlxbert.train.pretraining.pretrain import pretrain as train

        _follow(train, values, name, sinks, opened)


def _distill(out: EventOptions, **values: Any) -> None:
    with ExitStack() as opened:
        sinks = _sinks(out, values, opened)
        from mlxbert.train.pretraining.pretrain import distill as train

        _follow(train, values, values["teacher"], sinks, opened)


pretrain = with_options(
    _pretrain,
    """Train a model on plain text: continue one on your own documents, or start a new one.

    If it is interrupted, the same command resumes it.

    Example: mlxbert pretrain notes.txt --model google-bert/bert-base-uncased --output my-bert
    """,
    [
        *_SHARED,
        *options_of(Settings, NewModelOptions, ComputingOptions),
        *options_of(TrainingOptions, only=_LORA),
    ],
)
distill = with_options(
    _distill,
    """Train a smaller model on plain text to predict what a larger one predicts.

    The student starts with every other layer of its teacher. If it is interrupted, the same command resumes it.

    Example: mlxbert distill notes.txt --teacher google-bert/bert-base-uncased --output my-student
    """,
    [
        *with_changes(_SHARED, objective={"usual": DISTILLED}),
        *options_of(Settings, without=["generator"]),
        *options_of(StudentOptions),
        *options_of(ComputingOptions, without=["model", "adapter"]),
    ],
)


def _sinks(out: EventOptions, values: dict[str, Any], opened: ExitStack) -> list[Sink]:
    return open_sinks(out, [*values["corpus"], *(values["valid"] or ())], dry=False, opened=opened)


def _follow(
    train: Callable[..., Iterator[Event]], values: dict[str, Any], model: str, sinks: list[Sink], opened: ExitStack
) -> None:
    set_phase = opened.enter_context(naming(sinks))
    on_read = opened.enter_context(progress.transfer("reading the corpus", before=lambda: set_phase("")))
    on_progress = opened.enter_context(progress.download(model, before=lambda: set_phase("")))
    values = {name: value for name, value in values.items() if value is not None}  # the library has the defaults
    events = train(**values, on_progress=on_progress, on_read=on_read, on_phase=set_phase)
    with resumable(Path(values["output"]), opened):
        send(events, sinks, lambda: set_phase(""), train.__name__)


def vocabulary(
    out: OutputOptions,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="Text files: .txt, .jsonl or .json, optionally compressed (.gz, .xz)."),
    ],
    output: Annotated[Path, Option("Folder to write.", "DIR", short="-o"), OutputPath("folder")],
    kind: Annotated[
        Kind, Option("Kind of vocabulary. wordpiece is BERT's, bpe RoBERTa's, unigram XLM-RoBERTa's.")
    ] = "wordpiece",
    size: Annotated[int, Option("Size of the vocabulary, in tokens. Special tokens count.", bounds=COUNT)] = 30_000,
    cased: Annotated[bool, Option("Distinguish case in a wordpiece vocabulary. Other kinds always do.")] = False,
    documents: Annotated[
        Documents, Option("What ends a document in .txt files. blank: a blank line. line: each line.")
    ] = "blank",
    field: Annotated[str, Option("Field with the text, in .jsonl and .json files.")] = "text",
    encoding: Encoding = UTF8,
    overwrite: Annotated[bool, Option("Replace an earlier vocabulary.")] = False,
) -> None:
    """Train the vocabulary of a new model.

    mlxbert.new_model and transformers can open the folder. The same files give the same vocabulary.

    Example: mlxbert vocabulary articles.txt --size 8000 --output my-vocabulary
    """
    from mlxbert.train.pretraining.vocabulary import vocabulary as train

    with progress.transfer("reading the corpus twice") as update:
        trained = train(
            files,
            output,
            kind=kind,
            size=size,
            cased=cased,
            field=field,
            documents=documents,
            encoding=encoding,
            overwrite=overwrite,
            on_progress=update,
        )
    value = {"folder": str(trained.folder)} | trained.to_dict()
    session.show_object(value, lambda: report.vocabulary(trained), out)
