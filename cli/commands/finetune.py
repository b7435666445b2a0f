"""`mlxbert finetune …`: one command per task."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from mlxbert.cli import processes, session
from mlxbert.cli.events.run import open_sinks, resumable, send
from mlxbert.cli.inputs import STDIN
from mlxbert.cli.options import ComputingOptions, options_of, with_options
from mlxbert.cli.training import CheckOptions, EventOptions, RunOptions, SavingOptions, TrainingData, parse_sweep
from mlxbert.cli.views import console, progress
from mlxbert.errors import ArgumentError
from mlxbert.training.options import TrainingOptions
from mlxbert.training.task_options import TASKS


def _command(task: str, about: str) -> Callable[..., None]:
    """The command that trains for a task.

    Args:
        task: The name of the task.
        about: Its help.
    """

    def command(out: EventOptions, **given: Any) -> None:
        _train(task, out, given)

    data, training = TASKS[task]
    groups = (TrainingData, SavingOptions, CheckOptions, ComputingOptions, TrainingOptions, RunOptions, data, *training)
    return with_options(command, about, options_of(*groups))


finetune_classify = _command(
    "classify",
    """Train a model to give each text, or pair of texts, one of several labels.

    If training is interrupted, with Ctrl-C or otherwise, the same command resumes it from the last saved state.

    Example: mlxbert finetune classify --train reviews.csv --output my-model
    """,
)
finetune_multilabel = _command(
    "multilabel",
    """Train a model to give each text, or pair of texts, any number of labels.

    The score above which a label is given is tuned for each label on the validation data.

    Example: mlxbert finetune multilabel --train emotions.jsonl --output my-model
    """,
)
finetune_regress = _command(
    "regress",
    """Train a model to give each text, or pair of texts, a number.

    Example: mlxbert finetune regress --train ratings.csv --pair-column answer --output my-model
    """,
)
finetune_tag = _command(
    "tag",
    """Train a model to tag words: names and other entities, parts of speech, chunks.

    Data are sentences of CoNLL or CoNLL-U, lists of words and tags, or texts with spans.

    Example: mlxbert finetune tag --train train.conll --output my-model
    """,
)
finetune_answer = _command(
    "answer",
    """Train a model to answer questions with a part of a text, or to say that the text has no answer.

    Data are .json files of SQuAD, 1.1 or 2.0, or rows of question, context and answers. Long contexts are looked at
    through windows; --max-length is the length of a window, by default 384 tokens.

    Example: mlxbert finetune answer --train train-v2.0.json --output my-model
    """,
)
finetune_embed = _command(
    "embed",
    """Train a model to give similar texts similar vectors, for search and comparison.

    Data are pairs of texts that belong together, such as questions and answers, also with texts that do not belong to
    them; pairs with scores of how similar they are; or texts alone.

    Example: mlxbert finetune embed --train pairs.csv --output my-model
    """,
)
finetune_rerank = _command(
    "rerank",
    """Train a cross-encoder, which scores how well a text answers a query.

    Data are rows of a query, a text and a label from 0 to 1, or records {"query": …, "positives": […], "negatives":
    […]}. All texts of a query are in the training data, or all in the validation data.

    Example: mlxbert finetune rerank --train pairs.jsonl --output my-model
    """,
)


def _train(task: str, out: EventOptions, given: dict[str, Any]) -> None:
    """Trains, and shows the events.

    Args:
        task: The name of the task.
        out: Where events are shown and written.
        given: The arguments of the library.
    """
    sources = [*given["train"], *(given["valid"] or ())]
    if sources.count(STDIN) > 1:
        raise ArgumentError("stdin is named twice; it can be read only once")
    processes.check_stdin(sources)
    given["sweep"] = parse_sweep(given["sweep"] or ()) or None
    session.note_builtin("finetune", given["model"])
    piped, dry = STDIN in sources, given["dry_run"]
    if piped:
        console.say("note", "data come from stdin: an interrupted run resumes if the same data are piped in again")
    with ExitStack() as opened:
        sinks = open_sinks(out, sources, dry=dry, opened=opened)
        from mlxbert.training.finetune import finetune

        doing = "measuring a few steps" if dry else "loading the model"
        begun = opened.enter_context(progress.waiting(f"reading data, {doing} …"))
        update = opened.enter_context(progress.download(given["model"], before=begun))
        events = finetune(task, **given, on_progress=update)
        with resumable(None if piped or dry else given["output"], opened):
            send(events, sinks, begun)
