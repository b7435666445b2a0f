"""Recorded graphs: sizes as formulas of the batch, and what cannot be recorded."""

import numpy as np
import pytest

from mlxbert.errors import MlxbertError
from mlxbert.export.onnx.graphs import Constant, Size, record
from mlxbert.machine.device import in_plain_graphs, mx, on_gpu, plain_graphs


def test_sizes_are_formulas_of_rows_and_length() -> None:
    graph = record(lambda ids: [mx.concatenate([ids, ids], axis=1).flatten()[3:]], 1, 9)
    [output] = graph.outputs
    [size] = graph.shapes[output]
    assert isinstance(size, Size)
    assert [size.at(rows, length) for rows, length in ((1, 1), (7, 100))] == [-1, 1397]
    assert graph.shapes[graph.inputs[0]] == (Size((0, 1, 0, 0, 0)), Size((0, 0, 1, 0, 0)))


def test_a_size_may_be_the_square_of_the_length() -> None:
    graph = record(lambda ids: [(ids[:, :, None] + ids[:, None, :]).flatten(1)], 1, 8)
    assert graph.shapes[graph.outputs[0]][1] == Size((0, 0, 0, 0, 1))


def test_a_constant_of_the_length_is_the_middle_of_the_longest() -> None:
    graph = record(
        lambda ids: [ids + mx.array([*range(1 - ids.shape[1], ids.shape[1])])[None, ids.shape[1] - 1 :]], 1, 8
    )
    [table] = [each for each in graph.constants.values() if isinstance(each, Constant) and each.count is not None]
    assert isinstance(table.start, Size) and isinstance(table.count, Size)
    for length in (1, 5, 8):
        start = table.start.at(2, length)
        assert table.values[start : start + table.count.at(2, length)].tolist() == [*range(1 - length, length)]


@pytest.mark.parametrize("function", [
    lambda ids: [ids + 1 if ids.shape[1] > 6 else ids], lambda ids: [ids[:, : 2 ** ids.shape[1] % 5 + 1]],
    lambda ids: [ids + mx.array(np.arange(ids.shape[1]) ** ids.shape[1])], lambda ids: [ids * (0.5 / ids.shape[1])],
], ids=["branch", "size", "constant", "factor"])  # fmt: skip
def test_what_is_no_formula_of_the_batch_is_refused(function: object) -> None:
    with pytest.raises(MlxbertError):
        record(function, 1, 9)  # type: ignore[arg-type]


def test_plain_graphs_end_with_their_block() -> None:
    before = on_gpu()
    with plain_graphs():
        assert on_gpu() and in_plain_graphs()
    assert on_gpu() == before and not in_plain_graphs()


@pytest.mark.parametrize("longest", [1, 4, 5])
def test_a_batch_that_is_too_short_is_refused(longest: int) -> None:
    with pytest.raises(MlxbertError, match="at least 6"):
        record(lambda ids: [ids], 1, longest)
