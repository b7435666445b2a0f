"""What a model family is."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.errors import ConfigError
from mlxbert.frozen import FrozenDict
from mlxbert.nn.heads import HEADS
from mlxbert.weights.families import config_reader
from mlxbert.weights.families.keymap import Table
from mlxbert.weights.formats.config_json import ConfigJson


@dataclass(frozen=True)
class Family:
    """What is needed to read and write the checkpoints of a family.

    Attributes:
        title: What users call it.
        published: Models on the hub that are of this family, for the table in the documentation.
        class_prefixes: The prefix of its class names in transformers, by `model_type`.
        class_names: The names of its classes that differ from a prefix and the usual suffix, by these.
        recognizes: Where another family has its `model_type`, too: whether a `config.json` is one of its own, by the
            names of the tensors as well, which are empty where they are not known.
        facts: Reads the facts of the encoder from a `config.json`, and those of heads that are not `HeadSpec.facts`.
        prefixes: Prefixes of the encoder's tensors in files that also hold a head, and only there. All are read, the
            first is written.
        encoder: The tensors that every checkpoint of the family has.
        parts: The tensors of the optional parts: the pooler, and heads. A checkpoint has a part if it has a tensor that
            no other part has, or if `architectures` names its class (`HeadSpec.class_names`).
        old_spellings: Patterns (regular expressions) in old names and their current spelling; read only.
        buffers: Patterns (full names without prefix) of tensors that are never written: position ids, which are not
            learned, and adapters, which are merged or left out.
        code: The class of the configuration in its authors' code, by which files without `model_type` are known.
        ignored: Patterns of tensors that the network does not use: heads of other tasks. `inspect` lists both.
        tied: Copies that must equal the tensor they are tied to (their names without prefix).
        authors_prefix: The prefix of its class names in its authors' code, where `foreign` models have another one.
        exported: The name in transformers of a tensor that is written, by its plain name with the first prefix, where
            it depends on the configuration.
        pooling: The pooling of a model whose files do not say it.
        embeds_in_code: Whether its authors' code pools so, and scales vectors to length 1, where `modules.json` names
            that code alone; each text then needs one of the model's own adapters.
        wide_range: Whether hidden states grow beyond what float16 holds.
        pooled: Whether the class without a head has the pooler, if the family has one at all.
        modules: Patterns of stems on disk whose modules in transformers have other names in memory, and these names:
            several where a matrix is fused on disk alone. PEFT names adapters by them.
        foreign: Whether transformers needs remote code for a model, or mistakes it for one of another family.
        config_overrides: Keys of `config.json` that are written for transformers where the file is in another dialect;
            `None` for a key that is omitted.
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
        """The facts of a model: of its encoder, of all heads of the family, and the labels."""
        found = self.facts(config)
        heads = {part: found.heads.get(part, HEADS[part].facts) for part in self.parts if part in HEADS}
        labels = config_reader.usable_labels(config)
        return replace(found, wide_range=self.wide_range, heads=FrozenDict(heads), labels=labels)

    def table(self, parts: Iterable[str]) -> Table:
        """The names of the encoder and of these parts, of those that the family has."""
        return self.encoder + tuple(entry for part in parts for entry in self.parts.get(part, ()))

    def colliding(self, parts: Iterable[str]) -> tuple[str, str] | None:
        """The first two parts that files cannot hold together, because they name a tensor alike."""
        users: dict[str, str] = {}
        for part in parts:
            for name in {name for entry in self.parts.get(part, ()) for name in entry.theirs}:
                other = users.setdefault(name, part)
                if other != part:
                    return other, part
        return None


# Models that look like one of ours and are not: run as one, they would give wrong numbers.
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
    """The error for a `config.json` that does not name its family."""
    return config.refuse(
        "model_type",
        "the name of a family",
        hint='if the model is a BERT, add "model_type": "bert"; families: ' + ", ".join(known),
    )


def unknown_family(config: ConfigJson, name: str, known: tuple[str, ...]) -> ConfigError:
    """The error for a `model_type` that mlxbert does not run."""
    alike = f" ({_LOOK_ALIKES[name]})" if name in _LOOK_ALIKES else ""
    return ConfigError(
        f"{config.path}: model_type is {name!r}{alike}, a family mlxbert does not run",
        hint=f"families it runs: {', '.join(known)}",
    )
