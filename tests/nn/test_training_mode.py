"""What training needs of the network: threads of BLAS, compiled steps, attention weights from the network itself."""

import ctypes
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine import device
from mlxbert.machine.device import BLAS, mx
from mlxbert.nn.encoder import Batch, KnownIds
from tests.helpers.tiny import random_network, tiny_config

IDS = mx.array([[2, 9, 8, 7, 3], [2, 6, 5, 3, 0], [2, 11, 12, 13, 3], [2, 9, 3, 0, 0]])
MASK = IDS != 0


@pytest.mark.usefixtures("all_cores")
@pytest.mark.skipif(sys.platform != "linux" or device.on_gpu(), reason="streams per core are for CPUs under Linux")
@pytest.mark.skipif(BLAS.name != "openblas", reason="OpenBLAS says how many threads it has")
def test_training_gives_blas_its_threads_back() -> None:
    get_threads = ctypes.CDLL(BLAS.path).openblas_get_num_threads
    cores = len(os.sched_getaffinity(0))  # type: ignore[attr-defined, unused-ignore]
    if cores < 2:
        pytest.skip("one core: nothing to share")
    network = random_network(tiny_config())
    mx.eval(network(IDS, MASK).last_hidden_state)
    assert get_threads() == 1
    network.train()
    mx.eval(network(IDS, MASK).last_hidden_state)
    assert get_threads() == min(cores, 16)


@pytest.mark.slow  # calls a C++ compiler
@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_network_gives_the_same(training: bool) -> None:
    network = random_network(tiny_config())
    network.train(training)
    plain = network(IDS, MASK).last_hidden_state
    compiled = mx.compile(lambda ids, mask: network(ids, mask).last_hidden_state)
    assert np.abs(np.array(compiled(IDS, MASK)) - np.array(plain)).max() < 1e-5


def test_ids_from_outside_are_still_checked() -> None:
    network = random_network(tiny_config())
    with pytest.raises(InputError, match="10000"):
        network(mx.array([[2, 10_000, 3]]))
    with pytest.raises(InputError, match="-1"):
        network(mx.array([[2, -1, 3]]))


def test_every_head_takes_a_batch_or_an_output() -> None:
    network = random_network(tiny_config())
    batch = Batch(IDS, MASK)
    for head in network.heads:
        whole, shared = network.logits(head, batch), network.logits(head, network(IDS, MASK))
        assert mx.array_equal(whole, shared)


@pytest.mark.parametrize(
    "batch",
    [
        Batch(mx.array([[2, 10_000, 3]])),
        Batch(mx.array([[2, -1, 3]])),
        Batch(mx.array([[2.0, 9.0]])),
        Batch(mx.array([2, 9, 3])),
        Batch(mx.array([[]], dtype=mx.int32)),
        Batch([[2, 9, 3]]),  # type: ignore[arg-type]
        Batch(mx.array([[2, 9, 3]]), token_type_ids=mx.array([[0, 70_000, 0]])),
        Batch(mx.array([[2, 9, 3]]), attention_mask=mx.array([[True]])),
    ],
)
def test_batches_from_outside_are_checked(batch: Batch) -> None:
    with pytest.raises(InputError, match=r"input_ids|token_type_ids|attention_mask"):
        random_network(tiny_config()).logits("next_sentence", batch)
    with pytest.raises(InputError, match=r"input_ids|token_type_ids|attention_mask"):
        random_network(tiny_config())(batch.input_ids, batch.attention_mask, batch.token_type_ids)


def test_logits_of_something_else() -> None:
    with pytest.raises(ArgumentError, match="Batch"):
        random_network(tiny_config()).logits("next_sentence", IDS)  # type: ignore[arg-type]


def test_a_batch_that_knows_its_ids_fits_each_network_or_is_refused() -> None:
    small, large = tiny_config(), tiny_config(vocab_size=500)
    batch = Batch(mx.array([[2, 400, 3]]), ids=KnownIds(frozenset({2, 3, 400})))
    assert random_network(large).logits("next_sentence", batch).shape == (1, 2)
    with pytest.raises(InputError, match="400"):
        random_network(small).logits("next_sentence", batch)
    with pytest.raises(InputError, match="token_type_ids"):
        random_network(large).logits("next_sentence", replace(batch, ids=KnownIds(frozenset({2}), last_segment=2)))
