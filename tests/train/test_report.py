"""The report on the data: what it counts, what it warns of, what is refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mlxbert.errors import InputError
from mlxbert.train.data.columns import ColumnNames
from mlxbert.train.data.data_report import (
    DataReport,
    check_label_column,
    check_labels,
    describe,
    describe_split,
    find_unknown,
)
from mlxbert.train.data.labelled_texts import Label, LabelledText
from mlxbert.train.final_evaluation import _advice, _early
from mlxbert.train.objectives import make_objective
from tests.helpers import events
from tests.helpers.cases import together

COLUMNS = ColumnNames("sentence", None, "label", ("text",))


def examples(labels: Sequence[Label], texts: Sequence[str] | None = None) -> list[LabelledText]:
    texts = [f"text {n}" for n in range(len(labels))] if texts is None else texts
    return [
        LabelledText(text, None, label, f"a.csv, line {n}")
        for n, (text, label) in enumerate(zip(texts, labels, strict=True), 2)
    ]


def report(
    train: list[LabelledText], valid: list[LabelledText] | None = None, task: str = "classify", **options: Any
) -> DataReport:
    lengths, most = options.pop("lengths", [10] * len(train)), options.get("max_length", 128)
    records = [train] if valid is None else [train, valid]
    splits = [
        describe_split(name, (f"{name}.csv",), part, numbers, sum(number > most for number in numbers))
        for name, part, numbers in zip(("train", "valid"), records, (lengths, [10] * len(valid or ())), strict=False)
    ]
    options = {"columns": COLUMNS, "split_off": None, "max_length": 128} | options
    objective: Any = make_objective(task)
    return describe(splits, records, warn=objective.warnings, **options)


def test_a_report_counts_everything() -> None:
    train = examples(["b", "a", "b", "c", "a", "b"], ["x", "y", "x", "z", "x", "w"])
    valid = examples(["a", "a", "b"], ["v", "x", "v"])
    found = report(train, valid, lengths=[9, 3, 300, 5, 129, 128], split_off=0.1)
    first, second = found.splits
    assert found.columns == {"text": "sentence", "label": "label"} and found.guessed == ("text",)
    assert (first.name, first.files, first.examples) == ("train", ("train.csv",), 6)
    assert list(first.labels.items()) == [("b", 3), ("a", 2), ("c", 1)] and first.range is None
    assert (first.tokens, first.truncated) == ((9, 300, 300), 2)
    assert (first.duplicates, first.conflicts) == (2, 1)
    assert (second.duplicates, second.conflicts) == (1, 1)
    assert (found.leaked, found.split_off, found.max_length) == (1, 0.1, 128)
    assert found.only_in == {"train": ("c",), "valid": ()}
    assert second.labels == {"a": 2, "b": 1}


def test_pairs_sets_of_labels_numbers_and_lengths_are_counted() -> None:
    train = [LabelledText("a", pair, 0.5, "") for pair in ("b", "c", "b")]
    valid = [LabelledText("a", "c", 1.5, ""), LabelledText("c", "a", 1.5, "")]
    found = report(train, valid, task="regress")
    assert (found.splits[0].duplicates, found.splits[0].conflicts, found.leaked) == (1, 0, 1)
    train = examples([("a", "b"), ("b", "a"), ("a",), ()], ["x", "x", "x", "y"])
    (sets,) = report(train, task="multilabel").splits
    assert (sets.labels, sets.duplicates, sets.conflicts) == ({"a": 3, "b": 2}, 2, 1)
    found = report(examples([1.0, 2.5, -0.5, 5.0]), task="regress")
    assert (found.splits[0].labels, found.splits[0].range) == ({}, (-0.5, 2.0, 5.0))
    assert found.only_in == {} and len(found.splits) == 1 and found.warnings == ()
    assert report(examples(["a", "b"] * 50), lengths=[*range(100, 0, -1)]).splits[0].tokens == (50, 95, 100)
    assert report(examples(["a"]), lengths=[7]).splits[0].tokens == (7, 7, 7)


def test_good_data_have_no_warnings_nor_names_of_classes_with_commas() -> None:
    train = examples(["a"] * 40 + ["b"] * 17 + ["c"] * 30)
    valid = examples(["a", "b", "c"], ["new 1", "new 2", "new 3"])
    assert report(train, valid).warnings == ()
    assert report(examples([n / 7 for n in range(50)]), task="regress").warnings == ()
    assert report(examples(["Paris, France", "Rome, Italy", "Oslo, Norway"] * 20)).warnings == ()
    assert report(examples(["Paris, France", "Lyon, France", "Rome, Italy"] * 20)).warnings == ()


NEW = ["new 1", "new 2"]
SKEWED = examples([("a",)] * 400 + [("b", "a")] * 20)


@together(
    ("found", "said"),
    [
        (report(examples(["a"] * 17 + ["b"] * 16)), ["1 of 2 labels", "16 training examples or fewer", "'b'"]),
        (report(examples(["a"] * 99 + ["b"] * 20)), ["83% ", "'a'"]),
        (report(examples([f"c{n}" for n in range(20)] * 17 + ["a"] * 340)), ["20 times", "'c9'", "class_weights="]),
        (report(SKEWED, task="multilabel"), ["'a' has 21 times", "'b'"]),
        (report(examples(["a", "b"] * 20), examples(["a"], ["text 3"])), ["1 validation example of 1 is"]),
        (report(examples(["a", "b"] * 20), examples(["a"], ["new"])), ["'b' is in train only"]),
        (
            report(examples([("a",)] * 20), examples([("a", "b"), ("c",)], NEW), task="multilabel"),
            ["'b', 'c' are in valid only"],
        ),
        (report(examples(["a", "b"] * 20, ["x", *map(str, range(38)), "x"])), ["1 example of train is labelled"]),
        (report(examples(["a", "b"] * 20), lengths=[129] * 10 + [128] * 30), ["25% of the inputs of train", "128"]),
        (report(examples(["Yes", "yes"] * 20)), ["'Yes' and 'yes'"]),
        (report(examples(["caf\u00e9", "cafe\u0301"] * 20)), [r"'cafe\u0301' and 'caf\xe9'"]),
        (report(examples(["cat", "ca\u200bt", "cat\ufe0f"] * 20)), [r"'ca\u200bt'", r"'cat\ufe0f'", "'cat'"]),
        (report(examples(["1", "true", "0", "FALSE"] * 20)), ["'1' and 'true'", "'0' and 'FALSE'"]),
        (report(examples([1.0, 2.0, 5.0] * 20), task="regress"), ["1, 2, 5", "classify"]),
        (report(examples(["a, b", "b,c", "a,c", "a,b,c", "c"] * 20)), ["'a, b'", "multilabel"]),
        (report(examples(["red,blue"] * 4 + ["blue"] * 10 + ["red,green"] * 6)), ["'red,green'", "multilabel"]),
        (report(examples(["billing;late"] + ["billing", "late"] * 17)), ["'billing;late'", "multilabel"]),
        (report(examples([("a",), ("b",)] * 20), task="multilabel"), ["exactly one label", "'classify'"]),
        (report(examples([f"{n}.5" for n in range(21)] * 17)), ["21 labels are all numbers", "regress"]),
    ],
)
def test_doubtful_data_are_warned_of(found: DataReport, said: list[str]) -> None:
    assert any(all(part in warning for part in said) for warning in found.warnings), found.warnings
    assert all(warning[0].isupper() or not warning[0].isalpha() for warning in found.warnings)
    assert all(warning.endswith(".") or warning.endswith("?") for warning in found.warnings)


def test_class_weights_a_length_and_whole_lists_of_labels_are_not_always_told() -> None:
    assert not any("weights" in warning for warning in report(SKEWED, task="multilabel").warnings)
    names = [f"label {n} " + "x" * 100 for n in range(500)]
    (warning,) = report(examples(names)).warnings
    assert "and 497 more" in warning and len(warning) < 300
    for length, hinted in ((250, False), (300, True)):  # far longer texts are to be cut sooner
        (first, *_) = report(examples(["a", "b"] * 20), lengths=[length] * 40).warnings
        assert "will be truncated" in first and ("max_length=" in first) == hinted


@together(
    ("task", "labels", "said", "good"),
    [
        ("classify", ["a"] * 5, "label 'a'", ["a", "b"]),
        ("multilabel", [(), ()], "no example has a label", [("a",), ()]),
        ("regress", [2.0] * 5, "number 2.0", [1.0, 2.0]),
    ],
)
def test_data_that_teach_nothing_are_refused(task: str, labels: list[Label], said: str, good: list[Label]) -> None:
    objective: Any = make_objective(task)
    with pytest.raises(InputError, match=said) as caught:
        objective.check(examples(labels))
    assert caught.value.message.startswith("a.csv, line 2")
    objective.check(examples(good))


def test_labels_that_the_model_lacks_are_refused_with_their_place() -> None:
    check_labels(("a", "b"), examples(["a", "b", "a"]))
    check_labels(("a", "b"), examples([("a", "b"), ()]))
    with pytest.raises(InputError) as caught:
        check_labels(("a", "1"), examples(["a", "c"]))
    assert caught.value.message.startswith("a.csv, line 3: label 'c' ") and "'1', 'a'" in caught.value.message
    assert caught.value.hint is None
    for label, known in (("1.0", "1"), ("A ", "a")):
        with pytest.raises(InputError) as caught:
            check_labels(("a", "1"), examples([("a", label)]))
        assert caught.value.hint and repr(known) in caught.value.hint
    with pytest.raises(InputError, match=r"^.{1,300}$"):
        check_labels([str(n) for n in range(10_000)], examples(["x"]))


def test_unknown_labels_are_counted() -> None:
    records = examples([("a", "y"), ("x",), ("x", "y", "b"), (), ("x",)])
    found = find_unknown({"a", "b"}.__contains__, records)
    assert found is not None and found.place == "a.csv, line 2" and dict(found.labels) == {"x": 3, "y": 2}
    assert str(found) == "labels 'x' (3 records), 'y' (2 records)"
    assert find_unknown({"a", "b", "x", "y"}.__contains__, records) is None
    many = find_unknown({"a"}.__contains__, examples([str(n) for n in range(9)]))
    assert many is not None and "and 4 more" in str(many)


def test_a_column_of_texts_is_no_label_and_many_classes_are_no_texts() -> None:
    twenty = [f"{n}" for n in range(11)] + ["a"] * 9
    for texts in (twenty, ["a" * 120, "b" * 90] * 10, [f"text {n}" for n in range(300)]):
        with pytest.raises(InputError, match=f"'body'.* in {len(texts)} records") as caught:
            check_label_column(examples(texts), "body")
        assert caught.value.hint and "label_column=" in caught.value.hint
    for names in ([f"class {n % 60}" for n in range(120)], twenty[:19], [*map(str, range(10)), *["a"] * 10]):
        check_label_column(examples(names), "label")


@together(
    ("score", "best", "few", "advice"),
    [
        (0.5, 0.6, None, "epochs="),
        (0.5, 0.6, "few_shot=True", "few_shot=True"),
        (0.5, 0.4, "few_shot=True", None),
        (1.0, 1.0, "few_shot=True", None),  # nothing is better
    ],
)
def test_what_may_help_is_said_where_a_simple_method_is_as_good(
    score: float, best: float, few: str | None, advice: str | None
) -> None:
    found = _advice(replace(events.evaluation(), score=score, metric="accuracy"), {"frozen vectors": best}, few)
    assert (found is None) == (advice is None) and (advice or "") in (found or "")


@together(("step", "early"), [(10, "epoch 1,"), (20, None), (40, None)])
def test_a_run_that_was_best_early_is_not_to_be_longer(step: int, early: str | None) -> None:
    history = [{"step": 10 * n, "epoch": 1.0 * n} for n in range(1, 5)]  # it ended early, too
    found = _early({"step": step, "planned": 60, "history": history})
    assert (found is None) == (early is None) and (early or "") in (found or "")


@together(("count", "few_shot", "hinted"), [(5, False, True), (64, False, True), (65, False, False), (5, True, False)])
def test_few_examples_per_label_lead_to_few_shot(count: int, few_shot: bool, hinted: bool) -> None:
    objective = make_objective("classify", few_shot=few_shot)
    records = [LabelledText(f"{n} {label}", None, label, "") for n in range(count) for label in "ab"]
    assert (objective.few_shot_hint(records) is not None) == hinted
    assert make_objective("classify", class_weights="balanced").few_shot_hint(records) is None  # refused with it
