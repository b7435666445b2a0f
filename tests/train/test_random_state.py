"""New layers and losses draw with keys from the seed, and never from MLX's global random state."""

from pathlib import Path

import pytest

from mlxbert.machine.device import mx
from tests.helpers import written
from tests.helpers.written import Write

WRITTEN: dict[str, Write] = {
    **written.SAVED,
    **written.TRAINED,
    **written.ADAPTERS,
    "embed (tokens)": written.trained("embed", "embedder", vectors="tokens"),
    "embed (sparse)": written.trained("embed", "pretrained", vectors="sparse"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written.start(tmp_path_factory.mktemp("sources"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITTEN)
def test_weights_do_not_depend_on_the_global_random_state(kind: str, sources: Path, tmp_path: Path) -> None:
    files = []
    for seed in (1, 2):
        mx.random.seed(seed)
        WRITTEN[kind](sources, tmp_path / str(seed))
        files.append([file.read_bytes() for file in sorted((tmp_path / str(seed)).rglob("*.safetensors"))])
    assert files[0] and files[0] == files[1]
