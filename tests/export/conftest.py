"""Models are compared with few texts, so that each runs on one batch."""

import pytest

from mlxbert.export.compare import facts, outputs
from mlxbert.export.compare.fixed_texts import TEXTS


@pytest.fixture(autouse=True)
def few_texts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Returns the texts that models are compared with: few in fast tests, as each batch reads every layer anew."""
    texts = TEXTS if request.node.get_closest_marker("slow") else TEXTS[:6]
    for module in (facts, outputs):
        monkeypatch.setattr(module, "TEXTS", texts)
    return texts
