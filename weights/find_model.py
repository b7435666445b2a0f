"""Finds a model and its adapter. The user names both, or only the adapter, whose folder names the base model."""

import filecmp
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.progress import OnProgress
from mlxbert.weights.adapters.task_adapters import own_adapters
from mlxbert.weights.formats.file_names import ADAPTER
from mlxbert.weights.formats.weight_files import has_weights, open_weights
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef, find_folder, find_headers, local_folder

_LOG = logging.getLogger("mlxbert")


def find_model(ref: ModelRef, on_progress: OnProgress | None = None, *, headers_only: bool = False) -> ModelFolder:
    """Finds the folder of a model, and the folder of its adapter if it has one.

    Args:
        ref: The model. Its source may be the folder of an adapter; the adapter then names the base model.
        on_progress: Called with the downloaded and the total bytes during a download.
        headers_only: Whether only the headers of the weights are downloaded (see `find_headers`).
    """

    def find(ref: ModelRef) -> ModelFolder:
        if headers_only:
            return ModelFolder(*find_headers(ref, on_progress))
        return ModelFolder(find_folder(ref, on_progress))

    folder = find(ref)
    if ref.adapter is not None:
        if is_adapter(folder.path):
            raise ArgumentError(f"{folder.path}: is an adapter, expected the model that {ref.adapter} is for")
        if str(ref.adapter) in own_adapters(folder.config_json):
            return replace(folder, own_adapter=str(ref.adapter))
        adapted = with_adapter(folder, find(replace(ref, source=ref.adapter, revision=None)).path)
        _check_base(adapted, str(ref.source))
        return adapted
    return _with_base(folder, ref, find)


def _check_base(folder: ModelFolder, source: str) -> None:
    """Rejects a model whose weights are not the ones that the adapter was trained for.

    Folders are compared by their weights, models on the hub by their names. If neither is possible and the names of the
    models differ, a warning is logged.
    """
    from mlxbert.weights.adapters.peft_adapter import read_settings

    assert folder.adapter is not None
    settings = read_settings(folder.adapter)
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        return
    same = _is_same(base, source)
    if same is None and Path(base).name != Path(source).name:
        note = "%s is an adapter for %s, not for %s, so the results are meaningless unless both have the same weights"
        _LOG.warning(note, folder.adapter, base, source)
    if same is False:
        hint = f"use {base}, or change base_model_name_or_path if the adapter was trained with the weights of {source}"
        raise settings.refuse("base_model_name_or_path", f"{source}, the model that the adapter is used with", hint)


def _is_same(first: str, second: str) -> bool | None:
    """Whether two models, each given by a hub name or a folder, have the same weights.

    Returns `None` if this is unknown, for example because a name is a folder on another machine.
    """
    try:
        folders = [local_folder(name) for name in (first, second)]
    except MlxbertError:
        return None
    if folders == [None, None]:  # older names on the hub have no organization
        return first == second or ((first + second).count("/") == 1 and Path(first).name == Path(second).name)
    resolved = [ModelFolder(path).transformer.resolve() for path in folders if path is not None and has_weights(path)]
    if len(resolved) < 2:
        return None
    return resolved[0] == resolved[1] or _same_bytes(*resolved)


def _same_bytes(first: Path, second: Path) -> bool:
    names = [sorted(path.relative_to(folder) for path in open_weights(folder).files) for folder in (first, second)]
    return names[0] == names[1] and all(filecmp.cmp(first / name, second / name, shallow=False) for name in names[0])


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, but no model."""
    return (folder / ADAPTER).is_file() and not has_weights(folder)


def with_adapter(base: ModelFolder, adapter: Path) -> ModelFolder:
    """Returns the base model together with an adapter."""
    from mlxbert.weights.adapters.peft_adapter import adapted_config

    return replace(base, adapter=adapter, described_by=adapted_config(adapter, base.config_json))


def _with_base(folder: ModelFolder, ref: ModelRef, find: Callable[[ModelRef], ModelFolder]) -> ModelFolder:
    """Returns the base model of an adapter together with the adapter. Any other model is returned unchanged."""
    if not is_adapter(folder.path):
        return folder
    from mlxbert.weights.adapters.peft_adapter import read_settings

    settings = read_settings(folder.path)
    name, revision = settings.string("base_model_name_or_path"), settings.get("revision")
    try:
        base = find(replace(ref, source=name, revision=None if revision is None else str(revision)))
    except MlxbertError as problem:
        raise type(problem)(
            f"{folder.path}: is an adapter for {name}, which cannot be found ({problem.message})",
            hint=f"pass the base model, too: `model='BASE'`, `adapter={str(folder.path)!r}`",
        ) from None
    if is_adapter(base.path):
        raise ArgumentError(
            f"{folder.path}: the base model of the adapter is {name}, which is itself an adapter, expected a model"
        )
    return with_adapter(base, folder.path)
