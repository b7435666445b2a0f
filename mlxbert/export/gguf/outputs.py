"""What a GGUF file gives for a text, a vector or the scores of classes, and what of the model is left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.errors import ArgumentError, ConfigError, MlxbertError
from mlxbert.export.compare.compared_model import OpenedModel
from mlxbert.export.gguf.architectures import GELU, POOLINGS, RANK, GgufArchitecture
from mlxbert.export.gguf.tensor_table import TensorTable
from mlxbert.labels.labels import MULTI_LABEL, REGRESSION, Labels
from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Dense, Embedder, Normalize
from mlxbert.nn.heads import HEADS
from mlxbert.nn.heads.sequence_classifier import ClassifierFacts
from mlxbert.other_libraries import not_one_of
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.chat_template import read_prompt
from mlxbert.weights.rerankers import has_decoder_classifier

CLASSIFIER = "sequence_classifier"
GGUF_TASKS = ("classify", "embed")
_PREFIX = f"heads.{CLASSIFIER}."
_POOLER = "encoder.pooler.dense"
_ANSWERS = ("yes", "no")
_TEMPLATE = "tokenizer.chat_template"


@dataclass
class Outputs:
    """What llama.cpp computes from the hidden states."""

    pooling: int  # the pooling: one of the numbers in `architectures`
    # The metadata, without the prefix with the architecture's name.
    values: dict[str, Any] = field(default_factory=dict)
    whole_values: dict[str, Any] = field(default_factory=dict)  # the metadata by their whole names
    # A noun phrase for each thing in the model that the file does not give.
    left_out: list[str] = field(default_factory=list)
    kept: tuple[str, ...] = ()  # the parts of the model that the file holds


def check_task(task: str | None) -> None:
    """Raises `ArgumentError` for a task that no GGUF file does."""
    if task is not None and task not in GGUF_TASKS:
        raise not_one_of("task", task, GGUF_TASKS)


def outputs_of(model: OpenedModel, architecture: GgufArchitecture, table: TensorTable, task: str | None) -> Outputs:
    """Decides what a file gives.

    Without a task, a file gives the scores of the model's classifier, if llama.cpp computes it, else vectors: a
    classifier exists because somebody trained it, also in the folder of an embedding model.
    """
    config, parts = model.checkpoint.config, model.checkpoint.parts
    layers = _classifier_layers(architecture, config) if CLASSIFIER in parts and task != "embed" else None
    if task == "classify" and layers is None:
        if CLASSIFIER not in parts:
            raise ArgumentError(f"`task` is {task!r}, but the model has no {HEADS[CLASSIFIER].title}")
        raise ConfigError(f"{model.folder.path}: llama.cpp does not compute the classification head of this model")
    found = _vectors(model, architecture, table) if layers is None else _scores(model, layers, table)
    found.left_out += model.other_vectors(dense=layers is None)
    for part in parts:
        if part not in found.kept:
            found.left_out.append(HEADS[part].title if part in HEADS else f"{part}, which only heads use")
    return found


def _classifier_layers(architecture: GgufArchitecture, config: EncoderConfig) -> dict[str, str] | None:
    """Maps names in the file to the classifier's layers; `None` if llama.cpp does not compute the classifier."""
    facts = config.heads.get(CLASSIFIER)
    if not architecture.classifier or not isinstance(facts, ClassifierFacts) or facts.late:
        return None
    labels = config.labels
    if labels is None or labels.head_pooling:
        return None
    if architecture.name == "qwen3" and labels.problem_type in (MULTI_LABEL, REGRESSION):
        return None  # llama.cpp would apply softmax to the scores
    transform, out = facts.transform, {"cls.output": f"{_PREFIX}out"}
    dense = {"cls": f"{_PREFIX}transform.dense"}
    if architecture.name == "qwen3":
        return out if transform is None and facts.pooling == "last_token" and not facts.bias else None
    if architecture.name == "modern-bert":
        suits = transform is not None and transform.activation in GELU and transform.norm and not transform.bias
        return dense | {"cls.norm": f"{_PREFIX}transform.norm"} | out if suits else None
    if transform is None and facts.pooling is None:
        return {"cls": _POOLER} | out
    if transform is None and facts.pooling == "cls":
        return out
    suits = transform is not None and transform.activation == "tanh" and not transform.norm
    return dense | out if suits and facts.pooling == "cls" else None


