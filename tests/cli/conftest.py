"""A model that many tests of the command line share, and what they must not leave behind."""

from collections.abc import Iterator
from typing import Any

import pytest

from mlxbert import loading
from mlxbert.cli.session import NOTED
from mlxbert.cli.views import console
from mlxbert.machine.user_folders import data_folder
from tests.helpers.program import tiny_model


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model that knows 60 words and takes 24 tokens."""
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def loaded_once() -> Iterator[None]:
    """A model is loaded once for all tests of a file, which do not change its folder: loading is most of a command."""
    load, loaded = loading.load, dict[str, Any]()

    def load_once(*given: Any, on_progress: Any = None, **options: Any) -> Any:
        key = repr((given, sorted(options.items())))
        return loaded[key] if key in loaded else loaded.setdefault(key, load(*given, **options))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "load", load_once)
        yield


@pytest.fixture(autouse=True)
def _new_day(own_data: None) -> None:
    """The note on the built-in model comes in each test, whatever the order of the tests."""
    (data_folder() / NOTED).unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _loud() -> None:
    """The `--quiet` of an earlier test in this process is forgotten."""
    console.set_quiet(False)
