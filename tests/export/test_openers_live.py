"""Every kind of folder that mlxbert writes, in every program that may open it: docs/formats.md has the table."""

from pathlib import Path

import pytest

from tests.docs.pages import rows
from tests.helpers.written import KINDS, start

pytest.importorskip("torch", reason="live parity needs torch: pip install -r requirements-parity.txt")
for package in ("transformers", "sentence_transformers", "peft"):
    pytest.importorskip(package, reason=f"live parity needs {package}")
from tests.helpers.openers import PIPELINES, cells, outcomes  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("start"))


def written_down() -> dict[str, list[str]]:
    """The cells of the table, by the kinds in its first column."""
    found = rows("docs/formats.md", "folder")
    return {kind: others for first, *others in found for kind in first.split(", ")}


def test_the_table_has_every_kind() -> None:
    assert written_down().keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_other_programs_compute_the_same_or_refuse(kind: str, made: Path, tmp_path: Path) -> None:
    KINDS[kind](made, tmp_path / "folder")
    found = outcomes(tmp_path / "folder")
    assert "random head" not in found.values() and "other vectors" not in found.values(), found
    assert {task: found[task] for task in PIPELINES} == {task: found[name] for task, name in PIPELINES.items()}
    assert cells(found) == written_down()[kind]
