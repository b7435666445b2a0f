"""The documentation names what there is: commands, options, functions, families, links."""

import ast
import configparser
import dataclasses
import inspect
import plistlib
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxbert
from mlxbert.cli.views.vectors import MOST_COMPARED
from mlxbert.nn.heads import HEADS
from mlxbert.nn.pooling import POOLINGS
from mlxbert.tasks.answer import MAX_LENGTH, STRIDE
from mlxbert.tasks.options import AnswerOptions
from mlxbert.tasks.vector_dtype import OUTPUT_DTYPES
from mlxbert.text.batch import BATCH_TOKENS, WINDOW
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.weights.families.registry import ALL, FAMILIES
from mlxbert.weights.model_source import builtin_folder
from tests.docs.pages import DOCS, README, ROOT, blocks, installs, rows
from tests.helpers import recorded
from tests.helpers.cases import together
from tests.helpers.commands import COMMANDS, PROGRAM
from tests.helpers.families import FAMILIES as COMPARED

MAIN = (
    "python3 -m venv .venv && . .venv/bin/activate && pip install . && "
    'mlxbert fill-mask "Tokyo is the largest city in [MASK]."'
)
TESTS = 'python3 -m venv .venv && . .venv/bin/activate && pip install -e ".[test]" && pytest -n auto --dist loadfile'
COMING = "docs/coming-from.md"  # for users of other libraries
LINKING = [
    *DOCS,
    *("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "benchmarks/machines.md"),
    *("examples/README.md", "weights/builtin/README.md"),
]


# Of other programs: those of conda, of ray and of llama-server come last.
OF_OTHERS = {"--backend", "--hostfile", "--user", "--now", "--force-reinstall", "--only-binary", "--clear"}
OF_OTHERS |= {"--env", "--set", "--head", "--address", "--embeddings", "--reranking", "--ubatch-size"}


def test_the_readme_has_the_two_commands_verbatim_and_links_every_page() -> None:
    lines = [line for language, text in blocks("README.md") if language == "sh" for line in text.split("\n")]
    assert MAIN in lines and TESTS in lines
    assert all(page == "README.md" or f"]({page})" in README for page in DOCS)


def test_every_command_is_in_the_table_of_the_readme() -> None:
    assert {"fill-mask", "models list"} <= COMMANDS.keys()
    lines = [" ".join(row) for row in rows("README.md", "| command")]
    listed = {re.split(r" [A-Z]", name)[0] for line in lines for name in re.findall("`mlxbert ([^`]*)`", line)}
    groups = {"finetune", "evaluate", "ray"}  # of which one row stands for all tasks
    assert {name for name in COMMANDS if name.split()[0] not in {*groups, "models", "indexes"}} | groups <= listed
    for name in COMMANDS.keys() - listed:
        group, part = name.split()
        group = "finetune" if group == "evaluate" and part != "mlm" else group  # which has the same tasks
        assert any(group in line and f"`{part}`" in line for line in lines), name


@together("page", DOCS)
def test_every_option_that_is_named_exists(page: str) -> None:
    parameters = [one for command in (PROGRAM, *COMMANDS.values()) for one in command.params]
    known = {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
    text = DOCS[page]
    for _, block in blocks(page):
        text = text.replace(block, "") if installs(block) else text
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) <= known | {"--help"} | OF_OTHERS


def _shown(page: str) -> Iterator[list[str]]:
    """The commands of a page that are not run as they stand: in blocks without a language, and within the text."""
    text = re.sub(r"^```\w+\n.*?^```$", "", DOCS[page], flags=re.DOTALL | re.MULTILINE)
    plain = "".join(re.findall(r"^```\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    for line in re.findall(r"^mlxbert .*$", plain, re.MULTILINE) + re.findall(r"`(mlxbert [^`\n]*)`", text):
        words = shlex.split(re.split(r"[|>]|&&", line)[0])[1:]
        if "--help" not in words and not any(word.startswith("--install") for word in words):
            yield words


@together("page", DOCS)
def test_commands_that_are_only_shown_could_be_run(page: str) -> None:
    """Their options are those of their command, with values that it takes."""
    for words in _shown(page):
        name = next((" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in COMMANDS), None)
        if name is None:  # a group of commands, or a task that stands for all: `mlxbert finetune TASK`
            assert words[0] in {command.split()[0] for command in COMMANDS}, words
            continue
        given = words[len(name.split()) :]
        if any(word.startswith("-") for word in given):  # a name alone needs no arguments
            COMMANDS[name].make_context(name, given)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (".github/workflows/ci.yml", {"--check", "--json"}), (".github/ISSUE_TEMPLATE/bug.yml", {"--report"}),
        ("docs/install.md", {"--check", "--json", "--quick", "--report"}),
    ],
)  # fmt: skip
def test_the_report_of_a_device_is_asked_for_with_options_that_exist(path: str, asked: set[str]) -> None:
    if not (ROOT / path).exists():
        pytest.skip("a source distribution has no .github")
    found = re.findall(r"mlxbert doctor((?: --[a-z-]+)+)", (ROOT / path).read_text(encoding="utf-8"))
    for options in found:
        COMMANDS["doctor"].make_context("doctor", options.split())
    assert {option for options in found for option in options.split()} == asked


def test_the_estimates_for_macs_are_computed_as_the_page_says() -> None:
    text = (ROOT / "benchmarks/machines.md").read_text(encoding="utf-8")
    found = re.search(r"needs (\d+) MFLOP\s+for a token.*?assume ([\d.]+) to ([\d.]+) of", text, re.DOTALL)
    assert found is not None
    table = [row for row in rows("benchmarks/machines.md", "chip") if row[0].startswith("M")]
    assert len(table) > 10
    for chip, _, peak, tokens in table:
        expected = [float(peak) * 1e6 * float(share) / float(found[1]) for share in found.groups()[1:]]
        assert [float(end) for end in tokens.replace(",", "").split(" to ")] == pytest.approx(expected, rel=0.05), chip


def test_numbers_of_the_pages_are_those_of_the_source() -> None:
    size = sum(path.stat().st_size for path in builtin_folder().iterdir())
    assert round(size / 1e6) == 23 and "23 MB" in DOCS["docs/models.md"]
    assert "five formats" in README and len(rows("docs/formats.md", "in")) == 5
    assert {cells[0].strip("`") for cells in rows("docs/embeddings.md", "pooling")} == set(POOLINGS)
    assert {cells[0].strip("`") for cells in rows("docs/embeddings.md", "dtype")} == set(OUTPUT_DTYPES)
    assert f"up to {MOST_COMPARED} texts" in DOCS["docs/embeddings.md"]
    page = DOCS["docs/command-line.md"]
    assert f"at most {WINDOW} texts" in page and f"longer than {MAX_LENGTH} tokens" in page
    assert f"`--stride` tokens ({STRIDE})" in page and f"`--max-words N` ({AnswerOptions.max_words})" in page
    assert {cells[1] for cells in rows("docs/speed.md", "device")} == {f"{count:,}" for count in BATCH_TOKENS.values()}


def test_the_service_files_start_a_server_that_is_neither_throttled_nor_killed_while_it_answers() -> None:
    files = dict(blocks("docs/serve.md"))
    unit = configparser.RawConfigParser()
    unit.read_string(files["ini"].replace("%h", "/h"))  # the home folder
    job = plistlib.loads(files["xml"].encode())
    for command in (unit["Service"]["execstart"].split(), job["ProgramArguments"]):
        assert Path(command[0]).is_absolute() and command[1] == "serve"
        COMMANDS["serve"].make_context("serve", command[2:])
    assert job["ProcessType"] == "Interactive" and job["KeepAlive"] == {"SuccessfulExit": False}
    assert unit["Service"]["restart"] == "on-failure"
    assert int(unit["Service"]["timeoutstopsec"]) == job["ExitTimeOut"] == 120


def test_every_public_function_is_in_the_table_of_functions() -> None:
    public = {name for name in dir(mlxbert) if inspect.isfunction(getattr(mlxbert, name))}
    # Two classes are called as functions are.
    signatures = [cells[0].strip("`") for cells in rows("docs/python.md", "function")]
    assert {signature.split("(")[0] for signature in signatures} == public | {"ModelRef", "Engine"}
    for signature in signatures:
        name, _, arguments = signature.rstrip(")").partition("(")
        named = {argument.split("=")[0] for argument in arguments.split(", ")} - {"…"}
        assert named <= inspect.signature(getattr(mlxbert, name)).parameters.keys(), signature


def test_the_table_of_models_has_every_family_with_what_is_recorded() -> None:
    program = runpy.run_path(str(ROOT / "scripts/models_table.py"))
    _, _, written = DOCS["docs/models.md"].partition(program["START"])
    assert written.partition(program["END"])[0] == program["table"]()
    table = rows("docs/models.md", "family (`model_type`)")
    assert [cells[0].partition(" (`")[0] for cells in table] == [*dict.fromkeys(one.title for one in ALL)]
    types = [name for cells in table for name in re.findall("`(.*?)`", cells[0])]
    assert set(types) == FAMILIES.keys()
    first = {family.title: family for family in reversed(ALL)}
    published = [name for family in first.values() for name in family.published]
    assert len(set(published)) == len(published)
    assert {one["model"] for one in recorded.read("parity")} == COMPARED.keys()
    heads = {name.strip("`"): task.strip("`") for _, name, task in rows("docs/models.md", "head")}
    assert heads == {name: head.task or "" for name, head in HEADS.items()}
    named = set(re.findall(r"`([\w.-]+/[\w.-]+)`", DOCS["docs/choosing.md"]))
    known = set(published) | set(re.findall(r"`([\w.-]+/[\w.-]+)`", README))
    assert len(named) > 8 and named <= known


def _anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@together("page", LINKING)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^):]+)\)", text):  # those with a colon leave the repository
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in _anchors(target), f"{page}: {link}"


