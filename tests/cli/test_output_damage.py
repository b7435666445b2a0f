"""Parts of an output are damaged: they are computed again, or the run is refused; no row is ever another one."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.text.batch import WINDOW
from tests.cli.test_output_survives import ENDINGS, PART, TOTAL, finish, form, output, result, small_parts, stopped
from tests.cli.test_output_windows import interrupted
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


@pytest.mark.sampled
@ENDINGS
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("places", [1, pytest.param(PLACES, marks=pytest.mark.slow)])
def test_damage_never_gives_another_result(ending: str, file: str, kind: str, places: int, tmp_path: Path) -> None:
    file = file.replace(".PART", form(ending).part_ending)
    finish(tmp_path / f"whole{ending}")
    partial = stopped(tmp_path / f"x{ending}", 3 * PART + 1).partial
    refused = check(partial, (tmp_path / f"whole{ending}").read_bytes(), file, kind, again, places)
    assert not refused or file == "manifest.json"


@ENDINGS
def test_a_part_in_the_place_of_another_is_computed_again(ending: str, tmp_path: Path) -> None:
    finish(tmp_path / f"whole{ending}")
    partial = stopped(tmp_path / f"x{ending}", 3 * PART + 1).partial
    for path in partial.glob("part-000002.*"):
        shutil.copyfile(path, path.with_name(path.name.replace("2", "1")))
    with output(tmp_path / f"x{ending}") as out:
        assert out.done == PART
        for number in range(out.done, TOTAL):
            out.write(result(number))
    assert (tmp_path / f"x{ending}").read_bytes() == (tmp_path / f"whole{ending}").read_bytes()


@ENDINGS
def test_a_part_that_changes_while_others_are_computed_is_noticed(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    with pytest.raises(MlxbertError, match="changed"), output(path) as out:
        for number in range(TOTAL):
            out.write(result(number))
        (part,) = (found for found in out.partial.glob("part-000000.*") if found.suffix != ".json")
        damage(part, "bit", random.Random(1))
    assert not path.exists()
    finish(path)
    finish(tmp_path / f"whole{ending}")
    assert path.read_bytes() == (tmp_path / f"whole{ending}").read_bytes()


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("file", ["manifest.json", "part-000001.json", "part-000001.rows"])
@pytest.mark.slow
def test_the_program_never_writes_another_result(program: tuple[list[str], Path, bytes], file: str, kind: str) -> None:
    arguments, partial, expected = program

    def again(path: Path) -> bool:
        outcome = call(*arguments, str(path))
        if outcome.status:
            outcome.fails(2, path.name)
        return not outcome.status

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
