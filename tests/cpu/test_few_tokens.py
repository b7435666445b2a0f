"""What inference on a Linux CPU computes for few tokens, with numpy and calls of the BLAS, is what a graph computes."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest

from mlxbert.config import Rotary, Rotation
from mlxbert.cpu import cores, few_tokens
from mlxbert.goldens import golden_outputs
from mlxbert.machine.device import BLAS, mx
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.nn.heads import Network
from mlxbert.nn.ops import Linear, inference
from tests.helpers.cases import fast, together
from tests.helpers.families import FROZEN, walked
from tests.helpers.frozen import file_name
from tests.helpers.tiny import random_network, tiny_config

pytestmark = pytest.mark.skipif(BLAS.sgemm is None, reason="only with a BLAS that mlxbert can call")

_FAMILIES = {family: head for family, head in [*golden_outputs.golden_models()][::-1]}
_OTHERS = ("deberta", "nomic-moe")  # whose layers have modules that few tokens do not take


def counting(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the dense layers that few tokens take."""
    counted = create_autospec(few_tokens.FewTokens.dense, side_effect=few_tokens.FewTokens.dense)
    monkeypatch.setattr(few_tokens.FewTokens, "dense", counted)
    return cast(Mock, counted)


def run(network: Network, *lengths: int, **options: Any) -> EncoderOutput:
    config = network.encoder.config
    ids = mx.random.randint(5, config.vocab_size, (len(lengths), max(lengths)), key=mx.random.key(1))
    mask = None if len({*lengths}) == 1 else mx.arange(max(lengths)) < mx.array(lengths)[:, None]
    with inference():
        output = network.encoder(ids, mask, **options)
    mx.eval(vars(output))
    return output


def far(one: mx.array | None, other: mx.array | None) -> float:
    return float(np.abs(np.array(one) - np.array(other)).max())


def check(network: Network, monkeypatch: pytest.MonkeyPatch, *lengths: int) -> int:
    """Compares both ways; returns the number of dense layers that few tokens take."""
    counted = counting(monkeypatch)
    found = run(network, *lengths, output_hidden_states=True)
    taken = counted.call_count
    monkeypatch.setattr(few_tokens, "_MAX_TOKENS", 0)
    wanted = run(network, *lengths, output_hidden_states=True)
    assert counted.call_count == taken
    for one, other in zip(found.hidden_states or (), wanted.hidden_states or (), strict=True):
        scale = float(mx.abs(other).max())
        for row, length in enumerate(lengths):  # with a window, padding sees other padding
            assert far(one[row, :length], other[row, :length]) <= 5e-6 * max(scale, 1)
    assert far(found.last_hidden_state, (found.hidden_states or ())[-1]) == 0
    if found.pooler_output is not None:
        assert far(found.pooler_output, wanted.pooler_output) < 1e-5
    monkeypatch.undo()
    return taken


# Of every family a batch with padding, and without a mask those whose scores get nothing, positions, or distances.
_PADDED = [(family, (17, 3, 9)) for family in _FAMILIES]
_WHOLE = [(family, lengths) for family in ("bert", "modernbert", "mpnet") for lengths in ((1,), (20, 20, 20))]
_OWN = {file_name(family.values[0]) for family in walked(FROZEN) if not family.marks}  # no variants of another
_BATCHES = fast([*_PADDED, *_WHOLE], *(one for one in _PADDED if one[0] in _OWN), *_WHOLE)


@pytest.mark.parametrize(("family", "lengths"), _BATCHES, ids=str)
def test_every_family_gives_the_numbers_of_the_graph(
    family: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = golden_outputs.write_model(family, _FAMILIES[family], tmp_path / "model")
    network = golden_outputs.load_network(folder, "float32")
    taken = check(network, monkeypatch, *lengths)
    assert (taken > 0) == (not family.startswith(_OTHERS))


_WINDOWS = {"positions": Rotary(128, (Rotation(1e4), Rotation(1e3, window=5)))}


@together(("changes", "lengths"), [(_WINDOWS, (110, 70)), *(({"hidden_act": name}, (9, 4)) for name in ACTIVATIONS)])
def test_windows_and_every_activation(
    changes: dict[str, Any], lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(random_network(tiny_config(**changes)), monkeypatch, *lengths)


def test_other_layers_and_other_passes_compute_with_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    network, counted = random_network(tiny_config()), counting(monkeypatch)
    run(network, 9, output_attentions=True)
    with monkeypatch.context() as patched:
        patched.setattr(few_tokens, "BLAS", replace(BLAS, sgemm=None))
        run(network, 9)
    network.encoder(mx.array([[5, 6]]))  # not inference
    cores.in_parallel([lambda: run(network, 9)] * 2)
    network.train()
    run(network, 9)
    network.eval()
    adapted = random_network(tiny_config())
    adapted.encoder.layers[1].attention.query = type("Adapted", (Linear,), {})(24, 24)
    run(adapted, 9)
    run(network, *[few_tokens._MAX_TOKENS // 8] * 9)
    assert counted.call_count == 0
    run(network, *[few_tokens._MAX_TOKENS // 8] * 8)
    assert counted.call_count == 12


def test_weights_in_columns_and_numbers_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(tiny_config())
    wanted = run(network, 9).last_hidden_state
    query = network.encoder.layers[0].attention.query
    turned = mx.array(query.weight.T)
    mx.eval(turned)
    query.weight = turned.T
    assert far(run(network, 9).last_hidden_state, wanted) < 1e-6
    half = network.encoder.layers[0].feed_forward.down
    half.weight = half.weight.astype(mx.float16)
    assert far(run(network, 9).last_hidden_state, wanted) < 1e-2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        half.weight = half.weight.astype(mx.float32) * 1e38
        assert not np.isfinite(np.array(run(network, 9).last_hidden_state)).all()
        query.weight = query.weight * float("nan")
        assert not np.isfinite(np.array(run(network, 9).last_hidden_state)).any()
