"""Finds the parameter names of the initializers in an ONNX graph.

Exporters keep torch's names of most parameters. The matrix of a multiplication, however, is stored transposed and under
a number: its name follows from the scope of the multiplication, or from the bias added after it. Operators:
https://onnx.ai/onnx/operators/.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mlxbert.errors import CheckpointError

_PARAMETER = re.compile(r"(\w+\.)+(weight|bias|gamma|beta)")
# Node metadata of torch's newer exporter: the module scopes, and the rule that drops a bias of zeros.
_SCOPES = "pkg.torch.onnx.name_scopes"
_RULE, _NO_BIAS = "pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromGemm"
_WRAPPER = re.compile(r"^(?:\w+\.)*?auto_model\.")  # in exports from sentence-transformers
# Heads whose output bias has two names, of which exporters keep either one. The bias of GTE's `lm_head` has only one
# name; position embeddings, which GTE does not have, identify RoBERTa's.
_TIED_HEADS = {"cls.predictions": "", "predictions": "", "lm_head": "embeddings.position_embeddings.weight"}
# A separate output bias is next to the decoder, not inside it.
_WORDS_BIAS = re.compile(r"((?:^|.*\.)predictions|lm_head)$")
_QUANTIZED = re.compile(r"QLinear\w*|\w+Integer|(Dynamic)?QuantizeLinear|DequantizeLinear")
_STANDARD = ("", "ai.onnx")
_HINT = "use an export that is neither quantized nor optimized, or the model as safetensors"


@dataclass(frozen=True)
class Source:
    """The origin of a value.

    Attributes:
        initializer: The name of the initializer.
        transposed: Whether the value is the transposed initializer.
        zeros: Whether the value is a vector of zeros, one per row of the initializer (transposed if so marked).
    """

    initializer: str
    transposed: bool = False
    zeros: bool = False


def refuse_operators(graph: Any) -> None:
    """Refuses graphs whose weights differ from those of the model.

    Raises:
        CheckpointError: An operator is quantized or fused; the message does not name the file.
    """
    for node in graph.node:
        if node.domain not in _STANDARD:
            raise CheckpointError(
                f"operator {node.domain}.{node.op_type} in the graph, expected standard ONNX operators", hint=_HINT
            )
        if _QUANTIZED.fullmatch(node.op_type):
            raise CheckpointError(f"quantized operator {node.op_type} in the graph, expected floats", hint=_HINT)


def _attribute(node: Any, name: str) -> Any:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def _noted_scope(node: Any) -> str:
    """The module that a node was exported from, as torch's newer exporter records it; empty for other exporters."""
    for note in node.metadata_props:
        if note.key == _SCOPES:
            names = re.findall(r"'([\w.]*)'", note.value)
            return names[-2] if len(names) > 1 else ""
    return ""


def _scope(node: Any) -> str:
    """The name of the module that a node was exported from; empty if it is not recorded."""
    return _noted_scope(node) or ".".join(node.name.split("/")[1:-1])


def _sources(graph: Any, ranks: dict[str, int]) -> dict[str, Source]:
    """The values that are initializers, directly or after nodes that change no number."""
    sources = {name: Source(name) for name in ranks}
    for node in graph.node:
        source = sources.get(node.input[0]) if node.input else None
        if source is None or len(node.output) != 1:
            continue
        if node.op_type in ("Identity", "Cast"):
            sources.setdefault(node.output[0], source)
        elif node.op_type == "Transpose" and ranks[source.initializer] == 2:
            order = _attribute(node, "perm")
            transposed = order is None or list(order.ints) == [1, 0]
            sources.setdefault(node.output[0], replace(source, transposed=source.transposed != transposed))
    return sources


def _biases(graph: Any, sources: dict[str, Source], ranks: dict[str, int]) -> dict[str, str]:
    found = {}
    for node in graph.node:
        if node.op_type == "Add" and len(node.input) == 2:
            for value, bias in (tuple(node.input), tuple(node.input)[::-1]):
                if bias.endswith(".bias") and bias in sources and ranks[sources[bias].initializer] == 1:
                    found[value] = bias
    return found


