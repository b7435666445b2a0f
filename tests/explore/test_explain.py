"""explain: shares of words add up to what they should, are those of captum, and name what was asked for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError, MissingHeadError
from mlxbert.text.batch import make_batch
from tests.helpers.cases import together
from tests.helpers.classifiers import SENTIMENT, save_classifier
from tests.helpers.families import FAMILIES, make_model
from tests.helpers.frozen import add_vocabulary
from tests.helpers.program import call, terminal
from tests.helpers.st_folder import pooling, save_st

TEXT, PAIR = "How do I get my money back?", "You can return any item for a full refund."
MASKED = "Tokyo is the largest city in [MASK]."


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    return mlxbert.load(save_classifier(tmp_path_factory.mktemp("explained") / "model", SENTIMENT), dtype="float32")


def assert_adds_up(found: mlxbert.Explanation, inputs: int = 1) -> None:
    total = sum(token.score for token in found.tokens)
    assert found.gap is not None
    assert total + found.gap == pytest.approx(inputs * (found.score - found.baseline_score), abs=1e-4)
    assert abs(found.gap) <= 0.01 * abs(found.score - found.baseline_score)
    assert sum(word.score for word in found.words) == pytest.approx(total, abs=1e-5)  # special tokens have no share


def test_shares_of_gradients_add_up_to_the_difference_of_the_scores(builtin: mlxbert.Model) -> None:
    found = mlxbert.explain(builtin, MASKED, steps=20)
    assert found.target == "japan" and found.method == "gradients"
    assert_adds_up(found)
    assert max(found.words, key=lambda word: word.score).token == "Tokyo"
    masked = next(word for word in found.words if word.token == "[MASK]")
    assert masked.score == 0  # the mask stays in the baseline


def test_both_texts_of_a_similarity_are_explained(tiny: mlxbert.Model) -> None:
    found = mlxbert.explain(tiny, TEXT, PAIR)
    vectors = mlxbert.embed(tiny, [TEXT, PAIR], normalize=True)
    assert found.target == "similarity" and found.score == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    assert_adds_up(found, inputs=2)
    assert [word.token for word in found.words if word.text == 0] == TEXT.replace("?", " ?").split()
    assert {token.text for token in found.tokens} == {0, 1}
    for word in found.words:
        assert (TEXT, PAIR)[word.text][word.start : word.end] == word.token
    swapped = mlxbert.explain(tiny, PAIR, TEXT)
    assert {(word.token, 1 - word.text) for word in swapped.words} == {(word.token, word.text) for word in found.words}
    assert swapped.score == pytest.approx(found.score, abs=1e-6)


def test_a_prompt_is_not_explained_and_moves_no_offset(tmp_path: Path) -> None:
    settings = {"prompts": {"query": "man is : "}, "default_prompt_name": "query"}
    model = mlxbert.load(save_st(tmp_path / "prompted", pooling("mean"), settings=settings), dtype="float32")
    found = mlxbert.explain(model, TEXT, PAIR)
    vectors = mlxbert.embed(model, [TEXT, PAIR], normalize=True)
    assert found.score == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    assert [word.token for word in found.words if word.text == 0] == TEXT.replace("?", " ?").split()


def test_each_label_can_be_the_target(classifier: mlxbert.Model) -> None:
    assert classifier.labels is not None
    best: Any = mlxbert.classify(classifier, SAID)
    assert mlxbert.explain(classifier, SAID).target == best.labels[0].label
    found = [mlxbert.explain(classifier, SAID, target=label.label) for label in best.labels]
    for one in found:
        assert_adds_up(one)
    powers = np.exp([one.score for one in found])
    assert powers / powers.sum() == pytest.approx([label.score for label in best.labels], abs=1e-5)


def test_occlusion_is_the_fall_of_the_score_without_a_word(tiny: mlxbert.Model) -> None:
    found = mlxbert.explain(tiny, MASKED, method="occlusion", target="milk")
    assert (found.gap, found.target) == (None, "milk")
    word = next(word for word in found.words if word.token == "largest")
    tokens = tiny.tokenizer.encode(MASKED.replace("largest", "[MASK]"), None)
    logits = tiny.network.logits("masked_lm", make_batch([tokens], tiny.config))
    mask = tiny.tokenizer.token_id("[MASK]")
    assert mask is not None
    place = len(tokens.ids) - 1 - tokens.ids[::-1].index(mask)  # the first mask is then the word that was hidden
    (milk,) = tiny.tokenizer.pieces("milk")
    assert word.score == pytest.approx(found.score - float(np.array(logits[0, place, milk])), abs=1e-3)


def test_the_network_is_as_it_was(tiny: mlxbert.Model) -> None:
    model = tiny
    before, table = mlxbert.embed(model, TEXT), model.network.encoder.embeddings.word
    mlxbert.explain(model, TEXT, PAIR, steps=2)
    with pytest.raises(ArgumentError):
        mlxbert.explain(model, MASKED, target="no such words")
    assert model.network.encoder.embeddings.word is table and model.network.encoder.divisible
    np.testing.assert_array_equal(mlxbert.embed(model, TEXT), before)


@together(
    ("arguments", "error"),
    [
        ({"text": "no mask"}, InputError), ({"text": 3}, InputError), ({"text": MASKED, "pair": 3}, InputError),
        ({"text": MASKED, "task": "tag"}, MissingHeadError), ({"text": MASKED, "task": "nonsense"}, ArgumentError),
        ({"text": MASKED, "task": "similarity"}, ArgumentError), ({"text": MASKED, "method": "guess"}, ArgumentError),
        ({"text": MASKED, "steps": 1}, ArgumentError), ({"text": MASKED, "target": "two words"}, ArgumentError),
        ({"text": MASKED, "target": "\u2603"}, ArgumentError), ({"text": MASKED, "at": "Tokyo"}, ArgumentError),
        ({"text": MASKED, "pair": PAIR, "task": "fill-mask"}, ArgumentError),
        ({"text": TEXT, "pair": PAIR, "target": "money"}, ArgumentError),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(
    tiny: mlxbert.Model, classifier: mlxbert.Model, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        mlxbert.explain(tiny, **arguments)
    with pytest.raises(ArgumentError, match="target"):
        mlxbert.explain(classifier, TEXT, target="nonsense")


def test_the_command_shows_words_and_writes_pages(tiny_folder: Path, tmp_path: Path) -> None:
    page, numbers = tmp_path / "page.html", tmp_path / "page.json"
    text, where = "Tokyo is <b>the</b> [MASK].", ("--model", str(tiny_folder), "--steps", "2")
    done = call("explain", MASKED, *where, "--target", "milk")
    assert json.loads(done.out)["target"] == "milk"
    _, shown = terminal("explain", MASKED, *where)
    assert "Tokyo" in shown and "largest" in shown and "logit " in shown
    shown = " ".join(terminal("explain", TEXT, PAIR, *where)[1].split())
    assert "twice the difference" in shown and "cosine " in shown
    for path in (page, numbers):
        assert call("explain", text, *where, "-o", str(path)).status == 0
    assert "<b>the" not in page.read_text() and "&lt;" in page.read_text()
    assert json.loads(numbers.read_text())["text"] == text
    assert call("explain", text, *where, "-o", str(page)).status != 0
    assert call("explain", text, *where, "-o", str(tmp_path / "page.txt")).status != 0


SAID = "the cat sat on the mat"
BOUND = 1e-4  # of the largest share


def theirs(model: Any, encoding: Any, number: int, token: int | None) -> Any:
    """The shares of captum: it interpolates the output of the table of word vectors, as we do."""
    import torch
    from captum.attr import IntegratedGradients

    ids = torch.tensor([encoding.ids])
    special = torch.tensor([[text is None for text in encoding.sequence_ids]])
    baseline = torch.where(special, ids, torch.full_like(ids, model.config.pad_token_id))
    segments = torch.tensor([encoding.token_type_ids])
    takes_segments = getattr(model.config, "type_vocab_size", 0) > 1

    def score(vectors: Any) -> Any:
        rows = vectors.shape[0]
        hook = table.register_forward_hook(lambda *_: vectors)
        try:
            given = {"token_type_ids": segments.expand(rows, -1)} if takes_segments else {}
            logits = model(input_ids=ids.expand(rows, -1), **given).logits
        finally:
            hook.remove()
        return logits[:, number] if token is None else logits[:, token, number]

    table = model.get_input_embeddings()
    with torch.no_grad():
        here, there = table(ids), table(baseline)
    shares, gap = IntegratedGradients(score).attribute(
        here, there, n_steps=20, method="gausslegendre", return_convergence_delta=True
    )
    return shares.sum(-1)[0].detach().numpy(), float(gap)


def reference_and_ours(family: str, kind: str, folder: Path) -> tuple[Any, mlxbert.Model]:
    """A tiny model of transformers, and the same one here."""
    pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
    pytest.importorskip("captum.attr", reason="parity needs captum: pip install -r requirements-parity.txt")
    reference = make_model(FAMILIES[family], kind).eval()
    reference.save_pretrained(folder)
    return reference, mlxbert.load(add_vocabulary(folder), dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("pair", [None, "he bought milk in tokyo"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta-v2", "electra", "modernbert"])
def test_shares_of_a_label_are_those_of_captum(family: str, pair: str | None, tmp_path: Path) -> None:
    reference, model = reference_and_ours(family, "ForSequenceClassification", tmp_path)
    assert model.labels is not None
    for number, name in enumerate(model.labels.names):
        found = mlxbert.explain(model, SAID, pair, target=name, steps=20)
        encoding = model.tokenizer.encode(SAID, pair, overflow="truncate")
        wanted, gap = theirs(reference, encoding, number, None)
        shares = np.array([token.score for token in found.tokens])
        assert np.abs(shares - wanted).max() <= BOUND * np.abs(wanted).max()
        assert found.gap == pytest.approx(-gap, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_shares_of_a_tag_are_those_of_captum(family: str, tmp_path: Path) -> None:
    reference, model = reference_and_ours(family, "ForTokenClassification", tmp_path)
    found = mlxbert.explain(model, SAID, at="sat", steps=20)
    assert model.labels is not None
    encoding = model.tokenizer.encode(SAID, None, overflow="truncate")
    token = next(number for number, (start, _) in enumerate(encoding.offsets) if start == SAID.index("sat"))
    wanted, _ = theirs(reference, encoding, model.labels.names.index(found.target), token)
    shares = np.array([one.score for one in found.tokens])
    assert np.abs(shares - wanted).max() <= BOUND * np.abs(wanted).max()
