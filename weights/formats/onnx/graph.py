"""Which parameter an initializer of an ONNX graph is.

Exporters keep torch's names of most parameters. A matrix that a graph multiplies by is stored turned and under a
number: its name is found by where the multiplication stands, or by the bias that is added behind it. Operators:
https://onnx.ai/onnx/operators/.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mlxbert.errors import CheckpointError

_PARAMETER = re.compile(r"(\w+\.)+(weight|bias|gamma|beta)")
# What torch's newer exporter notes with a node: where it is from, and that its bias was left out, as it was zeros.
_SCOPES = "pkg.torch.onnx.name_scopes"
_RULE, _NO_BIAS = "pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromGemm"
_WRAPPER = re.compile(r"^(?:\w+\.)*?auto_model\.")  # of models that were exported from sentence-transformers
# Heads whose bias of words goes by two names, of which exporters keep either. That of RoBERTa is told from GTE's, which
# has one name only, by the table of positions beside it.
_TIED_HEADS = {"cls.predictions": "", "predictions": "", "lm_head": "embeddings.position_embeddings.weight"}
# A bias of words of its own stands beside the decoder, not in it.
_WORDS_BIAS = re.compile(r"((?:^|.*\.)predictions|lm_head)$")
_QUANTIZED = re.compile(r"QLinear\w*|\w+Integer|(Dynamic)?QuantizeLinear|DequantizeLinear")
_STANDARD = ("", "ai.onnx")
_HINT = "take the export that is neither quantized nor optimized, or the model as safetensors"


@dataclass(frozen=True)
class Source:
    """Where a value comes from.

    Attributes:
        initializer: Its name.
        turned: Whether its axes are swapped.
        zeros: Whether the value is a zero for each row of that.
    """

    initializer: str
    turned: bool = False
    zeros: bool = False


def refuse_operators(graph: Any) -> None:
    """Refuses graphs whose weights are no longer those of the model.

    Raises:
        CheckpointError: An operator is a quantized or a fused one; the file is not named.
    """
    for node in graph.node:
        if node.domain not in _STANDARD:
            raise CheckpointError(
                f"operator {node.domain}.{node.op_type} in the graph, expected operators of ONNX itself", hint=_HINT
            )
        if _QUANTIZED.fullmatch(node.op_type):
            raise CheckpointError(f"operator {node.op_type} in the graph: quantized, expected floats", hint=_HINT)


def _attribute(node: Any, name: str) -> Any:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def _noted_scope(node: Any) -> str:
    """The name of the module that a node was exported from, by torch's newer exporter; empty if it is another's."""
    for note in node.metadata_props:
        if note.key == _SCOPES:
            names = re.findall(r"'([\w.]*)'", note.value)
            return names[-2] if len(names) > 1 else ""
    return ""


def _scope(node: Any) -> str:
    """The name of the module that a node was exported from; empty if nothing says."""
    return _noted_scope(node) or ".".join(node.name.split("/")[1:-1])


def _sources(graph: Any, ranks: dict[str, int]) -> dict[str, Source]:
    """The values that are initializers, as they are or behind nodes that change no number."""
    sources = {name: Source(name) for name in ranks}
    for node in graph.node:
        source = sources.get(node.input[0]) if node.input else None
        if source is None or len(node.output) != 1:
            continue
        if node.op_type in ("Identity", "Cast"):
            sources.setdefault(node.output[0], source)
        elif node.op_type == "Transpose" and ranks[source.initializer] == 2:
            order = _attribute(node, "perm")
            turned = order is None or list(order.ints) == [1, 0]
            sources.setdefault(node.output[0], replace(source, turned=source.turned != turned))
    return sources


def _biases(graph: Any, sources: dict[str, Source], ranks: dict[str, int]) -> dict[str, str]:
    """By the name of a value, that of the bias added to it."""
    found = {}
    for node in graph.node:
        if node.op_type == "Add" and len(node.input) == 2:
            for value, bias in (tuple(node.input), tuple(node.input)[::-1]):
                if bias.endswith(".bias") and bias in sources and ranks[sources[bias].initializer] == 1:
                    found[value] = bias
    return found


def _matrix_name(node: Any, bias: str) -> str:
    """What the matrix of a multiplication is called; the scope says more, old exports have none.

    A module that is called again, as ALBERT's layer, has a number at the end of its scope.
    """
    stem, beside = _scope(node), bias.removesuffix(".bias")
    if bias and (not stem or re.fullmatch(re.escape(beside) + r"_\d+", stem)):
        stem = _WORDS_BIAS.sub(r"\1.decoder", beside)
    return f"{stem}.weight"


def _vectors(node: Any, bias: str) -> Iterator[tuple[str, str]]:
    """Names of a module's vectors and their values: the newer exporter stores equal ones once, under one name."""
    scope = _noted_scope(node)
    if node.op_type == "LayerNormalization":
        yield from zip((f"{scope}.weight", f"{scope}.bias"), node.input[1:], strict=False)
    elif node.op_type in ("MatMul", "Gemm"):
        yield f"{scope}.bias", bias


