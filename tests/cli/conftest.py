"""A model that many tests of the command line share, and what they must not leave behind."""

import pytest

from mlxbert.cli.session import NOTED
from mlxbert.cli.views import console
from mlxbert.machine.user_folders import data_folder
from tests.helpers.program import tiny_model


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model that knows 60 words and takes 24 tokens."""
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(autouse=True)
def _new_day(own_data: None) -> None:
    """The note on the built-in model comes in each test, whatever the order of the tests."""
    (data_folder() / NOTED).unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _loud() -> None:
    """The `--quiet` of an earlier test in this process is forgotten."""
    console.set_quiet(False)
