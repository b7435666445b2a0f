"""explain next to captum's integrated gradients, with classifiers and taggers of transformers.

Needs torch, transformers and captum.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers.families import FAMILIES, make_model
from tests.helpers.frozen import add_vocabulary

torch = pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
captum = pytest.importorskip("captum.attr", reason="parity needs captum: pip install -r requirements-parity.txt")

pytestmark = pytest.mark.slow

TEXT, PAIR = "the cat sat on the mat", "he bought milk in tokyo"
BOUND = 1e-4  # of the largest share


def theirs(model: Any, encoding: Any, number: int, token: int | None) -> Any:
    """The shares of captum: it interpolates the output of the table of word vectors, as we do."""
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
    shares, gap = captum.IntegratedGradients(score).attribute(
        here, there, n_steps=20, method="gausslegendre", return_convergence_delta=True
    )
    return shares.sum(-1)[0].detach().numpy(), float(gap)


@pytest.mark.parametrize("pair", [None, PAIR])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta-v2", "electra", "modernbert"])
def test_shares_of_a_label_are_those_of_captum(family: str, pair: str | None, tmp_path: Path) -> None:
    reference = make_model(FAMILIES[family], "ForSequenceClassification").eval()
    reference.save_pretrained(tmp_path)
    add_vocabulary(tmp_path)
    model = mlxbert.load(tmp_path, dtype="float32")
    assert model.labels is not None
    for number, name in enumerate(model.labels.names):
        found = mlxbert.explain(model, TEXT, pair, target=name, steps=20)
        encoding = model.tokenizer.encode(TEXT, pair, overflow="truncate")
        wanted, gap = theirs(reference, encoding, number, None)
        shares = np.array([token.score for token in found.tokens])
        assert np.abs(shares - wanted).max() <= BOUND * np.abs(wanted).max()
        assert found.gap == pytest.approx(-gap, abs=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_shares_of_a_tag_are_those_of_captum(family: str, tmp_path: Path) -> None:
    reference = make_model(FAMILIES[family], "ForTokenClassification").eval()
    reference.save_pretrained(tmp_path)
    add_vocabulary(tmp_path)
    model = mlxbert.load(tmp_path, dtype="float32")
    found = mlxbert.explain(model, TEXT, at="sat", steps=20)
    assert model.labels is not None
    encoding = model.tokenizer.encode(TEXT, None, overflow="truncate")
    token = next(number for number, (start, _) in enumerate(encoding.offsets) if start == TEXT.index("sat"))
    wanted, _ = theirs(reference, encoding, model.labels.names.index(found.target), token)
    shares = np.array([one.score for one in found.tokens])
    assert np.abs(shares - wanted).max() <= BOUND * np.abs(wanted).max()
