"""The description of a model family, and errors for models without a known family."""

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
    """The data and functions for reading and writing checkpoints of a family.

    Attributes:
        title: The name of the family for users.
        published: Models of this family on the hub, for the table in the documentation.
        class_prefixes: The prefix of the family's class names in transformers, by `model_type`.
        class_names: Irregular class names, by the regular name (prefix + suffix).
        recognizes: Whether a `config.json` belongs to this family, for families that share a `model_type`. The second
            argument holds the names of the tensors; it is empty if they are unknown.
        facts: Reads the facts of the encoder from a `config.json`, and those of heads that are not `HeadSpec.facts`.
        prefixes: Prefixes of the encoder's tensors in files that also hold a head, and only there. All are read, the
            first is written.
        encoder: The tensors that every checkpoint of the family has.
        parts: The tensors of the optional parts: the pooler, and heads. A checkpoint has a part if it has a tensor that
            no other part has, or if `architectures` names its class (`HeadSpec.class_names`).
        old_spellings: Patterns (regular expressions) in old names and their current spelling; used for reading only.
        buffers: Patterns (full names without prefix) of tensors that are never written: position ids, which are not
            learned, and adapters, which are merged or left out.
        code: The configuration class in the authors' code, which identifies files without `model_type`.
        ignored: Patterns of tensors that the network does not use: heads of other tasks. `inspect` lists both.
        tied: Copies, and the tensor that each must equal (names without prefix).
        authors_prefix: The prefix of class names in the authors' code, if `foreign` models have a prefix of their own.
        exported: Returns the name of a written tensor in transformers, which may depend on the configuration, from its
            plain name with the first prefix.
        pooling: Returns the pooling of a model whose files do not state it.
        embeds_in_code: Whether the authors' code uses this pooling and scales vectors to length 1 if `modules.json`
            names only that code; each text then needs one of the model's own adapters.
        wide_range: Whether hidden states exceed the range of float16.
        pooled: Whether the class without a head has the pooler, if the family has a pooler at all.
        modules: Patterns of stems on disk, and the names of these modules in memory if they differ: several for a
            matrix that is fused on disk only. PEFT uses the names in memory.
        foreign: Whether transformers needs remote code for a model, or mistakes it for a model of another family.
        config_overrides: Returns the keys of `config.json` that are rewritten for transformers if the file is in
            another dialect; `None` for a key that is omitted.
    """

    title: str
    published: tuple[str, ...]
    class_prefixes: Mapping[str, str]
    facts: Callable[[ConfigJson], EncoderConfig]
    prefixes: tuple[str, ...]
    encoder: Table
    parts: Mapping[str, Table]
    class_names: Mapping[str, str] = field(default_factory=dict)
    recognizes: Callable[[ConfigJson, Collection[str]], bool] = lambda config, tensors: False
    old_spellings: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    code: str = ""
    authors_prefix: str = ""
    tied: Mapping[str, str] = field(default_factory=dict)
    pooling: Callable[[ConfigJson], str] = config_reader.pooling
    embeds_in_code: bool = False
    wide_range: bool = False
    pooled: bool = True
    foreign: Callable[[ConfigJson, EncoderConfig], bool] = lambda config, facts: False
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exported: Callable[[ConfigJson, str], str] = lambda config, name: name
    config_overrides: Callable[[ConfigJson, EncoderConfig], dict[str, Any]] = lambda config, facts: {}

    def read_config(self, config: ConfigJson) -> EncoderConfig:
        """Reads the facts of a model: of its encoder and of all heads of the family, and the labels."""
        encoder_facts = self.facts(config)
        heads = {part: encoder_facts.heads.get(part, HEADS[part].facts) for part in self.parts if part in HEADS}
        labels = config_reader.usable_labels(config)
        return replace(encoder_facts, wide_range=self.wide_range, heads=FrozenDict(heads), labels=labels)

    def table(self, parts: Iterable[str]) -> Table:
        """Returns the names of the tensors of the encoder and of these parts; unknown parts are skipped."""
        return self.encoder + tuple(entry for part in parts for entry in self.parts.get(part, ()))

    def colliding(self, parts: Iterable[str]) -> tuple[str, str] | None:
        """Returns the first two parts that files cannot hold together, because they share the name of a tensor."""
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
