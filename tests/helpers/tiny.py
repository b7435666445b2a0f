"""A folder with a tiny random BERT, as other tools save it, written without torch."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxbert.config import Absolute, EncoderConfig
from mlxbert.machine.device import mx, nn
from mlxbert.nn import heads
from mlxbert.nn.heads import Network
from mlxbert.weights.families import keymap
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.registry import FAMILIES

WORDS = (
    "the cat dog sat on mat in paris tokyo city largest a is of man went to store he bought milk play ##ing ##s , . !"
)
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), *"bcdefghijk", *(f"##{c}" for c in "abcdefghij")]

CONFIG: dict[str, Any] = {
    "model_type": "bert", "vocab_size": len(VOCAB), "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 3, "intermediate_size": 40, "hidden_act": "gelu", "layer_norm_eps": 0.01,
    "max_position_embeddings": 32, "type_vocab_size": 2, "pad_token_id": 0,
}  # fmt: skip


def tiny_config(**changes: Any) -> EncoderConfig:
    elsewhere = ("model_type", "num_hidden_layers", "max_position_embeddings")
    facts = {key: value for key, value in CONFIG.items() if key not in elsewhere}
    facts |= {"embedding_size": CONFIG["hidden_size"], "layer_schedule": (0, 1)}
    facts |= {"positions": Absolute(32), "heads": {name: spec.facts for name, spec in heads.HEADS.items()}}
    return EncoderConfig(**facts | changes)


HEADS = ("masked_lm", "next_sentence")  # those of BertForPreTraining


def random_network(config: EncoderConfig, heads: tuple[str, ...] = HEADS, seed: int = 3) -> Network:
    """Returns a network whose weights are random and far from 0 and 1."""
    mx.random.seed(seed)
    network = Network(config, heads)
    network.update(nn.utils.tree_map(lambda array: mx.random.normal(array.shape) * 0.3 + 0.1, network.parameters()))
    network.eval()
    mx.eval(network.parameters())
    return network


def to_theirs(family: Family, config: EncoderConfig, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Returns our tensors under the family's names, with the family's prefix if there is a head."""
    prefix = family.prefixes[0] if any(name.startswith("heads.") for name in arrays) else ""
    theirs: dict[str, mx.array] = {}
    for entry in keymap.pairs(family.table(family.parts), config, arrays):
        inside = prefix if entry.ours[0].startswith("encoder.") else ""
        theirs |= {inside + name: array for name, array in keymap.save(entry, arrays).items()}
    return theirs


def tensors_of(network: Network) -> dict[str, mx.array]:
    arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    return to_theirs(FAMILIES["bert"], network.encoder.config, arrays)


@functools.cache
def tiny_tensors() -> Mapping[str, mx.array]:
    return tensors_of(random_network(tiny_config()))


def save(
    folder: Path,
    tensors: Mapping[str, mx.array] | None = None,
    config: Mapping[str, Any] | None = None,
    vocab: list[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a model folder; the tiny model provides every argument that is `None`. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if tensors is None:
        tensors = tiny_tensors()
        mx.random.seed(3)  # whether they were drawn now or before
    (folder / "model.safetensors").unlink(missing_ok=True)  # a file that is overwritten is flushed to the disk
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tensors), {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config), encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(VOCAB if vocab is None else vocab) + "\n", encoding="utf-8")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def with_nan(folder: Path, word: str = "paris") -> Path:
    path = folder / "model.safetensors"
    stored: Any = mx.load(str(path))
    tensors = {name: array + 0 for name, array in stored.items()}
    mx.eval(tensors)
    (name,) = (name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][VOCAB.index(word)] = float("nan")
    mx.save_safetensors(str(path), tensors, {"format": "pt"})
    return folder
