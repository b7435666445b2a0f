"""Reads the files next to a checkpoint in which sentence-transformers states how the model computes vectors.

Two dialects are supported: the dialect of version 6 (`pooling_mode`, `sentence_transformers.base.modules.…`) and the
older one (`pooling_mode_mean_tokens`, `sentence_transformers.models.…`). `mlxbert.weights.model_folder` reads
`modules.json`.
"""

import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mlxbert.errors import ArgumentError, CheckpointError, ConfigError
from mlxbert.machine.device import mx, nn
from mlxbert.nn import activations
from mlxbert.nn.embedder import Dense, Embedder, EmbeddingConfig, Normalize
from mlxbert.nn.vector_settings import SIMILARITIES, VectorSettings
from mlxbert.weights.adapters.task_adapters import own_adapters
from mlxbert.weights.families.config_reader import pooling as default_pooling
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats.config_json import ConfigJson, read_json
from mlxbert.weights.formats.headers import Header, expect_floats
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.hub.needed_files import CONFIG, MODULES
from mlxbert.weights.model_folder import SETTINGS, ModelFolder, open_folder, read_settings
from mlxbert.weights.module_layouts import Module, unknown_modules

# Our poolings by the names of sentence-transformers, in the order in which the older dialect concatenates several.
POOLINGS = {
    "cls": ("cls", "pooling_mode_cls_token"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "mean_sqrt_len_tokens": ("mean_sqrt_len", "pooling_mode_mean_sqrt_len_tokens"),
    "weightedmean": ("weighted_mean", "pooling_mode_weightedmean_tokens"),
    "lasttoken": ("last_token", "pooling_mode_lasttoken"),
}
ACTIVATIONS = {
    "Tanh": "tanh", "Identity": "linear", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid",
}  # fmt: skip
SENTENCE, TOKENS = "sentence_embedding", "token_embeddings"
_LAYER_NORM_EPS = 1e-5  # the default of torch.nn.LayerNorm
_Settings = TypeVar("_Settings", bound=VectorSettings)
_Shapes = Mapping[str, tuple[int, ...]]
_Read = Callable[[Path, _Shapes], dict[str, mx.array]]  # (folder of a module, expected shapes) → its tensors


def makes_dense(folder: ModelFolder) -> bool:
    """Whether the files of a folder say that its model makes dense vectors."""
    if folder.has_modules:
        return folder.layout == "dense"
    model_type = folder.described.get("model_type")
    return bool(model_type) and family_of(folder.described)[1].embeds_in_code


def read_embedder(folder: Path | ModelFolder, width: int, *, with_weights: bool = True) -> Embedder:
    """Reads how a model computes dense vectors. If its files do not state the pooling, its family decides.

    Args:
        with_weights: Whether to read the weights of modules. Otherwise they are zeros, and only their headers
            are read.
    """
    folder = open_folder(folder)
    modules = folder.modules
    family = family_of(folder.described)[1] if folder.described.get("model_type") else None
    pooling = (default_pooling if family is None else family.pooling)(folder.described)
    in_code = family is not None and family.embeds_in_code and len(modules) < 2
    config = EmbeddingConfig(poolings=(pooling,), stated=bool(modules) or in_code)
    if in_code:
        _check_adapter(folder)
    elif modules and folder.layout != "dense":
        raise unknown_modules(folder.path / MODULES, [module.kind for module in modules])
    elif modules and not folder.is_static:
        config = _with_pooling(_with_transformer(config, folder.transformer_settings), modules[1], width)
    truncated = folder.settings.values.get("truncate_dim")
    config = replace(config, dimensions=None if truncated is None else folder.settings.integer("truncate_dim"))
    config = with_prompts(config, folder, "SentenceTransformer")
    try:
        layers = read_layers(folder, modules[2:], SENTENCE, with_weights=with_weights)
        return Embedder(config, width, [Normalize()] if in_code else layers)
    except ArgumentError as problem:
        reason = problem.message.replace("`", "")  # the names are not of arguments, but of values in a file
        raise ConfigError(f"{folder.path / (MODULES if modules else SETTINGS)}: {reason}") from None


def read_layers(
    folder: ModelFolder, modules: Iterable[Module], unit: str, *, with_weights: bool = True
) -> list[nn.Module]:
    """Reads the layers after the pooling, or after the transformer of a model that makes token vectors.

    Args:
        modules: The entries of `modules.json`.
        unit: What the layers compute: `SENTENCE` or `TOKENS`.
    """

    def read(module: Path, expected: _Shapes) -> dict[str, mx.array]:
        return module_weights(module, expected, folder.headers, with_weights=with_weights)

    return [_READERS[module.kind](module.folder, read, unit) for module in modules]


def _check_adapter(folder: ModelFolder) -> None:
    """Raises `ConfigError` if no adapter is chosen for a model whose vectors need one of its own adapters."""
    if folder.own_adapter is None and folder.adapter is None:
        first, *rest = own_adapters(folder.config_json) or ("none",)
        raise ConfigError(
            f"{folder.path}: no adapter is chosen, but embedding needs one of {', '.join((first, *rest))}",
            hint=f"choose an adapter of the model, for example `adapter={first!r}`",
        )


def _with_transformer(config: EmbeddingConfig, settings: ConfigJson) -> EmbeddingConfig:
    settings.only("module_output_name", TOKENS, f"mlxbert reads {TOKENS!r} only")
    settings.only("transformer_task", "feature-extraction", "mlxbert reads 'feature-extraction' only")
    settings.only("query_expansion", None, "mlxbert does not expand queries")
    match settings.values.get("modality_config"):
        case None | {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}:
            pass
        case other:
            raise ConfigError(
                f"{settings.path}: modality_config is {other!r:.120}, expected only the modality text with the output "
                "last_hidden_state"
            )
    return with_limits(config, settings)


def with_limits(config: _Settings, settings: ConfigJson) -> _Settings:
    """Returns settings with the maximum length and the lowercasing that the Transformer module states."""
    limit = settings.values.get("max_seq_length")
    return replace(
        config,
        max_length=None if limit is None else settings.integer("max_seq_length"),
        lower_case=settings.flag("do_lower_case", default=False),
    )


def stated_length(folder: ModelFolder) -> int | None:
    """Returns the maximum length that the Transformer module states, if there is a `modules.json`."""
    return with_limits(VectorSettings(), folder.transformer_settings).max_length if folder.has_modules else None


def _with_pooling(config: EmbeddingConfig, module: Module, width: int) -> EmbeddingConfig:
    path = module.folder / CONFIG
    settings = ConfigJson(path, read_json(path, ConfigError))
    for key in ("embedding_dimension", "word_embedding_dimension"):
        settings.only(key, width, f"the encoder gives {width} values per token")
    if "pooling_mode" in settings.values:
        raw = settings.values["pooling_mode"]
        modes = raw if isinstance(raw, list) else [raw]
        valid = 0 < len(modes) <= len(POOLINGS) and all(mode in list(POOLINGS) for mode in modes)
        if not valid or len({*modes}) < len(modes):
            expected = f"one or more of {', '.join(POOLINGS)} without duplicates"
            raise ConfigError(f"{path}: pooling_mode is {reprlib.repr(raw)}, expected {expected}")
        poolings = tuple(POOLINGS[mode][0] for mode in modes)
    else:
        flags = {flag: name for name, flag in POOLINGS.values()}
        for key, value in settings.values.items():
            if key.startswith("pooling_mode_") and key not in flags and value:
                raise ConfigError(f"{path}: {key} is {value!r}, but mlxbert reads only {', '.join(flags)}")
        poolings = tuple(name for flag, name in flags.items() if settings.flag(flag, default=False)) or ("mean",)
    return replace(config, poolings=poolings, include_prompt=settings.flag("include_prompt", default=True))


def with_prompts(config: _Settings, folder: ModelFolder, model_type: str) -> _Settings:
    """Returns settings with the prompts and the similarity of `config_sentence_transformers.json`.

    Args:
        model_type: The only valid `model_type` in that file.
    """
    settings = folder.settings
    settings.only("model_type", model_type, f"expected {model_type!r}, because of the modules")
    raw = settings.values.get("prompts")
    raw = folder.described.get("task_instructions", {}) if raw is None else raw
    if not isinstance(raw, Mapping) or not all(isinstance(text, str | None) for text in raw.values()):
        raise ConfigError(f"{settings.path}: prompts is {raw!r:.80}, expected an object whose values are strings")
    prompts = {name: text or "" for name, text in raw.items()}
    task = folder.own_adapter if folder.own_adapter in prompts else None
    default = settings.values.get("default_prompt_name", task) or task
    if default is not None and default not in list(prompts):  # a list: the value may not be hashable
        raise ConfigError(f"{settings.path}: default_prompt_name is {default!r}, expected one of {', '.join(prompts)}")
    similarity = settings.choice("similarity_fn_name", SIMILARITIES, default=config.similarity)
    return replace(config, prompts=prompts, default_prompt_name=default, similarity=similarity)


def module_weights(
    folder: Path, expected: _Shapes, headers: Mapping[Path, Header], *, with_weights: bool = True
) -> dict[str, mx.array]:
    """Checks the names and shapes of a module's tensors; returns them in float32, or zeros if not `with_weights`."""
    try:
        weights = open_weights(folder, elsewhere=headers)
    except CheckpointError as problem:
        raise CheckpointError(f"{problem.message}, which {MODULES} requires", hint=problem.hint) from None
    expect_floats(weights.tensors)
    shapes = {name: info.shape for name, info in weights.tensors.items()}
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            actual = f"has shape {shapes[name]}" if name in shapes else "is missing"
            wanted = f"shape {expected[name]}" if name in expected else "no such tensor"
            raise CheckpointError(f"{folder}: tensor {name!r} {actual}, expected {wanted}")
    if not with_weights:
        return {name: mx.zeros(shape) for name, shape in expected.items()}
    arrays = {name: array.astype(mx.float32) for name, array in weights.arrays().items()}
    mx.eval(arrays)  # now: the file may change later
    return arrays


def set_weights(layer: nn.Module, arrays: Mapping[str, mx.array]) -> nn.Module:
    """Sets the weights of a layer, and returns the layer."""
    layer.update(nn.utils.tree_unflatten(list(arrays.items())))
    layer.eval()
    return layer


def _read_dense(folder: Path, read: _Read, unit: str) -> nn.Module:
    path = folder / CONFIG
    config = ConfigJson(path, read_json(path, ConfigError))
    config.only("module_input_name", unit, f"mlxbert reads {unit!r} only")
    config.only("module_output_name", unit, f"mlxbert writes {unit!r} only")
    width, out = config.integer("in_features"), config.integer("out_features")
    bias, residual = config.flag("bias", default=True), config.flag("use_residual", default=False)
    function = config.string("activation_function", default="torch.nn.modules.activation.Tanh")
    name = function.rpartition(".")[2]
    if not function.startswith("torch.") or name not in ACTIVATIONS:
        choices = ", ".join(f"torch's {name}" for name in ACTIVATIONS)
        raise ConfigError(f"{path}: activation_function is {function!r}, expected one of {choices}")
    assert ACTIVATIONS[name] in activations.ACTIVATIONS
    expected: dict[str, tuple[int, ...]] = {"linear.weight": (out, width)}
    expected |= {"linear.bias": (out,)} if bias else {}
    expected |= {"residual.weight": (out, width)} if residual and width != out else {}
    layer = Dense(width, out, bias=bias, activation=ACTIVATIONS[name], residual=residual)
    return set_weights(layer, read(folder, expected))


def _read_layer_norm(folder: Path, read: _Read, unit: str) -> nn.Module:
    path = folder / CONFIG
    width = ConfigJson(path, read_json(path, ConfigError)).integer("dimension")
    arrays = read(folder, {"norm.weight": (width,), "norm.bias": (width,)})
    layer = nn.LayerNorm(width, eps=_LAYER_NORM_EPS)
    return set_weights(layer, {name.removeprefix("norm."): array for name, array in arrays.items()})


def _read_normalize(folder: Path, read: _Read, unit: str) -> nn.Module:
    config = read_settings(folder / CONFIG)
    config.only("module_input_name", unit, f"mlxbert reads {unit!r} only")
    config.only("module_output_name", unit, f"mlxbert writes {unit!r} only")
    return Normalize()


_READERS: dict[str, Callable[[Path, _Read, str], nn.Module]] = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
}
