"""Training on words with tags: windows, labelled tokens, losses, schemes, from files to models and their evaluation."""

import json
import logging
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.labels import Labels
from mlxbert.labels.schemes import decode
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.train.data.columns import ColumnNames
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.tagged_sentences import TaggedSentence, most_frequent, read_tagged
from mlxbert.train.loop.events import Evaluated, Finished, Started, Step
from mlxbert.train.objectives.open_tag import OpenTag
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.objectives.tag import HEAD, Tag, TagExample
from mlxbert.train.training_plan import prepared
from tests.helpers.cases import together
from tests.helpers.taggers import save_tagger
from tests.train.test_finetune import begun, one, run

NAMES = ("O", "B-animal", "I-animal", "B-city", "I-city")
KINDS = {"cat": "animal", "dog": "animal", "paris": "city", "tokyo": "city"}
SECOND = {"animal": "milk", "city": "store"}


SPEECH = [{"words": ["the", "cat", "sat", "."], "tags": ["DET", "NOUN", "VERB", "PUNCT"]}] * 5
SPEECH += [{"words": ["paris", "is", "a", "city", "."], "tags": ["PROPN", "AUX", "DET", "NOUN", "PUNCT"]}] * 5


def sentence(rng: random.Random, scheme: str = "iob2") -> list[tuple[str, str]]:
    """Words of the tiny vocabulary; animals and cities are entities of one word or two."""
    found: list[tuple[str, str]] = []
    for _ in range(rng.randint(2, 5)):
        word, kind = rng.choice([*KINDS.items()])
        begin, whole = ("B-", "B-") if scheme == "iob2" else ("B-", "S-")
        last = "I-" if scheme == "iob2" else "E-"
        if rng.random() < 0.5:
            found += [(word, begin + kind), (SECOND[kind], last + kind)]
        else:
            found += [(word, whole + kind)]
        found.append((rng.choice(["sat", "went", "playing", "."]), "O"))
    return found


def write(path: Path, count: int, scheme: str = "iob2", seed: int = 0) -> Path:
    rng = random.Random(seed)
    sentences = ["".join(f"{word}\t{tag}\n" for word, tag in sentence(rng, scheme)) for _ in range(count)]
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tagger(base: Path) -> Model:
    return mlxbert.load(base, new_heads={HEAD: Labels(NAMES)}, dtype="float32")


