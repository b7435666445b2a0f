"""Tagging through Python: what is found, where it is, and in texts of any length."""

import itertools
import os
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import mlxbert
from mlxbert import Labels, Tagged
from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.nn.crf import SCALE
from mlxbert.nn.ops import inference
from mlxbert.tasks.entities import TaggedToken, words_with_tokens
from mlxbert.tasks.options import Aggregation
from mlxbert.tasks.tag import HEAD
from mlxbert.text.token_blocks import SIZE
from mlxbert.text.window_stitching import best_windows
from mlxbert.text.words import trimmed
from tests.helpers.cases import together
from tests.helpers.families import FAMILIES, make_config, make_model
from tests.helpers.frozen import add_vocabulary
from tests.helpers.libraries import Library
from tests.helpers.taggers import NER, POS, save_random_tagger, save_tagger
from tests.helpers.vocabularies import BYTE_TOKENS, HEAD as HEAD_PIECES, byte_files, pieces_file, plain as pieces, put

NAMES = {"paris": "B-LOC", "city": "I-LOC", "man": "B-PER", "dog": "B-PER", "play": "B-PER", "##ing": "I-LOC"}
HOWS = [None, *get_args(Aggregation)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    """A tagger that knows the tag of every token."""
    return mlxbert.load(save_tagger(tmp_path_factory.mktemp("table"), NER, NAMES), dtype="float32")


@pytest.fixture(scope="module")
def chance(tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    """A tagger of random weights, which looks at what is around a token."""
    return mlxbert.load(save_random_tagger(tmp_path_factory.mktemp("chance"), NER), dtype="float32")


def found(model: mlxbert.Model, text: Any, **how: Any) -> list[tuple[str, str]]:
    return [(entity.label, entity.text) for entity in mlxbert.tag(model, text, **how).entities]


def assert_places(result: Tagged) -> None:
    """Every entity is where it says, none is empty, and they are in order; a token of a space alone has its word's."""
    for entity in result.entities:
        assert result.text[entity.start : entity.end] == entity.text and entity.text.strip()
        assert 0 <= entity.score <= 1
    assert all(a.end <= b.start or (a.start, a.end) == (b.start, b.end) for a, b in itertools.pairwise(result.entities))


def test_words_become_entities_by_their_first_tokens(table: mlxbert.Model) -> None:
    text = 'the man, "playing" in paris city  of tokyo.'
    wanted = [("PER", "man"), ("PER", "playing"), ("LOC", "paris city")]
    assert found(table, text) == wanted == found(table, text, aggregation="first")
    tokens = [("B-PER", "man"), ("B-PER", "play"), ("I-LOC", "ing"), ("B-LOC", "paris"), ("I-LOC", "city")]
    assert found(table, text, aggregation="none") == tokens
    assert found(table, text, aggregation="simple") == [
        ("PER", "man"), ("PER", "play"), ("LOC", "ing"), ("LOC", "paris city"),
    ]  # fmt: skip
    result = mlxbert.tag(table, text)
    assert_places(result)
    certain = mlxbert.tag(table, text, aggregation="none").entities
    assert result.entities[2].score == pytest.approx((certain[3].score + certain[4].score) / 2, abs=1e-6)
    score = result.entities[0].score
    first = {"label": "PER", "start": 4, "end": 7, "text": "man", "score": score}
    assert list(result.to_dict()) == ["text", "entities"] and result.to_dict()["entities"][0] == first


@together(
    "names,begin,end,one",
    [
        (("O", "B-X", "I-X", "E-X", "S-X"), "B-X", "E-X", "S-X"),
        (("O", "B-X", "I-X", "L-X", "U-X"), "B-X", "L-X", "U-X"),
        (("O", "B-X", "I-X"), "B-X", "I-X", "B-X"),
        (("O", "X", "Y"), "X", "X", "Y"),  # types alone
        (("O", "B-X", "I-X", "Z"), "B-X", "I-X", "Z"),  # a tag of no scheme
    ],
)
def test_tags_of_every_scheme(names: tuple[str, ...], begin: str, end: str, one: str, tmp_path: Path) -> None:
    tags = {"paris": begin, "city": end, "man": one, "tokyo": begin, "store": end}
    model = mlxbert.load(save_tagger(tmp_path / "".join(names), Labels(names), tags), task="tag")
    wanted = [("X", "paris city"), (one[-1], "man"), ("X", "tokyo store")]
    assert found(model, "the paris city man in tokyo store") == wanted


def test_every_word_has_a_tag_where_tags_mark_no_entities(tmp_path: Path) -> None:
    tags = {"the": "DET", "a": "DET", "is": "VERB", "play": "VERB", ".": "PUNCT", ",": "PUNCT"}
    model = mlxbert.load(save_tagger(tmp_path / "model", POS, tags))
    text = "The man is playing, a dog."
    words = [("DET", "The"), ("NOUN", "man"), ("VERB", "is"), ("VERB", "playing"), ("PUNCT", ","), ("DET", "a")]
    assert found(model, text) == [*words, ("NOUN", "dog"), ("PUNCT", ".")]
    assert found(model, ("The", "man", "is")) == words[:3]
    merged = found(model, text, aggregation="simple")  # as transformers has it: neighbours of one tag are joined
    assert ("VERB", "is play") in merged


def test_words_can_be_given(table: mlxbert.Model) -> None:
    words = ("the", "paris.city", "of", "", "man", "play\u00e9ing", "city")
    result = mlxbert.tag(table, words)
    assert result.text == "the paris.city of  man play\u00e9ing city"
    assert [(entity.label, entity.text) for entity in result.entities][:2] == [("LOC", "paris.city"), ("PER", "man")]
    assert_places(result)
    items: list[Any] = [["paris"], "paris city", ("paris", "city"), []]
    several = [[entity.text for entity in one.entities] for one in mlxbert.tag(table, items)]
    assert several == [["paris"], ["paris city"], ["paris city"], []]
    assert found(table, ("paris.city",), aggregation="first") == [("LOC", "paris.city")]


@pytest.mark.parametrize("how", HOWS)
def test_an_entity_at_the_border_of_windows_is_found_once(how: Any, table: mlxbert.Model) -> None:
    """The model takes 30 tokens; the entity of three words moves through more than a window of a text of four."""
    texts = ["the " * before + "paris city city" + " the" * (70 - before) for before in range(20, 50)]
    wanted = ["paris", "city", "city"] if how == "none" else ["paris city city"]
    for before, result in enumerate(mlxbert.tag(table, texts, aggregation=how), 20):
        assert [entity.text for entity in result.entities] == wanted
        assert result.entities[0].start == 4 * before


def test_each_token_is_judged_where_it_has_most_context(chance: mlxbert.Model) -> None:
    text = "the cat sat on a mat , the dog went to the store . the man bought milk , he is in the city . a cat " * 3
    windows = chance.tokenizer.windows(text, stride=chance.tokenizer.max_length // 4)
    assert len(windows) > 3
    logits = [chance.network.logits(HEAD, chance.network(mx.array([one.ids])))[0] for one in windows]
    shares = [np.array(mx.softmax(one, axis=-1)) for one in logits]
    wanted = [(shares[number][place], windows[number].offsets[place]) for number, place in best_windows(windows)]
    tagged = [(NER.names[row.argmax()], span, row.max()) for row, span in wanted if row.argmax()]  # the first is "O"
    found = mlxbert.tag(chance, text, aggregation="none").entities
    assert [(one.label, (one.start, one.end)) for one in found] == [(name, span) for name, span, _ in tagged] and found
    assert [one.score for one in found] == pytest.approx([score for _, _, score in tagged], abs=1e-5)


HARD = {
    "empty": "",
    "spaces": " \n\t ",
    "chinese": "\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8\u3002the man",
    "arabic": "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u060c paris \u0623\u0647\u0644\u0627",
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 paris \U0001f1e9\U0001f1ea!",
    "accents": "e\u0301 cafe\u0301 \u0130stanbul \ufb01ne paris",
    "controls": "the\x00 man\x1b[0m \u200b paris\ufeff",
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("how", HOWS)
def test_offsets_are_those_of_the_text_in_code_points(
    name: str, how: Any, table: mlxbert.Model, chance: mlxbert.Model
) -> None:
    text = HARD[name]
    for model in (table, chance):
        result = mlxbert.tag(model, text, aggregation=how)
        assert result.text == text and not result.truncated
        assert_places(result)
    places = [entity.text for entity in mlxbert.tag(table, text).entities if entity.label == "LOC"]
    assert places == ["paris"] * ("paris" in text)


@pytest.mark.parametrize("how", [None, pytest.param("none", marks=pytest.mark.slow)])
def test_a_text_of_5000_words(how: Any, table: mlxbert.Model) -> None:
    text = "the man went to paris city . " * 715
    assert len(text) > SIZE  # several blocks
    result = mlxbert.tag(table, text, aggregation=how)
    wanted = ["man", "paris", "city"] if how else ["man", "paris city"]
    assert [entity.text for entity in result.entities] == wanted * 715
    assert_places(result)


@pytest.mark.weekly
@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(table: mlxbert.Model) -> None:
    """Entities are the result, and do grow: these texts have none, but the last word."""
    peaks = []
    for count in (3000, 9000):
        tracemalloc.start()
        result = mlxbert.tag(table, "the store is open . " * count + "paris")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert [entity.text for entity in result.entities] == ["paris"]
    assert peaks[1] < 1.2 * peaks[0]


def test_vocabularies_that_count_spaces_to_their_tokens(tmp_path: Path) -> None:
    letters = pieces("\u2581", "\u2581the", "\u2581P", *"Paris,()'the")
    files = {"sentencepiece.bpe.model": pieces_file([*HEAD_PIECES, *letters])}
    for name, vocabulary in (("Roberta", byte_files([*BYTE_TOKENS, *",()'"])), ("XLMRoberta", files)):
        folder = save_random_tagger(tmp_path / name, POS)
        (folder / "vocab.txt").unlink()
        put(folder, {**vocabulary, "tokenizer_config.json": {"tokenizer_class": f"{name}Tokenizer"}})
        model = mlxbert.load(folder, dtype="float32")
        text = " the Paris,  the\tParis (the Paris) Paris's "
        words = ["the", "Paris", ",", "the", "Paris", "(", "the", "Paris", ")", "Paris", "'s"]
        result = mlxbert.tag(model, text)
        assert [entity.text for entity in result.entities] == words, name
        assert_places(result)
        for how in get_args(Aggregation):
            assert_places(mlxbert.tag(model, text, aggregation=how))
        given = mlxbert.tag(model, tuple(words))
        assert [entity.text for entity in given.entities] == words and given.text == " ".join(words)


def test_an_invisible_mark_within_a_word_does_not_cut_it() -> None:
    tokens = [TaggedToken(span, 0, np.zeros(5, np.float32)) for span in ((0, 3), (3, 4), (4, 7), (7, 11))]
    words = [*words_with_tokens("foo\u200bbar cat", tokens, [(0, 7), (8, 11)])]
    assert [word.span for word in words] == [(0, 7), (8, 11)]
    assert [[token.span for token in word.tokens] for word in words] == [[(0, 3), (4, 7)], [(7, 11)]]


def test_a_long_text_is_covered_cut_or_refused(table: mlxbert.Model) -> None:
    text = "the " * 40 + "paris"
    assert found(table, text) == [("LOC", "paris")]
    cut = mlxbert.tag(table, text, overflow="truncate")
    assert cut.truncated and cut.entities == ()
    with pytest.raises(InputError, match="at most 32"):
        mlxbert.tag(table, text, overflow="error")


def test_what_is_neither_a_text_nor_words(table: mlxbert.Model) -> None:
    for wrong in (3, None, {"text": "a"}, ["a", 2], b"a"):
        with pytest.raises(InputError, match="input 1: expected a text or a list of words"):
            list(mlxbert.tag(table, ["the", wrong]))  # type: ignore[list-item]
        _, failed, last = mlxbert.tag(table, ["the", wrong, "cat"], on_error="return")  # type: ignore[call-overload]
        assert isinstance(failed, mlxbert.Failure) and isinstance(last, Tagged)
    with pytest.raises(InputError, match="surrogate"):
        mlxbert.tag(table, "a \ud800")
    late = "the " * 10_000 + "\ud800"  # behind the first block
    _, failed, last = mlxbert.tag(table, ["the", late, "cat"], on_error="return")
    assert isinstance(failed, mlxbert.Failure) and isinstance(last, Tagged)
    with pytest.raises(ArgumentError, match="`aggregation` is 'last'"):
        mlxbert.tag(table, "a", aggregation="last")  # type: ignore[call-overload]


def test_a_crf_decides_over_words(tmp_path: Path) -> None:
    tags = {"paris": "I-LOC", "man": "B-PER", "dog": "I-LOC", "##ing": "B-PER"}  # which breaks its scheme
    folder = save_tagger(tmp_path / "model", NER, tags)
    model = mlxbert.load(folder, new_heads={HEAD: replace(NER, crf=True)}, dtype="float32")
    head: Any = model.network.heads[HEAD]
    head.out.weight = mlxbert.load(folder).network.heads[HEAD].out.weight  # type: ignore[attr-defined]
    text = "the paris went to man dog playing"
    words = text.split()
    assert found(model, text, aggregation="first") == [("LOC", "paris"), ("PER", "man"), ("LOC", "dog")]
    result = mlxbert.tag(model, text)
    assert_places(result)
    encoding = model.tokenizer.encode(text)
    with inference():  # some paths are equally good but for the last digit
        rows = np.array(model.network.logits(HEAD, model.network(mx.array([encoding.ids])))[0])
    emissions = rows[1:-2]  # without [CLS], "##ing" and [SEP]
    names = [NER.names[tag] for tag in head.crf.decode(emissions)]
    shares = head.crf.marginals(emissions)
    assert mlxbert.tag(model, tuple(words)).entities == result.entities
    for entity in result.entities:
        covered = [place for place, word in enumerate(words) if word in entity.text.split()]
        assert {names[place][2:] for place in covered} == {entity.label}
        own = [shares[place, NER.names.index(names[place])] for place in covered]
        assert entity.score == pytest.approx(np.mean(own), abs=1e-5)
    head.crf.transitions = mx.zeros((5, 5)).at[0, 0].add(50 / SCALE)  # nothing but "O"
    head.crf.start = mx.zeros(5).at[0].add(50 / SCALE)
    assert found(model, text) == []
    assert found(model, text, aggregation="first") == [("LOC", "paris"), ("PER", "man"), ("LOC", "dog")]


torch, transformers = Library("torch"), Library("transformers")


CLASS, BOUND = "ForTokenClassification", 1e-4
VOCABULARIES = Path(os.environ.get("MLXBERT_TEST_TOKENIZERS", "/none"))
# Those of the first folder name that is there, and the family that they belong to.
REAL = {
    "bert-base-cased": "Bert", "bert-base-uncased": "Bert", "bert-base-chinese": "Bert",
    "bert-base-multilingual-cased": "Bert", "roberta-base": "Roberta", "xlm-roberta-base": "XLMRoberta",
    "albert-base-v2": "Albert",
}  # fmt: skip
TEXTS = [
    'Angela Merkel\'s dog, called "Otto", went to Paris-Nord in the U.S. of A.',
    "he bought milk in tokyo , playing",
    "  the cat  sat\ton the\n mat ",
    "\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8\u3002Hello \u4e16\u754c",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0623\u0647\u0644\u0627",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family in Z\u00fcrich \U0001f1e9\U0001f1ea!",
    "na\u00efve caf\u00e9 re\u0301sume\u0301 \ufb01ne \u00df \u0130stanbul",
]
WORDS = ["the cat sat on the mat", "a man went to the store , playing in paris .", "cats bought milk !", "zz paris"]

Found = list[tuple[str, int, int, float]]


def pipeline(folder: Path, tokenizer: Any, aggregation: str, kind: Any = None, **options: Any) -> Any:
    kind = kind or transformers.AutoModelForTokenClassification
    model = kind.from_pretrained(folder, attn_implementation="eager")
    options |= {"aggregation_strategy": aggregation, "device": "cpu"}
    return transformers.pipeline("token-classification", model=model, tokenizer=tokenizer, **options)


def theirs(pipe: Any, text: str) -> Found:
    """What the pipeline finds; some vocabularies count spaces to their tokens."""
    with warnings.catch_warnings(action="ignore"):
        rows = pipe(text)
    found = []
    for row in rows:
        start, end = trimmed(text, (row["start"], row["end"]))
        if start < end:
            found.append((row.get("entity_group", row.get("entity")), start, end, float(row["score"])))
    return found


def ours(model: mlxbert.Model, text: str, aggregation: Any) -> Found:
    entities = mlxbert.tag(model, text, aggregation=aggregation).entities
    return [(entity.label, entity.start, entity.end, entity.score) for entity in entities]


def assert_same(model: mlxbert.Model, pipe: Any, texts: list[str], aggregation: str) -> int:
    """The same entities at the same places with the same scores; returns how many."""
    count = 0
    for text in texts:
        found, wanted = ours(model, text, aggregation), theirs(pipe, text)
        assert [one[:3] for one in found] == [one[:3] for one in wanted], text
        assert [one[3] for one in found] == pytest.approx([one[3] for one in wanted], abs=BOUND)
        count += len(found)
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [name for name, compared in FAMILIES.items() if CLASS in compared.heads and compared.in_transformers]
)
def test_entities_are_those_of_the_pipeline(family: str, tmp_path: Path) -> None:
    compared = FAMILIES[family]
    model = make_model(compared, CLASS)
    model.config.id2label = dict(enumerate(("B-Z", "B-X", "I-X", "I-Y")))
    model.save_pretrained(tmp_path)
    tokenizer = transformers.BertTokenizer.from_pretrained(add_vocabulary(tmp_path))
    tokenizer.model_input_names = ["input_ids", "attention_mask", *["token_type_ids"] * (compared.segments > 1)]
    loaded = mlxbert.load(tmp_path, task="tag", dtype="float32")
    pipes = {how: pipeline(tmp_path, tokenizer, how, type(model)) for how in get_args(Aggregation)}
    assert sum(assert_same(loaded, pipe, WORDS, how) for how, pipe in pipes.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_words_of_real_vocabularies_are_those_of_the_pipeline(name: str, tmp_path: Path) -> None:
    if not (VOCABULARIES / name).is_dir():
        pytest.skip(f"MLXBERT_TEST_TOKENIZERS names no folder with {name}")
    for path in (VOCABULARIES / name).iterdir():
        (tmp_path / path.name.removesuffix(".rebuilt")).write_bytes(path.read_bytes())
    tokenizer = getattr(transformers, f"{REAL[name]}Tokenizer").from_pretrained(tmp_path)
    roberta = "Roberta" in REAL[name] or "RoBERTa" in REAL[name]
    torch.manual_seed(1)
    config = getattr(transformers, f"{REAL[name]}Config")(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=514, pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
        type_vocab_size=1 if roberta else 2, id2label=dict(enumerate(NER.names)),
        **({"embedding_size": 16} if REAL[name] == "Albert" else {}),
    )  # fmt: skip
    folder = tmp_path / "model"
    getattr(transformers, f"{REAL[name]}{CLASS}")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded = mlxbert.load(folder, dtype="float32")
    for how in get_args(Aggregation):
        assert assert_same(loaded, pipeline(folder, tokenizer, how), TEXTS, how)


@pytest.mark.slow
def test_a_folder_with_a_crf_opens_there_and_gives_the_same_numbers(tmp_path: Path) -> None:
    make_model(FAMILIES["bert"], "Model").save_pretrained(tmp_path / "source")
    add_vocabulary(tmp_path / "source")
    crf = mlxbert.Labels(NER.names, crf=True)
    model = mlxbert.load(tmp_path / "source", new_heads={HEAD: crf}, dtype="float32")
    folder = mlxbert.save(model, tmp_path / "saved")
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    config = make_config(FAMILIES["bert"], CLASS)
    assert type(transformers.AutoConfig.from_pretrained(folder)) is type(config)
    for how in get_args(Aggregation):
        assert_same(model, pipeline(folder, tokenizer, how), WORDS, how)
