"""Passes hostile numbers and names to every option of every command: `python scripts/fuzz_options.py [--cases N]`.

Commands, options and their types come from the program itself. Each case runs in a separate process with limits on
memory and time. It must succeed, or fail with a short error: a crash, a traceback, more than 2 GB of memory, a run
longer than its options imply, or a changed input is a finding. The exit status is the number of findings, at most 125.
A case depends only on seed and number; `--only NUMBER` runs a single case and shows its output.
"""

import argparse
import importlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import typer

import mlxbert
from mlxbert.cli import app
from mlxbert.serve.http import server
from tests.helpers.tiny import CONFIG, WORDS, save

CPU_SECONDS, WALL_SECONDS, LASTING_SECONDS = (30, 300, 60)  # limits that leave room for other programs
MEMORY = 2 * 10**9  # bytes that a case may use
ROOM = 3 * 2**30  # bytes of address space in addition to the initial size of a process
MAX_PRINTED = 100_000  # characters on stderr
LARGE, LARGE_TEXT = 10_000_000, 120_000  # characters of the longest name, and of a text
_LASTING = {"steps", "epochs", "gradient_accumulation", "rounds", "seeds", "sweep"}  # determine the amount of work
# Never hostile; a watch would not end.
_PLAIN = {"help", "version", "install_completion", "show_completion", "watch"}

NUMBERS = (
    *("0", "-1", "1", "2", "3", "7", "8", "9", "63", "64", "65", "1000", "100000", "1000001", "2147483647"),
    *(str(2**power + more) for power in (31, 32, 63, 64) for more in (-1, 0, 1)),
    *(f"{sign}1{'0' * power}" for sign in ("", "-") for power in (7, 9, 12, 18, 24, 400, 5000)),
    *("nan", "-nan", "inf", "-inf", "1e308", "-1e308", "1e309", "1e-320", "-0.0", "0.5", "1e-7", "0.999999", "1e9"),
    *("0x10", "1_000", "\u0663", " 5 ", "", "1e5", "+3", "\u00bd", "True", "5\0", "--5", "1.", ".1", "1,5", "\u221e"),
)
NAMES = (
    "", " ", ".", "..", "/", "-", "--", "---", "=", ",", ",,,", ":", "{}", "{0}", "%s", "*", "?", "[a-", "(a+)+$",
    "a,b", "~", "~nobody", "~/x", "a/b", "../../x", "./x", "x/", "nul", "con", "builtin", "None", "null", "true",
    "[MASK]", "a\0b", "\0", "a\nb", "a\rb", "\x1b[31mred", "\x07", "\x7f", "\x9b31m", "\u202eabc", "\u2066x", "\u200b",
    "\u2028", "\u200b", "\u2028", "/", "\udcff", "a\ud800", "\U000e0041", "e\u0301", "\ufeffx", "\U0001f600" * 50,
    "\u0130", "\uffff", "a" * 256, "a" * 5000, "a/" * 3000, "../" * 500, "x," * 5000, "x+" * 5000, "(" * 5000,
    "mean+" * 999 + "mean", "org/name", "org/name/more", "org/../name", "datasets/x", "hf://x", "http://localhost:1/x",
    "file:///x", "s3://x", "/dev/null", "/dev/full", "/proc/self/environ", "x.csv", "x.jsonl", "x.npy", "x.parquet",
    "x.safetensors", "x.gz",
)  # fmt: skip


@dataclass
class Command:
    """A command with valid arguments.

    Attributes:
        path: The words of the command.
        parameters: Its options and arguments, by name.
        usual: Valid values, keyed by the names of parameters.
    """

    path: tuple[str, ...]
    parameters: dict[str, Any]
    usual: dict[str, list[str]]


@dataclass(frozen=True)
class Case:
    """A command line, and its hostile values, keyed by the names of parameters."""

    arguments: list[str]
    hostile: dict[str, str]