def _matrix_name(node: Any, bias: str) -> str:
    """The name of the matrix in a multiplication, from its scope, or from its bias in old exports without scopes.

    The scope of a module that is called several times, such as ALBERT's layer, ends with a number.
    """
    stem, owner = _scope(node), bias.removesuffix(".bias")
    if bias and (not stem or re.fullmatch(re.escape(owner) + r"_\d+", stem)):
        stem = _WORDS_BIAS.sub(r"\1.decoder", owner)
    return f"{stem}.weight"


def _vectors(node: Any, bias: str) -> Iterator[tuple[str, str]]:
    """Yields the names of a module's vectors and their values: the newer exporter stores equal vectors only once."""
    scope = _noted_scope(node)
    if node.op_type == "LayerNormalization":
        yield from zip((f"{scope}.weight", f"{scope}.bias"), node.input[1:], strict=False)
    elif node.op_type in ("MatMul", "Gemm"):
        yield f"{scope}.bias", bias


def _lost_zeros(node: Any) -> bool:
    """Whether the exporter dropped a bias of zeros; a module without a bias leaves no such note."""
    notes = (note.value for note in node.metadata_props if note.key == _RULE)
    return node.op_type == "Gemm" and len(node.input) == 2 and any(_NO_BIAS in value for value in notes)


def _matrix(node: Any, factor: Source) -> Source:
    """The matrix of a module, from the factor that its input is multiplied by."""
    flag = _attribute(node, "transB") if node.op_type == "Gemm" else None
    return replace(factor, transposed=factor.transposed != (flag is None or not flag.i))


def _node_candidates(
    node: Any, bias: str, sources: dict[str, Source], ranks: dict[str, int]
) -> Iterator[tuple[str, Source]]:
    """Yields names and sources from a node with at least two inputs; `bias` is the value added to its product."""
    first, second = (sources.get(value) for value in node.input[:2])
    for name, value in _vectors(node, bias):
        if value in sources:
            yield name, sources[value]
    if node.op_type == "Gather" and first and _PARAMETER.fullmatch(first.initializer):
        name = f"{_scope(node)}.weight"  # tied embeddings have only one name in the graph
        if name.endswith("embeddings.weight"):
            yield name, first
    elif node.op_type in ("MatMul", "Gemm") and second and ranks[second.initializer] == 2:
        if not _PARAMETER.fullmatch(second.initializer):
            yield _matrix_name(node, bias), _matrix(node, second)
        if _lost_zeros(node):
            yield f"{_noted_scope(node)}.bias", replace(_matrix(node, second), zeros=True)


def _candidates(graph: Any, ranks: dict[str, int]) -> Iterator[tuple[str, Source]]:
    """Yields possible parameter names and their sources; a name can occur several times."""
    sources = _sources(graph, ranks)
    biases = _biases(graph, sources, ranks)
    yield from sources.items()
    for node in graph.node:
        if len(node.input) > 1 and node.output:
            added = biases.get(node.output[0], "") if node.input[1] in sources else ""
            bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else added
            yield from _node_candidates(node, bias, sources, ranks)


def parameters(graph: Any, ranks: dict[str, int]) -> dict[str, list[Source]]:
    """The sources of each parameter of a model: one initializer, or several that must be equal.

    `ranks` are the numbers of axes of the initializers.
    """
    found: dict[str, list[Source]] = {}
    for name, source in _candidates(graph, ranks):
        if not _PARAMETER.fullmatch(name):
            continue
        places = found.setdefault(_WRAPPER.sub("", name), [])
        if source not in places:
            places.append(source)
    for head, marker in _TIED_HEADS.items():
        copy = f"{head}.decoder.bias"
        if copy in found and any(name.endswith(marker) for name in found):
            found.setdefault(f"{head}.bias", found[copy])
    return found
