"""The CRF next to brute force over all sequences of tags: loss, gradients, Viterbi, marginals, forbidden tags."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import allowed, scheme_of
from mlxbert.machine.device import mx, nn
from mlxbert.nn.crf import CRF, FORBIDDEN, SCALE
from tests.helpers.tiny import random_network, tiny_config

Array = NDArray[np.float64]
PLAIN = ("NOUN", "VERB", "ADJ")
IOB2, BIOES = ("O", "B-A", "I-A", "B-C", "I-C"), ("O", "B-A", "I-A", "E-A", "S-A")
NAMES = [PLAIN, IOB2, BIOES, ("O", "B-A", "I-A", "L-A", "U-A")]


def random_crf(names: Sequence[str], seed: int = 1, scale: float = 1.5) -> CRF:
    crf, rng = CRF(names), np.random.default_rng(seed)
    for name in ("start", "transitions", "end"):
        array = rng.standard_normal(getattr(crf, name).shape) * scale / SCALE
        setattr(crf, name, mx.array(array.astype(np.float32)))
    return crf


def emissions_of(*shape: int, seed: int = 2) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(np.float32)


def all_paths(crf: CRF, emissions: NDArray[Any]) -> tuple[list[tuple[int, ...]], Array]:
    """Every sequence of tags and its score, with what the scheme forbids at `FORBIDDEN`, in double precision."""
    may = [np.array(one) for one in crf._allowed]
    stored = [np.array(array.astype(mx.float32), np.float64) for array in (crf.start, crf.transitions, crf.end)]
    start, steps, end = (np.where(ok, array * SCALE, FORBIDDEN) for ok, array in zip(may, stored, strict=True))
    paths = list(product(range(emissions.shape[1]), repeat=len(emissions)))
    scores = []
    for path in paths:
        score = start[path[0]] + end[path[-1]] + sum(float(emissions[at, tag]) for at, tag in enumerate(path))
        scores.append(score + sum(steps[a, b] for a, b in pairwise(path)))
    return paths, np.array(scores)


def shares_of(scores: Array) -> Array:
    shares: Array = np.exp(scores - scores.max())
    return shares / shares.sum()


@pytest.mark.parametrize("names", NAMES, ids=lambda names: scheme_of(names))
@pytest.mark.parametrize("words", [1, 2, 4])
def test_loss_and_gradients_are_those_over_all_paths(names: tuple[str, ...], words: int) -> None:
    crf, emissions = random_crf(names), emissions_of(words, len(names))
    paths, scores = all_paths(crf, emissions)
    best = int(np.argsort(scores)[-2])  # allowed, and not the best
    gold, top = paths[best], scores.max()
    tags, mask = mx.array([gold]), mx.ones((1, words))

    def loss(parameters: dict[str, mx.array], given: mx.array) -> mx.array:
        crf.update(parameters)
        return crf.loss(given, tags, mask)

    value, (own, of_emissions) = mx.value_and_grad(loss, (0, 1))(crf.parameters(), mx.array(emissions[None]))
    expected = top + np.log(np.exp(scores - top).sum()) - scores[best]
    assert float(value) == pytest.approx(float(expected), rel=1e-5, abs=1e-5)
    shapes: dict[str, Any] = {
        "emissions": emissions.shape,
        "start": len(names),
        "end": len(names),
        "transitions": (len(names),) * 2,
    }
    wanted: dict[str, Array] = {name: np.zeros(shape) for name, shape in shapes.items()}
    for path, share in [*zip(paths, shares_of(scores), strict=True), (gold, -1.0)]:  # expected minus observed counts
        np.add.at(wanted["emissions"], (range(words), path), share)
        wanted["start"][path[0]] += share
        wanted["end"][path[-1]] += share
        np.add.at(wanted["transitions"], (path[:-1], path[1:]), share)
    assert np.abs(np.array(of_emissions)[0] - wanted["emissions"]).max() < 1e-5
    for name, mask_of in zip(("start", "transitions", "end"), crf._allowed, strict=True):
        found, may = np.array(own[name]) / SCALE, np.array(mask_of)
        assert np.abs(found - np.where(may, wanted[name], 0)).max() < 1e-5, name
        assert not found[~may].any()  # what is forbidden is not trained


def fits(tags: Any, names: Sequence[str]) -> bool:
    """Whether the scheme of the names allows a sentence with these tags."""
    begins, follows, ends = allowed(scheme_of(names), names)
    return begins[tags[0]] and all(follows[tag][after] for tag, after in pairwise(tags)) and ends[tags[-1]]


@pytest.mark.parametrize("names", NAMES, ids=lambda names: scheme_of(names))
@pytest.mark.parametrize("words", [1, 2, 4])
def test_viterbi_and_marginals_are_those_over_all_paths(names: tuple[str, ...], words: int) -> None:
    for seed in range(5):
        crf, emissions = random_crf(names, seed), emissions_of(words, len(names), seed=seed + 10)
        paths, scores = all_paths(crf, emissions)
        found = crf.decode(emissions)
        assert tuple(found) == paths[int(scores.argmax())] and fits(found, names)
        wanted = np.zeros((words, len(names)))
        for path, share in zip(paths, shares_of(scores), strict=True):
            np.add.at(wanted, (range(words), path), share)
        marginals = crf.marginals(emissions)
        assert np.abs(marginals - wanted).max() < 1e-6 and np.allclose(marginals.sum(axis=-1), 1)


@pytest.mark.parametrize("names", NAMES[1:], ids=lambda names: scheme_of(names))
def test_what_the_scheme_forbids_is_never_decoded(names: tuple[str, ...]) -> None:
    """However much the words' own scores ask for it."""
    crf = random_crf(names)
    rng = np.random.default_rng(3)
    for _ in range(50):
        asked = rng.integers(0, len(names), rng.integers(1, 12))
        emissions = np.full((len(asked), len(names)), -50, np.float32)
        emissions[range(len(asked)), asked] = 50
        found = crf.decode(emissions)
        assert fits(found, names)
        if fits(asked, names):
            assert found == asked.tolist()
        marginals = crf.marginals(emissions)
        assert np.isfinite(marginals).all() and np.allclose(marginals.sum(axis=-1), 1)


