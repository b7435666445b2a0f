"""Models in checkpoints that TensorFlow wrote, under Google's names: their outputs are those of transformers."""

from pathlib import Path

import pytest

from tests.helpers.parity import assert_equal, load_network, outputs
from tests.helpers.tf_files import NETWORKS, frozen, frozen_case, write_model


@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_are_those_of_transformers(tmp_path: Path, network: str) -> None:
    loaded = load_network(write_model(network, tmp_path))
    reference = frozen(network, "outputs")
    assert len(reference) >= 2
    assert_equal(outputs(loaded, frozen_case(network)), reference)
