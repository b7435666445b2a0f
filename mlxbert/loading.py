"""Loads a model from a folder or from the hub, or creates one with fresh weights from a configuration."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, cast

from mlxbert import memory_estimate
from mlxbert.config import EncoderConfig
from mlxbert.durable_files import from_json
from mlxbert.errors import ArgumentError, CheckpointError, MlxbertError
from mlxbert.labels.labels import Labels
from mlxbert.machine import device as devices
from mlxbert.machine.device import dtype_name, mx
from mlxbert.machine.device_errors import device_errors
from mlxbert.model import Model, check_parts, embedding_tokenizer
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.heads import HEADS, TASKS, Network, head_parts, missing_parts, task_parts
from mlxbert.nn.ops import backend
from mlxbert.other_libraries import not_one_of
from mlxbert.progress import OnProgress
from mlxbert.text.tokenizer import Tokenizer, load_tokenizer
from mlxbert.weights.build import build_network, first_problem, new_network, parameters, shapes, with_own_decoder
from mlxbert.weights.chat_template import read_prompt
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from mlxbert.weights.families.config_reader import generates
from mlxbert.weights.families.registry import read_architecture
from mlxbert.weights.find_model import find_model
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.hub.needed_files import TEMPLATE
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import BUILTIN, ModelRef, check_source, find_folder
from mlxbert.weights.rerankers import HEAD as CLASSIFIER
from mlxbert.weights.sentence_transformers import read_embedder
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from mlxbert.weights.vector_kinds import KINDS, TASKS as VECTOR_TASKS, needed_heads, read_embedders, stated_kinds

_LOG = logging.getLogger("mlxbert")
RERANK = "rerank"  # a task that a cross-encoder or a model for late interaction does
_BFLOAT16_ERROR = 0.02  # maximum difference after rounding to bfloat16, as a share of the largest number


def _stored_and_new(checkpoint: Checkpoint, heads: Sequence[str]) -> tuple[tuple[str, ...], dict[str, None]]:
    """Returns the heads that the checkpoint has, with the pooler if they need it, and the heads that it lacks."""
    stored = [head for head in heads if head in checkpoint.parts]
    parts = dict.fromkeys(part for head in stored for part in head_parts(head, checkpoint.config))
    return tuple(part for part in parts if part in checkpoint.parts), {
        head: None for head in heads if head not in stored
    }


def _check_all(checkpoint: Checkpoint) -> None:
    """Raises an error if the encoder, pooler or a head cannot be built; the hint names the tasks that still work."""
    problem = first_problem(checkpoint, checkpoint.parts)
    if problem is None:
        return
    tasks = [
        f"`task={task!r}`"
        for task in TASKS
        if not missing_parts(task, checkpoint.config, checkpoint.parts)
        and first_problem(checkpoint, task_parts(task, checkpoint.config)) is None
    ]
    usable = f"the model can be loaded for a single task, with {' or '.join(tasks)}" if tasks else None
    raise CheckpointError(problem.message, hint="; ".join(filter(None, (problem.hint, usable))) or None)


def load(
    source: str | Path | ModelRef = BUILTIN,
    *,
    adapter: str | Path | None = None,
    task: str | None = None,
    new_heads: Mapping[str, Labels | None] | None = None,
    heads: Iterable[str] | None = None,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    offline: bool = False,
    quantized: bool = True,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Model:
    """Loads a model.

    Example:
        >>> model = mlxbert.load()  # the small English model that comes with mlxbert
        >>> model = mlxbert.load("sentence-transformers/all-MiniLM-L6-v2", task="embed")

    Args:
        source: A name on the Hugging Face hub, the folder of a checkpoint, or `builtin`. Files in the hub's cache are
            used as they are; missing files are downloaded. The folder of an adapter loads its base model with the
            adapter. A `ModelRef` also sets the adapter, dtype, device, revision and `offline`.
        adapter: An adapter in PEFT's format (LoRA, DoRA, rsLoRA) that is merged into the weights: its folder, or its
            name on the hub. Alternatively, the task of an adapter that the model itself contains, for example
            `retrieval.query` in Jina v3 or `retrieval` in v5.
        task: `fill-mask`, `next-sentence`, `classify`, `tag`, `answer`, `replaced`, `rerank`, `embed`, `embed-sparse`
            or `embed-tokens`: loads only the parts that the task needs; raises an error if the checkpoint lacks one.
            `None` loads every part.
        new_heads: Heads to add to the loaded encoder with fresh weights, by their names in `mlxbert.nn.heads.HEADS`,
            each with its labels or `None`; the checkpoint's own heads are not loaded then.
        heads: Heads without labels; exactly these are loaded, and those missing in the checkpoint get fresh weights.
        dtype: `float32`, `float16`, `bfloat16`, or `auto`, which chooses by the device.
        device: `gpu`, `cpu`, or `auto`: the GPU if there is one.
        revision: Branch, tag or commit of a model on the hub; its main branch if `None`.
        offline: Whether to make no requests to the hub.
        quantized: Whether weights that are stored in 4 or 8 bits stay quantized in the memory of a GPU; otherwise, and
            always on a CPU, they are expanded to `dtype`. Training needs expanded weights.
        seed: Seed of the fresh weights.
        on_progress: Called with the downloaded and the total bytes during a download; without it, a notebook shows a
            progress bar.

    Raises:
        MlxbertError: A ConfigError, CheckpointError, TokenizerError, ArgumentError, HubError or DeviceError, whose
            message says what is wrong.
    """
    ref = _ref(source, adapter, revision, offline, dtype, device)
    if task is not None and task not in (tasks := dict.fromkeys((*TASKS, *VECTOR_TASKS, RERANK))):
        raise not_one_of("task", task, tasks)
    selections = {"task": task, "new_heads": new_heads, "heads": heads}
    if len(named := [f"`{name}`" for name, value in selections.items() if value is not None]) > 1:
        raise ArgumentError(f"{' and '.join(named)} cannot be combined")
    devices.use(ref.device)
    files = ModelFiles(ref, find_model(ref, on_progress))
    return files.load(task=task, new_heads=new_heads, heads=heads, quantized=quantized, seed=seed)


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """The files of a model, which are opened once even if the model is loaded several times."""

    ref: ModelRef  # the model's name, device and dtype
    folder: ModelFolder  # the model's folder, with its adapter if it has one

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The configuration and the opened weight files; no weights are read yet."""
        return open_checkpoint(self.folder)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, read once."""
        checkpoint = self.checkpoint
        tokenizer = load_tokenizer(self.folder, checkpoint.config)
        states_pad = checkpoint.config_json.get("pad_token_id") is not None
        _warn_about_tokenizer(str(self.ref.source), tokenizer, checkpoint.config, stated=states_pad)
        return tokenizer

    def _parts(self, task: str | None) -> tuple[str, ...]:
        checkpoint = self.checkpoint
        if task is None:
            return checkpoint.parts
        if task in VECTOR_TASKS:
            heads = needed_heads(task, self.folder)
            for head in heads:
                check_parts(str(self.ref.source), HEADS[head].task or "", checkpoint.config, checkpoint.parts)
            return tuple(dict.fromkeys(part for head in heads for part in head_parts(head, checkpoint.config)))
        is_reranker = TASKS[task] == CLASSIFIER and generates(checkpoint.config_json)
        reason = " and no chat template of Qwen3-Reranker, which rerank needs" * is_reranker
        check_parts(str(self.ref.source), task, checkpoint.config, checkpoint.parts, reason)
        return task_parts(task, checkpoint.config)

    def _needed(self, task: str | None) -> str | None:
        """Returns the task whose parts are loaded; for `rerank`, the kind of model decides."""
        if task != RERANK:
            return task
        lacks = missing_parts("classify", self.checkpoint.config, self.checkpoint.parts)
        return KINDS["tokens"].task if lacks and "tokens" in stated_kinds(self.folder) else "classify"

    def load(
        self,
        *,
        task: str | None = None,
        new_heads: Mapping[str, Labels | None] | None = None,
        heads: Iterable[str] | None = None,
        quantized: bool = True,
        seed: int = 0,
    ) -> Model:
        """Builds the network and reads its weights (see the function `load`)."""
        task = self._needed(task)
        source, folder, checkpoint, parts = str(self.ref.source), self.folder, self.checkpoint, self._parts(task)
        dtype = _choose_dtype(self.ref, checkpoint.config)
        if heads is not None:
            parts, new_heads = _stored_and_new(checkpoint, [*heads])
        elif new_heads is not None:
            parts = ()
        if task is None and new_heads is None:
            _check_all(checkpoint)
        # On a CPU, MLX is a hundred times slower with quantized weights than with floats: they are expanded there.
        packed = quantized and devices.on_gpu()
        _warn_unless_it_fits(source, checkpoint, (*parts, *(new_heads or ())), dtype, packed=packed)
        backend().prepare()
        with ThreadPoolExecutor(1) as background:  # a large vocabulary takes a second, as do the weights
            reading = background.submit(lambda: self.tokenizer)
            try:
                with device_errors():
                    checkpoint = with_own_decoder(checkpoint, parts)
                    network = build_network(checkpoint, parts, dtype, new_heads=new_heads, seed=seed, packed=packed)
            finally:
                tokenizer = reading.result()  # an error of the tokenizer comes before one of the weights
        checkpoint.weights.release()
        _log_loaded(source, checkpoint, dtype_name(dtype))
        config, labels = network.encoder.config, _labels_of(network)
        if CLASSIFIER in parts and labels is not None and len(labels) == 1:
            tokenizer = _with_prompt(folder, tokenizer, network)
        if labels is not None and labels.head_pooling:  # a classifier of vectors reads a text as `embed` does
            settings = read_embedder(folder, config.hidden_size, with_weights=False).config
            tokenizer = embedding_tokenizer(tokenizer, settings)
        embedders = embedders_of(folder, config, tokenizer) if task is None or task in VECTOR_TASKS else {}
        if task is not None and embedders:
            kind = stated_kinds(folder)[0] if task == KINDS["dense"].task else VECTOR_TASKS[task]
            if isinstance(problem := embedders[kind], MlxbertError):
                raise problem
        return Model(
            *(source, folder.own, config, tokenizer, network, labels),
            architecture=checkpoint.without_weights(),
            files=folder,
            _embedders=embedders,
            _load_with_adapter=lambda name: load(replace(self.ref, adapter=name), task="embed"),
            _loaded={name: array if array.ndim == 1 else None for name, array in parameters(network).items()},
        )


def _labels_of(network: Network) -> Labels | None:
    return network.encoder.config.labels if any(HEADS[head].labelled for head in network.heads) else None


def _log_loaded(source: str, checkpoint: Checkpoint, dtype: str) -> None:
    _LOG.info(
        "%s: %s in %s, computing in %s on %s (%s)",
        source, checkpoint.family_name, checkpoint.folder, dtype, mx.default_device(), devices.BLAS.name,
    )  # fmt: skip
    if unused := [checkpoint.names[name] for name in checkpoint.ignored]:
        _LOG.info("%s: not used: %s", source, ", ".join(unused))


def _with_prompt(folder: ModelFolder, tokenizer: Tokenizer, network: Network) -> Tokenizer:
    """Returns a reranker's tokenizer with the prompt from its chat template, and other tokenizers unchanged.

    Raises an error for a reranker that needs a prompt, but whose folder has no chat template.
    """
    prompt = read_prompt(folder)
    if prompt is not None:
        has_limit = folder.has_modules and folder.transformer_settings.get("max_seq_length") is not None
        limit = folder.transformer_settings.integer("max_seq_length") if has_limit else None
        return tokenizer.adapted(max_length=limit, prompt=prompt)
    ids = [tokenizer.token_id(word) for word in ("yes", "no")]
    classifier = parameters(network).get(f"heads.{CLASSIFIER}.out.weight")
    if None in ids or classifier is None or classifier.shape != (1, network.encoder.config.embedding_size):
        return tokenizer
    yes, no = network.encoder.embeddings.word(mx.array(ids)).astype(mx.float32)
    if (mx.abs(yes - no - classifier).max() <= _BFLOAT16_ERROR * mx.abs(classifier).max()).item():
        raise CheckpointError(
            f"{folder.transformer}: this converted Qwen3-Reranker has no chat template, without which all texts get "
            "almost the same score",
            hint=f"copy {TEMPLATE} or tokenizer_config.json of Qwen/Qwen3-Reranker-0.6B into the folder",
        )
    return tokenizer


def _ref(source: str | Path | ModelRef, *fields: Any) -> ModelRef:
    """Returns a `ModelRef`: `source` itself, which must then be the only argument, or a new one from all of them."""
    if not isinstance(source, ModelRef):
        return ModelRef(source, *fields)
    if ModelRef(BUILTIN, *fields) != ModelRef():
        raise ArgumentError(
            "`source` is a ModelRef, so `adapter`, `revision`, `offline`, `dtype` and `device` cannot be arguments",
            hint="change these fields of the ModelRef with dataclasses.replace(ref, …)",
        )
    return source


def new_model(
    config: Mapping[str, Any],
    vocabulary: str | Path,
    *,
    heads: Mapping[str, Labels | None] | None = None,
    dtype: str = "auto",
    device: str = "auto",
    seed: int = 0,
) -> Model:
    """Creates a model with fresh weights from a configuration.

    Example:
        >>> sizes = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 128, "num_hidden_layers": 2}
        >>> sizes |= {"num_attention_heads": 2, "intermediate_size": 512, "max_position_embeddings": 512}
        >>> model = mlxbert.new_model(sizes, vocabulary="builtin", heads={"masked_lm": None})

    Args:
        config: The content of a `config.json`, as transformers writes it: at least `model_type` and the sizes.
        vocabulary: The folder, hub name or `builtin` whose vocabulary files the model uses.
        heads: The heads, by their names in `mlxbert.nn.heads.HEADS`, each with its labels or `None`; without heads, the
            model is the encoder alone.
        dtype: The dtype of the weights (see `load`).
        device: The device (see `load`).
        seed: Seed of the weights.

    Raises:
        ConfigError: The configuration describes something that mlxbert does not compute.
        TokenizerError: The vocabulary cannot be used, or has more tokens than the model has word embeddings.
        ArgumentError: A head is unknown, or does not fit the family or its labels.
    """
    if not isinstance(config, Mapping):
        raise ArgumentError(f"`config` is {config!r:.60}, expected the content of a config.json")
    check_source(vocabulary, "vocabulary")
    devices.use(device)
    try:  # a copy with the values that a file would hold
        values = from_json(json.dumps(dict(config), allow_nan=False, ensure_ascii=False).encode().decode())
    except (TypeError, ValueError) as problem:
        raise ArgumentError(f"`config` cannot be written as a config.json ({problem})") from None
    config_json = ConfigJson(Path("config.json"), values)
    folder = ModelFolder(find_folder(ModelRef(vocabulary)), described_by=config_json)
    architecture = read_architecture(config_json)
    tokenizer = load_tokenizer(folder, architecture.config)
    _warn_about_tokenizer(str(vocabulary), tokenizer, architecture.config)
    network = new_network(architecture, {} if heads is None else heads, devices.choose_dtype(dtype), seed)
    return Model(
        *(str(vocabulary), folder.path, network.encoder.config, tokenizer, network, _labels_of(network)),
        architecture=architecture,
        files=folder,
        _embedders={
            "dense": CheckpointError(
                "a new model has no pooling yet",
                hint="save the model and load it again, which adds the pooling of its family",
            )
        },
    )


def _choose_dtype(ref: ModelRef, config: EncoderConfig) -> mx.Dtype:
    """Chooses the dtype to compute in, and warns if it cannot hold the values of the model."""
    if ref.dtype == "auto" and config.is_static:  # there is no arithmetic that half precision would speed up
        return mx.float32
    dtype = devices.choose_dtype(ref.dtype, wide_range=config.wide_range)
    if dtype == mx.float16 and config.wide_range:
        _LOG.warning("%s: float16 cannot hold the values of this model, so results may be NaN", ref.source)
    return dtype


def _warn_unless_it_fits(
    source: str, checkpoint: Checkpoint, parts: Iterable[str], dtype: mx.Dtype, *, packed: bool
) -> None:
    """Warns if the device does not have the memory for a network with these parts."""
    if packed and checkpoint.storage is not None:
        weights = sum(path.stat().st_size for path in checkpoint.weights.headers)
    else:
        weights = dtype.size * sum(map(prod, shapes(checkpoint, parts).values()))
    needed = weights + memory_estimate.of_batch(checkpoint.config, dtype)
    memory_estimate.warn_unless_it_fits(f"{source}: needs about", needed)


def _warn_about_tokenizer(source: str, tokenizer: Tokenizer, config: EncoderConfig, *, stated: bool = True) -> None:
    """Warns if the tokenizer seems to belong to another model; `load_tokenizer` rejects one with too many tokens.

    Args:
        source: The name of the model.
        stated: Whether `config.json` names the padding token.
    """
    pad, eos, mask = (tokenizer.token_id(tokenizer.special.get(role, "")) for role in ("pad", "eos", "mask"))
    if 2 * tokenizer.vocab_size < config.vocab_size:
        reason = f"has {tokenizer.vocab_size:,} tokens, but the model has {config.vocab_size:,} word embeddings"
    # EuroBERT names eos there; PyLate pads with the mask token.
    elif stated and pad not in (None, config.pad_token_id, mask) and eos != config.pad_token_id:
        reason = f"pads with token {pad}, but pad_token_id in config.json is {config.pad_token_id}"
    else:
        return
    _LOG.warning("%s: the tokenizer %s; the tokenizer may belong to another model", source, reason)


def embedder_of(folder: ModelFolder, config: EncoderConfig, tokenizer: Tokenizer) -> Embedder | MlxbertError:
    """Reads the embedder of dense vectors (see `embedders_of`)."""
    return cast(Embedder | MlxbertError, embedders_of(folder, config, tokenizer)["dense"])


def embedders_of(folder: ModelFolder, config: EncoderConfig, tokenizer: Tokenizer) -> dict[str, object]:
    """Reads a model's embedders before its files can change (see `read_embedders`), and checks their limits."""
    embedders = read_embedders(folder, config, read_tokenizer)
    for kind, embedder in embedders.items():
        try:
            if not isinstance(embedder, MlxbertError):
                embedding_tokenizer(tokenizer, cast(Any, embedder).config)
        except MlxbertError as problem:
            embedders[kind] = problem
    return embedders


def load_tokenizer_of(ref: ModelRef, on_progress: OnProgress | None = None) -> tuple[Path, Tokenizer]:
    """Returns the folder and the tokenizer of a model, without loading the weights (see `load`)."""
    folder = find_model(ref, on_progress)
    return folder.path, load_tokenizer(folder, read_architecture(folder.config_json).config)