def test_lines_of_ours_are_calls_that_the_functions_accept() -> None:
    codes = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", DOCS[COMING], flags=re.DOTALL | re.MULTILINE))
    trees = [ast.parse(code) for code in codes if "mlxbert." in code and "…" not in code and "(" in code]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [node for node in nodes if ast.unparse(node.func).startswith("mlxbert.")]
    assert len(calls) > 25
    for call in calls:
        function = getattr(mlxbert, ast.unparse(call.func).removeprefix("mlxbert."))
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        inspect.signature(function).bind(*call.args, **keywords)


def test_attributes_of_the_page_are_those_of_a_model() -> None:
    model = mlxbert.load("builtin")
    assert model.embed_tokenizer.max_length == 256 and model.embedder.size == 384 and model.network is not None


def test_options_of_training_and_their_defaults_are_ours() -> None:
    options = {name: one for one in COMMANDS["finetune classify"].params for name in one.opts}
    table = rows(COMING, "theirs (`TrainingArguments`)")
    listed = [(re.findall(r"`(--[\w-]+)", ours), default) for *_, ours, default in table]
    assert len(listed) > 15
    for names, default in listed:
        assert set(names) <= options.keys()
        if re.fullmatch(r"[\d.]+", default):
            assert float(options[names[0]].default) == float(default), names


