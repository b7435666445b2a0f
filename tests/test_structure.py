"""The shape of the source: which way imports point, and what is said nowhere."""

import functools
import graphlib
import re
import runpy
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mlxbert.nn.heads import HEADS
from mlxbert.rooms import ROOMS
from tests.helpers.cases import together
from tests.helpers.rooms import needs

ROOT = Path(__file__).parents[1]
FOLDERS = {"mlxbert": ROOT / "mlxbert", "mlxbert.cli": ROOT / "cli", "mlxbert.weights": ROOT / "weights"}
# What a module of the core may import: those of its own layer and of the layers before it.
LAYERS = (
    (
        *("mlxbert", "mlxbert.version", "mlxbert.errors", "mlxbert.option_declarations", "mlxbert.rooms"),
        *("mlxbert.other_libraries", "mlxbert.frozen_dict", "mlxbert.lazy_numpy"),
        *("mlxbert.results", "mlxbert.paths", "mlxbert.mac_files", "mlxbert.durable_files"),
        *("mlxbert.resumable_folder", "mlxbert.progress"),
    ),
    ("mlxbert.machine", "mlxbert.labels", "mlxbert.config"),
    ("mlxbert.nn",),
    ("mlxbert.cpu",),
    ("mlxbert.weights",),
    ("mlxbert.goldens",),
    ("mlxbert.text",),
    ("mlxbert.readers",),
    ("mlxbert.memory_estimate", "mlxbert.model", "mlxbert.loading"),
    ("mlxbert.tasks",),
    ("mlxbert.folders",),
    ("mlxbert.cli", "mlxbert.__main__"),
    tuple(f"mlxbert.{room}" for room in ROOMS),
)
# Which other rooms a room may import, and why.
ARROWS = {
    ("serve", "search"): "a server answers from indexes",
    ("train", "export"): "a trained model has a card",
    ("scale", "search"): "a Lance table is a store of an index",
    ("doctor", "train"): "the check of a device computes updates of weights, and bench measures them",
}


def _modules() -> Iterator[tuple[str, Path]]:
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            if path.is_relative_to(folder / "cli") or path.is_relative_to(folder / "weights"):
                continue  # the links
            parts = [part for part in path.relative_to(folder).with_suffix("").parts if part != "__init__"]
            yield ".".join([package, *parts]), path


MODULES = dict(_modules())


def _layer(module: str) -> int:
    """The number of the layer that a module lies in."""
    known = {name: number for number, names in enumerate(LAYERS) for name in names}
    name = module
    while name not in known or (name == "mlxbert" and module != "mlxbert"):
        assert "." in name, f"{module} is in no layer"
        name = name.rpartition(".")[0]
    return known[name]


class Import(NamedTuple):
    """An import statement."""

    module: str
    names: tuple[str, ...]  # what is imported from the module; empty if it is the module itself
    top: bool  # whether it stands outside of functions, classes and conditions


_IMPORT = re.compile(r"^( *)(?:from ([\w.]+) import (?:\(([^)]*)\)|([^(\n]+))|import ([\w., ]+))", re.MULTILINE)


@functools.cache
def _statements(path: Path) -> tuple[Import, ...]:
    """The imports of a file, found without parsing it: parsing all of the source takes seconds."""
    found = []
    code = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for indent, module, *names, modules in _IMPORT.findall(code):
        named = re.findall(r"(?:^|,)\s*([\w.]+)", re.sub(r"#.*", "", "".join(names) or modules))
        each = [(module, (*named,))] if module else [(name, ()) for name in named]
        found += [Import(*one, top=not indent) for one in each]
    return tuple(found)


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """The modules that a file imports."""
    return tuple(
        whole if (whole := f"{one.module}.{name}") in MODULES else one.module
        for one in _statements(path)
        for name in one.names or ("",)
    )


def _of_ours(module: str) -> list[str]:
    return [imported for imported in _imports(MODULES[module]) if imported.split(".")[0] == "mlxbert"]


