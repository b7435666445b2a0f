"""Finds a model and the adapter that goes with it: either is given, or the folder of an adapter names its base."""

import filecmp
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.progress import OnProgress
from mlxbert.weights.adapters.peft_adapter import adapted_config, read_settings
from mlxbert.weights.adapters.task_adapters import own_adapters
from mlxbert.weights.formats.file_names import ADAPTER
from mlxbert.weights.formats.weight_files import has_weights, open_weights
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef, find_folder, find_headers, local_folder

_LOG = logging.getLogger("mlxbert")


def find_model(ref: ModelRef, on_progress: OnProgress | None = None, *, headers_only: bool = False) -> ModelFolder:
    """The folder of a model, with its adapter if it has one.

    Args:
        ref: The model; its source may be the folder of an adapter, whose base is found by its name in there.
        on_progress: Called with the downloaded and the total bytes during a download.
        headers_only: Whether only the headers of weights are downloaded, see `find_headers`.
    """

    def find(ref: ModelRef) -> ModelFolder:
        if headers_only:
            return ModelFolder(*find_headers(ref, on_progress))
        return ModelFolder(find_folder(ref, on_progress))

    found = find(ref)
    if ref.adapter is not None:
        if is_adapter(found.path):
            raise ArgumentError(f"{found.path}: is an adapter, expected the model that {ref.adapter} is for")
        if str(ref.adapter) in own_adapters(found.config_json):
            return replace(found, own_adapter=str(ref.adapter))
        chosen = with_adapter(found, find(replace(ref, source=ref.adapter, revision=None)).path)
        _check_base(chosen, str(ref.source))
        return chosen
    return _with_base(found, ref, find)


def _check_base(found: ModelFolder, source: str) -> None:
    """Refuses a base whose weights are not those of the base that the adapter names, and warns if that is unknown.

    Folders are compared by their weights, and models on the hub by their names.
    """
    assert found.adapter is not None
    settings = read_settings(found.adapter)
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        return
    same = _same(base, source)
    if same is None and Path(base).name != Path(source).name:
        note = "%s is an adapter for %s, not for %s: with other weights its results mean nothing"
        _LOG.warning(note, found.adapter, base, source)
    if same is False:
        hint = "give that model; or write this one as base_model_name_or_path, if the adapter is for its weights"
        raise settings.refuse("base_model_name_or_path", f"{source}, the model that the adapter is used with", hint)


def _same(one: str, other: str) -> bool | None:
    """Whether two names are of the same weights; `None` if that is unknown, as of a folder on another machine."""
    try:
        folders = [local_folder(name) for name in (one, other)]
    except MlxbertError:
        return None
    if folders == [None, None]:  # older names on the hub have no organization
        return one == other or ((one + other).count("/") == 1 and Path(one).name == Path(other).name)
    opened = [ModelFolder(path).transformer.resolve() for path in folders if path is not None and has_weights(path)]
    if len(opened) < 2:
        return None
    return opened[0] == opened[1] or _same_bytes(*opened)


def _same_bytes(one: Path, other: Path) -> bool:
    names = [sorted(path.relative_to(folder) for path in open_weights(folder).files) for folder in (one, other)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model of its own."""
    return (folder / ADAPTER).is_file() and not has_weights(folder)


def with_adapter(base: ModelFolder, adapter: Path) -> ModelFolder:
    """A model with an adapter."""
    return replace(base, adapter=adapter, described_by=adapted_config(adapter, base.config_json))


def _with_base(found: ModelFolder, ref: ModelRef, find: Callable[[ModelRef], ModelFolder]) -> ModelFolder:
    """The base of an adapter with the adapter; any other model as it is.

    Args:
        found: The folder.
        ref: Where it was found.
        find: Finds a model.
    """
    if not is_adapter(found.path):
        return found
    settings = read_settings(found.path)
    name, revision = settings.string("base_model_name_or_path"), settings.get("revision")
    try:
        base = find(replace(ref, source=name, revision=None if revision is None else str(revision)))
    except MlxbertError as problem:
        raise type(problem)(
            f"{found.path}: is an adapter for {name}, which cannot be found ({problem.message})",
            hint=f"name the model that it is for, too: model='BASE', adapter={str(found.path)!r}",
        ) from None
    if is_adapter(base.path):
        raise ArgumentError(f"{found.path}: is an adapter for {name}, which is an adapter itself, expected a model")
    return with_adapter(base, found.path)
