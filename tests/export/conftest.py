"""Models are compared with few texts, so that each runs on one batch."""

import pytest

from mlxbert.export.compare import facts, outputs
from mlxbert.export.compare.fixed_texts import TEXTS


@pytest.fixture(autouse=True)
def few_texts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out most of the texts that models are compared with; each batch reads every layer from the disk."""
    if not request.node.get_closest_marker("slow"):
        for module in (facts, outputs):
            monkeypatch.setattr(module, "TEXTS", (*TEXTS[:6], TEXTS[-1]))
