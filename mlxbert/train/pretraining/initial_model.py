"""The model that pre-training starts from, a checkpoint or a new model; and the teacher of a student."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxbert.durable_files import from_json
from mlxbert.errors import ArgumentError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.labels.labels import Labels
from mlxbert.loading import new_model
from mlxbert.model import Model
from mlxbert.progress import OnProgress
from mlxbert.readers.parsing import json_type
from mlxbert.train.base_model import BaseModel
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.pretraining.loss_terms import Teacher
from mlxbert.weights.build import parameters
from mlxbert.weights.families.registry import read_architecture
from mlxbert.weights.find_model import find_model
from mlxbert.weights.model_folder import ModelFolder, open_folder
from mlxbert.weights.model_source import ModelRef, find_folder
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer

# Layers and width, as in Google's smaller BERTs (arXiv:1908.08962); a head is 64 wide.
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
EVERY_OTHER: Sequence[int] = range(0)  # placeholder for layers whose numbers are known once the model is found
_ELECTRA_SMALL = (12, 256)  # ELECTRA-Small (arXiv:2003.10555)
_HEAD = 64
_POSITIONS = 512
_PAIR_FAMILIES = {"sentence_order": "albert", "discriminator": "electra"}


@dataclass(frozen=True, kw_only=True)
class InitialModel(BaseModel):
    """The model that pre-training starts from.

    For a new model, `ref` names a size or a configuration file, and `files` is the folder that holds its vocabulary.
    """

    config: dict[str, Any] | None  # the configuration of a new model; `None` for a model that is loaded from the folder
    layers: tuple[int, ...] | None = None  # the numbers of the layers to keep, in this order; `None` to keep all

    def model(self, heads: Sequence[str], seed: int) -> Model:
        """Loads or creates the model in float32, with the heads that have these names."""
        if self.config is None:
            model = self.load(heads=heads, seed=seed)
            return model if self.layers is None else with_layers(model, self.layers, self.ref.device)
        return new_model(
            self.config, self.folder, heads=dict.fromkeys(heads), dtype="float32", device=self.ref.device, seed=seed
        )

    def warn_unless_it_fits(self, options: TrainingOptions) -> None:
        """See `BaseModel.warn_unless_it_fits`; never warns about a new model, for which there is no estimate."""
        if self.config is None:
            super().warn_unless_it_fits(options)

    def manifest(self) -> dict[str, Any]:
        """Returns the facts that determine the weights and the vocabulary of the model."""
        if self.config is None:
            return {"model": hash_model(self.files), "layers": self.layers and list(self.layers)}
        return {"config": self.config, "vocabulary": read_tokenizer(self.files).tokenizer.to_str()}


def with_layers(model: Model, layers: Sequence[int], device: str = "auto") -> Model:
    """Returns a model that has only some layers of `model` (numbered from 0), but all its embeddings and heads."""
    values, count = dict(model.architecture.config_json.values), model.config.num_stored_layers
    key = next((key for key in ("num_hidden_layers", "n_layers", "n_layer") if key in values), "num_hidden_layers")
    if model.config.layer_schedule != tuple(range(count)):
        raise ArgumentError(f"{model.source}: the layers share their weights, so no layer can be left out")
    if "global_attn_every_n_layers" in values:
        raise ArgumentError(f"{model.source}: the layers differ in their attention, so no layer can be left out")
    if not layers or [*layers] != sorted({*layers}) or not 0 <= layers[0] <= layers[-1] < count:
        raise ArgumentError(f"`layers` are {[*layers]!r:.60}, expected increasing numbers from 0 to {count - 1}")
    heads: dict[str, Labels | None] = dict.fromkeys(model.network.heads)
    student = new_model(values | {key: len(layers)}, model.files.path, heads=heads, dtype="float32", device=device)
    # The family may be known only from the names of the tensors.
    if student.architecture.family is not model.architecture.family:
        raise ArgumentError(
            f"{model.source}: config.json does not say which layers the model has, expected _name_or_path"
        )
    prefixes = {f"encoder.layers.{new}.": f"encoder.layers.{old}." for new, old in enumerate(layers)}
    weights = parameters(model.network)
    sources = {
        name: next((name.replace(new, old, 1) for new, old in prefixes.items() if name.startswith(new)), name)
        for name in parameters(student.network)
    }
    # Without heads a new model has a pooler, and a loaded one may have none.
    student.network.load_weights([(new, weights[old]) for new, old in sources.items() if old in weights], strict=False)
    return replace(student, _embedders=model._embedders)  # the pooling of vectors stays the same


def find_initial(
    ref: ModelRef,
    config: str | Path | None,
    vocabulary: str | Path | None,
    layers: str | Sequence[int] | None,
    heads: Sequence[str],
    on_progress: OnProgress | None = None,
) -> InitialModel:
    """Finds the model whose training is continued or, if `config` is not `None`, describes a new model.

    A new model takes its vocabulary from `vocabulary`; the source of `ref` is then not used. `config` is one of `SIZES`
    or a file like a `config.json`. `layers` is a list of numbers, a text such as `0,2,4`, or `EVERY_OTHER`.
    """
    if config is None:
        if vocabulary is not None:
            raise ArgumentError(
                "`vocabulary` works only with `config`, because a trained model has its own vocabulary",
                hint=f"for a new model, add `config=` ({', '.join(SIZES)}, or a file)",
            )
        files = find_model(ref, on_progress)
        chosen = None if layers is None else _read_layers(layers, files)
        return InitialModel(ref=ref, files=files, config=None, layers=chosen)
    if ref.adapter is not None:
        raise ArgumentError(
            "`adapter` and `config` cannot be combined, because `config` makes a new model while an adapter needs a "
            "trained model"
        )
    if layers is not None:
        raise ArgumentError("`layers` and `config` cannot be combined, because layers are taken from a trained model")
    if vocabulary is None:
        raise ArgumentError(
            "`config` is given without `vocabulary`", hint="`mlxbert.vocabulary(CORPUS, output=DIR)` makes a vocabulary"
        )
    files = open_folder(find_folder(replace(ref, source=vocabulary), on_progress))
    described = _configuration(str(config), files, heads)
    return InitialModel(ref=replace(ref, source=str(config)), files=files, config=described)


def _read_layers(layers: str | Sequence[int], files: ModelFolder) -> tuple[int, ...]:
    """Reads layer numbers from a list, a text such as `0,2,4`, or `EVERY_OTHER`."""
    if layers is EVERY_OTHER:
        return tuple(range(0, read_architecture(files.config_json).config.num_stored_layers, 2))
    try:
        return tuple(int(layer) for layer in (layers.split(",") if isinstance(layers, str) else layers))
    except (TypeError, ValueError):
        raise ArgumentError(f"`layers` is {layers!r:.60}, expected numbers, such as 0,2,4") from None


def _configuration(config: str, files: ModelFolder, heads: Sequence[str]) -> dict[str, Any]:
    tokenizer = read_tokenizer(files)
    size: int = tokenizer.tokenizer.get_vocab_size()
    if config not in SIZES:
        return {"vocab_size": size, **_read(Path(config))}
    path = files.path / "config.json"
    stated = _read(path).get("model_type") if path.is_file() else None
    family = next((_PAIR_FAMILIES[head] for head in heads if head in _PAIR_FAMILIES), stated or "bert")
    electra = family == "electra"
    layers, width = _ELECTRA_SMALL if electra and config == "small" else SIZES[config]
    pad = tokenizer.tokenizer.token_to_id(tokenizer.special.get("pad", "")) or 0
    after_padding = family in ("roberta", "xlm-roberta", "camembert")  # positions start after the id of padding
    values = {
        "model_type": family, "vocab_size": size, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": width // _HEAD, "intermediate_size": 4 * width, "hidden_act": "gelu",
        "max_position_embeddings": _POSITIONS + (pad + 1 if after_padding else 0),
        "type_vocab_size": 1 if after_padding else 2, "pad_token_id": pad, "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,
    }  # fmt: skip
    if family == "albert" or electra:
        values["embedding_size"] = width if electra and config == "base" else min(width, 128)
    return values


def _read(path: Path) -> dict[str, Any]:
    try:
        values = from_json(path.read_text(encoding="utf-8-sig"))
    except OSError:
        raise ArgumentError(
            f"`config` is {str(path)!r:.60}, expected {', '.join(SIZES)}, or a file in the format of config.json"
        ) from None
    except ValueError as problem:
        raise ArgumentError(f"{path}: is not JSON ({problem})") from None
    if not isinstance(values, dict):
        raise ArgumentError(f"{path}: is {json_type(values)}, expected an object as in config.json")
    return values


def find_teacher(
    teacher: str | Path | None, base: InitialModel, terms: Sequence[str], on_progress: OnProgress | None = None
) -> BaseModel | None:
    """Finds the teacher if a loss term needs one; by default it is the model that training starts from."""
    if not terms:
        if teacher is not None:
            raise ArgumentError(
                "`teacher` is given, but no loss of the objective uses a teacher",
                hint="use an objective such as mlm,soft",
            )
        return None
    if teacher is None and base.config is not None:
        raise ArgumentError(f"the loss {terms[0]} needs a teacher, but no teacher is given")
    if teacher is None or (str(teacher) == base.name and base.files.adapter is None and base.files.own_adapter is None):
        return base
    ref = replace(base.ref, source=teacher, adapter=None, revision=None)
    return BaseModel(ref=ref, files=find_model(ref, on_progress))


def load_teacher(source: BaseModel, terms: Sequence[str], student: Model) -> Teacher:
    """Loads the teacher; raises an error if the loss terms or the student cannot use it."""
    heads = ["masked_lm"] if "soft" in terms else []
    if heads and "masked_lm" not in source.checkpoint.parts:
        raise ArgumentError(
            f"{source.name}: the teacher has no masked-LM head, which the loss soft needs",
            hint="`objective='vectors'` learns the vectors of a teacher without this head",
        )
    model = source.load(heads=heads)
    if model.tokenizer.files.tokenizer.to_str() != student.tokenizer.files.tokenizer.to_str():
        raise ArgumentError(
            f"{source.name}: the vocabulary of the teacher differs from the vocabulary of the student",
            hint="start the student from the teacher's layers, or give the student the teacher's vocabulary",
        )
    if model.config.max_length < student.config.max_length or model.config.vocab_size != student.config.vocab_size:
        raise ArgumentError(
            f"{source.name}: the teacher takes {model.config.max_length} tokens with a vocabulary of "
            f"{model.config.vocab_size:,}, but the student takes {student.config.max_length} tokens with a vocabulary "
            f"of {student.config.vocab_size:,}",
            hint="start the student from layers of the teacher",
        )
    ours, theirs = student.config.hidden_size, model.config.hidden_size
    if ours != theirs and (names := [term for term in terms if term != "soft"]):
        raise ArgumentError(
            f"{source.name}: the loss {names[0]} compares states of the same width, but the teacher has the width "
            f"{theirs:,} and the student {ours:,}",
            hint="use the objective mlm,soft, which works with any width",
        )
    embedder = model.embedder if "vectors" in terms else None
    model.network.eval()
    return Teacher(model.network, embedder)
