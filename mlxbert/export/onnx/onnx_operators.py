"""Writes a recorded graph in ONNX.

Integers of any kind become int64, because runtimes compute with few other integers. A broadcast is written only where
the operation that takes it does not broadcast by itself.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from mlxbert.errors import MlxbertError
from mlxbert.export.onnx.graphs import Constant, Graph, Number, Operation, Shape, Size
from mlxbert.machine.device import mx

OPSET, _IR = 20, 9  # the first with GELU, and the version of the file format that came with it
_ROWS, _LENGTH = "rows", "length"  # the names of the dimensions of the inputs
_LOWEST = np.iinfo(np.int64).min

_ELEMENTWISE = {
    "Abs": "Abs", "Add": "Add", "Ceil": "Ceil", "Cos": "Cos", "Divide": "Div", "Equal": "Equal", "Erf": "Erf",
    "Exp": "Exp", "Floor": "Floor", "Greater": "Greater", "GreaterEqual": "GreaterOrEqual",
    "Less": "Less", "LessEqual": "LessOrEqual", "LogicalAnd": "And", "LogicalNot": "Not", "LogicalOr": "Or",
    "Maximum": "Max", "Minimum": "Min", "Multiply": "Mul", "Negative": "Neg", "Power": "Pow", "Select": "Where",
    "Sigmoid": "Sigmoid", "Sin": "Sin", "Subtract": "Sub", "Tanh": "Tanh",
}  # fmt: skip
_REDUCTIONS = {2: "ReduceSum", 3: "ReduceProd", 4: "ReduceMin", 5: "ReduceMax"}  # by MLX's number
_SAME = ("Contiguous", "Copy", "StopGradient")


def write(graph: Graph, inputs: Sequence[str], outputs: Sequence[str], about: str) -> onnx.ModelProto:
    """Writes a graph.

    Returns:
        The model; its dimensions `rows` and `length` may have any size.
    """
    return _Writer(graph, inputs).model(outputs, about)


class _Writer:
    """Translates the operations of a graph one by one."""

    def __init__(self, graph: Graph, inputs: Sequence[str]) -> None:
        self.graph = graph
        self.inputs = inputs
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.written: dict[str, str] = dict(zip(graph.inputs, inputs, strict=True))  # names in the file
        self.narrow: dict[str, str] = {}  # for each broadcast, the array that it repeats
        self.known: dict[Any, str] = {}  # sizes and shapes that are written, and small constants

    def model(self, outputs: Sequence[str], about: str) -> onnx.ModelProto:
        self._translate_all()
        described = []
        for name, output in zip(self.graph.outputs, outputs, strict=True):
            self.nodes.append(helper.make_node("Identity", [self.value(name)], [output]))
            sizes = [self._dimension(size) for size in self.graph.shapes[name]]
            described.append(helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, sizes))
        taken = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [_ROWS, _LENGTH]) for name in self.inputs]
        graph = helper.make_graph(self.nodes, "encoder", taken, described, self.initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="mlxbert", doc_string=about)

    @staticmethod
    def _dimension(size: Number) -> int | str | None:
        if isinstance(size, int):
            return size
        names = {Size((0, 1, 0, 0, 0)): _ROWS, Size((0, 0, 1, 0, 0)): _LENGTH}
        return names.get(size)

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Adds a node and returns the name of its (first) output."""
        names = [f"{operator}_{len(self.nodes)}{f'_{number}' if number else ''}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=names[0], **attributes))
        return names[0]

    def constant(self, values: NDArray[Any]) -> str:
        """Adds a constant and returns its name."""
        values = np.asarray(values, np.int64) if values.dtype.kind in "iu" else np.asarray(values)
        key = (values.dtype.str, values.shape, values.tobytes()) if values.size < 64 else None
        if key is None or key not in self.known:
            name = f"constant_{len(self.initializers)}"
            self.initializers.append(numpy_helper.from_array(values, name))
            if key is None:
                return name
            self.known[key] = name
        return self.known[key]

    def numbers(self, values: Sequence[Number]) -> str:
        """Returns the name of a 1-D array of sizes."""
        if all(isinstance(value, int) for value in values):
            return self.constant(np.array(values, np.int64))
        key = tuple(values)
        if key not in self.known:
            parts = [self._size(value) for value in values]
            self.known[key] = self.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
        return self.known[key]

    def _size(self, value: Number) -> str:
        """Returns the name of an array (1) with a size."""
        if isinstance(value, int):
            return self.constant(np.array([value], np.int64))
        if value not in self.known:
            rows, length = (self._dimension_of_input(axis) for axis in (0, 1))
            terms = [None, [rows], [length], [rows, length], [length, length]]
            parts = []
            for factor, names in zip(value.factors, terms, strict=True):
                if factor:
                    product = [] if factor == 1 and names else [self._size(factor)]
                    product += names or []
                    parts.append(self._chain("Mul", product))
            self.known[value] = self._chain("Add", parts)
        return self.known[value]

    def _chain(self, operator: str, names: Sequence[str]) -> str:
        first, *rest = names
        for name in rest:
            first = self.add(operator, first, name)
        return first

    def _dimension_of_input(self, axis: int) -> str:
        if ("dimension", axis) not in self.known:
            self.known["dimension", axis] = self.add("Shape", self.inputs[0], start=axis, end=axis + 1)
        return self.known["dimension", axis]

    def value(self, name: str) -> str:
        """Returns the name in the file of an array of the graph."""
        if name not in self.written:
            if name in self.narrow:
                narrow = self.value(self.narrow[name])
                self.written[name] = self.add("Expand", narrow, self.numbers(self.graph.shapes[name]))
            else:
                self.written[name] = self._constant(self.graph.constants[name])
        return self.written[name]

    def first(self, operation: Operation) -> str:
        """Returns the name in the file of the first input of an operation."""
        return self.value(operation.inputs[0])

    def _constant(self, constant: Constant | Size) -> str:
        if isinstance(constant, Size):
            return self.add("Squeeze", self._size(constant), self.numbers([0]))
        table = self.constant(constant.values)
        if constant.count is None:
            return table
        start = self._size(constant.start)
        return self.add("Slice", table, start, self.add("Add", start, self._size(constant.count)))

    def operands(self, operation: Operation) -> list[str]:
        """Returns the inputs of an elementwise operation, without the broadcasts that it does not need."""
        sources = [self.narrow.get(name, name) for name in operation.inputs]
        shapes = [self.graph.shapes[name] for name in sources]
        fits = _broadcast(shapes) == self.graph.shapes[operation.outputs[0]]
        return [self.value(name) for name in (sources if fits else operation.inputs)]

    def _translate_all(self) -> None:
        rest = []
        for operation in self.graph.operations:
            if operation.name in ("Broadcast", "Full"):
                [source] = operation.inputs
                self.narrow[operation.outputs[0]] = self.narrow.get(source, source)
            else:
                rest.append(operation)
        uses = self._uses(rest) + Counter(self.graph.outputs)
        place = 0
        while place < len(rest):
            for names, fuse in _FUSIONS:
                window = rest[place : place + len(names)]
                if tuple(each.name for each in window) == names and self._is_closed(window, uses):
                    fused = fuse(self, window)
                    if fused is not None:
                        self.written[window[-1].outputs[0]] = fused
                        place += len(names)
                        break
            else:
                self._translate(rest[place])
                place += 1

    def _uses(self, operations: Sequence[Operation]) -> Counter[str]:
        return Counter(self.narrow.get(name, name) for operation in operations for name in operation.inputs)

    def _is_closed(self, window: Sequence[Operation], uses: Counter[str]) -> bool:
        """Whether no other operation uses the results of these operations, apart from the last result."""
        inside = self._uses(window)
        return all(uses[name] == inside[name] for each in window[:-1] for name in each.outputs)

    def scalar(self, name: str) -> float | None:
        """Returns the value of an array that is a constant number, however often repeated; else `None`."""
        constant = self.graph.constants.get(self.narrow.get(name, name))
        if not isinstance(constant, Constant) or constant.values.size != 1 or constant.count is not None:
            return None
        return float(constant.values.reshape(()))

    def _translate(self, operation: Operation) -> None:
        [*outputs] = operation.outputs
        if operation.name in _SAME:
            self.written[outputs[0]] = self.value(operation.inputs[0])
        elif operation.name in _ELEMENTWISE:
            self.written[outputs[0]] = self.add(_ELEMENTWISE[operation.name], *self.operands(operation))
        elif operation.name == "Split":
            self._split(operation)
        elif operation.name in _TRANSLATIONS:
            self.written[outputs[0]] = _TRANSLATIONS[operation.name](self, operation)
        else:
            raise MlxbertError(f"the model uses the operation {operation.name}, which has no counterpart in ONNX here")

    def _split(self, operation: Operation) -> None:
        axis = operation.arguments[-1]
        sizes = [self.graph.shapes[name][axis] for name in operation.outputs]
        inputs = self.value(operation.inputs[0]), self.numbers(sizes)
        first = self.add("Split", *inputs, outputs=len(sizes), axis=axis)
        self.written |= {
            name: f"{first}_{number}" if number else first for number, name in enumerate(operation.outputs)
        }


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape of an elementwise operation on arrays of these shapes."""
    dimensions = max(map(len, shapes))
    padded = [(1,) * (dimensions - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


Translation = Callable[[_Writer, Operation], str]


def _type(dtype: mx.Dtype) -> int:
    if dtype == mx.bool_:
        return int(onnx.TensorProto.BOOL)
    return int(onnx.TensorProto.INT64 if mx.issubdtype(dtype, mx.integer) else onnx.TensorProto.FLOAT)


def _arange(w: _Writer, op: Operation) -> str:
    """`mx.arange`, of whole numbers."""
    numbers = [value if isinstance(value, Size) else int(value) for value in op.arguments]
    scalars = [w.add("Squeeze", w._size(number), w.numbers([0])) for number in numbers]
    counted = w.add("Range", *scalars)
    dtype = w.graph.dtypes[op.outputs[0]]
    return counted if mx.issubdtype(dtype, mx.integer) else w.add("Cast", counted, to=_type(dtype))


def _add_product(w: _Writer, op: Operation) -> str:
    product = w.add("MatMul", w.first(op), w.value(op.inputs[1]))
    if op.arguments != [1.0, 1.0]:
        raise MlxbertError(f"AddMM has the factors {op.arguments}, expected 1 and 1")
    return w.add("Add", product, w.value(w.narrow.get(op.inputs[2], op.inputs[2])))


def _root(w: _Writer, op: Operation) -> str:
    root = w.add("Sqrt", w.first(op))
    return w.add("Reciprocal", root) if op.arguments[0] else root


def _reduce(w: _Writer, op: Operation) -> str:
    kind, axes = op.arguments
    if kind not in _REDUCTIONS:
        raise MlxbertError(f"Reduce has the kind {kind}, expected a sum, a product, or an extreme")
    return w.add(_REDUCTIONS[kind], w.first(op), w.numbers(axes), keepdims=1)


def _best(w: _Writer, op: Operation) -> str:
    kind, axis = op.arguments
    return w.add(("ArgMin", "ArgMax")[kind], w.first(op), axis=axis, keepdims=1)


def _sort(w: _Writer, op: Operation) -> str:
    """The order of sorted values, which is also a partition's order."""
    axis = op.arguments[-1]
    count = w.numbers([w.graph.shapes[op.inputs[0]][axis]])
    values = w.add("TopK", w.first(op), count, outputs=2, axis=axis, largest=0)
    return f"{values}_1"


def _cumulate(w: _Writer, op: Operation) -> str:
    kind, axis, reverse, inclusive = op.arguments
    if kind != 2:  # a sum
        raise MlxbertError(f"Scan has the kind {kind}, expected a sum")
    place = w.add("Squeeze", w.numbers([axis]), w.numbers([0]))
    return w.add("CumSum", w.first(op), place, exclusive=int(not inclusive), reverse=int(reverse))


def _reshape(w: _Writer, op: Operation) -> str:
    shape = [*w.graph.shapes[op.outputs[0]]]
    varying = [place for place, size in enumerate(shape) if isinstance(size, Size)]
    if len(varying) == 1:
        shape[varying[0]] = -1
    return w.add("Reshape", w.first(op), w.numbers(shape))


def _slice(w: _Writer, op: Operation) -> str:
    sizes = w.graph.shapes[op.inputs[0]]
    parts = [*zip(range(len(sizes)), *op.arguments, strict=True)]
    cut = [part for part in parts if part[1:] != (0, sizes[part[0]], 1)]
    if not cut:
        return w.first(op)
    axes, starts, ends, steps = (list(values) for values in zip(*cut, strict=True))
    ends = [_LOWEST if step < 0 and end == -1 else end for end, step in zip(ends, steps, strict=True)]
    return w.add("Slice", w.first(op), *map(w.numbers, (starts, ends, axes, steps)))


def _pad(w: _Writer, op: Operation) -> str:
    axes, before, after = op.arguments
    value = w.value(op.inputs[1])
    return w.add("Pad", w.first(op), w.numbers([*before, *after]), value, w.numbers(axes))


def _gather(w: _Writer, op: Operation) -> str:
    """Slices of an array, one high along the axes of the indices: (…indices, …slice)."""
    axes, _ = op.arguments
    source, *indices = op.inputs
    rank, places = len(w.graph.shapes[source]), len(w.graph.shapes[indices[0]])
    order = [*axes, *(axis for axis in range(rank) if axis not in axes)]
    array = w.value(source)
    if order != [*range(rank)]:
        array = w.add("Transpose", array, perm=order)
    if len(axes) == 1:
        rows = w.add("Gather", array, w.value(indices[0]), axis=0)
    else:
        columns = [w.add("Unsqueeze", w.value(index), w.numbers([-1])) for index in indices]
        rows = w.add("GatherND", array, w.add("Concat", *columns, axis=-1))
    return w.add("Unsqueeze", rows, w.numbers([places + axis for axis in axes]))


def _convolution(w: _Writer, op: Operation) -> str:
    """A convolution over one axis: inputs (B, L, C), weights (outputs, kernel, C / groups)."""
    strides, before, after, dilations, input_dilations, groups, flipped = op.arguments
    if len(strides) != 1 or input_dilations != [1] or flipped:
        raise MlxbertError(f"Convolution has the arguments {op.arguments}, expected one axis and no transposition")
    x, weight = (w.add("Transpose", w.value(name), perm=[0, 2, 1]) for name in op.inputs)
    y = w.add("Conv", x, weight, strides=strides, pads=[*before, *after], dilations=dilations, group=groups)
    return w.add("Transpose", y, perm=[0, 2, 1])


def _gelu(w: _Writer, window: Sequence[Operation]) -> str | None:
    """GELU: `x / 2 * (1 + erf(x / sqrt(2)))`."""
    half, root, _, one, _ = window
    numbers = [[w.scalar(name) for name in each.inputs] for each in (half, root, one)]
    found = [next((value for value in each if value is not None), 0.0) for each in numbers]
    [x], [same] = ([name for name in each.inputs if w.scalar(name) is None] for each in (half, root))
    if x != same or not np.allclose(found, [0.5, np.sqrt(0.5), 1]):
        return None
    return w.add("Gelu", w.value(x))


def _layer_norm(w: _Writer, window: Sequence[Operation]) -> str | None:
    """MLX's layer norm with a weight, and with a bias if there is an eleventh operation."""
    total, mean, difference, _, _, _, eps, root, unit, *affine = window
    [source] = total.inputs
    shape = w.graph.shapes[source]
    if total.arguments != [2, [len(shape) - 1]] or not root.arguments[0] or not isinstance(shape[-1], int):
        return None
    if difference.inputs[0] != source:
        return None
    epsilon = next((value for value in map(w.scalar, eps.inputs) if value is not None), None)
    if epsilon is None or not np.isclose(w.scalar(mean.inputs[1]) or 0, 1 / shape[-1]):
        return None
    results = {name for each in (unit, *affine) for name in each.outputs}
    vectors = [w.narrow.get(name, name) for each in affine for name in each.inputs if name not in results]
    if [w.graph.shapes[name] for name in vectors] != [shape[-1:]] * len(affine):
        return None
    return w.add("LayerNormalization", w.value(source), *map(w.value, vectors), axis=-1, epsilon=epsilon)


_NORM = (
    "Reduce", "Multiply", "Subtract", "Square", "Reduce", "Multiply", "Add", "Sqrt", "Multiply", "Multiply", "Add",
)  # fmt: skip
# Sequences of operations that runtimes have as one.
_FUSIONS: tuple[tuple[tuple[str, ...], Callable[[_Writer, Sequence[Operation]], str | None]], ...] = (
    (_NORM, _layer_norm),
    (_NORM[:-1], _layer_norm),
    (("Multiply", "Multiply", "Erf", "Add", "Multiply"), _gelu),
)
_TRANSLATIONS: dict[str, Translation] = {
    "AddMM": _add_product,
    "Arange": _arange,
    "ArgPartition": _sort,
    "ArgReduce": _best,
    "ArgSort": _sort,
    "AsType": lambda w, op: w.add("Cast", w.first(op), to=_type(op.arguments[0])),
    "Concatenate": lambda w, op: w.add("Concat", *map(w.value, op.inputs), axis=op.arguments[0]),
    "Convolution": _convolution,
    "ExpandDims": lambda w, op: w.add("Unsqueeze", w.first(op), w.numbers(op.arguments[0])),
    "Flatten": _reshape,
    "Gather": _gather,
    "GatherAxis": lambda w, op: w.add("GatherElements", *map(w.value, op.inputs), axis=op.arguments[0]),
    "Matmul": lambda w, op: w.add("MatMul", *map(w.value, op.inputs)),
    "NotEqual": lambda w, op: w.add("Not", w.add("Equal", *w.operands(op))),
    "Pad": _pad,
    "Reduce": _reduce,
    "Reshape": _reshape,
    "Scan": _cumulate,
    "Slice": _slice,
    "Softmax": lambda w, op: w.add("Softmax", w.first(op), axis=-1),
    "Sqrt": _root,
    "Square": lambda w, op: w.add("Mul", w.first(op), w.first(op)),
    "Squeeze": lambda w, op: w.add("Squeeze", w.first(op), w.numbers(op.arguments[0])),
    "Transpose": lambda w, op: w.add("Transpose", w.first(op), perm=op.arguments[0]),
    "Unflatten": _reshape,
}