@pytest.mark.slow
def test_imports_point_one_way() -> None:
    inner = [module for module in MODULES if module != "mlxbert"]
    arrows = [(module, imported) for module in inner for imported in _of_ours(module)]
    assert len(arrows) > len(inner)
    assert not [f"{module} imports {imported}" for module, imported in arrows if _layer(imported) > _layer(module)]


@needs("search", "train", "serve", "export", "scale", "doctor")
def test_a_room_imports_other_rooms_only_where_the_table_says_so() -> None:
    arrows = set[tuple[str, str]]()
    for module in MODULES:
        room = module.split(".")[1:2]
        others = {name.split(".")[1] for name in _of_ours(module) if "." in name} & {*ROOMS} - {*room}
        arrows |= {(*room, other) for other in others}  # type: ignore[misc]
    assert arrows == {*ARROWS}


def test_the_tables_of_rooms_and_of_layers_name_modules_that_exist() -> None:
    assert {name for names in LAYERS for name in names} <= {*MODULES}
    named = [module for room in ROOMS.values() for modules in room.commands.values() for module in modules.values()]
    named += [module for room in ROOMS.values() for module in room.parts.values()]
    assert {*named} <= {*MODULES}
    assert {*ROOMS} <= {path.name for path in (ROOT / "mlxbert").iterdir()}


def _arrows(folder: str) -> dict[str, set[str]]:
    """Which of the files and folders directly inside a folder import which others of them, lazy imports counted."""
    arrows: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if module.startswith(f"{folder}."):
            start = module.removeprefix(f"{folder}.").partition(".")[0]
            inside = [name.removeprefix(f"{folder}.") for name in _imports(path) if name.startswith(f"{folder}.")]
            arrows.setdefault(start, set()).update(name.partition(".")[0] for name in inside)
    return {start: ends - {start} for start, ends in arrows.items()}


@together("folder", sorted({name.rpartition(".")[0] for name in MODULES if "." in name}))
def test_no_circle_inside_a_folder(folder: str) -> None:
    """Prints what imports what; `pytest -s` shows it."""
    arrows = _arrows(folder)
    order = [*graphlib.TopologicalSorter(arrows).static_order()]  # raises CycleError
    assert set(order) >= set(arrows)
    for name in order:
        users = sorted(start for start in arrows if name in arrows[start])
        print(f"{folder}.{name} <- {', '.join(users) or '-'}")  # noqa: T201


def _home(module: str) -> str:
    """The folder that a module lies in; a package is its own."""
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def test_a_folder_and_its_sub_folders_do_not_import_each_other() -> None:
    """`mlxbert` itself is left out: what lies there is in several rooms."""
    arrows = {
        (_home(module), _home(imported)): f"{module} imports {imported}"
        for module, path in MODULES.items()
        for imported in _imports(path)
        if imported in MODULES and "mlxbert" not in (_home(module), _home(imported))
    }
    both = {pair for pair in arrows if pair[1].startswith(f"{pair[0]}.") and pair[::-1] in arrows}
    assert not both, [(arrows[pair], arrows[pair[::-1]]) for pair in both]


