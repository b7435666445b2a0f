"""Next-sentence prediction through Python."""

import pytest

import mlxbert
from mlxbert.machine.device import mx


def test_the_built_in_model_tells_a_sequel_from_a_jump(builtin: mlxbert.Model) -> None:
    first = "The Eiffel Tower was built for the 1889 World's Fair in Paris by the company of Gustave Eiffel."
    sequel = "The tower was criticised at first by some leading artists, but it became a symbol of France."
    other = "Photosynthesis in plants takes place in organelles called chloroplasts, which contain chlorophyll."
    follows, jumps = mlxbert.next_sentence(builtin, [(first, sequel), (first, other)])
    assert follows.is_next and follows.score > 0.9
    assert not jumps.is_next and jumps.score < 0.1


def test_the_score_is_the_share_of_class_zero(tiny: mlxbert.Model) -> None:
    encoding = tiny.tokenizer.encode("the cat sat", "he bought milk")
    output = tiny.network(mx.array([encoding.ids]), None, mx.array([encoding.token_type_ids]))
    expected = mx.softmax(tiny.network.logits("next_sentence", output), axis=-1)[0, 0].item()
    assert abs(mlxbert.next_sentence(tiny, ("the cat sat", "he bought milk")).score - expected) < 1e-6
    without = tiny.network(mx.array([encoding.ids]))
    assert abs(mx.softmax(tiny.network.logits("next_sentence", without), axis=-1)[0, 0].item() - expected) > 1e-4


def test_many_pairs_give_what_each_gives_alone_and_bad_ones_fail_in_their_place(tiny: mlxbert.Model) -> None:
    pairs = [("the cat", "sat on the mat"), ("a", "b " * 40), ("dog", "!"), ("", "")]
    many = list(mlxbert.next_sentence(tiny, pairs))
    for pair, found in zip(pairs, many, strict=True):
        assert abs(mlxbert.next_sentence(tiny, pair).score - found.score) < 1e-5
    assert [found.truncated for found in many] == [False, True, False, False]
    assert list(many[0].to_dict()) == ["a", "b", "is_next", "score"]
    broken = [pairs[0], ("only one",), pairs[2]]
    results = list(mlxbert.next_sentence(tiny, broken, on_error="return"))  # type: ignore[call-overload]
    assert isinstance(results[1], mlxbert.Failure) and results[1].index == 1
    with pytest.raises(mlxbert.InputError, match="expected a pair of texts"):
        list(mlxbert.next_sentence(tiny, broken))  # type: ignore[arg-type]
    with pytest.raises(mlxbert.InputError, match="at most 32"):
        mlxbert.next_sentence(tiny, pairs[1], overflow="error")