def test_the_marginals_of_long_texts_whose_scores_are_all_low() -> None:
    """Sums of such scores are far below that of what is forbidden."""
    crf, emissions = random_crf(IOB2), emissions_of(5000, len(IOB2))
    low = crf.marginals(emissions - 20)
    assert np.abs(low - crf.marginals(emissions)).max() < 1e-6 and np.allclose(low.sum(axis=-1), 1)


@pytest.mark.parametrize("words", [0, 1, 2, 3, 4, 7, 9])
def test_sections_of_the_forward_pass_change_nothing(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    crf, emissions = random_crf(IOB2), emissions_of(words, len(IOB2))
    whole, tags = crf.marginals(emissions), crf.decode(emissions)
    monkeypatch.setattr("mlxbert.nn.crf.SECTION", 3)
    assert np.abs(crf.marginals(emissions) - whole).max(initial=0) < 1e-12
    assert np.abs(crf.shares(emissions, tags) - whole[range(words), tags]).max(initial=0) < 1e-12


def test_padding_and_empty_rows_change_nothing() -> None:
    crf, emissions = random_crf(IOB2), emissions_of(4, 6, len(IOB2))
    lengths, tags = [6, 1, 0, 3], np.array([[0, 1, 2, 0, 3, 4]] * 4)
    mask = np.arange(6) < np.array(lengths)[:, None]
    whole = crf.loss(mx.array(emissions), mx.array(tags), mx.array(mask))
    alone = [
        float(crf.loss(mx.array(row[None, :size]), mx.array(tags[:1, :size]), mx.ones((1, size))))
        for row, size in zip(emissions, lengths, strict=True)
        if size
    ]
    assert float(whole) == pytest.approx(sum(alone), rel=1e-5)
    gradient = mx.grad(lambda x: crf.loss(x, mx.array(tags), mx.array(mask)))(mx.array(emissions))
    assert np.isfinite(np.array(gradient)).all() and not np.array(gradient)[~mask].any()
    assert crf.decode(emissions[0, :0]) == [] and crf.marginals(emissions[0, :0]).shape == (0, len(IOB2))


def test_a_sentence_that_breaks_its_scheme_has_a_finite_loss_and_gradient() -> None:
    crf = random_crf(IOB2)
    emissions, tags = mx.array(emissions_of(1, 4, len(IOB2))), mx.array([[2, 0, 4, 1]])  # I-A, O, I-C, B-A
    value, gradient = mx.value_and_grad(lambda x: crf.loss(x, tags, mx.ones((1, 4))))(emissions)
    assert float(value) > -FORBIDDEN and np.isfinite(np.array(gradient)).all()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_computes_in_single(dtype: mx.Dtype) -> None:
    crf = random_crf(IOB2)
    crf.set_dtype(dtype)
    emissions = mx.array(emissions_of(3, 40, len(IOB2))).astype(dtype)
    tags, mask = mx.array(np.array([[0, 1, 2, 0] * 10] * 3)), mx.ones((3, 40))
    value = crf.loss(emissions, tags, mask)
    rounded = CRF(IOB2)
    rounded.update(nn.utils.tree_map(lambda array: array.astype(mx.float32), crf.parameters()))
    assert value.dtype == mx.float32
    assert float(value) == float(rounded.loss(emissions.astype(mx.float32), tags, mask))


def test_it_learns_a_pattern_that_words_do_not_show() -> None:
    """At the learning rate of an encoder, thanks to `SCALE`."""
    crf, tags = CRF(PLAIN), mx.array([[0, 1, 2, 0, 1, 2, 0, 1]])
    emissions, mask = mx.zeros((1, 8, 3)), mx.ones((1, 8))

    def loss(parameters: dict[str, mx.array]) -> mx.array:
        crf.update(parameters)
        return crf.loss(emissions, tags, mask)

    parameters: Any = crf.parameters()
    first = float(loss(parameters))
    for _ in range(100):
        gradients = mx.grad(loss)(parameters)
        parameters = {name: array - 1.5e-4 * mx.sign(gradients[name]) for name, array in parameters.items()}
    assert float(loss(parameters)) < first / 4
    assert crf.decode(np.zeros((8, 3))) == tags[0].tolist()


@pytest.mark.parametrize("crf", [False, True])
def test_only_a_network_whose_labels_say_so_has_one(crf: bool) -> None:
    network = random_network(tiny_config(labels=Labels(IOB2, crf=crf)), ("token_classifier", "masked_lm"))
    arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    wanted = [f"heads.token_classifier.crf.{name}" for name in ("end", "start", "transitions") if crf]
    assert sorted(name for name in arrays if ".crf." in name) == wanted


def test_labels_that_a_crf_cannot_have() -> None:
    Labels(IOB2, crf=True).check()
    for labels in (Labels(("O", "B-A", "I-A", "X"), crf=True), Labels(IOB2, crf=1)):  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="`crf` is"):
            labels.check()
