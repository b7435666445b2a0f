"""Commands and command groups for typer, with mlxbert's own help, aliases, and messages for wrong usage."""

import difflib
import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from mlxbert.cli.views import console, help as view
from mlxbert.cli.views.option_spelling import set_options
from mlxbert.errors import ArgumentError
from mlxbert.tasks.catalogue import CATALOGUE

_ALIASES = {"rm": "remove", "ls": "list", "mv": "move"}
_SUGGESTIONS = {  # names that other programs give to a command
    "train": "finetune", "ner": "tag", "encode": "embed", "qa": "answer", "ask": "answer", "test": "evaluate",
    "unmask": "fill-mask", "find": "search", "grep": "search", "predict": "classify", "duplicates": "dedupe",
    "topics": "cluster",
}  # fmt: skip
_OPTION = re.compile(r"-\w|--[a-z][\w-]*(=.*)?", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
_INVALID = re.compile("(.+?) is not (?:a valid|one of|in the range) ", re.DOTALL)  # a value that typer refuses


class Command(TyperCommand):
    """A command with mlxbert's own help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        show_help(ctx.command_path, self, whole=False)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses options and arguments; attaches the context of the command to errors."""
        for word in args:
            _check_word(word)
        set_options(option for parameter in self.params for option in parameter.opts)
        try:
            seen = [] if ctx.resilient_parsing else self.make_parser(ctx).parse_args(list(args))[2]
            rest = super().parse_args(ctx, args)
        except typer.TyperException as problem:
            problem.ctx = getattr(problem, "ctx", None) or ctx  # type: ignore[attr-defined]
            raise
        for option, count in Counter(seen).items():
            if isinstance(option, TyperOption) and count > 1 and not option.multiple:
                _check_once(option, count)
        return rest


def _check_word(word: str) -> None:
    """Rejects characters that a shell never passes, but that a Python caller of the program might pass."""
    try:
        if b"\0" not in os.fsencode(word):
            return
        flaw = "a NUL character"
    except UnicodeEncodeError:
        flaw = "half of a surrogate pair"
    raise ArgumentError(f"{word!r:.60} contains {flaw}, expected a text or a name")


def _check_once(option: TyperOption, count: int) -> None:
    if option.is_flag and not option.secondary_opts:
        return
    takes_list = "," in (option.metavar or "")
    raise ArgumentError(
        f"{option.opts[0]} is given {count} times, but can be given only once",
        hint=f"separate several values with commas: {option.opts[0]} {option.metavar}" if takes_list else None,
    )


class CommandGroup(TyperGroup):
    """A group of commands with mlxbert's own help, in which some commands have aliases."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        show_help(ctx.command_path, self, whole=False)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not args[0].startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            raise _no_such_command(args[0], self, ctx.command_path)
        return super().resolve_command(ctx, args)


def show_help(path: str, command: Any, *, whole: bool) -> None:
    """Prints the short or the whole help of a command."""
    console.require_stdout()
    screen = console.stdout()
    for line in view.draw(path, command, whole=whole):
        screen.print(line, soft_wrap=True)


def explain_command(context: typer.Context, words: Sequence[str]) -> None:
    """Prints the complete help of the command that the words name, for `mlxbert help`."""
    here: Any = context.find_root()
    command: Any = here.command
    for place, word in enumerate(words):
        if not isinstance(command, CommandGroup):
            here.fail(f"Got unexpected extra argument(s) ({' '.join(words[place:])})")
        name, command, _ = command.resolve_command(here, [word])
        here = type(here)(command, info_name=name, parent=here)
    show_help(here.command_path, command, whole=isinstance(command, Command))


def explain(problem: Any, typed: Sequence[str]) -> tuple[str, str | None]:
    """Returns the message and the hint for an error that typer has detected in the arguments `typed`."""
    context: Any = getattr(problem, "ctx", None)
    path = context.command_path if context else "mlxbert"
    help_of = " ".join(["mlxbert help", *path.split()[1:]])
    match type(problem).__name__:
        case "NoSuchOption":
            return _no_such_option(problem, path, typed, help_of)
        case "MissingParameter":
            return _missing(problem.param, help_of, context)
        case "BadParameter" if problem.param is not None:
            return _bad_value(problem)
        case "BadOptionUsage" if "not take a value" in problem.message:
            return f"{problem.option_name} is a flag and takes no value", None
        case "BadOptionUsage":
            option = next(param for param in context.command.params if problem.option_name in param.opts)
            entry = CATALOGUE.get(problem.option_name.removeprefix("--"))  # options that name the model of a task
            return (
                f"{problem.option_name} has no value, expected {expected(option)}",
                None if entry is None else entry.hint,
            )
    if extra := _EXTRA.fullmatch(problem.message):
        usage = view.usage(context.command)
        quote = "quote a text that has spaces, or " if " " in extra[1] else ""
        return (f"{path} takes {usage or 'no arguments'}, so {extra[1]!r:.60} is unexpected", f"{quote}see `{help_of}`")
    if problem.message == "Missing command.":
        return f"{path} needs a command, one of {', '.join(context.command.commands)}", f"see `{help_of}`"
    return problem.format_message(), None


def expected(parameter: Any) -> str:
    """Describes the values that an option or an argument accepts."""
    choices = view.choices_of(parameter)
    if choices:
        return _either(choices)
    least, most = (getattr(parameter.type, name, None) for name in ("min", "max"))
    kinds = {"int": "a whole number", "float": "a number"}
    kind = next((words for kind, words in kinds.items() if view.takes(parameter, kind)), None)
    if kind is None:
        return view.metavar_of(parameter)
    if least is not None and most is not None:
        return f"{kind} from {least:,} to {most:,}"
    return kind


def nearest(word: str, known: Collection[str]) -> list[str]:
    """Returns the known word that is most similar to a misspelled word, or two if they are about equally similar."""
    matches = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(a=word, b=match).ratio() for match in matches]
    return [match for match, ratio in zip(matches, ratios, strict=True) if ratio > ratios[0] - 0.1]


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _bad_value(problem: Any) -> tuple[str, str | None]:
    name = view.metavar_of(problem.param) if problem.param.param_type_name == "argument" else problem.param.opts[0]
    invalid = _INVALID.match(problem.message)
    if invalid is None:
        return f"{name}: {problem.message}", None
    near = nearest(invalid[1].strip("'"), view.choices_of(problem.param))
    hint = f"did you mean {near[0]}?" if near else None
    return f"{name} is {invalid[1]:.60}, expected {expected(problem.param)}", hint


def _missing(parameter: Any, help_of: str, context: Any) -> tuple[str, str]:
    option = [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
    name = " ".join([*option, view.metavar_of(parameter)])
    what = f" ({parameter.help[:1].lower()}{parameter.help[1:].rstrip('.')})" if parameter.help else ""
    example = (context.command.help or "").partition("Example: ")[2] if context else ""
    return f"{name} is missing{what}", f"for example: {example}" if example else f"see `{help_of}`"


def _no_such_option(problem: Any, path: str, typed: Sequence[str], help_of: str) -> tuple[str, str]:
    name = problem.option_name
    names = [option for param in problem.ctx.command.params for option in (*param.opts, *param.secondary_opts)]
    text = next((word for word in typed if word.startswith(name) and not _OPTION.fullmatch(word)), None)
    if text is not None:
        after = f"mlxbert {' '.join(path.split()[1:])} -- {shlex.quote(text)}"
        return f"{text!r:.60} begins with a hyphen and is read as an option", f"put -- before the texts: {after}"
    if name in ("--model", "-m") and view.usage(problem.ctx.command).startswith(("MODEL", "[MODEL")):
        return f"{path} has no option {name}", f"the model is an argument: {path} {shlex.quote(_value(typed, name))}"
    if name == "--index":  # the user has a folder of files
        answer = " --answer MODEL" * path.endswith(" answer")
        typed_name = shlex.quote(_value(typed, name, "PATH"))
        return f"{path} has no option {name}", f"to search an index: mlxbert search QUERY {typed_name}{answer}"
    bare = {option.removeprefix("--"): option for option in names if option.startswith("--")}
    word = name.removeprefix("--")  # the hyphens that all options share would make any two similar
    near = [bare[match] for match in nearest(word, [*bare])] if name.startswith("--") else []
    if hasattr(problem.ctx.command, "commands"):  # a group has few options: only near misses count
        near = difflib.get_close_matches(name, near, n=1, cutoff=0.8)
        if not near:
            return f"{path} has no option {name}", f"options follow the command: {path} COMMAND {name}"
    meant = near or [f"the command mlxbert {command}" for command in [_SUGGESTIONS.get(word)] if command]
    return (
        f"{path} has no option {name}",
        f"did you mean {_either(meant)}?" if meant else f"`{help_of}` explains all options",
    )


def _value(typed: Sequence[str], name: str, placeholder: str = "MODEL") -> str:
    """Returns the value that a user typed for the option `name`, or the placeholder if there is none."""
    values = [word.partition("=")[2] for word in typed if word.startswith(f"{name}=")]
    values += [after for word, after in itertools.pairwise(typed) if word == name]
    return values[0] if values else placeholder


def _no_such_command(name: str, group: CommandGroup, path: str) -> ArgumentError:
    known = list(group.commands)
    near = [_SUGGESTIONS[name]] if _SUGGESTIONS.get(name) in known else nearest(name, known)
    target = _ALIASES.get(name, name)
    below = [f"{top} {target}" for top, child in group.commands.items() if target in getattr(child, "commands", ())]
    commands = [f"{path} {command}" for command in (near or below)]
    hint = f"did you mean {_either(commands)}?" if commands else f"`{path} --help` lists the commands"
    return ArgumentError(f"{path} has no command {name!r:.60}", hint=hint)
