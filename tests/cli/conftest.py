"""A model that many tests of the command line share."""

import pytest

from tests.helpers.program import tiny_model


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model that knows 60 words and takes 24 tokens."""
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
