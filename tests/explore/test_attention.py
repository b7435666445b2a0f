"""What the tokens of a text attend to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.goldens.golden_outputs import golden_models, load_network, make_cases, outputs, write_model
from tests.helpers.frozen import add_vocabulary, write_model as write_family


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> mlxbert.Model:
    return mlxbert.load(tiny_folder, dtype="float32")


@pytest.mark.parametrize("pair", [None, "paris !"])
def test_weights_are_those_of_the_network_and_add_up_to_one(model: mlxbert.Model, pair: str | None) -> None:
    found = mlxbert.attention(model, "the cat sat on the mat .", pair=pair)
    count = len(found.tokens)
    config = model.config
    assert found.weights.shape == (len(config.layer_schedule), config.num_attention_heads, count, count)
    assert np.abs(found.weights.sum(-1) - 1).max() < 1e-6 and found.weights.min() >= 0
    assert [token.token for token in found.tokens][:3] == ["[CLS]", "the", "cat"]
    assert (found.mean == found.weights.mean((0, 1))).all()
    (of_one,) = mlxbert.attention(model, found.text, pair=pair, layers=-1, heads=[1, 0]).weights
    assert (of_one == found.weights[-1][[1, 0]]).all()
    written = found.to_dict()
    assert np.abs(np.array(written["attention"]) - found.weights).max() <= 1e-6 and ("pair" in written) == bool(pair)


def test_what_the_model_does_not_have_is_refused(model: mlxbert.Model) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"layers": 99}, "99"), ({"heads": []}, "heads"), ({"heads": "0"}, "'0'"), ({"layers": [True]}, "True"),
        ({"overflow": "window"}, "window"), ({"rollout": True, "heads": 0}, "heads"),
    ]  # fmt: skip
    for given, error in refused:
        with pytest.raises(ArgumentError, match=error):
            mlxbert.attention(model, "the cat", **given)
    for text in (5, "the cat " * 900):
        with pytest.raises(InputError):
            mlxbert.attention(model, text)  # type: ignore[arg-type]
    assert mlxbert.attention(model, "the cat " * 900, overflow="truncate").truncated


def test_more_weights_than_memory_holds_are_refused(model: mlxbert.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.explore.attention.MOST", 90)
    with pytest.raises(ArgumentError, match="expected at most 90") as caught:
        mlxbert.attention(model, "the cat")
    assert caught.value.hint and mlxbert.attention(model, "the cat", layers=0).weights.size <= 90
    monkeypatch.setattr("mlxbert.explore.attention.MOST", 2 * 16)
    assert mlxbert.attention(model, "the cat", rollout=True).weights.size == 32
    with pytest.raises(ArgumentError, match="expected at most 32") as caught:
        mlxbert.attention(model, "the cat sat", rollout=True, layers=0)  # the layers before it are computed, too
    assert caught.value.hint and "text" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({family for family, _ in golden_models()}))
def test_rows_of_every_family_add_up_to_one(family: str, tmp_path: Path) -> None:
    network = load_network(write_model(family, "Model", tmp_path))
    config = network.encoder.config
    case = make_cases(config.vocab_size, config.max_length, config.pad_token_id, config.type_vocab_size or 1)["padding"]
    found = outputs(network, case)
    for layer in range(len(config.layer_schedule)):
        sums = found[f"attention {layer}"].sum(-1)  # 0 for padding
        assert np.abs(sums - case.real[:, None]).max() <= 1e-6


def test_weights_that_are_not_finite_are_refused(tiny_folder: Path) -> None:
    broken = mlxbert.load(tiny_folder, dtype="float32")
    broken.network.encoder.embeddings.norm.weight *= float("nan")
    with pytest.raises(mlxbert.MlxbertError, match="attention weights that are not finite"):
        mlxbert.attention(broken, "the cat")
    with pytest.raises(mlxbert.MlxbertError, match="not finite"):
        list(mlxbert.embed_words(broken, ["the cat"]))


def rolled_out(weights: Any) -> Any:
    """The rollout at each layer, from the weights (layers, heads, tokens, tokens), by the formula of the paper."""
    reached, products = np.eye(weights.shape[-1]), []
    for layer in weights.astype(np.float64):
        mixed = 0.5 * layer.mean(0) + 0.5 * np.eye(weights.shape[-1])
        reached = mixed / mixed.sum(-1, keepdims=True) @ reached
        products.append(reached)
    return np.array(products)[:, None]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_rollout_is_the_product_of_the_layers(family: str, tmp_path: Path) -> None:
    folder = add_vocabulary(write_family(family, "Model", tmp_path))
    model = mlxbert.load(folder, dtype="float32")
    text = "the cats sat on the mat , " * 3  # longer than what local layers see
    plain = mlxbert.attention(model, text, overflow="truncate")
    found = mlxbert.attention(model, text, overflow="truncate", rollout=True)
    assert found.rollout and found.heads == () and found.layers == plain.layers
    assert found.weights.shape == (len(found.layers), 1, len(found.tokens), len(found.tokens))
    assert np.abs(found.weights - rolled_out(plain.weights)).max() < 1e-6
    assert np.abs(found.weights.sum(-1) - 1).max() < 1e-5 and (found.mean == found.weights[-1, 0]).all()
    if family == "modernbert":
        assert (plain.weights[1:] == 0).any() and len(found.tokens) > 10  # far tokens, which a local layer does not see
    (first,) = mlxbert.attention(model, text, overflow="truncate", rollout=True, layers=0).weights
    assert (first == found.weights[0]).all()
    written = found.to_dict()
    assert written["rollout"] is True and written["heads"] == []
    assert np.abs(np.array(written["attention"]) - found.weights).max() <= 1e-6