@pytest.mark.slow
def test_arguments_of_the_trainer_have_the_defaults_that_the_page_shows() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = {field.name: field.default for field in dataclasses.fields(transformers.TrainingArguments)}
    for named, default, *_ in rows(COMING, "theirs (`TrainingArguments`)"):
        names = [name for name in re.findall(r"`(\w+)`", named) if name[0].islower()]
        assert set(names) <= theirs.keys(), names
        if re.fullmatch(r"[\d.e-]+", default):
            assert float(str(theirs[names[0]])) == float(default), names


@pytest.mark.slow  # reads all of the source
def test_what_the_page_on_troubleshooting_quotes_is_printed() -> None:
    files = [path for folder in ("cli", "mlxbert", "weights") for path in (ROOT / folder).rglob("*.py")]
    source = "\n".join(re.sub(r"{[^{}]*}", "…", path.read_text(encoding="utf-8")) for path in files)
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # strings that continue on the next line
    starts = re.findall(r"^\*\*.+?\*\*", DOCS["docs/troubleshooting.md"], re.MULTILINE)  # what a paragraph explains
    quoted = [text for start in starts for text in re.findall("`([^`]+)`", start)]
    assert len(quoted) > 30
    for text in quoted:  # in which `…` stands for anything
        parts = [re.escape(part.strip()) for part in text.split("…") if part.strip()]
        assert re.search(".*".join(parts), source), text


WITH_OPTIONS = ("docs/training.md", "docs/training-options.md", "docs/training-adapters.md")  # with tables of options
LINES = {  # of all tables, by their first cells
    line.split(" | ")[0].strip("| "): line.split(" | ")[1:]
    for page in WITH_OPTIONS
    for line in DOCS[page].splitlines()
    if line.startswith("| `") and " | " in line
}
EVENTS = {
    kind.event: kind for kind in (mlxbert.Started, mlxbert.Step, mlxbert.Evaluated, mlxbert.Saved, mlxbert.Finished)
}
WORDS = {"off": False, "never": None, "the model's": None, "2R": None, "those of 5 epochs": None}
BY_DATA = {"epochs", "lr", "eval_every", "save_every", "patience"}  # their defaults are made later


def test_defaults_of_the_table_are_those_of_the_loop() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(TrainingOptions)}
    shown = {first.strip("`-").split(" ")[0].replace("-", "_"): rest[0] for first, rest in LINES.items()}
    assert defaults.keys() <= shown.keys()
    for name in defaults.keys() - BY_DATA:
        value = WORDS.get(shown[name], shown[name])
        number = re.fullmatch(r"[\d.]+", str(value))
        if name in ("lora", "minutes"):
            value = None  # a number that is off, not a flag
        assert (float(number[0]) if number else value) == defaults[name], name


@together("task", TASKS)
def test_metrics_of_the_table_are_those_of_the_task(task: str) -> None:
    found = re.search(rf"^\| `{task}`(?:, entities)? \| (`.*`) \|$", DOCS["docs/evaluation.md"], re.MULTILINE)
    assert found and re.findall(r"`([\w@]+)`", found[1]) == [*TASKS[task].metrics]


@together("name", EVENTS)
def test_fields_of_events_are_in_the_table(name: str) -> None:
    listed = {cells[0].strip("`"): re.findall(r"`(\w+)`", cells[2]) for cells in rows("docs/training-runs.md", "event")}
    own = {field.name for field in dataclasses.fields(EVENTS[name])} - {"run"}
    assert set(listed[name]) == own