def _scores(model: OpenedModel, layers: Mapping[str, str], table: TensorTable) -> Outputs:
    config = model.checkpoint.config
    facts, labels = config.heads[CLASSIFIER], config.labels
    assert isinstance(facts, ClassifierFacts) and labels is not None
    found = Outputs(RANK, kept=(CLASSIFIER, *(["pooler"] if _POOLER in layers.values() else [])))
    found.values["classifier.output_labels"] = list(labels.names)
    if "cls.norm" in layers:
        found.values["classifier.pooling_type"] = POOLINGS[facts.pooling or "cls"]
    if facts.pooling == "last_token" and len(labels) == 1:
        found.values["classifier.output_labels"] = [*_ANSWERS]
        table.add_with_zeros("cls.output.weight", f"{_PREFIX}out.weight")
    else:
        for theirs, ours in layers.items():
            table.add_layer(theirs, ours)
    if has_decoder_classifier(model.checkpoint) and (prompt := read_prompt(model.folder)) is not None:
        text = f"{prompt.before} {{query}}{prompt.between} {{document}}{prompt.after}"
        found.whole_values = {f"{_TEMPLATE}s": ["rerank"], f"{_TEMPLATE}.rerank": text}
    if config.type_vocab_size > 1:
        found.left_out.append("the second segment: llama.cpp puts both texts of a pair into the first one")
    if facts.pooling != "last_token":
        found.left_out += _score_steps(labels)
    return found


def _score_steps(labels: Labels) -> list[str]:
    """Names what follows the logits; llama.cpp gives the logits, except for language models."""
    if labels.problem_type == REGRESSION:
        return []
    function = "sigmoid" if labels.problem_type == MULTI_LABEL or len(labels) == 1 else "softmax"
    steps = [f"the {function} of the scores: llama.cpp gives logits"]
    return [*steps, "the thresholds of the labels"] if labels.thresholds is not None else steps


def _vectors(model: OpenedModel, architecture: GgufArchitecture, table: TensorTable) -> Outputs:
    if isinstance(model.embedder, MlxbertError):
        raise model.embedder
    embedder, path = model.embedder, model.folder.path
    poolings = embedder.config.poolings
    if len(poolings) > 1 or poolings[0] not in POOLINGS:
        raise ConfigError(
            f"{path}: the pooling is {'+'.join(poolings)}, expected one of {', '.join(POOLINGS)} in a model for "
            "llama.cpp"
        )
    found = Outputs(POOLINGS[poolings[0]])
    later = [(number, layer) for number, layer in enumerate(embedder.layers) if not isinstance(layer, Normalize)]
    if architecture.name == "gemma-embedding" and _are_dense(embedder):
        for place, (number, layer) in enumerate(later, 2):
            out, width = layer.linear.weight.shape
            found.values |= {f"dense_{place}_feat_in": width, f"dense_{place}_feat_out": out}
            table.add_layer(f"dense_{place}", f"embedder.layers.{number}.linear")
    elif later:
        kinds = ", ".join(type(layer).__name__ for _, layer in later)
        found.left_out.append(f"the layers after the pooling ({kinds}), so the vectors are those before these layers")
    found.left_out += _settings_left_out(embedder, model.tokenizer)
    return found


def _are_dense(embedder: Embedder) -> bool:
    """Whether the layers after the pooling are the two that llama.cpp computes for EmbeddingGemma."""
    dense = [layer for layer in embedder.layers if isinstance(layer, Dense)]
    plain = all(
        layer.activation == "linear" and "bias" not in layer.linear and not layer.has_residual for layer in dense
    )
    others = [layer for layer in embedder.layers if not isinstance(layer, Dense)]
    return len(dense) == 2 and plain and all(isinstance(layer, Normalize) for layer in others)


def _settings_left_out(embedder: Embedder, tokenizer: Tokenizer) -> list[str]:
    config = embedder.config
    notes = []
    if config.max_length is not None and config.max_length < tokenizer.max_length:
        notes.append(f"the maximum length of {config.max_length} tokens")
    if texts := [name for name, prompt in config.prompts.items() if prompt]:
        notes.append(f"the prompts ({', '.join(texts)}), which you put before your texts")
    if not config.include_prompt:
        notes.append("the exclusion of a prompt from the pooling")
    if config.dimensions is not None:
        notes.append(f"the cut of vectors to their first {config.dimensions} values")
    return notes


def experts_bias_left_out(model: OpenedModel) -> list[str]:
    """Returns a note if the experts have a bias that is not zero, which llama.cpp does not add."""
    experts = model.checkpoint.config.experts
    if experts is None:
        return []
    arrays = model.tensors()
    names = [f"encoder.layers.{layer}.feed_forward.bias" for layer in experts.layers]
    held = [name for name in names if name in arrays and mx.any(arrays[name].array != 0).item()]
    return [f"the bias of the experts in {len(held)} layers, so vectors differ"] if held else []