@pytest.fixture(scope="module")
def training(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("trained")
    train = write(folder / "train.conll", 60)
    return folder / "out", run("tag", train=train, model=base, output=folder / "out", epochs=3, batch_size=6, crf=True)


@pytest.fixture
def trained(training: tuple[Path, list[Any]]) -> Path:
    return training[0]


def objective(model: Model, **options: Any) -> Tag:
    made = Tag(**options)
    made.read(read_rows([{"words": ["cat"], "tags": ["B-animal"]}]))
    made.bind(model)
    return made


def tagged(words: list[str], tags: list[str]) -> TaggedSentence:
    offsets, start = [], 0
    for word in words:
        offsets.append((start, start + len(word)))
        start += len(word) + 1
    return TaggedSentence(" ".join(words), tuple(words), tuple(offsets), tuple(tags), "record 1")


def test_first_tokens_or_all_are_labelled_and_windows_of_a_crf_begin_as_the_scheme_allows(
    tagger: Model, base: Path
) -> None:
    record = tagged(["the", "playing", "cat"], ["O", "B-animal", "I-animal"])
    (example,) = objective(tagger).examples(record)
    assert [tagger.tokenizer.token(number) for number in example.encoding.ids][1:5] == ["the", "play", "##ing", "cat"]
    assert example.target == [(1, 0), (2, 1), (4, 2)]
    assert example.best == ((0, 1), (1, 2), (2, 4))
    (example,) = objective(tagger, label_all_pieces=True).examples(record)
    assert example.target == [(1, 0), (2, 1), (3, 2), (4, 2)]
    assert example.best == ((0, 1), (1, 2), (2, 4))
    model = mlxbert.load(base, new_heads={HEAD: Labels(NAMES, crf=True)}, dtype="float32")
    record = tagged(["cat"] * 100, ["B-animal", *["I-animal"] * 99])
    first, *others = objective(model, crf=True).examples(record)
    assert [tag for _, tag in first.target[:2]] == [1, 2] and others
    assert all([tag for _, tag in example.target[:2]] == [1, 2] for example in others)


@together("options", [{}, {"max_length": 12, "stride": 3}, {"stride": 0}])
def test_every_word_of_a_long_sentence_is_labelled_and_judged_once(tagger: Model, options: dict[str, Any]) -> None:
    rng = random.Random(0)
    pairs = [pair for _ in range(150) for pair in sentence(rng)][:600]
    record = tagged([word for word, _ in pairs], [tag for _, tag in pairs])
    made = objective(tagger, **options)
    examples = made.examples(record)
    assert [example.number for example in examples] == [*range(len(examples))]
    assert sorted(word for example in examples for word, _ in example.best) == [*range(600)]
    for example in examples:
        labels = dict(example.target)
        assert all(NAMES[labels[place]] == record.tags[word] for word, place in example.best)
    # The last windows of a long word have no first token of a word.
    part = prepared(objective(tagger), [(tagged(["the", "cat " * 200], ["O", "B-animal"]), "here")])
    assert len(part.examples) > 3 and part.truncated == 0


def test_words_without_a_token_count_as_outside(tagger: Model) -> None:
    made = objective(tagger)
    record = tagged(["cat", "\u200b", "sat"], ["B-animal", "B-city", "O"])
    (example,) = made.examples(record)
    assert [word for word, _ in example.best] == [0, 2]
    logits = np.zeros((1, len(example), len(NAMES)), np.float32)
    logits[..., 1] = 1
    scores = made.metrics([example], logits)
    assert scores["accuracy"] == pytest.approx(1 / 3) and scores["precision"] == 0.5
    (empty,) = made.examples(tagged(["\u200b"], ["O"]))
    assert empty.target == [] and made.metrics([empty], np.zeros((1, 2, 5), np.float32))["accuracy"] == 1.0


def examples_of(made: Tag, count: int) -> list[TagExample]:
    rng = random.Random(1)
    records = [tagged(*map(list, zip(*sentence(rng), strict=True))) for _ in range(count)]
    return [example for record in records for example in made.examples(record)]


@pytest.mark.parametrize("crf", [False, True])
def test_the_loss_is_a_sum_over_labelled_tokens(crf: bool, base: Path) -> None:
    model = mlxbert.load(base, new_heads={HEAD: Labels(NAMES, crf=crf)}, dtype="float32")
    made = objective(model, crf=crf, max_length=12)
    (unseen,) = made.examples(tagged(["\u200b"], ["O"]))
    found = [*examples_of(made, 9), unseen]
    rng = random.Random(0)

    def computed(examples: list[TagExample]) -> tuple[float, float]:
        loss, weight = made.loss(model.network, made.collate(examples, rng))
        return float(loss), float(weight)

    loss, weight = computed(found)
    each = [computed([example]) for example in found]
    assert loss == pytest.approx(sum(part for part, _ in each), rel=1e-5)
    assert weight == pytest.approx(sum(part for _, part in each)) == sum(len(example.target) for example in found)
    assert each[-1][0] == 0 and 0 < each[-1][1] < 1e-6  # of no labelled token
    assert made.metrics(found, predict(model.network, made, found))["loss"] == pytest.approx(loss / weight, rel=1e-5)
    if not crf:
        logits = [np.array(model.network.logits(HEAD, made.collate([one], rng).inputs))[0] for one in found]
        shares = [row - np.log(np.exp(row).sum(-1, keepdims=True)) for row in logits]
        by_hand = -sum(row[place, tag] for row, one in zip(shares, found, strict=True) for place, tag in one.target)
        assert loss == pytest.approx(by_hand, rel=1e-5)


def test_a_file_becomes_a_tagger(training: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, events = training
    started, finished = one(events, Started), one(events, Finished)
    assert started.report.columns == {"text": "1", "label": "2"} and started.report.facts == {"tags": "iob2"}
    assert {*started.report.splits[0].labels} == {"animal", "city"}
    assert finished.metric == "f1" and finished.score > 0.9
    assert finished.summary.baselines == {"most frequent tag": 1.0}  # each word has one tag
    assert "mlxbert tag" in finished.summary.command
    model = mlxbert.load(folder, task="tag")
    assert model.labels == Labels(NAMES, crf=True)
    found = mlxbert.evaluate("tag", model, data=write(tmp_path / "test.conll", 20, seed=9))
    assert found.score > 0.9 and found.classes == ("animal", "city", "O")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["task"] == "tag"
    # The function that uses the model finds the same entities.
    records = read_tagged(read_rows(tmp_path / "test.conll"), ColumnNames("1", None, "2"))
    right = predicted = expected = 0
    for record, result in zip(records, mlxbert.tag(model, [record.words for record in records]), strict=True):
        given = {(one.label, one.start, one.end) for one in cast(Any, result).entities}
        known = {
            (kind, record.offsets[start][0], record.offsets[end - 1][1])
            for kind, start, end in decode(record.tags, "iob2")
        }
        right, predicted, expected = right + len(given & known), predicted + len(given), expected + len(known)
    assert found.score == pytest.approx(2 * right / (predicted + expected))


def test_a_model_that_knows_the_entities_goes_on_in_its_own_scheme(trained: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "more.conll", 30, "bioes", seed=3)
    events = run("tag", train=data, model=trained, output=tmp_path / "out", epochs=1, lr=1e-6)
    assert one(events, Started).report.facts == {"tags": "bioes, written as iob2"}
    assert one(events, Finished).score > 0.9
    other = begun("tag", train=data, model=trained, output=tmp_path / "new", scheme="bioes")
    assert other.new_head and other.report is not None and other.report.facts == {"tags": "bioes"}


def test_a_head_that_lacks_a_tag_of_the_data_is_replaced(base: Path, tmp_path: Path) -> None:
    """Else the words with this tag would have no loss, without a word."""
    names = ("O", "I-animal", "B-city", "I-city")
    own = mlxbert.save(mlxbert.load(base, new_heads={HEAD: Labels(names)}), tmp_path / "own")
    data = [{"words": ["cat", "dog", "paris"], "tags": ["I-animal", "B-animal", "I-city"]}] * 9
    events = run("tag", train=data, valid=data, model=own, output=tmp_path / "out", epochs=1)
    assert one(events, Started).new_head
    labels = mlxbert.load(tmp_path / "out", task="tag").labels
    assert labels is not None and "B-animal" in labels.names


def test_data_without_entities_and_labels_of_no_scheme_are_evaluated(tmp_path: Path) -> None:
    model = mlxbert.load(save_tagger(tmp_path / "model", Labels(NAMES), {"cat": "B-animal"}), task="tag")
    for data in ([{"words": ["the", "sat"], "tags": ["O", "O"]}], [{"text": "the sat", "spans": []}]):
        found = mlxbert.evaluate("tag", model, data=data)
        assert found.metrics["accuracy"] == 1.0 and found.unknown == {} and found.truncated == 0
    # Labels of no scheme, such as those for padding in some models of the hub, are types of their own, as in `tag`.
    model = mlxbert.load(save_tagger(tmp_path / "pad", Labels((*NAMES, "PAD")), {"cat": "B-animal", "sat": "PAD"}))
    found = mlxbert.evaluate("tag", model, data=[{"words": ["the", "cat", "sat"], "tags": ["O", "B-animal", "O"]}])
    assert (found.metrics["recall"], found.metrics["precision"]) == (1.0, 0.5)
    assert found.classes == ("PAD", "animal", "city", "O")


def test_the_most_frequent_tag_of_a_word_is_that_in_training() -> None:
    train = [tagged(["a", "a", "b", "a"], ["O", "B-x", "B-x", "B-x"]), tagged(["c"] * 5, ["O"] * 5)]
    assert most_frequent(train, [tagged(["b", "a", "new"], ["O"] * 3)]) == [["B-x", "B-x", "O"]]


def test_parts_of_speech_are_scored_by_accuracy(base: Path, tmp_path: Path) -> None:
    data: dict[str, Any] = {"train": SPEECH, "valid": SPEECH}
    events = run("tag", **data, model=base, output=tmp_path / "out", epochs=1)
    finished = one(events, Finished)
    assert finished.metric == finished.evaluation.metric == "accuracy"
    assert finished.evaluation.classes == ("AUX", "DET", "NOUN", "PROPN", "PUNCT", "VERB")
    assert not begun("tag", **data, model=tmp_path / "out", output=tmp_path / "more").new_head
    small = [record | {"tags": [tag.lower() for tag in record["tags"]]} for record in SPEECH]
    again = mlxbert.evaluate("tag", mlxbert.load(tmp_path / "out", task="tag"), data=small)
    assert again.metrics == pytest.approx(finished.evaluation.metrics)
    for options in ({"metric": "f1"}, {"scheme": "bioes"}):
        with pytest.raises(ArgumentError, match="plain"):
            run("tag", train=SPEECH, model=base, output=tmp_path / "no", **options)


HARD: list[tuple[list[str], list[str]]] = [
    (["cat", "sat"] * 2500, ["B-animal", "O"] * 2500),
    (["cat"], ["B-animal"]),
    (["\u05e9\u05dc\u05d5\u05dd", "paris", "\u060c"], ["O", "B-city", "O"]),  # from right to left
    ([*"\u6211\u7231\u5317\u4eac"], ["O", "O", "B-city", "I-city"]),
    (["\U0001f468\u200d\U0001f469", "dog", "\U0001f600"], ["O", "B-animal", "O"]),
    (["\u200b"], ["O"]),  # no token at all
    (["zzz", "qqq"], ["B-city", "I-city"]),  # unknown tokens alone
    (["in New York", "."], ["B-city", "O"]),
]


@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.slow
def test_hard_sentences_are_trained_on_and_all_words_count(base: Path, tmp_path: Path, crf: bool) -> None:
    data = [{"words": words, "tags": tags} for words, tags in HARD]
    events = run("tag", train=data, valid=data, model=base, output=tmp_path / "out", epochs=1, crf=crf)
    evaluation = one(events, Finished).evaluation
    assert all(np.isfinite(event.loss) for event in events if isinstance(event, Step))
    assert np.isfinite(one(events, Evaluated).metrics["loss"])
    assert sum(map(sum, evaluation.confusion)) == sum(len(words) for words, _ in HARD) and evaluation.truncated == 0
    again = mlxbert.evaluate("tag", mlxbert.load(tmp_path / "out", task="tag"), data=data)
    assert again.metrics == pytest.approx(evaluation.metrics)


def test_broken_tags_are_counted_and_said(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "train.conll", 30)
    path.write_text(path.read_text() + "\ncat O\ndog I-animal\n".replace(" ", "\t"))
    warning = begun("tag", train=path, model=base, output=tmp_path / "out").report.warnings[0]  # type: ignore[union-attr]
    line = path.read_text().splitlines().index("cat\tO") + 1
    assert warning.startswith("1 tag breaks the scheme iob2") and f"train.conll, line {line})" in warning


@together(
    ("given", "problem"),
    [
        ({"valid": [{"words": ["cat"], "tags": ["B-dinosaur"]}]}, "dinosaur"),
        ({"valid": [{"words": ["cat"], "tags": ["NOUN"]}]}, r"record 1, word 1 \('cat'\): .*NOUN"),
        ({"train": [{"words": ["cat", "dog"], "tags": ["O", "O"]}] * 9}, "every word has the tag 'O'"),
        (
            {"train": [{"words": [str(n)], "tags": [f"x{n}"]} for n in range(99)]},
            "label column 'tags' may be wrong",
        ),
    ],
)
def test_data_that_teach_nothing_and_unknown_tags_at_validation_are_refused(
    given: dict[str, Any], problem: str, base: Path, tmp_path: Path
) -> None:
    train = write(tmp_path / "train.conll", 30)
    with pytest.raises(InputError, match=problem):
        run("tag", **{"train": train} | given, model=base, output=tmp_path / "out")


def test_what_a_model_does_not_know_counts_as_missed(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("mlxbert").propagate = True
    model = mlxbert.load(trained, task="tag")
    known = {"words": ["cat", "milk", "sat"], "tags": ["B-ANIMAL", "I-ANIMAL", "O"]}
    other = {"words": ["dog", "man"], "tags": ["B-animal", "I-shop"]}
    found = mlxbert.evaluate("tag", model, data=[known, other])
    assert "1 tag breaks" in caplog.text and "record 2" in caplog.text
    assert dict(found.unknown) == {"shop": 1} and found.metrics["recall"] == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="shop"):
        mlxbert.evaluate("tag", model, data=[{"words": ["store"], "tags": ["B-shop"]}])
    with pytest.raises(InputError, match="plain"):
        mlxbert.evaluate("tag", model, data=[{"words": ["the", "store"], "tags": ["DET", "NOUN"]}])


@together(
    "options",
    [
        {"scheme": "iob3"}, {"crf": True, "label_all_pieces": True}, {"crf": True, "scheme": "iob1"}, {"stride": -1},
        {"stride": 17}, {"max_length": 16, "stride": 9}, {"metric": "spearman"}, {"class_weights": "balanced"},
    ],
)  # fmt: skip
def test_options_that_do_not_go_are_refused(base: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        run("tag", train=write(tmp_path / "train.conll", 9), model=base, output=tmp_path / "out", **options)
    for option in ({"crf": True}, {"label_all_pieces": True}, {"stride": 3}):
        with pytest.raises(ArgumentError, match="open"):
            OpenTag(**option)
    with pytest.raises(ArgumentError, match="mark no entities"):
        _objective("bert", [{"words": ["the", "cat"], "tags": ["DET", "NOUN"]}])


def test_the_report_says_that_tags_are_numbers_and_which_words_are_not_seen(base: Path, tmp_path: Path) -> None:
    def warned(rows: list[dict[str, Any]], words: str) -> list[str]:
        report = begun("tag", train=rows, valid=rows, model=base, output=tmp_path / "out").report
        assert report is not None
        return [warning for warning in report.warnings if words in warning]

    rows = [{"words": ["cat", "\u200b", "sat"], "tags": ["B-animal", tag, "O"]} for tag in ("B-city", "O", "I-animal")]
    rows += [{"words": ["paris", f"w{number}"], "tags": ["B-city", "O"]} for number in range(9)]
    (unseen,) = warned(rows, "no token")
    assert unseen.startswith("2 tagged words have no token (the first in ") and not warned(rows[3:], "no token")
    assert len(warned([row | {"tags": [3, 0]} for row in rows[3:]], "are numbers")) == 1
    assert not warned([row | {"tags": ["NOUN", "X"]} for row in rows[3:]], "are numbers")


GOLDENS = Path(__file__).parents[1] / "tasks" / "gliner_goldens"
TEXT = "Ada Lovelace met Charles Babbage in London."
SPANS = [
    {"start": 0, "end": 12, "label": "person"},
    {"start": 17, "end": 32, "label": "person"},
    {"start": 36, "end": 42, "label": "city"},
]


def _objective(kind: str, rows: list[dict[str, Any]], **options: Any) -> tuple[OpenTag, Model, list[Any]]:
    objective, model = OpenTag(**options), mlxbert.load(GOLDENS / kind, dtype="float32", device="cpu")
    records = objective.read(read_rows(rows))
    objective.heads(records)
    objective.bind(model)
    return objective, model, records


@pytest.mark.parametrize("kind", ["bert", "deberta-v3-tokens"])
def test_the_loss_is_the_cross_entropy_of_all_spans(kind: str) -> None:
    rows: list[dict[str, Any]] = [{"text": TEXT, "spans": SPANS}, {"text": "the cat sat", "spans": []}]
    objective, model, records = _objective(kind, rows)
    examples = [example for record in records for example in objective.examples(record)]
    batch = objective.collate(examples, random.Random(1))
    total, words = objective.loss(model.network, batch)
    logits = np.array(model.network.logits("open_entities", batch.inputs), np.float64)
    targets, mask, _ = (np.array(array) for array in batch.targets)
    each = -np.log(1 / (1 + np.exp(np.where(targets > 0, -logits, logits))))
    assert float(total) == pytest.approx((each * mask).sum(), rel=1e-5)
    assert words == 8 + 3  # the period is a word
    if kind == "bert":  # spans of up to 4 words
        assert mask[0, :, :, 0].sum() == 8 + 7 + 6 + 5 and mask[1, :, :, 0].sum() == 3 + 2 + 1
        assert sorted(map(tuple, np.argwhere(targets[0].any(axis=-1)).tolist())) == [(0, 1), (3, 1), (6, 0)]
    else:
        assert targets[0].sum(axis=(0, 2)).tolist() == [3, 3, 5]  # first, last and inner words
    assert not targets[1].any()


def test_negative_types_are_a_random_choice_and_entities_that_cannot_be_learned_are_counted() -> None:
    rows = [
        {"text": TEXT, "spans": SPANS},
        {"text": "the gene and the river", "spans": [{"start": 4, "end": 8, "label": "gene"}]},
    ]
    objective, _, records = _objective("bert", rows)
    assert objective.types == ("city", "gene", "person")
    (example,) = objective.examples(records[1])
    chosen = {tuple(objective._choose_types(example, random.Random(seed))) for seed in range(40)}
    assert all("gene" in types and len({*types}) == len(types) for types in chosen)
    assert {len(types) for types in chosen} == {1, 2, 3} and len({types[0] for types in chosen}) == 3
    rows = [{"text": TEXT, "spans": [{"start": 0, "end": 42, "label": "person"}]}]
    objective, _, records = _objective("bert", rows)
    assert objective.prepare(records[0]).target == []
    assert any("1 entities" in note for note in objective.notes())


def test_long_sentences_and_many_types_are_evaluated_completely() -> None:
    """Perfect scores give perfect metrics, whatever the windows and the groups of types."""
    spans = [{"start": 8 * place, "end": 8 * place + 3, "label": f"type {place}"} for place in range(70)]
    objective, _, records = _objective("bert", [{"text": "cat sat " * 70, "spans": spans}])
    examples = objective.examples(records[0])
    assert len(examples) > 3 and len(objective._groups) > 1
    rows = []
    for example in examples:
        for group in objective._groups:
            logits = np.full((len(example.words) + 2, 4, len(group) + 1), -9.0)
            logits[len(example.words) :] = logits[:, :, len(group) :] = 9  # of padding, which counts for nothing
            for width in range(1, 4):
                logits[len(example.words) - width :, width] = 9  # ends in padding
            for first, last, kind in example.target:
                if kind in group:
                    logits[first, last - first, group.index(kind)] = 9
            rows.append(logits)
    assert len(rows) == len(objective.inputs(examples))
    scores = objective.metrics(examples, rows)
    assert scores["f1"] == scores["macro_f1"] == 1


def _sentences(count: int) -> list[dict[str, Any]]:
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        name, city = rng.choice(["Ada", "Bob", "Eve", "Tom"]), rng.choice(["Paris", "Tokyo", "London"])
        text = f"{name} lives in {city} now."
        start = len(name) + 10
        spans = [{"start": 0, "end": len(name), "label": "person"}]
        rows.append({"text": text, "spans": [*spans, {"start": start, "end": start + len(city), "label": "city"}]})
    return rows


def test_a_model_learns_and_finds_what_it_is_asked_for(tmp_path: Path) -> None:
    data = _sentences(32)
    model = mlxbert.finetune(
        "tag", train=data[:24], valid=data[24:], model=GOLDENS / "bert", output=tmp_path / "model", open=True,
        epochs=30, eval_every=90, batch_size=8, lr=4e-3, dropout=0.0,
    ).run()  # fmt: skip
    text = "Ada lives in Paris now."
    found = mlxbert.tag(mlxbert.load(tmp_path / "model"), text, labels=["person", "city"])
    assert [(entity.label, entity.text) for entity in found.entities] == [("person", "Ada"), ("city", "Paris")]
    turned = mlxbert.tag(model, text, labels=["city", "person"])
    assert [(entity.label, entity.text) for entity in turned.entities] == [("person", "Ada"), ("city", "Paris")]
    evaluation = mlxbert.evaluate("tag", model, data=data[24:])
    assert evaluation.metrics["f1"] > 0.9


def test_an_encoder_becomes_a_gliner_model(base: Path, tmp_path: Path) -> None:
    data = _sentences(12)
    folder = tmp_path / "model"
    model = mlxbert.finetune("tag", train=data, model=base, output=folder, open=True, epochs=1, freeze=1).run()
    opened = mlxbert.load(folder, task="tag")
    before = mlxbert.load(base, task="embed", dtype="float32").network.encoder.embeddings.word.weight
    words, size = before.shape
    assert model.tokenizer.token_id("<<ENT>>") == words + 1 and model.config.vocab_size == words + 3
    after = opened.network.encoder.embeddings.word.weight
    assert after.shape == (words + 3, size) and mx.allclose(after[:words], before, atol=1e-2).item()
    assert (folder / "gliner_config.json").is_file() and not (folder / "config.json").exists()
    options: Any = {"labels": ["person"], "threshold": 0.0}
    assert mlxbert.tag(opened, TEXT, **options) == mlxbert.tag(model, TEXT, **options)
