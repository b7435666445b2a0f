"""Folders of tiny token classifiers: one kind looks up the tag of every token, the other is random."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import Network
from tests.helpers.tiny import CONFIG, VOCAB, random_network, save, tensors_of, tiny_config

NER = Labels(("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
POS = Labels(("NOUN", "VERB", "DET", "PUNCT"))
HEAD = "token_classifier"


def _config(labels: Labels, size: int) -> Any:
    return tiny_config(hidden_size=size, embedding_size=size, labels=replace(labels, crf=False))


def _named(labels: Labels, **changes: object) -> dict[str, Any]:
    named = {key: value for key, value in replace(labels, crf=False).to_config().items() if value is not None}
    return CONFIG | named | {"architectures": ["BertForTokenClassification"]} | changes


def save_tagger(folder: Path, labels: Labels, tags: Mapping[str, str]) -> Path:
    """Writes a tagger that gives each token the same tag in every context; the default tag is the first label."""
    size = -(-len(VOCAB) // 3) * 3  # as wide as the vocabulary: every token has an axis of its own
    network = Network(_config(labels, size), (HEAD,))
    norms = {f"{path}.weight" for path, module in network.named_modules() if isinstance(module, nn.LayerNorm)}
    arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    arrays = {name: (mx.ones if name in norms else mx.zeros)(array.shape) for name, array in arrays.items()}
    numbers = [labels.names.index(tags.get(token, labels.names[0])) for token in VOCAB]
    arrays["encoder.embeddings.word.weight"] = mx.eye(size)[: len(VOCAB)]
    columns = mx.array([*numbers, *[0] * (size - len(VOCAB))])
    arrays[f"heads.{HEAD}.out.weight"] = (columns[None] == mx.arange(len(labels))[:, None]).astype(mx.float32)
    network.load_weights(list(arrays.items()))
    return save(folder, tensors_of(network), _named(labels, hidden_size=size))


def save_random_tagger(folder: Path, labels: Labels) -> Path:
    network = random_network(_config(labels, CONFIG["hidden_size"]), (HEAD,))
    head: Any = network.heads[HEAD]
    head.out.weight = head.out.weight * 5
    logits = network.logits(HEAD, network(mx.arange(5, 30)[None]))
    head.out.bias = head.out.bias - logits[0].mean(axis=0)  # no tag is ahead of the others everywhere
    return save(folder, tensors_of(network), _named(labels))