@dataclass
class Files:
    """The input files of all commands, in a folder."""

    folder: Path

    def write(self) -> None:
        """Writes tiny models and data."""
        vocabulary = save(self.folder / "vocabulary")
        several = mlxbert.Labels(("a", "b"), problem_type="multi_label_classification")
        heads: dict[str, dict[str, Any]] = {
            "words": {"masked_lm": None, "next_sentence": None},
            "classify": {"sequence_classifier": mlxbert.Labels(("a", "b"))},
            "regress": {"sequence_classifier": mlxbert.Labels(("x",), problem_type="regression")},
            "multilabel": {"sequence_classifier": several},
            "tag": {"token_classifier": mlxbert.Labels(("O", "B-X", "I-X"))},
            "answer": {"question_answering": None},
        }
        for name, head_labels in heads.items():
            model = mlxbert.new_model({**CONFIG, "initializer_range": 0.15}, vocabulary, heads=head_labels)
            mlxbert.save(model, self.folder / name)
        electra = {**CONFIG, "model_type": "electra", "embedding_size": CONFIG["hidden_size"]}
        model = mlxbert.new_model(electra, vocabulary, heads={"discriminator": None})
        mlxbert.save(model, self.folder / "replaced")
        self._data()

    def _data(self) -> None:
        words = WORDS.split()
        texts = [" ".join(words[(7 * n + k) % 20] for k in range(3 + n % 9)) for n in range(60)]
        records: dict[str, list[Any]] = {
            "classify": [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(texts)],
            "multilabel": [{"text": text, "label": ["a", "b"][: 1 + n % 2]} for n, text in enumerate(texts)],
            "regress": [{"text": text, "label": n % 7 / 7} for n, text in enumerate(texts)],
            "tag": [
                {"words": text.split(), "tags": ["B-X" if word == "cat" else "O" for word in text.split()]}
                for text in [f"cat {text}" for text in texts]
            ],
            "answer": [
                {"question": "cat ?", "context": f"paris {text}", "answers": [{"text": "paris", "answer_start": 0}]}
                for text in texts
            ],
            "embed": [{"anchor": text, "positive": f"{text} {words[n % 9]}"} for n, text in enumerate(texts)],
            "rerank": [{"query": texts[n // 2], "text": text, "label": n % 2} for n, text in enumerate(texts)],
        }
        for name, rows in records.items():
            self._write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self._write("texts.txt", "".join(f"{text}\n" + "\n" * (n % 4 == 0) for n, text in enumerate(texts)))

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def state(self) -> dict[str, tuple[int, int]]:
        """The sizes and modification times of all files, which reveal a change."""
        stats = {path: path.stat() for path in sorted(self.folder.rglob("*"))}
        return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items() if path.is_file()}


def usual(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Valid arguments of each command, keyed by the names of its parameters."""
    data, model = (
        {path.stem: [str(path)] for path in folder.iterdir() if path.is_dir() == is_model} for is_model in (False, True)
    )
    words, texts, out = model["words"], data["texts"], ["out"]
    short = {"length": ["16"], "steps": ["1"], "batch_size": ["4"], "output": out}
    values: dict[str, dict[str, list[str]]] = {
        "answer": {"texts": ["cat ?"], "context": ["the cat sat on the mat"], "model": model["answer"]},
        "attention": {"text": ["the cat sat"], "model": words},
        "bench": {"model": words, "rounds": ["1"]},
        "convert": {"source": words, "folder": out},
        "distill": {"corpus": texts, "teacher": words, **short},
        "distill-static": {"teacher": words, "output": out, "dimensions": ["4"]},
        "evaluate mlm": {"data": texts, "model": words, "length": ["16"], "examples": ["4"]},
        "dedupe": {"texts": ["the cat", "the dog"], "model": words},
        "cluster": {"texts": ["the cat", "the dog"], "model": words, "clusters": ["2"]},
        "map": {"texts": ["the cat", "the dog"], "model": words, "output": ["map.html"]},
        "explain": {"text": ["the cat [MASK]"], "model": words, "steps": ["2"]},
        "help": {"words": ["embed"]},
        "inspect": {"model": words},
        "mine": {"pairs": data["embed"], "output": ["out.jsonl"], "model": words},
        "senses": {"word": ["cat"], "input": texts, "model": words},
        "pretrain": {"corpus": texts, "model": words, **short},
        "verify": {"a": words, "b": words},
        "vocabulary": {"files": texts, "output": out, "size": ["100"]},
        "search": {"query": ["cat"], "paths": texts, "model": words},
        "index": {"paths": texts, "model": words},
        "mcp": {"paths": texts, "model": words},
        "serve": {"models": words, "port": ["0"]},
        "doctor": {}, "models list": {}, "indexes list": {},
    }  # fmt: skip
    values |= {f"models {name}": {"name": ["org/name"]} for name in ("download", "verify", "path", "remove")}
    values["models upload"] = {"folder": words, "name": ["org/name"]}
    values["indexes show"], values["indexes remove"] = {"index": texts}, {"indexes": texts, "yes": [""]}
    values["indexes copy"] = {"index": texts, "new": ["copy.db"]}
    values["indexes move"] = {"old": texts, "new": data["embed"]}
    for task in ("classify", "multilabel", "regress", "tag", "answer", "embed", "rerank"):
        values[f"finetune {task}"] = {"train": data[task], "output": out, "dry_run": [""], "model": words}
        values[f"evaluate {task}"] = {
            "data": data[task],
            "model": model[{"embed": "words", "rerank": "regress"}.get(task, task)],
        }
    models = {"classify": "classify", "rerank": "regress", "tag": "tag", "replaced": "replaced"}
    for name in ("fill-mask", "embed", "similarity", "next-sentence", "tokenize", *models):
        values[name] = {"texts": ["the cat [MASK] sat", "the [MASK]"], "model": model[models.get(name, "words")]}
    return values


def commands(folder: Path) -> list[Command]:
    """All commands of the program but those of Ray, whose processes outlive a case."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[Command]:
        below = getattr(command, "commands", {})
        for name, child in below.items():
            yield from walk(child, (*path, name))
        if not below and path[0] != "ray":
            parameters = {parameter.name: parameter for parameter in command.params if parameter.name not in _PLAIN}
            yield Command(path, parameters, values[" ".join(path)])

    values = usual(folder)
    return list(walk(typer.main.get_command(app.make_app()), ()))


def number(rng: Random, kind: Any) -> str:
    """A hostile number, often at the bounds of the allowed range."""
    ends = [bound for bound in (getattr(kind, "min", None), getattr(kind, "max", None)) if bound is not None]
    if ends and rng.random() < 0.4:
        end = rng.choice(ends)
        return str(rng.choice((end, end + 1, end - 1, end * 2, end / 2, end * 1.0000001, end // 3 + 1)))
    return rng.choice(NUMBERS)


def name(rng: Random, parameter: Any, files: Sequence[str], others: Sequence[str]) -> str:
    """A hostile name, or a list of hostile names in the format of the option."""
    shape = parameter.metavar or ""
    if shape == "NAME=A,B,…" and rng.random() < 0.8:
        count = rng.choice((1, 3, 100, 1001, 20_000))
        return f"{rng.choice(others)}={','.join(rng.choice(NUMBERS[:40]) for _ in range(count))}"
    if shape in ("N,N,…", "N") and rng.random() < 0.8:
        count = rng.choice((1, 1, 3, 200, 20_000))
        share = rng.choice((0, 0.5))  # of hostile numbers: a long list of valid numbers is hostile, too
        parts = [rng.choice(NUMBERS) if rng.random() < share else "8" for _ in range(count)]
        return ",".join(f"{part}:{rng.choice(NUMBERS)}" if rng.random() < share / 2 else part for part in parts)
    if shape in ("TERMS", "SIZE") and rng.random() < 0.8:
        term = rng.choice(("mlm", "nsp", "sop", "soft", "hidden", "vectors", "electra"))
        return (
            f"{term}:{rng.choice(NUMBERS)}"
            if shape == "TERMS"
            else f"{rng.choice(NUMBERS)}{rng.choice(('MB', 'GiB', ''))}"
        )
    if shape == "A,B" and rng.random() < 0.5:
        return ",".join(rng.choice((*NAMES, *WORDS.split())) for _ in range(rng.choice((2, 50, 5000))))
    if rng.random() < 0.02:
        return rng.choice(("x", "x ", "x,", "\u20ac", "../")) * ((LARGE_TEXT if "TEXT" in shape else LARGE) // 3)
    return rng.choice(NAMES) if rng.random() < 0.9 else rng.choice(files)


def value(rng: Random, command: Command, parameter: Any, files: Sequence[str]) -> str:
    """A hostile value of an option or argument."""
    if parameter.type.name in ("integer", "integer range", "float", "float range", "int", "int range"):
        return number(rng, parameter.type)
    choices = [str(getattr(choice, "value", choice)) for choice in getattr(parameter.type, "choices", ())]
    if choices and rng.random() < 0.6:
        return rng.choice(choices)
    return name(rng, parameter, files, [*command.parameters])


def case(seed: int, place: int, every: Sequence[Command], files: Sequence[str]) -> Case:
    """The case with this number; every option of every command takes its turn as the first hostile one."""
    rng = Random(f"{seed} {place}")
    turns = [(command, parameter) for command in every for parameter in command.parameters.values()]
    command, first = turns[place % len(turns)]
    others = [parameter for parameter in command.parameters.values() if rng.random() < 1.5 / len(command.parameters)]
    arguments = {key: list(values) for key, values in command.usual.items()}
    if rng.random() < 0.2:
        arguments.pop("dry_run", None)
    hostile: dict[str, str] = {}
    for parameter in dict.fromkeys([first, *others]):
        if getattr(parameter, "is_flag", False):
            arguments[parameter.name] = [""]
        else:
            hostile[parameter.name] = value(rng, command, parameter, files)
            arguments[parameter.name] = [hostile[parameter.name]]
    return Case(compose(command, arguments, rng), hostile)


def compose(command: Command, arguments: Mapping[str, Sequence[str]], rng: Random | None = None) -> list[str]:
    """The command line with these arguments; with `rng`, a switch gets a random one of its names."""
    words, last = list(command.path), list[str]()
    for key, values in arguments.items():
        parameter = command.parameters[key]
        if parameter.param_type_name == "argument":
            last += values
        elif getattr(parameter, "is_flag", False):
            names = [*parameter.opts, *parameter.secondary_opts]
            words.append(names[0] if rng is None else rng.choice(names))
        else:
            words += [word for value in values for word in (parameter.opts[0], value)]
    return [*words, "--", *last] if last else words


def run(trial: Case, cwd: Path, printed: Path) -> tuple[str, float, int]:
    """Runs a case in a process; returns its fault if any, the CPU time in seconds, and the memory in bytes."""
    shutil.rmtree(cwd.parents[2], ignore_errors=True)
    cwd.mkdir(parents=True)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _child(trial, cwd, printed)
    until = time.monotonic() + (LASTING_SECONDS if _is_long(trial) else WALL_SECONDS)
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    text = printed.read_text(encoding="utf-8", errors="replace")
    return _fault(trial, os.waitstatus_to_exitcode(status), memory, text), seconds, memory


def _is_long(trial: Case) -> bool:
    """Whether a case asks for a lot of work, or reads an endless file."""
    return not _LASTING.isdisjoint(trial.hostile) or "/dev/full" in trial.hostile.values()


def _child(trial: Case, cwd: Path, printed: Path) -> None:
    """Runs the program in this process, then ends the process."""
    status = 99
    try:
        os.setpgid(0, 0)
        os.chdir(cwd)
        for stream, target in ((0, os.devnull), (1, os.devnull), (2, printed)):
            os.dup2(os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC), stream)
        statm = Path("/proc/self/statm")
        if statm.exists():
            size = int(statm.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        status = app.run(trial.arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _fault(trial: Case, status: int, memory: int, printed: str) -> str:
    """The fault in the outcome of a case; empty if there is none."""
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return "" if _is_long(trial) else f"hang, killed by {signal.Signals(-status).name}"
    if status < 0 or status == 99 or "Traceback" in printed or "panicked" in printed:
        return f"crash with status {status}: {printed[-300:]!r}"
    if status not in (0, 1, 2):
        return f"status {status}: {printed[-300:]!r}"
    if status and "error: " not in printed and "--quiet" not in trial.arguments and trial.arguments[0] != "verify":
        return f"no error with status {status}: {printed[-300:]!r}"
    if len(printed) > MAX_PRINTED:
        return f"output of {len(printed):,} characters: {printed[:300]!r}"
    return f"memory of {memory:,} bytes" if memory > MEMORY else ""


def prepare(folder: Path) -> Files:
    """Writes files, isolates the program from the hub and the user's files, and imports all modules."""
    files = Files(folder / "files")
    files.folder.mkdir()
    for variable, value in {
        "HOME": "home",
        "HF_HOME": "hub",
        "XDG_CACHE_HOME": "cache",
        "TMPDIR": "tmp",
        "MLXBERT_DATA": "data",
    }.items():
        (folder / value).mkdir()
        os.environ[variable] = str(folder / value)
    os.environ |= {"HF_HUB_OFFLINE": "1", "MPLCONFIGDIR": str(folder / "cache")}
    child = os.fork()
    if not child:  # MLX does not survive a fork once it has computed
        try:
            files.write()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the files cannot be written"
    for package in (mlxbert, importlib.import_module("mlxbert.weights"), importlib.import_module("mlxbert.cli")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(("__main__", "worker")):
                importlib.import_module(module.name)
    server._serve = _ended  # type: ignore[assignment]
    return files


async def _ended(*_: object) -> None:
    """Replaces the listening server, which would never end."""


def fuzz(seed: int, numbers: Sequence[int], show: bool = False) -> Iterator[tuple[int, str, Case, float, int]]:
    """Runs cases one by one; yields the number, the fault, the case, seconds of CPU time, and bytes of memory."""
    with tempfile.TemporaryDirectory(prefix="fuzz-options-") as place:
        folder = Path(place)
        files = prepare(folder)
        shutil.copytree(files.folder, folder / "kept")
        all_commands, before, printed = commands(files.folder), files.state(), folder / "printed"
        names = [str(path) for path in files.folder.iterdir()]
        for at in numbers:
            trial = case(seed, at, all_commands, names)
            fault, seconds, memory = run(trial, folder / "case" / "a" / "b" / "c", printed)
            if show:
                print(printed.read_text(encoding="utf-8", errors="replace"))
            now = files.state()
            changed = any(now.get(path) != state for path, state in before.items())
            if changed and not fault and "--overwrite" not in trial.arguments:
                fault = "an input is changed"
            if now != before:
                shutil.rmtree(files.folder)
                shutil.copytree(folder / "kept", files.folder)
                before = files.state()
            yield at, fault, trial, seconds, memory


def check_usual() -> int:
    """Runs each command with its valid arguments; returns the number of failures, as such cases would test nothing."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-options-") as place:
        folder, printed = Path(place), Path(place) / "printed"
        for command in commands(prepare(folder).folder):
            run(Case(compose(command, command.usual), {}), folder / "case" / "a" / "b" / "c", printed)
            message = printed.read_text(encoding="utf-8")
            if "error: " in message and command.path[0] not in ("models", "indexes"):  # there are none
                failed += 1
                print(f"{' '.join(command.path)}: {message}")
    return failed


def main() -> int:
    """Runs cases and prints every fault, then a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this case only and show its output")
    parser.add_argument("--usual", action="store_true", help="run each command with its valid arguments only")
    args = parser.parse_args()
    if args.usual:
        return check_usual()
    numbers = range(args.first, args.first + args.cases) if args.only is None else [args.only]
    kinds: Counter[str] = Counter()
    slowest, largest = 0.0, 0
    for number_of_trial, fault, trial, seconds, memory in fuzz(args.seed, numbers, show=args.only is not None):
        kinds[fault.partition(" ")[0] or "well"] += 1
        slowest, largest = max(slowest, seconds), max(largest, memory)
        if fault or args.only is not None:
            words = " ".join(f"{word!r:.80}" for word in trial.arguments)
            print(f"{number_of_trial}: {fault or 'well'}\n    {words}", flush=True)
    print(f"{dict(kinds)}, slowest {slowest:.1f} s of computing, largest {largest / 1e6:,.0f} MB")
    return min(sum(kinds.values()) - kinds["well"], 125)


if __name__ == "__main__":
    sys.exit(main())
