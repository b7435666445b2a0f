"""Conversions as rows of `tests/test_kills.py`."""

from pathlib import Path

import mlxbert
from tests.helpers.kills import Writer, model_files
from tests.helpers.program import tiny_model


def _convert(source: Path, folder: Path) -> None:
    mlxbert.convert(source, folder / "out", max_shard_size="4KB")


WRITERS = {"converted model": Writer(lambda folder: tiny_model(folder / "tiny"), _convert, model_files, "out")}
