"""What tests of commands share."""

from collections.abc import Iterator

import pytest

from mlxbert import loading
from tests.cli.conftest import _loud, _new_day, loaded_once, small  # noqa: F401


@pytest.fixture(scope="module")
def models_once(loaded_once: None) -> Iterator[None]:  # noqa: F811
    """Indexes load a model once for all tests of a file, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mlxbert.search.index.load", loading.load)
        yield
