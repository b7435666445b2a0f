"""Vectors with planted faults, computed from the network without the code that looks for the faults."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.machine.device import mx
from mlxbert.model import Model
from tests.helpers.st_folder import NORMALIZE, PROMPTS, pooling, save_st
from tests.helpers.tiny import VOCAB, random_network, tensors_of, tiny_config

Vectors = NDArray[np.float32]
LIMIT = 24  # tokens
CAPITALS = ("The", "Cat", "SAT", "Mat", "Tokyo")
TEXTS = [
    "the cat sat", "The Cat SAT on the Mat", "a dog", "he bought milk in the store .", "paris is a city",
    "Tokyo is the largest city !", "the man went to the store , he bought milk", "of the dog",
    "the largest dog sat on the mat in paris", "b c d e f g h i", "playing", "cat dog cat dog", "is he in Tokyo ?",
    *(f"the man went to paris , {'the cat sat on the mat , ' * count}he bought milk" for count in (1, 2, 3)),
    "the dog went to the store , the man bought milk , the cat sat on a mat in the city of tokyo , a dog sat",
    "milk is in the largest store of the city , he went to the store , the cat sat on the mat , he is a man !",
    "on in a is of man went to he bought milk the cat dog sat paris tokyo city largest store play b c d e f",
    "paris paris paris dog",
]  # fmt: skip


def save_embedder(folder: Path, *, cased: bool = False) -> Path:
    """Writes the tiny embedding model; if it is cased, some words of it have capitals, and texts keep theirs."""
    transformer = {"max_seq_length": LIMIT, "do_lower_case": False}
    save_st(folder, pooling("mean"), NORMALIZE, transformer=transformer, settings=PROMPTS)
    tensors = tensors_of(random_network(tiny_config()))
    for name, array in tensors.items():  # so that texts have different vectors
        tensors[name] = array * 0.1 if "LayerNorm.bias" in name else array + 1 if "LayerNorm.weight" in name else array
        tensors[name] = array - 0.1 if "word_embeddings" in name else tensors[name]
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "pt"})
    if cased:
        vocab = [CAPITALS[VOCAB.index(word) - VOCAB.index("b")] if word in "bcdef" else word for word in VOCAB]
        (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
        (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    return folder


def vectors(
    model: Model,
    texts: Sequence[str] = TEXTS,
    *,
    change: Callable[[str], str] = str,
    limit: int = LIMIT,
    last: bool = False,
    special: bool = True,
    pool: Callable[[Vectors], Vectors] = lambda hidden: hidden.mean(axis=0),
    layer: int = -1,
    padded: int = 0,
    normalize: bool = True,
) -> Vectors:
    """Computes vectors one text at a time, with a fault for each argument that is not its default."""
    rows = []
    for text in texts:
        inside = model.tokenizer.pieces(change(text))
        room = limit - 2 * special
        inside = inside[-room:] if last else inside[:room]
        ids = [2, *inside, 3] if special else inside
        padding = [0] * max(padded - len(ids), 0)
        output = model.network.encoder(mx.array([ids + padding]), output_hidden_states=True)
        assert output.hidden_states is not None
        hidden = np.array(output.hidden_states[layer][0])[: len(ids)]
        rows.append(pool(hidden))
    found = np.stack(rows)
    return found / np.linalg.norm(found, axis=1, keepdims=True) if normalize else found


def _int8(found: Vectors) -> NDArray[np.int8]:
    return np.rint(found * 127 / np.abs(found).max(axis=1, keepdims=True)).astype(np.int8)


# The kinds of causes that are expected, and the vectors; `same` has no fault.
FAULTS: Mapping[str, tuple[tuple[str, ...], Callable[[Model], Any]]] = {
    "same": ((), vectors),
    "limit": (("limit",), lambda model: vectors(model, limit=17)),
    "no limit": (("limit",), lambda model: vectors(model, limit=32)),
    "last part": (("last_part",), lambda model: vectors(model, last=True)),
    "pooling": (("pooling",), lambda model: vectors(model, pool=lambda hidden: hidden[0])),
    "prompt": (("prompt",), lambda model: vectors(model, change="man is : {}".format)),
    "normalization": (("normalization",), lambda model: vectors(model, normalize=False)),
    "case": (("case",), lambda model: vectors(model, change=lambda text: re.sub(r"\w*[A-Z]\w*", "qqq", text))),
    "int8": (("quantization",), lambda model: _int8(vectors(model))),
    "binary": (("quantization",), lambda model: np.packbits(vectors(model) > 0, axis=1)),
    "dimensions": (("dimensions",), lambda model: vectors(model)[:, :16]),
    "special tokens": (("special_tokens",), lambda model: vectors(model, special=False)),
    "padding": (("padding",), lambda model: vectors(model, padded=LIMIT)),
    "layer": (("layer",), lambda model: vectors(model, layer=1)),
    "order": (("order",), lambda model: vectors(model)[np.random.RandomState(1).permutation(len(TEXTS))]),
    "limit and prompt": (("limit", "prompt"), lambda model: vectors(model, limit=17, change="in {}".format)),
    "pooling and normalization": (
        ("pooling", "normalization"),
        lambda model: vectors(model, pool=lambda hidden: hidden.max(axis=0), normalize=False),
    ),
    "int8 and limit": (("limit", "quantization"), lambda model: _int8(vectors(model, limit=17))),
}