@needs("search", "train")
def test_a_class_name_exists_once() -> None:
    homes: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for name in re.findall(r"^class _*(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            homes.setdefault(name, set()).add(module)
    assert len(homes) > 500
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_only_the_device_module_imports_mlx_and_the_command_line_never() -> None:
    for module, path in MODULES.items():
        uses = {imported.split(".")[0] for imported in _imports(path)}
        assert "mlx" not in uses or module == "mlxbert.machine.device", module
        measuring = ("mlxbert.doctor.torch_peer", "mlxbert.doctor.training_steps")  # that measure them
        peers = set() if module in measuring else {"torch", "transformers"}
        assert not uses & {"click", *peers}, module
        shown = {"cli", "commands", "views", "event_outputs", "pages", "command_options"} & {*module.split(".")}
        assert shown or not uses & {"rich", "typer"}, module
        assert "sentencepiece" not in uses or module == "mlxbert.train.pretraining.subword_training", module


def test_layers_know_neither_what_computes_them_nor_the_heads_on_them() -> None:
    for module, path in MODULES.items():
        if module.startswith("mlxbert.nn.") and module != "mlxbert.nn.ops":
            assert not {"on_gpu", "BLAS"} & {name for one in _statements(path) for name in one.names}, module
        if module.rpartition(".")[0] == "mlxbert.nn" and module != "mlxbert.nn.heads":
            assert not [name for name in _imports(path) if name.startswith("mlxbert.nn.heads")], module


def test_the_backend_of_a_linux_cpu_is_imported_by_name_only_and_only_there() -> None:
    named = {"mlxbert.machine.device": "mlxbert.cpu.blas", "mlxbert.nn.ops": "mlxbert.cpu.backend"}
    for module in (module for module in MODULES if not module.startswith("mlxbert.cpu")):
        assert not [name for name in _of_ours(module) if name.startswith("mlxbert.cpu")], module
        found = {*re.findall(r"""["'](mlxbert\.cpu[\w.]*)["']""", MODULES[module].read_text(encoding="utf-8"))}
        assert found == ({named[module]} if module in named else set()), module


def test_what_is_slow_to_import_is_imported_where_it_is_used() -> None:
    for module, path in MODULES.items():
        heavy = module.startswith(("mlxbert.train", "mlxbert.doctor", "mlxbert.goldens", "mlxbert.export.onnx."))
        slow = {"huggingface_hub", "pyarrow", "rich", "sentencepiece"} | (set() if heavy else {"numpy"})
        assert not {one.module.split(".")[0] for one in _statements(path) if one.top} & slow, module


def test_the_package_list_is_that_of_the_folders() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    assert set(settings["packages"]) == found
    for package in ("cli", "weights"):
        assert settings["package-dir"][f"mlxbert.{package}"] == package
        assert (ROOT / "mlxbert" / package).resolve() == ROOT / package


@needs()
def test_every_mutation_finds_its_line_and_its_test() -> None:
    listed = runpy.run_path(str(ROOT / "scripts" / "mutations.py"))["MUTATIONS"]
    assert len(listed) == len({mutation.name for mutation in listed}) >= 40
    for mutation in listed:
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        assert text.count(mutation.old) == 1, mutation.name
        compile(text.replace(mutation.old, mutation.new), mutation.name, "exec")  # or any test would notice it
        file, _, test = mutation.test.partition("::")
        assert f"\ndef {test.split('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), mutation.name


# Words that a native reader stumbles over, and those for which the field has others.
_ODD = re.compile(
    r"(?<![Tt]here )\b(?:is|are) no (?!longer|more\b|fewer|less\b|better|lower|higher|worse|greater|larger|smaller"
    r"|other|such|need|room|doubt|way\b|further|sum over|one\b|`|\{)[a-zA-Z]|(?<![Tt]here )\bis none\b"
    r"|\bso many\b(?! that)|\bgoes on\b|\bby chance\b|\bto be had\b|How is trained|\bhidden words?\b|masked-word"
    r"|head for replaced|\bbeside\b"
)
_OF_OTHERS = re.compile(r"/root/|/home/\w|\bTODO\b|\bFIXME\b|NotImplementedError")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "files"), [(_OF_OTHERS, "toml yml yaml py md"), (_ODD, "py md")], ids=["of itself", "of the field"]
)
def test_words_are_those_of_the_field_and_the_project_speaks_of_itself_alone(
    pattern: re.Pattern[str], files: str
) -> None:
    endings = [f"*.{ending}" for ending in files.split()]
    listed = subprocess.run(["git", "ls-files", *endings], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    for path in (ROOT / name for name in listed.stdout.splitlines()):
        if path.is_file() and path != Path(__file__):
            for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
                assert not (match := pattern.search(line)), f"{path}:{number} {match[0]}"


def test_every_head_has_a_file_of_its_own() -> None:
    files = {path.stem for path in (ROOT / "mlxbert/nn/heads").glob("*.py")}
    assert {*HEADS} == files - {"__init__", "head", "initialize"}
