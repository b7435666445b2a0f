"""`mlxbert serve`: models for other programs, over HTTP."""

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mlxbert.cli.options import ComputingDevice, ComputingDType, Offline, TalkOptions
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError
from mlxbert.options import Option
from mlxbert.serve.options import EngineOptions, ServeOptions
from mlxbert.weights.source import BUILTIN, ModelRef

_OPEN_FOLDERS = (
    "move it elsewhere, or make the virtual environment anew there; or give Python Full Disk Access (System Settings > "
    "Privacy & Security)"
)


def serve(
    talk: TalkOptions,
    options: ServeOptions,
    engine: EngineOptions,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL…", help="Models: hub names, folders, or NAME=MODEL.")
    ] = None,
    index: Annotated[list[str] | None, Option("Index to search: FILE or NAME=FILE. May be repeated.", "FILE")] = None,
    offline: Offline = False,
    dtype: ComputingDType = "auto",
    device: ComputingDevice = "auto",
    print_launchd: Annotated[bool, Option("Print a launchd service file (macOS) and exit.")] = False,
    print_systemd: Annotated[bool, Option("Print a systemd service file (Linux) and exit.")] = False,
) -> None:
    """Serve models to other programs over HTTP.

    It speaks the protocols of OpenAI, Cohere, Jina, ollama, Text Embeddings Inference and Hugging Face, see
    docs/serve.md.
    Clients ask for a model by its NAME; by default this is its name on the hub, or that of its folder. Without MODEL it
    serves the model in MLXBERT_MODEL, or the built-in one.

    Example: mlxbert serve small=BAAI/bge-small-en-v1.5
    """
    from mlxbert.search.sqlite import SqliteStore

    given = models or [os.environ.get("MLXBERT_MODEL") or BUILTIN]
    sources, indexes = _named(given, "MODEL"), {name: Path(file) for name, file in _named(index or (), "index").items()}
    if missing := [file for file in indexes.values() if not file.is_file()]:
        raise ArgumentError(f"index is {missing[0]}: there is no such file", hint="`mlxbert indexes list` shows them")
    for file in indexes.values():
        SqliteStore(file).close()  # what is not an index is refused now, and not by the first search
    if print_launchd or print_systemd:
        chosen = {"index": [f"{name}={file.absolute()}" for name, file in indexes.items()], "offline": offline}
        chosen |= {"dtype": dtype, "device": device}
        words = [*_words(sources, chosen), *_changed(options), *_changed(engine)]
        _check(sources, options, offline=offline)
        files = [*indexes.values(), *filter(None, (options.api_key_file, options.log_file))]
        _print_service(words, [*filter(os.path.isdir, sources.values()), *files], launchd=print_launchd)
        return
    from mlxbert.serve.http.server import serve as run

    refs = {name: ModelRef(source, None, None, offline, dtype, device) for name, source in sources.items()}
    run(
        refs, options, engine_options=engine, indexes=indexes, quiet=talk.quiet,
        say=lambda text: console.say("note", text),
    )  # fmt: skip


def _print_service(words: Sequence[str], paths: Sequence[str | Path], *, launchd: bool) -> None:
    """Prints a service file; notes say what is not written into it, and what a service could not read.

    Args:
        words: The command.
        paths: Files and folders that it reads.
        launchd: Whether the file is for launchd, or for systemd.
    """
    from mlxbert.serve import units

    variables, secret = units.environment(os.environ)
    if odd := [word for word in (*words, *variables.values()) if not word.isprintable()]:
        raise ArgumentError(f"{odd[0]!r:.100} cannot stand in a service file, expected characters that are shown")
    if secret:
        login = "; `hf auth login` keeps a token where the server finds it" if "HF_TOKEN" in secret else ""
        said = f"{', '.join(secret)} {'is' if len(secret) == 1 else 'are'} not written into a service file{login}"
        console.say("note", said)
    if not launchd:
        sys.stdout.write(units.systemd(words, variables))
        return
    if sys.platform == "darwin":
        named = [variables[name] for name in units.PATHS if name in variables]
        _say_closed([sys.prefix, *paths, *named])
    sys.stdout.write(units.launchd(words, str(Path.home() / "Library/Logs/mlxbert-serve.log"), variables))


def _say_closed(paths: Sequence[str | Path]) -> None:
    """Says which files and folders of a service a Mac keeps services out of."""
    from mlxbert.serve import units

    found = units.closed(paths, Path.home())
    for path, folder in found.items():
        console.say("note", f"{path} lies in ~/{folder}, where macOS lets no service read: the server would not start")
    if found:
        console.say("hint", _OPEN_FOLDERS)


def _check(sources: Mapping[str, str], options: ServeOptions, *, offline: bool) -> None:
    """Refuses what a service would fail at when it starts; nothing is loaded, and no weights are downloaded."""
    from mlxbert.folders.inspect import inspect
    from mlxbert.serve.http.safety import VARIABLE, AccessPolicy, is_loopback, read_key

    AccessPolicy(options, options.port, read_key(options))
    if options.api_key_file is None and VARIABLE in os.environ:
        said = f"{VARIABLE} is not written into a service file"
        if not is_loopback(options.host):
            message = f"host is {options.host!r:.100}, which needs a key; and {said}"
            raise ArgumentError(message, hint="api_key_file= names a file with one")
        console.say("note", f"{said}: the server will ask for no key, unless --api-key-file names one")
    if options.log_file is not None and not options.log_file.absolute().parent.is_dir():
        raise ArgumentError(f"log_file is {options.log_file}: there is no such folder")
    for source in sources.values():
        inspect(source, offline=offline)


def _named(given: Sequence[str], what: str) -> dict[str, str]:
    """What is given as NAME=VALUE, or as a value alone, whose name is that of the file or folder."""
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or os.path.exists(word):
            name, value = (Path(word).absolute().stem if what == "index" else Path(word).absolute().name), word
            if what != "index" and not os.path.isdir(word):
                name = word
        if not name or not value or not name.isprintable():
            raise ArgumentError(f"{what} is {word!r:.100}, expected a name, or NAME={what.upper()}")
        if name in found:
            raise ArgumentError(f"{what} {name!r:.100} is given twice", hint=f"OTHER={value} gives it another name")
        found[name] = value
    return found


def _words(sources: Mapping[str, str], chosen: Mapping[str, Any]) -> Iterator[str]:
    """The beginning of the command, for a service; folders are absolute."""
    yield from (sys.executable, "-m", "mlxbert", "serve")
    for name, source in sources.items():
        source = os.path.abspath(source) if os.path.isdir(source) else source
        yield source if name == source else f"{name}={source}"
    usual = {"index": [], "offline": False, "dtype": "auto", "device": "auto"}
    for name, value in chosen.items():
        yield from _option(name, value, usual[name])


def _changed(options: Any) -> Iterator[str]:
    """The options of a dataclass that are not as usual."""
    for field in dataclasses.fields(options):
        yield from _option(field.name, getattr(options, field.name), field.default)


def _option(name: str, value: Any, usual: Any) -> Iterator[str]:
    if value == usual:
        return
    word = f"--{name.replace('_', '-')}"
    for one in value if isinstance(value, list) else [value]:
        yield word
        if one is not True:
            yield str(one.absolute() if isinstance(one, Path) else one)
