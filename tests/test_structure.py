"""The shape of the source: which way imports point, how long things are, what is said nowhere."""

import ast
import functools
import re
import runpy
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"mlxbert": ROOT / "mlxbert", "mlxbert.cli": ROOT / "cli", "mlxbert.weights": ROOT / "weights"}
MAX_FILE, MAX_FUNCTION, MAX_COMMAND = 400, 60, 20

# What a module may import: those of its own room and of the rooms before it.
ROOMS = (
    ("mlxbert", "mlxbert.errors", "mlxbert.results", "mlxbert.files", "mlxbert.notebook"),
    (
        "mlxbert.blas",
        "mlxbert.device",
        "mlxbert.cores",
        "mlxbert.distributed",
        "mlxbert.labels",
        "mlxbert.tagging",
        "mlxbert.config",
    ),
    ("mlxbert.nn",),
    ("mlxbert.weights",),
    ("mlxbert.text",),
    ("mlxbert.data",),
    ("mlxbert.model",),
    ("mlxbert.tasks",),
    ("mlxbert.folders",),
    ("mlxbert.training",),
    ("mlxbert.pretraining",),
    ("mlxbert.contestant", "mlxbert.bench"),
    ("mlxbert.cli", "mlxbert.__main__"),
)
# The order within rooms that have one.
INSIDE = {
    "mlxbert.nn": (
        *(
            "kernels",
            "vectorized",
            "vectorized_attention",
            "activations",
            "dropout",
            "positions",
            "attention",
            "blocks",
            "recomputed",
            "encoder",
        ),
        *("pooling", "lora", "crf", "embedder", "heads", "losses", "initialize", "vector_losses"),
    ),
    "mlxbert.weights": (
        *("config_json", "keymap", "formats", "google", "families", "targets", "selection", "hub", "source", "folder"),
        *("tokenizers", "sentence_transformers", "cross_encoder", "adapter", "adapted", "checkpoint", "validate"),
        *("build", "save", "save_adapter", "modules"),
    ),
    "mlxbert.data": (
        *(
            "live",
            "lines",
            "parquet",
            "parse",
            "conll",
            "squad",
            "records",
            "hub",
            "label_folder",
            "rows",
            "columns",
            "labelled",
            "tag_columns",
            "tagged",
            "questions",
            "ranking",
            "related",
            "retrieval",
            "split",
            "trained",
        ),
    ),
    "mlxbert.training": (
        *("scores", "options", "data", "objective", "predict", "objectives", "plan", "events", "sampler", "optimizer"),
        *("rows", "adapters", "gradients", "checkpoint", "loop", "estimate", "workspace", "command"),
        *("finish", "check", "finetune", "evaluate"),
    ),
    "mlxbert.pretraining": (
        *("corpus", "subwords", "vocabulary", "shuffled", "chunks", "phases", "masks", "examples"),
        *("settings", "start", "electra"),
        *("terms", "data", "objective", "teacher", "evaluate", "call", "result", "pretrain", "distill"),
    ),
    "mlxbert.pretraining.corpus": ("documents", "tokens", "writer", "numbers", "store"),
    "mlxbert.cli": (
        *(
            "launched",
            "options",
            "views",
            "places",
            "inputs",
            "training",
            "spans",
            "embedding",
            "relevance",
            "pretraining",
            "events",
            "output",
            "session",
            "ranking",
            "commands",
            "program",
            "app",
        ),
    ),
}
MOST_MODULES = 20  # in one folder


def _modules() -> Iterator[tuple[str, Path]]:
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            if path.is_relative_to(folder / "cli") or path.is_relative_to(folder / "weights"):
                continue  # the links
            parts = [part for part in path.relative_to(folder).with_suffix("").parts if part != "__init__"]
            yield ".".join([package, *parts]), path


MODULES = dict(_modules())


def _room(module: str) -> int:
    """The number of the room that a module lies in."""
    known = {name: number for number, names in enumerate(ROOMS) for name in names}
    name = module
    while name not in known or (name == "mlxbert" and module != "mlxbert"):
        assert "." in name, f"{module} is in no room"
        name = name.rpartition(".")[0]
    return known[name]


def _place(room: str, module: str) -> int:
    """Where a module stands in the order within its room; the room itself stands before all."""
    name = module.removeprefix(room).removeprefix(".").split(".")[0]
    return INSIDE[room].index(name) if name else -1


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    return tuple(_imported(_tree(path)))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "mlxbert"])
def test_imports_point_one_way(module: str) -> None:
    for imported in _imports(MODULES[module]):
        if imported.split(".")[0] == "mlxbert":
            assert _room(imported) <= _room(module), f"{module} imports {imported}"


