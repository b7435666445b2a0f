"""Work that is killed, runs out of disk or whose files are damaged ends in the result of undisturbed work, or says so.

The rows of a room are in `tests/<room>/writers.py`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.cli.output import formats
from mlxbert.durable_files import write_record
from mlxbert.errors import MlxbertError
from mlxbert.readers import stream
from tests.cli.test_output_survives import finish, small_parts
from tests.helpers.cases import ALL, fast
from tests.helpers.damage import DAMAGES
from tests.helpers.kills import Survivor, Writer, model_files, room_writers
from tests.helpers.program import call, tiny_model

PARTS = {".npy": ".rows", ".parquet": ".arrow"}  # the endings of parts, unless they are lines of JSON


def _old_or_new(inputs: Any, folder: Path) -> None:
    assert json.loads((folder / "x").read_bytes())["number"] in (1, 2)


def _record(inputs: Any, folder: Path) -> None:
    try:
        write_record(folder / "x", {"number": 2}, durable=True)
    except OSError as problem:  # those who call it explain it
        raise MlxbertError(str(problem)) from problem


def _output(ending: str) -> Writer:
    """Results that are written in parts."""

    def write(inputs: Any, folder: Path) -> None:
        if ending == ".parquet":
            pytest.importorskip("pyarrow")
        with small_parts():
            finish(folder / f"x{ending}")

    def kept(inputs: Any, folder: Path) -> None:
        """Each part whose count is there is there, unless the work is done."""
        parts = [*folder.glob("x*.partial/part-*.json")]
        done = (folder / f"x{ending}").exists()
        assert done or all(len([*part.parent.glob(f"{part.stem}.*")]) > 1 for part in parts)

    return Writer(
        lambda folder: None, write, lambda folder: (folder / f"x{ending}").read_bytes(), f"x{ending}", look=kept,
        refused=("*.partial/manifest.json",),
        mended=("*.partial/part-000001.json", f"*.partial/part-000001{PARTS.get(ending, '.jsonl')}"),
    )  # fmt: skip


def _texts(folder: Path) -> list[str]:
    (folder / "in.txt").write_text("".join(f"{'the cat ' * (number % 9)}w{number % 42}\n" for number in range(90)))
    return ["--model", str(tiny_model(folder / "model")), "--input", str(folder / "in.txt"), "--quiet"]


def _embed(arguments: list[str], folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_USUAL_CHARACTERS", 1)  # 512 characters: windows of a few texts
        outcome = call("embed", *arguments, "--output", str(folder / "x.npy"))
    if outcome.status:
        raise MlxbertError(outcome.err, hint=outcome.err.partition("hint: ")[2])


_STORED = ("*.partial/part-000001.json", "*.partial/part-000001.rows")
WRITERS = {
    "durable file": Writer(
        prepare=lambda folder: None,
        begin=lambda inputs, folder: write_record(folder / "x", {"number": 1}),
        write=_record,
        result=lambda folder: (folder / "x").read_bytes(),
        look=_old_or_new,
    ),
    **{f"output {ending}": _output(ending) for ending in formats.VECTORS},
    "embed --output": Writer(
        _texts, _embed, lambda folder: (folder / "x.npy").read_bytes(), "x.npy",
        refused=("*.partial/manifest.json",), mended=_STORED,
    ),
    "saved model": Writer(
        prepare=lambda folder: mlxbert.load(tiny_model(folder / "tiny")),
        write=lambda model, folder: mlxbert.save(model, folder / "out"),
        result=model_files,
        target="out",
    ),
    **room_writers(),
}  # fmt: skip
# One row for each mechanism: a durable file, a partial folder, resumable output, a stored run, an index in groups.
FAST = [
    name for name in ("durable file", "output .npy", "converted model", "finetune classify", "index") if name in WRITERS
]
DAMAGED = [(name, pattern) for name, one in WRITERS.items() for pattern in (*one.refused, *one.mended)]


@pytest.fixture(scope="module")
def survivors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Survivor]:
    """Work that has been done, by its name."""

    class Made(dict[str, Survivor]):
        def __missing__(self, name: str) -> Survivor:
            self[name] = Survivor(WRITERS[name], tmp_path_factory.mktemp("work"))
            return self[name]

    return Made()


@pytest.mark.parametrize("name", fast(WRITERS, *FAST))
def test_killed_work_resumes_to_the_same_result(name: str, survivors: dict[str, Survivor]) -> None:
    survivors[name].kill(2 if name in FAST else 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_work_killed_at_any_call_resumes_to_the_same_result(name: str, survivors: dict[str, Survivor]) -> None:
    survivors[name].kill(1000 if ALL else 40)


@pytest.mark.parametrize(
    "name",
    fast([name for name, one in WRITERS.items() if one.errors], *[name for name in FAST if WRITERS[name].errors]),
)
def test_a_full_disk_is_an_error_and_the_work_resumes_with_room(name: str, survivors: dict[str, Survivor]) -> None:
    survivors[name].fill(2 if name in FAST else 12)


@pytest.mark.parametrize(("name", "pattern"), fast(DAMAGED, *[case for case in DAMAGED if case[0] in FAST]))
def test_damaged_work_gives_the_same_result_or_is_refused(
    name: str, pattern: str, survivors: dict[str, Survivor]
) -> None:
    kind = DAMAGES[DAMAGED.index((name, pattern)) % len(DAMAGES)] if pattern.endswith(".json") else "bit"
    survivors[name].damage(pattern, kind, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize(("name", "pattern"), DAMAGED)
def test_work_damaged_anywhere_gives_the_same_result_or_is_refused(
    name: str, pattern: str, kind: str, survivors: dict[str, Survivor]
) -> None:
    survivors[name].damage(pattern, kind, 20 if ALL else 2)
