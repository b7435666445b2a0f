"""The commands of tasks that give one result per item. Each command is made from the task's entry in the catalogue.

A command consists of its kind of items (`ITEMS`), the options of its task, and its hooks (`HOOKS`):
how a result is drawn, and a check before the model is loaded.
"""

import importlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input, open_questions, open_texts
from mlxbert.cli.output.formats import TABLES
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.cli.shared_options import FileOptions, PairInputOptions, RecordOptions, ServedOptions, with_options
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import Option
from mlxbert.readers.stream import RecordStream
from mlxbert.tasks import item_kinds
from mlxbert.tasks.catalogue import CATALOGUE, TaskEntry
from mlxbert.tasks.item_kinds import ItemKind
from mlxbert.tasks.options import ClassifyOptions


@dataclass(frozen=True)
class TextItems:
    """The items of a command whose items are texts."""

    source: ClassVar[type[RecordOptions]] = RecordOptions  # the class of the options for input files
    # The fields of this class that results depend on, which are therefore part of an output's manifest.
    remembered: ClassVar[tuple[str, ...]] = ()
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None

    def open(self, source: Any, *, whole: bool) -> RecordStream:
        """Opens the items, from arguments or files; `whole` says whether to keep whole records."""
        return open_input(self.texts or (), source, "text", whole=whole)


@dataclass(frozen=True)
class TextOrPairItems(TextItems):
    """The items of a command whose items are texts or pairs of texts."""

    source = PairInputOptions
    remembered = ("pair",)
    pair: Annotated[str | None, Option("A second text that is paired with each text.", "TEXT")] = None

    def open(self, source: Any, *, whole: bool) -> RecordStream:
        return open_texts(self.texts or (), source, self.pair, whole=whole)


@dataclass(frozen=True)
class PairItems(TextItems):
    """The items of a command whose items are pairs of texts; the arguments form a single pair."""

    source = PairInputOptions
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B", help="Two texts.")] = None

    def open(self, source: Any, *, whole: bool) -> RecordStream:
        if self.texts and len(self.texts) != 2:
            raise ArgumentError(
                f"the command needs exactly two texts, A and B, but has {len(self.texts)}", hint="quote each text"
            )
        return open_input(self.texts or (), source, ("a", "b"), whole=whole)


@dataclass(frozen=True)
class QuestionItems(TextItems):
    """The items of a command whose items are questions, each with a text to answer it from."""

    source = PairInputOptions
    texts: Annotated[list[str] | None, typer.Argument(metavar="QUESTION…", help="Questions.")] = None
    context: Annotated[str | None, Option("The text to answer from.", "TEXT")] = None
    context_file: Annotated[str | None, Option("A file with the text; - is stdin.", "FILE")] = None

    def open(self, source: Any, *, whole: bool) -> RecordStream:
        return open_questions(self.texts or (), source, self.context, self.context_file, whole=whole)


ITEMS: Mapping[ItemKind, type[TextItems]] = {
    item_kinds.TEXT: TextItems,
    item_kinds.TEXT_OR_PAIR: TextOrPairItems,
    item_kinds.PAIR: PairItems,
    item_kinds.QUESTION: QuestionItems,
}


class TaskArguments(NamedTuple):
    """What a user typed: the options of the model and of input files, the items, and the options of the task."""

    model: ServedOptions
    source: Any
    items: Any
    chosen: Any


@dataclass(frozen=True)
class CommandHooks:
    """What a command does in its own way."""

    # A function that takes the model and the options of the task, and returns the function that draws a result.
    draw: Callable[[Any, Any], session.Draw]
    # A function that raises an error for bad input, called before a model is loaded.
    check: Callable[[TaskArguments], None] = lambda typed: None


def _check_quotes(typed: TaskArguments) -> None:
    """Raises an error if the arguments look like the words of a single sentence without quotes."""
    texts = typed.items.texts or ()
    unmasked = [text for text in texts if "mask" not in text.lower()]
    if unmasked and len(texts) > 1 and not any(" " in text for text in texts):
        raise ArgumentError(
            f"{len(unmasked)} of {len(texts)} texts are single words without [MASK], so quotes are probably missing",
            hint=f"quote the text: mlxbert fill-mask {shlex.quote(' '.join(texts))}",
        )


def _check_classes(typed: TaskArguments) -> None:
    pairs = typed.items.pair is not None or typed.source.pair_column is not None
    labels, texts = [*(typed.chosen.labels or ())], [*(typed.items.texts or ())]
    if len(labels) == 1 and len(texts) > 1 and " " not in texts[-1]:
        console.say("note", f"{texts[-1]!r:.40} is taken as a text; --labels {labels[0]},{texts[-1]} has two labels")
    check_labels(typed.chosen, pairs=pairs, by_server=typed.model.server is not None)


def check_labels(chosen: ClassifyOptions, *, pairs: bool, by_server: bool = False) -> None:
    """Rejects invalid labels before a large model is downloaded; for a model on a server, the server checks labels."""
    if chosen.labels is None:
        if chosen.hypothesis is not None or chosen.multi:
            raise ArgumentError(f"{'--multi' if chosen.multi else '--hypothesis'} works only with --labels")
        return
    if pairs:
        raise ArgumentError(
            "--labels cannot be combined with pairs of texts", hint="give single texts, or omit --labels"
        )
    if not by_server:
        from mlxbert.tasks import zero_shot

        zero_shot.check_labels(chosen.labels)
        if chosen.hypothesis is not None:
            zero_shot.check_hypothesis(chosen.hypothesis)


def _view(name: str) -> Any:
    """Imports the module of a view; called only when the command of the view runs."""
    return importlib.import_module(f"mlxbert.cli.views.{name}")


HOOKS: Mapping[str, CommandHooks] = {
    "classify": CommandHooks(
        lambda model, chosen: _view("classify").drawing(chosen.top_k, None if chosen.labels else model.labels),
        _check_classes,
    ),
    "tag": CommandHooks(lambda model, chosen: _view("tag").drawing(model.labels, chosen.labels)),
    "answer": CommandHooks(lambda *_: _view("answer").draw),
    "fill-mask": CommandHooks(lambda *_: _view("fill_mask").draw, _check_quotes),
    "next-sentence": CommandHooks(lambda *_: _view("classify").draw_next_sentence),
    "replaced": CommandHooks(lambda *_: _view("tokens").draw_replaced),
}


def task_command(name: str) -> Callable[..., None]:
    """Makes the command of a task."""
    entry = CATALOGUE[name]

    def command(model: ServedOptions, source: Any, out: FileOptions, items: Any, chosen: Any) -> None:
        _run(entry, TaskArguments(model, source, items, chosen), out)

    items = ITEMS[entry.items]
    command.__annotations__ |= {"source": items.source, "items": items, "chosen": entry.options}
    return with_options(command, entry.about or "", ())


def _run(entry: TaskEntry, typed: TaskArguments, out: FileOptions) -> None:
    hooks = HOOKS[entry.name]
    check_output(out.output, out.overwrite, sources=typed.source.input)
    hooks.check(typed)
    in_table = out.output is not None and out.output.suffix.lower() in TABLES
    records = typed.items.open(typed.source, whole=in_table and typed.source.keep is None)
    loaded = session.load_or_ask(entry.name, typed.model, typed.chosen)
    results = session.results(entry, loaded, records, typed.chosen)
    remembered = {name: getattr(typed.items, name) for name in typed.items.remembered}
    manifest = session.OutputManifest(entry.name, loaded, typed.model, typed.chosen.deciding() | remembered)
    session.stream(records, results, hooks.draw(loaded, typed.chosen), out, task=manifest, counts_empty=True)
