"""Parts of an output that are exchanged, or that change, are not taken. `tests/test_kills.py` damages them."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxbert.errors import MlxbertError
from tests.cli.test_output_survives import ENDINGS, PART, TOTAL, finish, output, result, small_parts, stopped
from tests.helpers.damage import damage


@pytest.fixture(autouse=True)
def _small_parts(request: pytest.FixtureRequest) -> Iterator[None]:
    if "program" in request.fixturenames:
        yield
        return
    with small_parts():
        yield


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
