"""The description of a model family, and errors for models whose family is unknown."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.errors import ConfigError
from mlxbert.frozen_dict import FrozenDict
from mlxbert.nn.heads import HEADS
from mlxbert.weights.families import config_reader
from mlxbert.weights.families.keymap import Table
from mlxbert.weights.formats.config_json import ConfigJson


@dataclass(frozen=True)
class Family:
    """The data and functions for reading and writing the checkpoints of a family."""

    title: str  # the name of the family that users see
    published: tuple[str, ...]  # models of this family on the hub, for the table in the documentation
    class_prefixes: Mapping[str, str]  # the prefix of the family's class names in transformers, by `model_type`
    # Reads the facts of the encoder from a `config.json`, and the facts of heads that differ from `HeadSpec.facts`.
    facts: Callable[[ConfigJson], EncoderConfig]
    # Prefixes that the names of the encoder's tensors have only in files that also hold a head. All of them are
    # recognized in files; the first one is written.
    prefixes: tuple[str, ...]
    encoder: Table  # the tensors that every checkpoint of the family has
    # The tensors of the optional parts: the pooler and the heads. A checkpoint has a part if it has a tensor that no
    # other part has, or if `architectures` names the class of the part (`HeadSpec.class_names`).
    parts: Mapping[str, Table]
    # Irregular class names, by the regular name (prefix + suffix).
    class_names: Mapping[str, str] = field(default_factory=dict)
    # Returns whether a `config.json` belongs to this family, where `model_type` does not say it (see `registry`). The
    # second argument holds the names of the tensors; it is empty if they are unknown.
    recognizes: Callable[[ConfigJson, Collection[str]], bool] = lambda config, tensors: False
    # Maps regular expressions for old spellings in names to the current spellings; only for reading.
    old_spellings: Mapping[str, str] = field(default_factory=dict)
    # Patterns (for full names without prefix) of tensors that are never written: position ids, which are not learned,
    # and adapters, which are merged or left out.
    buffers: tuple[str, ...] = ()
    # Patterns of tensors that the network does not use, such as the heads of other tasks. `inspect` lists these tensors
    # and the buffers.
    ignored: tuple[str, ...] = ()
    code: str = ""  # the name of the configuration class in the authors' code, for files that are recognized by it
    # The prefix of class names in the authors' code, for `foreign` models; empty if these models use `class_prefixes`,
    # too.
    authors_prefix: str = ""
    # Maps each copy of a tied tensor to the original, which it must equal (both are names without prefix).
    tied: Mapping[str, str] = field(default_factory=dict)
    # Returns the pooling of a model whose files do not state it.
    pooling: Callable[[ConfigJson], str] = config_reader.pooling
    # Whether a model whose `modules.json` names only the authors' code uses `pooling` and scales its vectors to length
    # 1. Each text then needs one of the checkpoint's own adapters.
    embeds_in_code: bool = False
    wide_range: bool = False  # whether hidden states exceed the range of float16
    pooled: bool = True  # whether the class without a head has the pooler, if the family has a pooler at all
    # Returns whether transformers needs remote code for a model, or takes it for a model of another family.
    foreign: Callable[[ConfigJson, EncoderConfig], bool] = lambda config, facts: False
    # Maps patterns of stems on disk to the names of their modules in memory, if these differ. There are several names
    # if a matrix is fused on disk only. PEFT uses the names in memory.
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Returns the name that transformers uses for a tensor, given the plain name with the first prefix. The result may
    # depend on the configuration.
    exported: Callable[[ConfigJson, str], str] = lambda config, name: name
    # Returns the keys of `config.json` that must be rewritten for transformers because the file is in another dialect.
    # The value `None` means that a key is omitted.
    config_overrides: Callable[[ConfigJson, EncoderConfig], dict[str, Any]] = lambda config, facts: {}

    def read_config(self, config: ConfigJson) -> EncoderConfig:
        """Reads the facts of a model: of its encoder, of all heads that the family has, and its labels."""
        encoder_facts = self.facts(config)
        heads = {part: encoder_facts.heads.get(part, HEADS[part].facts) for part in self.parts if part in HEADS}
        labels = config_reader.usable_labels(config)
        return replace(encoder_facts, wide_range=self.wide_range, heads=FrozenDict(heads), labels=labels)

    def table(self, parts: Iterable[str]) -> Table:
        """Returns the table of the tensors of the encoder and of these parts; skips parts that the family lacks."""
        return self.encoder + tuple(entry for part in parts for entry in self.parts.get(part, ()))

    def colliding(self, parts: Iterable[str]) -> tuple[str, str] | None:
        """Returns the first two parts that use the same tensor name, so that no file can hold both."""
        users: dict[str, str] = {}
        for part in parts:
            for name in {name for entry in self.parts.get(part, ()) for name in entry.theirs}:
                other = users.setdefault(name, part)
                if other != part:
                    return other, part
        return None


# Models that look like a known family, but compute something else: running them would give wrong numbers.
_LOOK_ALIKES = {
    "ernie": "a BERT with task ids",
    "ernie_m": "a BERT with other position ids",
    "megatron-bert": "a pre-norm BERT",
    "roberta-prelayernorm": "a pre-norm RoBERTa",
    "xlm-roberta-xl": "a pre-norm XLM-RoBERTa",
    "nezha": "a BERT with relative positions",
    "roformer": "a BERT with another kind of rotary positions",
    "deberta": "version 1, whose attention differs from versions 2 and 3",
    "convbert": "an ELECTRA with convolutions in its attention",
    "rembert": "a BERT with other embeddings for input and output",
    "mobilebert": "a BERT with bottlenecks",
    "squeezebert": "a BERT with grouped convolutions",
    "ibert": "an integer-only RoBERTa",
}


def no_family(config: ConfigJson, known: tuple[str, ...]) -> ConfigError:
    """Returns the error for a `config.json` that does not name its family."""
    return config.refuse(
        "model_type",
        "the name of a family",
        hint='if the model is a BERT, add "model_type": "bert"; families: ' + ", ".join(known),
    )


def unknown_family(config: ConfigJson, name: str, known: tuple[str, ...]) -> ConfigError:
    """Returns the error for a `model_type` that mlxbert does not run."""
    alike = f" ({_LOOK_ALIKES[name]})" if name in _LOOK_ALIKES else ""
    return ConfigError(
        f"{config.path}: model_type is {name!r}{alike}, a family that mlxbert does not run",
        hint=f"mlxbert runs {', '.join(known)}",
    )
