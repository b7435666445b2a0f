"""Reads data sets from the Hugging Face hub with `datasets`."""

from collections.abc import Iterable, Mapping
from typing import Any

from mlxbert.errors import ArgumentError, HubError, MlxbertError
from mlxbert.other_libraries import install_command

HUB = "hub:"


def class_names(data: object) -> dict[str, list[str]]:
    """Returns the class names, by column, of a data set's columns that store class numbers or lists of them."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping):
        return {}
    inner: dict[str, Any] = {column: getattr(feature, "feature", feature) for column, feature in features.items()}
    return {column: list(feature.names) for column, feature in inner.items() if hasattr(feature, "names")}


def repositories_of(sources: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the data sets on the hub among some sources, each once."""
    return tuple(dict.fromkeys(name.split(":")[1] for name in sources if name.startswith(HUB)))


def open_hub(name: str) -> Iterable[Mapping[str, Any]]:
    """Loads a split of a data set; downloads it unless it is cached.

    Args:
        name: `hub:NAME`, `hub:NAME:CONFIG` or `hub:NAME:CONFIG:SPLIT`, where CONFIG may be empty. The default split is
            `train`.
    """
    repository, *rest = name.removeprefix(HUB).split(":")
    if not repository or len(rest) > 2:
        raise ArgumentError(
            f"the data set is {name!r:.60}, expected hub:NAME, hub:NAME:CONFIG or hub:NAME:CONFIG:SPLIT"
        )
    config, split = (*rest, "", "")[:2]
    try:
        import datasets
    except ImportError:
        raise MlxbertError(
            f"{name}: reading datasets from the hub needs the package datasets, which is not installed",
            hint=install_command("datasets"),
        ) from None
    try:
        return datasets.load_dataset(repository, config or None, split=split or "train")
    except Exception as problem:  # the errors of datasets have no common base class
        reason = str(problem).partition("\n")[0] or type(problem).__name__
        raise HubError(f"{name}: the dataset cannot be loaded ({reason})") from None
