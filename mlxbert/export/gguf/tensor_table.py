"""The tensors of a GGUF file: their names, how they are computed from ours, and the types in which they are stored.

Shapes are those of numpy, the slowest dimension first; GGUF lists them in reverse.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from mlxbert.config import EncoderConfig, PostNorm
from mlxbert.export.compare.compared_model import ComparedTensor
from mlxbert.export.gguf.architectures import GgufArchitecture
from mlxbert.machine.device import mx

FLOAT32, FLOAT16, BFLOAT16, Q8_0 = "F32", "F16", "BF16", "Q8_0"
BLOCK, BLOCK_BYTES = 32, 34  # weights in a row that share a scale in Q8_0, and the bytes that they take
_WIDTHS = {FLOAT32: 4, FLOAT16: 2, BFLOAT16: 2}
_EMBEDDINGS = {
    "embeddings.word": "token_embd",
    "embeddings.position": "position_embd",
    "embeddings.token_type": "token_types",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
}
_LAYER = {
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.output": "attn_output",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "attention_norm": "attn_norm",
    "attention_output_norm": "post_attention_norm",
    "second_attention_norm": "attn_norm_2",
    "feed_forward.up": "ffn_up",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.down": "ffn_down",
    "feed_forward.router": "ffn_gate_inp",
    "feed_forward_norm": "ffn_norm",
    "feed_forward_output_norm": "post_ffw_norm",
}
_AFTER = {"attention_norm": "attn_output_norm", "feed_forward_norm": "layer_output_norm"}  # in blocks with PostNorm
_EXPERTS = {"feed_forward.experts.w1": "ffn_up_exps.weight", "feed_forward.experts.w2": "ffn_down_exps.weight"}
_ENTRY = re.compile(r"encoder\.(?:layers\.(\d+)\.)?(.*?)(?:\.(weight|bias))?")
# Small matrices that llama.cpp keeps in float32.
_PRECISE = re.compile(r"(position_embd|token_types|.*ffn_gate_inp|.*norm.*)\..*")


@dataclass(frozen=True)
class GgufTensor:
    """A tensor to write."""

    name: str  # the name in the file
    shape: tuple[int, ...]
    read: Callable[[], mx.array]  # returns the numbers in float32; called once
    source: str  # the name, and the parameters that hold the numbers, for messages
    type: str  # the type in the file: `F32`, `F16`, `BF16` or `Q8_0`

    @property
    def bytes(self) -> int:
        count = prod(self.shape)
        return count // BLOCK * BLOCK_BYTES if self.type == Q8_0 else count * _WIDTHS[self.type]


class TensorTable:
    """The tensors of a model in the layout of an architecture of llama.cpp."""

    def __init__(
        self,
        architecture: GgufArchitecture,
        config: EncoderConfig,
        shapes: Mapping[str, tuple[int, ...]],
        ours: Mapping[str, ComparedTensor],
        type_: str,
    ) -> None:
        """Takes the shapes and the tensors of the network by our names, and the type of matrices in the file."""
        self._architecture, self._config = architecture, config
        self._shapes, self._ours, self._type = shapes, ours, type_
        self.tensors: list[GgufTensor] = []

    def add_encoder(self) -> None:
        fused = {part: name for name, parts in self._architecture.fused.items() for part in parts}
        for name in self._shapes:
            match = _ENTRY.fullmatch(name)
            if match is None or name.startswith("encoder.pooler."):
                continue
            layer, stem, suffix = match.groups()
            if layer is None:
                self._add_global(name, stem, suffix)
            elif stem in fused:
                self._add_fused(layer, fused[stem], stem, suffix)
            elif suffix is None:
                self._add_experts(name, layer, stem)
            elif stem != "feed_forward":  # the bias of all experts, which llama.cpp does not have
                self._add_unchanged(f"blk.{layer}.{self._layer_names[stem]}.{suffix}", name)

    @property
    def _layer_names(self) -> Mapping[str, str]:
        return _LAYER | (_AFTER if isinstance(self._config.block, PostNorm) else {})

    def _add_global(self, name: str, stem: str, suffix: str) -> None:
        theirs = _EMBEDDINGS[stem]
        if stem == "final_norm" and self._architecture.name == "neo-bert":
            theirs = "enc.output_norm"
        first = getattr(self._config.positions, "first_position", 0) if stem == "embeddings.position" else 0
        rows, *rest = self._shapes[name]
        self._add(f"{theirs}.{suffix}", (rows - first, *rest), lambda: self._read(name)[first:], name)

    def add_layer(self, theirs: str, ours: str) -> None:
        """Adds the weight and the bias, if any, of a layer after the encoder."""
        for suffix in ("weight", "bias"):
            if f"{ours}.{suffix}" in self._shapes:
                self._add_unchanged(f"{theirs}.{suffix}", f"{ours}.{suffix}")

    def add_with_zeros(self, theirs: str, name: str) -> None:
        """Adds a matrix with one more row, of zeros."""
        rows, width = self._shapes[name]
        self._add(theirs, (rows + 1, width), lambda: mx.concatenate([self._read(name), mx.zeros((1, width))]), name)

    def _add_unchanged(self, theirs: str, name: str) -> None:
        self._add(theirs, self._shapes[name], lambda: self._read(name), name)

    def _add(self, theirs: str, shape: tuple[int, ...], read: Callable[[], mx.array], *names: str) -> None:
        source = f"tensor {theirs!r} ({', '.join(names)})"
        self.tensors.append(GgufTensor(theirs, shape, read, source, self._stored(theirs, shape)))

    def _stored(self, theirs: str, shape: tuple[int, ...]) -> str:
        """Returns the type of a tensor in the file: vectors and small tables stay in float32."""
        if len(shape) == 1 or _PRECISE.fullmatch(theirs):
            return FLOAT32
        return FLOAT16 if self._type == Q8_0 and shape[-1] % BLOCK else self._type

    def _read(self, name: str) -> mx.array:
        array = self._ours[name].array
        plus_one = self._config.norm == "rms_plus_one" and name.endswith("norm.weight")
        return array + 1 if plus_one else array

    def _add_fused(self, layer: str, theirs: str, stem: str, suffix: str) -> None:
        stems = self._architecture.fused[theirs]
        if stem != stems[0]:
            return
        names = [f"encoder.layers.{layer}.{each}.{suffix}" for each in stems]
        shapes = [self._shapes[name] for name in names]
        shape = sum(rows for rows, *_ in shapes), *shapes[0][1:]
        adjacent = self._architecture.settings.get("adjacent", False)

        def read() -> mx.array:
            arrays = [self._read(name) for name in names]
            if adjacent and theirs == "attn_qkv":
                arrays[:2] = [_adjacent(array, self._config.head_size) for array in arrays[:2]]
            return mx.concatenate(arrays, axis=0)

        self._add(f"blk.{layer}.{theirs}.{suffix}", shape, read, *names)

    def _add_experts(self, name: str, layer: str, stem: str) -> None:
        experts = self._config.experts
        assert experts is not None
        rows, width = self._shapes[name]
        whole = experts.count, rows // experts.count, width
        down = stem.endswith("w2")
        shape = (whole[0], whole[2], whole[1]) if down else whole

        def read() -> mx.array:
            array = self._read(name).reshape(whole)
            return array.swapaxes(1, 2) if down else array

        self._add(f"blk.{layer}.{_EXPERTS[stem]}", shape, read, name)


def _adjacent(array: mx.array, head_size: int) -> mx.array:
    """Reorders the rows of queries or keys so that rotations pair adjacent elements, not the halves of a head."""
    halves = array.reshape(-1, 2, head_size // 2, array.shape[-1])
    return halves.swapaxes(1, 2).reshape(array.shape)