def _lost_zeros(node: Any) -> bool:
    """Whether a module has a bias and the graph has not; a module without one leaves no note."""
    notes = (note.value for note in node.metadata_props if note.key == _RULE)
    return node.op_type == "Gemm" and len(node.input) == 2 and any(_NO_BIAS in value for value in notes)


def _matrix(node: Any, factor: Source) -> Source:
    """The matrix of a module, by what its input is multiplied by."""
    flag = _attribute(node, "transB") if node.op_type == "Gemm" else None
    return replace(factor, turned=factor.turned != (flag is None or not flag.i))


def _of_node(node: Any, bias: str, sources: dict[str, Source], ranks: dict[str, int]) -> Iterator[tuple[str, Source]]:
    """What a node with two inputs or more says of names; `bias` is what is added to its product."""
    first, second = (sources.get(value) for value in node.input[:2])
    for name, value in _vectors(node, bias):
        if value in sources:
            yield name, sources[value]
    if node.op_type == "Gather" and first and _PARAMETER.fullmatch(first.initializer):
        name = f"{_scope(node)}.weight"  # a table that is tied goes by one name only
        if name.endswith("embeddings.weight"):
            yield name, first
    elif node.op_type in ("MatMul", "Gemm") and second and ranks[second.initializer] == 2:
        if not _PARAMETER.fullmatch(second.initializer):
            yield _matrix_name(node, bias), _matrix(node, second)
        if _lost_zeros(node):
            yield f"{_noted_scope(node)}.bias", replace(_matrix(node, second), zeros=True)


def _named(graph: Any, ranks: dict[str, int]) -> Iterator[tuple[str, Source]]:
    """Names of parameters and where each comes from; a name can come several times."""
    sources = _sources(graph, ranks)
    biases = _biases(graph, sources, ranks)
    yield from sources.items()
    for node in graph.node:
        if len(node.input) > 1 and node.output:
            added = biases.get(node.output[0], "") if node.input[1] in sources else ""
            bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else added
            yield from _of_node(node, bias, sources, ranks)


def parameters(graph: Any, ranks: dict[str, int]) -> dict[str, list[Source]]:
    """Where each parameter of a model lies: in one initializer, or in several that must be equal.

    Args:
        graph: A GraphProto.
        ranks: How many axes each initializer has.
    """
    found: dict[str, list[Source]] = {}
    for name, source in _named(graph, ranks):
        if not _PARAMETER.fullmatch(name):
            continue
        places = found.setdefault(_WRAPPER.sub("", name), [])
        if source not in places:
            places.append(source)
    for head, beside in _TIED_HEADS.items():
        copy = f"{head}.decoder.bias"
        if copy in found and any(name.endswith(beside) for name in found):
            found.setdefault(f"{head}.bias", found[copy])
    return found