@pytest.mark.parametrize("room", INSIDE)
def test_imports_within_a_room_point_one_way(room: str) -> None:
    for module in MODULES:
        if module.startswith(f"{room}."):
            for imported in _imports(MODULES[module]):
                if imported.startswith(f"{room}."):
                    assert _place(room, imported) <= _place(room, module), f"{module} imports {imported}"


def test_no_folder_is_crowded() -> None:
    folders = Counter(path.parent for path in MODULES.values())
    assert max(folders.values()) <= MOST_MODULES


@pytest.mark.parametrize("module", MODULES)
def test_only_the_device_module_imports_mlx_and_the_command_line_never(module: str) -> None:
    uses = {imported.split(".")[0] for imported in _imports(MODULES[module])}
    assert "mlx" not in uses or module == "mlxbert.device"
    peers = {"torch", "transformers"} if module != "mlxbert.contestant" else set()  # which it measures
    assert not uses & {"sentencepiece", "click", *peers}
    if not module.startswith("mlxbert.cli"):
        assert not uses & {"rich", "typer"}


@pytest.mark.parametrize("module", MODULES)
def test_what_is_slow_to_import_is_imported_where_it_is_used(module: str) -> None:
    for node in _tree(MODULES[module]).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            slow = {"numpy", "huggingface_hub", "pyarrow", "rich"} - ({"numpy"} if "training" in module else set())
            assert not {name.split(".")[0] for name in names} & slow


def test_rooms_name_modules_that_exist() -> None:
    assert {name for names in ROOMS for name in names} <= set(MODULES)
    assert {f"{room}.{name}" for room, names in INSIDE.items() for name in names} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_files_and_functions_are_short(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE
    for node in ast.walk(_tree(MODULES[module])):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body  # signature and docstring are not counted
            assert not body or node.end_lineno is not None
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            command = module.startswith("mlxbert.cli.commands.") and node.name.replace("_", "-") in COMMANDS
            assert lines <= (MAX_COMMAND if command else MAX_FUNCTION), f"{node.name} has {lines} lines"


COMMANDS = (
    *(
        "fill-mask",
        "embed",
        "similarity",
        "rerank",
        "classify",
        "tag",
        "answer",
        "next-sentence",
        "replaced",
        "tokenize",
        "mine",
        "pretrain",
        "distill",
        "inspect",
        "convert",
        "verify",
        "doctor",
        "bench",
        "vocabulary",
    ),
    *("models-list", "models-download", "models-path", "models-remove"),
    *(
        f"{group}-{task}"
        for group in ("finetune", "evaluate")
        for task in ("classify", "multilabel", "regress", "answer", "embed", "rerank")
    ),
)


def test_the_package_list_is_that_of_the_folders() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    assert set(settings["packages"]) == found
    for package in ("cli", "weights"):
        assert settings["package-dir"][f"mlxbert.{package}"] == package
        assert (ROOT / "mlxbert" / package).resolve() == ROOT / package


def test_every_mutation_finds_its_line_and_its_test() -> None:
    listed = runpy.run_path(str(ROOT / "scripts" / "mutations.py"))["MUTATIONS"]
    assert len(listed) == len({mutation.name for mutation in listed}) >= 40
    for mutation in listed:
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        assert text.count(mutation.old) == 1, mutation.name
        compile(text.replace(mutation.old, mutation.new), mutation.name, "exec")  # or any test would notice it
        file, _, test = mutation.test.partition("::")
        assert f"\ndef {test.split('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), mutation.name


@pytest.mark.slow
def test_the_project_speaks_of_itself_alone() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    words = re.compile(r"/root/|/home/\w|\bTODO\b|\bFIXME\b|NotImplementedError")
    for name in listed.stdout.split("\n"):
        path = ROOT / name
        if name.endswith((".py", ".md", ".toml", ".yml", ".yaml")) and path.is_file() and path != Path(__file__):
            found = words.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{name}: {found and found[0]}"


def test_the_tables_of_files_are_complete() -> None:
    """Every module is in the table of its folder in CONTRIBUTING.md, or its folder is in one, and nothing else is."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set()
    for folder, table in re.findall(r"^### `([a-z/]+)/`.*\n\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines()[2:]:
            inside, _, files = row.split("|")[1].rpartition(":")
            below = "".join(re.findall(r"`(.*)/`", inside))
            named |= {str(Path(folder, below, name)) for name in re.findall(r"`([\w/]+)`", files)}
    found = {str(path.relative_to(ROOT).with_suffix("")) for path in MODULES.values()}
    found -= {name for name in found if name.endswith(("/__init__", "/__main__"))} - {"mlxbert/__init__"}
    folders = {name.rstrip("/") for name in named if (ROOT / name).is_dir()}
    assert named - folders <= found
    assert {name for name in found - named if str(Path(name).parent) not in folders} == set()
