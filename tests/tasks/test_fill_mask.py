"""fill-mask through Python: one text, many, several masks, targets, long texts, bad inputs."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import mlxbert
from mlxbert.machine.device import mx
from tests.helpers.cases import together
from tests.helpers.tiny import CONFIG, VOCAB, random_network, save, tensors_of, tiny_config

TOKYO = "Tokyo is the largest city in [MASK]."


def test_the_built_in_model_knows_where_tokyo_is(builtin: mlxbert.Model) -> None:
    result = mlxbert.fill_mask(builtin, TOKYO)
    (mask,) = result.masks
    assert (mask.position, TOKYO[mask.start : mask.end], len(mask.fills)) == (7, "[MASK]", 5)
    best = mask.fills[0]
    assert (best.token, best.token_id) == ("japan", 2900)
    assert best.text == "Tokyo is the largest city in japan."
    assert abs(best.score - 0.694) < 0.005
    assert [fill.score for fill in mask.fills] == sorted((fill.score for fill in mask.fills), reverse=True)


def test_scores_are_probabilities_over_the_whole_vocabulary(tiny: mlxbert.Model) -> None:
    result = mlxbert.fill_mask(tiny, "the [MASK] sat", top_k=len(VOCAB))
    assert abs(sum(fill.score for fill in result.masks[0].fills) - 1) < 1e-5
    assert sorted(fill.token_id for fill in result.masks[0].fills) == list(range(len(VOCAB)))


def test_several_masks_are_filled_each_while_the_others_stay(tiny: mlxbert.Model) -> None:
    text = "[MASK] cat [MASK] on [MASK]"
    result = mlxbert.fill_mask(tiny, text, top_k=1)
    assert [(mask.start, mask.end) for mask in result.masks] == [(0, 6), (11, 17), (21, 27)]
    assert [mask.position for mask in result.masks] == [1, 3, 5]
    for mask in result.masks:
        assert str(mask.fills[0].text).count("[MASK]") == 2


def test_targets_keep_their_scores_and_nothing_else_competes(tiny: mlxbert.Model) -> None:
    whole = {fill.token: fill.score for fill in mlxbert.fill_mask(tiny, "a [MASK] .", top_k=len(VOCAB)).masks[0].fills}
    found = mlxbert.fill_mask(tiny, "a [MASK] .", targets=["dog", "CAT", "mat", "dog", "in", "on", "of"]).masks[0].fills
    assert sorted(fill.token for fill in found) == ["cat", "dog", "in", "mat", "of", "on"]
    for fill in found:
        assert abs(fill.score - whole[fill.token]) < 1e-7
    assert len(mlxbert.fill_mask(tiny, "a [MASK] .", targets=["dog", "cat"], top_k=1).masks[0].fills) == 1


@together("targets", [["zebra"], ["cats"], [""], [], "cat", ["cat dog"], ["cat", "\ud800"]])
def test_a_target_that_is_no_token_is_refused(tiny: mlxbert.Model, targets: list[str]) -> None:
    with pytest.raises(mlxbert.ArgumentError, match="target"):
        mlxbert.fill_mask(tiny, "a [MASK] .", targets=targets)


@together("top_k", [0, -1, len(VOCAB) + 1, "3", 2.5, True])
def test_top_k_that_is_no_number_of_words_is_refused(tiny: mlxbert.Model, top_k: int) -> None:
    with pytest.raises(mlxbert.ArgumentError, match=f"`top_k` is {top_k!r}"):
        mlxbert.fill_mask(tiny, "a [MASK] .", top_k=top_k)


@pytest.mark.parametrize("texts", [5, None])
def test_what_is_no_text_and_no_iterable_is_refused(tiny: mlxbert.Model, texts: str) -> None:
    with pytest.raises(mlxbert.ArgumentError, match="expected one text or an iterable of texts"):
        mlxbert.fill_mask(tiny, texts)
    with pytest.raises(mlxbert.ArgumentError, match="expected a hub name"):
        mlxbert.load(texts)


def test_many_masks_share_windows(tiny: mlxbert.Model) -> None:
    result = mlxbert.fill_mask(tiny, "[MASK] " * 200, top_k=1)
    assert [mask.position for mask in result.masks] == list(range(1, 201))


def test_a_continuation_joins_the_word_before_it(tiny: mlxbert.Model) -> None:
    (mask,) = mlxbert.fill_mask(tiny, "he play [MASK] .", targets=["##ing"]).masks
    assert mask.fills[0].text == "he playing ."


@pytest.mark.slow
def test_many_texts_give_what_each_gives_alone(builtin: mlxbert.Model) -> None:
    texts = [TOKYO, "[MASK]", "The " * 70 + "[MASK] sat.", "A [MASK] and a [MASK] met in the old town.", TOKYO.upper()]
    texts[-1] = texts[-1].replace("CITY", "[MASK]")
    each = [mlxbert.fill_mask(builtin, text) for text in texts]
    for tokens in (None, 1, 100):
        many = list(mlxbert.fill_mask(builtin, texts, batch_tokens=tokens))
        for alone, found in zip(each, many, strict=True):
            for one, other in zip(alone.masks, found.masks, strict=True):
                assert (one.position, one.start, one.end) == (other.position, other.start, other.end)
                for fill, same in zip(one.fills, other.fills, strict=True):
                    assert abs(fill.score - same.score) < 1e-5


def test_a_text_without_a_mask_raises_or_fails_in_its_place(tiny: mlxbert.Model) -> None:
    texts = ["the [MASK]", "the cat", "[MASK] sat"]
    with pytest.raises(mlxbert.InputError, match=r"the text 'the cat' has no \[MASK\]"):
        list(mlxbert.fill_mask(tiny, texts))
    with pytest.raises(mlxbert.InputError):
        mlxbert.fill_mask(tiny, "one text raises", on_error="return")
    good, bad, last = mlxbert.fill_mask(tiny, texts, on_error="return")
    assert isinstance(good, mlxbert.FillMask) and isinstance(last, mlxbert.FillMask)
    assert isinstance(bad, mlxbert.Failure) and bad.index == 1 and "has no [MASK]" in bad.error.message
    with pytest.raises(mlxbert.ArgumentError, match="on_error"):
        mlxbert.fill_mask(tiny, texts, on_error="ignore")  # type: ignore[call-overload]


def test_each_mask_of_a_long_text_is_seen_with_what_stands_around_it(tiny: mlxbert.Model) -> None:
    words = ["the", "cat", "sat", "on", "a", "mat"] * 20
    words[3], words[60], words[61], words[119] = ["[MASK]"] * 4
    text = " ".join(words)
    result = mlxbert.fill_mask(tiny, text)
    assert [mask.position for mask in result.masks] == [4, 61, 62, 120]
    assert all(text[mask.start : mask.end] == "[MASK]" for mask in result.masks)
    # 30 tokens fit between [CLS] and [SEP]; the window of a mask begins 15 before it, unless the text ends earlier.
    # The mask next to another shares its window.
    for mask, start in zip(result.masks, (0, 45, 45, 90), strict=True):
        alone = mlxbert.fill_mask(tiny, " ".join(words[start : start + 30]))
        same = next(found for found in alone.masks if found.position == mask.position - start)
        assert [fill.token for fill in same.fills] == [fill.token for fill in mask.fills]
        assert abs(same.fills[0].score - mask.fills[0].score) < 1e-6
    with pytest.raises(mlxbert.InputError, match=r"122 tokens.*32"):
        mlxbert.fill_mask(tiny, text, overflow="error")
    cut = mlxbert.fill_mask(tiny, text, overflow="truncate")
    assert len(cut.masks) == 1 and cut.truncated and not result.truncated
    with pytest.raises(mlxbert.InputError, match=r"no \[MASK\] within the first 32 tokens"):
        mlxbert.fill_mask(tiny, " ".join(words[4:]), overflow="truncate")


def test_both_spellings_of_the_mask_are_understood(tmp_path: Path) -> None:
    vocab = ["<mask>" if word == "[MASK]" else word for word in VOCAB]
    model = mlxbert.load(str(save(tmp_path / "m", vocab=vocab, settings={"mask_token": "<mask>"})))
    text = "é [MASK] sat <mask> mat [MASK]"
    result = mlxbert.fill_mask(model, text, top_k=1)
    assert [text[mask.start : mask.end] for mask in result.masks] == ["[MASK]", "<mask>", "[MASK]"]
    plain = mlxbert.fill_mask(model, text.replace("[MASK]", "<mask>"), top_k=1)
    assert [mask.fills[0].token for mask in plain.masks] == [mask.fills[0].token for mask in result.masks]
    word = result.masks[1].fills[0].token.removeprefix("##")
    assert result.masks[1].fills[0].text in (f"é [MASK] sat {word} mat [MASK]", f"é [MASK] sat{word} mat [MASK]")


def test_a_checkpoint_without_the_head_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", tensors_of(random_network(tiny_config(), heads=("next_sentence",))))
    with pytest.raises(mlxbert.CheckpointError, match="no masked-LM head"):
        mlxbert.load(str(folder), task="fill-mask")
    with pytest.raises(mlxbert.CheckpointError, match="no masked-LM head"):
        mlxbert.fill_mask(mlxbert.load(str(folder)), "[MASK]")


def test_a_model_of_a_thread_that_has_ended_is_refused_too(tiny_folder: Path) -> None:
    found: list[object] = []

    def use(model: mlxbert.Model) -> None:
        try:
            found.append(mlxbert.fill_mask(model, "[MASK]"))
        except mlxbert.ThreadError as problem:
            found.append(problem)

    def run(work: Callable[[], object]) -> None:  # thread ids are used again once a thread has ended
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    loaded: list[mlxbert.Model] = []
    run(lambda: loaded.append(mlxbert.load(str(tiny_folder))))
    run(lambda: use(loaded[0]))
    assert isinstance(found[0], mlxbert.ThreadError)


def test_scores_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    tensors = tensors_of(random_network(tiny_config()))
    tensors["cls.predictions.bias"] = mx.full(tensors["cls.predictions.bias"].shape, mx.nan)
    tensors["cls.seq_relationship.bias"] = mx.full((2,), mx.nan)
    model = mlxbert.load(str(save(tmp_path / "m", tensors)))
    with pytest.raises(mlxbert.MlxbertError, match="not finite"):
        mlxbert.fill_mask(model, "the [MASK]")
    with pytest.raises(mlxbert.MlxbertError, match="not finite"):
        mlxbert.next_sentence(model, ("the", "cat"))


def test_rows_of_the_embeddings_without_a_token_are_no_words(tmp_path: Path) -> None:
    config = {**CONFIG, "vocab_size": CONFIG["vocab_size"] + 13}
    tensors = tensors_of(random_network(tiny_config(vocab_size=config["vocab_size"])))
    tensors["cls.predictions.bias"][-13:] = 50.0  # each of them would win
    model = mlxbert.load(str(save(tmp_path / "m", tensors, config)))
    fills = mlxbert.fill_mask(model, "the [MASK]", top_k=len(VOCAB)).masks[0].fills
    assert sorted(fill.token_id for fill in fills) == list(range(len(VOCAB)))
    assert sum(fill.score for fill in fills) < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_find_the_same_words(dtype: str) -> None:
    model = mlxbert.load("builtin", task="fill-mask", dtype=dtype, device="cpu")
    assert model.network.encoder.embeddings.word.weight.dtype == getattr(mx, dtype)
    best = mlxbert.fill_mask(model, TOKYO).masks[0].fills[0]
    assert best.token == "japan" and abs(best.score - 0.694) < 0.02


def test_results_become_the_json_of_the_contract(tiny: mlxbert.Model) -> None:
    found = json.loads(json.dumps(mlxbert.fill_mask(tiny, "the [MASK]", top_k=1).to_dict()))
    assert list(found) == ["text", "masks"]
    assert list(found["masks"][0]) == ["position", "start", "end", "fills"]
    assert list(found["masks"][0]["fills"][0]) == ["token", "token_id", "score", "text"]
    assert CONFIG["vocab_size"] > found["masks"][0]["fills"][0]["token_id"] >= 0


def test_fills_repeat_the_text_up_to_the_50th_mask_or_not_at_all(tiny: mlxbert.Model) -> None:
    text = " ".join(["[MASK]"] * 60)
    masks = mlxbert.fill_mask(tiny, text, top_k=1).masks
    assert [mask.fills[0].text is None for mask in masks] == [False] * 49 + [True] * 11
    without = mlxbert.fill_mask(tiny, text, top_k=1, text=False)
    assert [(fill.token_id, fill.score, fill.text) for mask in without.masks for fill in mask.fills] == [
        (fill.token_id, fill.score, None) for mask in masks for fill in mask.fills
    ]
    assert all("text" not in fill for mask in without.to_dict()["masks"] for fill in mask["fills"])
    with pytest.raises(mlxbert.ArgumentError, match="`text` is 'no'"):
        mlxbert.fill_mask(tiny, text, text="no")  # type: ignore[call-overload]
