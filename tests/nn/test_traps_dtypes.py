"""Half precision stays half precision, and rows of padding alone give numbers, on every family and head."""

from pathlib import Path

import numpy as np
import pytest

from mlxbert.goldens.golden_outputs import BOUNDS, load_network
from mlxbert.machine.device import choose_dtype, mx, nn
from mlxbert.nn.heads import HEADS
from tests.helpers.families import FROZEN, FROZEN_CELLS
from tests.helpers.frozen import write_model


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("family", "head"), FROZEN_CELLS, ids=str)
def test_nothing_is_promoted_and_nothing_is_nan(family: str, head: str, dtype: str, tmp_path: Path) -> None:
    """Three rows: one full, one padded, one of padding alone, which batches of other programs do hold."""
    network, wanted = load_network(write_model(family, head, tmp_path), dtype), choose_dtype(dtype)
    parameters: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    assert {array.dtype for array in parameters.values()} == {wanted}
    pad = FROZEN[family].facts["pad_token_id"]
    ids = mx.array([[3, 9, 5, 40, 6, 11], [3, 9, pad, pad, pad, pad], [pad] * 6])
    mask = mx.array([[1] * 6, [1, 1, 0, 0, 0, 0], [0] * 6])
    for rows, given in ((ids, mask), (ids[:1], None)):
        output = network.encoder(rows, given, output_hidden_states=True, output_attentions=True)
        assert output.hidden_states is not None and output.attentions is not None
        found = [*output.hidden_states, *output.attentions, output.last_hidden_state]
        found += [] if output.pooler_output is None else [output.pooler_output]
        for name in network.heads:
            logits = network.logits(name, output)
            # The mean of no tokens is not a number, in transformers neither.
            means = FROZEN[family].facts.get("classifier_pooling") == "mean" or FROZEN[family].classes == "EuroBert"
            mean = name == "sequence_classifier" and means
            found.append(logits[:2] if mean else logits)
        for array in found:
            assert array.dtype == wanted
            assert np.isfinite(np.array(array.astype(mx.float32))).all()
    pretraining = {"Bert": {"masked_lm", "next_sentence"}, "Albert": {"masked_lm", "sentence_order"}}
    own = {name for name, spec in HEADS.items() if spec.class_names[0] == head}
    if head == "ForPreTraining":
        own = pretraining.get(FROZEN[family].classes, {"discriminator"})
    assert own <= network.heads.keys()
