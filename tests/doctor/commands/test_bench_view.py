"""The rows of `mlxbert bench`: one for each library at a terminal, one to share."""

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.views import console
from mlxbert.doctor.views import bench_facts, bench_line, draw_bench
from tests.helpers.measured import measured

TABLE = Path(__file__).parents[3] / "benchmarks" / "machines.md"


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def _drawn(report: dict[str, Any]) -> str:
    with redirect_stdout(io.StringIO()) as shown:
        screen = console.stdout()
        for part in draw_bench(report):
            screen.print(part)
    return shown.getvalue()


def test_the_row_to_share_has_the_columns_of_the_table() -> None:
    header, *_ = [_cells(row) for row in TABLE.read_text().splitlines() if row.startswith("| machine")]
    cells = dict(zip(header, _cells(bench_line(measured())), strict=True))
    assert cells["dtype"] == "float16, training float32" and cells["mlxbert"] == "0.1.0"
    assert cells["torch"] == "chip on mps" and cells["layers x width"] == "6 x 384"
    assert [cells[f"{tokens} tokens"] for tokens in (32, 128, 300)] == ["12.5 (2.50)"] * 3
    assert cells["first update"] == "0.41 s (2.00)" and cells["updates per s"] == "12.5 (2.50)"
    assert cells["one text of 512 tokens"] == "500 ms (2.50)"
    assert cells["machine"].endswith("Battery Power, low power, thermal pressure nominal → heavy")
    assert cells["start"] == "0.30 s (20.00)" and cells["memory"] == cells["memory, training"] == "0.25 GB"


def test_every_row_of_the_table_has_all_its_columns() -> None:
    rows = [_cells(row) for row in TABLE.read_text().split("\n\n## ")[0].splitlines() if row.startswith("|")]
    assert len(rows) >= 2 and {len(row) for row in rows} == {len(_cells(bench_line(measured())))}


def test_what_was_not_measured_is_a_dash_and_without_a_peer_there_are_no_ratios() -> None:
    report = measured(peer=False) | {"training": {"problem": "too little memory"}}
    report["encoding"]["speeds"].pop()
    cells = _cells(bench_line(report))
    assert cells.count("\N{EN DASH}") == 5 and cells[2] == "float16"  # torch, 512 tokens, and three of training
    assert "\N{EN DASH}" in _drawn(report) and "(" not in bench_line(measured(peer=False))


def test_a_machine_that_does_not_say_its_power_has_a_row_without_it() -> None:
    for state in ({}, dict.fromkeys(("power_source", "energy_mode", "thermal_pressure"))):
        report = {**measured(), "power": {"start": state, "end": state}}
        assert _cells(bench_line(report))[0] == "chip, chip cores"


def test_the_memory_of_each_process_is_shown_before_and_after_many_lengths() -> None:
    shown = dict(bench_facts(measured()))
    sides = "mlxbert resident 33.0 MB, footprint 1.2 GB; torch resident 33.0 MB, footprint 1.2 GB"
    assert shown["process after encoding"] == shown["… then 1,000 texts of 512 lengths"] == sides


@pytest.mark.parametrize("width", [80, 120])
def test_each_library_has_one_row_in_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [row.split() for row in _drawn(measured()).splitlines()]
    assert ["mlxbert", "12.5", "12.5", "12.5", "0.41", "s", "12.5", "0.30", "s", "0.25", "GB", "0.25", "GB"] in rows
    assert ["ratio", "2.50", "2.50", "2.50", "2.00", "2.50", "20.00"] in rows
