"""Parts of an output are damaged: they are computed again, or the run is refused; no row is ever another one."""

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlxbert.cli.output import formats
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.text.batch import WINDOW
from tests.cli.test_output_survives import PART, TOTAL, finish, form, output, result, small_parts, stopped
from tests.cli.test_output_windows import interrupted
from tests.helpers.cases import fast
from tests.helpers.damage import DAMAGES, damage
from tests.helpers.program import call, tiny_model

PLACES = int(os.environ.get("MLXBERT_TEST_DAMAGES", "4"))  # of each file and kind of damage
FILES = ("manifest.json", "part-000001.json", "part-000001.PART")


@pytest.fixture(autouse=True)
def _small_parts(request: pytest.FixtureRequest) -> Iterator[None]:
    if "program" in request.fixturenames:
        yield
        return
    with small_parts():
        yield


def check(partial: Path, expected: bytes, file: str, kind: str, again: Callable[[Path], bool], places: int) -> int:
    """Damages a file at some places, one at a time; how many runs were refused; the others gave the result."""
    refused = 0
    for place in range(places):
        path = partial.parent / f"{place}{Path(partial.stem).suffix}"
        copied = shutil.copytree(partial, f"{path}.partial")
        (damaged,) = Path(copied).glob(file)
        damage(damaged, kind, random.Random(f"{file} {kind} {place}"))
        if again(path):
            assert path.read_bytes() == expected and not Path(copied).exists()
            path.unlink()
        else:
            assert not path.exists()
            shutil.rmtree(copied)
            refused += 1
    return refused


def again(path: Path) -> bool:
    """The same run; whether it was not refused."""
    try:
        finish(path)
    except ArgumentError as problem:
        assert problem.hint and path.name in problem.message
        return False
    return True


@pytest.mark.parametrize(
    ("ending", "places"), fast(itertools.product(formats.VECTORS, (1, PLACES)), (".npy", 1), (".jsonl", 1))
)
def test_damage_never_gives_another_result(ending: str, places: int, tmp_path: Path) -> None:
    finish(tmp_path / f"whole{ending}")
    partial = stopped(tmp_path / f"x{ending}", 3 * PART + 1).partial
    for file, kind in itertools.product(FILES, DAMAGES):
        file = file.replace(".PART", form(ending).part_ending)
        refused = check(partial, (tmp_path / f"whole{ending}").read_bytes(), file, kind, again, places)
        assert not refused or file == "manifest.json"


def test_a_part_in_the_place_of_another_is_computed_again(tmp_path: Path) -> None:
    finish(tmp_path / "whole.npy")
    partial = stopped(tmp_path / "x.npy", 3 * PART + 1).partial
    for path in partial.glob("part-000002.*"):
        shutil.copyfile(path, path.with_name(path.name.replace("2", "1")))
    assert finish(tmp_path / "x.npy").done == TOTAL
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_part_that_changes_while_others_are_computed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(MlxbertError, match="changed"), output(path) as out:
        for number in range(TOTAL):
            out.write(result(number))
        (part,) = (found for found in out.partial.glob("part-000000.*") if found.suffix != ".json")
        damage(part, "bit", random.Random(1))
    assert not path.exists()
    finish(path)
    finish(tmp_path / "whole.npy")
    assert path.read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize("file", ["manifest.json", "part-000001.json", "part-000001.rows"])
@pytest.mark.slow
def test_the_program_never_writes_another_result(program: tuple[list[str], Path, bytes], file: str) -> None:
    arguments, partial, expected = program

    def again(path: Path) -> bool:
        outcome = call(*arguments, str(path))
        if outcome.status:
            outcome.fails(2, path.name)
        return not outcome.status

    for kind in DAMAGES:
        refused = check(partial, expected, file, kind, again, PLACES)
        assert not refused or file == "manifest.json"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path, bytes]:
    """A command, the parts of an interrupted run of it, and what it writes."""
    folder = tmp_path_factory.mktemp("program")
    texts, path = folder / "in.txt", folder / "x.npy"
    texts.write_text("".join(f"{'the cat ' * (number % 9)}w{number % 42}\n" for number in range(3 * WINDOW - 100)))
    model = str(tiny_model(folder / "model"))
    arguments = ["embed", "--model", model, "--input", str(texts), "--quiet", "--output"]
    with interrupted(None) as batches:
        assert call(*arguments, str(folder / "whole.npy")).status == 0
    with interrupted(batches[0] - 1):
        assert call(*arguments, str(path)).status == 130
    partial = Path(f"{path}.partial")
    assert len(list(partial.glob("part-*.json"))) == 2
    return arguments, partial, (folder / "whole.npy").read_bytes()
