"""`mlxbert.finetune` and `mlxbert.evaluate` on a tiny model, from data to a folder."""

import importlib
import itertools
import json
import math
import re
import shlex
import shutil
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, DivergedError, InputError, MlxbertError
from mlxbert.machine.device import mx
from mlxbert.train.command_line import command_line
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.loop import phase_times
from mlxbert.train.loop.events import Evaluated, Event, Finished, Saved, Started, Step
from mlxbert.train.loop.gradients import Gradients
from mlxbert.train.loop.phase_times import EARLIER
from mlxbert.train.loop.run_estimate import Costs
from mlxbert.train.loop.updater import BatchGradients
from mlxbert.train.objectives import make_objective
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.pretraining.chunks import Phases
from mlxbert.train.training_folders import Workspace, clean_up
from mlxbert.weights.build import parameters
from tests.helpers.cases import fast, together
from tests.helpers.classifiers import save_classifier
from tests.helpers.commands import COMMANDS
from tests.helpers.tiny import CONFIG
from tests.train.pretraining.files import model_folder, text_file

ANIMALS, PLACES = ("cat", "dog"), ("paris", "tokyo")


def rows(count: int) -> list[tuple[str, str]]:
    """Texts about animals and about places, each once."""
    endings = ("sat", "went", "bought milk", "of man", "on mat", "the store", "play ##s", "largest city")
    texts = [(f"the {word} {a} {b}", name) for a in endings for b in endings
             for words, name in ((ANIMALS, "animal"), (PLACES, "place")) for word in words]  # fmt: skip
    return [texts[7 * number % len(texts)] for number in range(count)]


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write(tmp_path / "train.csv", rows(40))


def write(path: Path, found: list[Any], header: str = "text,label") -> Path:
    lines = [header, *(",".join(f'"{value}"' for value in row) for row in found)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(task: Any, **options: Any) -> list[Event]:
    return list(mlxbert.finetune(task, **{"epochs": 2, "lr": 1e-2, "batch_size": 16} | options))


def begun(task: Any, **options: Any) -> Started:
    """The first event of a run, which ends there."""
    stream = mlxbert.finetune(task, **{"epochs": 2, "lr": 1e-2, "batch_size": 16, "overwrite": True} | options)
    started = next(iter(stream))
    stream.close()
    assert isinstance(started, Started)
    return started


def labels_of(model: mlxbert.Model, text: Any) -> Any:
    return cast(Any, mlxbert.classify(model, text)).labels


def one(events: list[Event], kind: type[Any]) -> Any:
    (found,) = [event for event in events if isinstance(event, kind)]
    return found


def test_a_csv_becomes_a_model(base: Path, tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", rows(80))
    events = run("classify", train=train, model=base, output=tmp_path / "out", epochs=4)
    for event in events:
        assert json.loads(json.dumps(event.to_dict(), allow_nan=False))["event"] == event.event
    started, finished = one(events, Started), one(events, Finished)
    assert started.examples == 64 and started.report.guessed == ("text", "label")
    assert [type(event) for event in events[-3:]] == [Evaluated, Saved, Finished]
    assert finished.score == finished.evaluation.score > finished.summary.baselines["best of the largest classes"]
    assert finished.score == max(event.metrics["accuracy"] for event in events if isinstance(event, Evaluated))
    assert not (tmp_path / "out.partial").exists()
    model = mlxbert.load(tmp_path / "out")
    assert model.labels == mlxbert.Labels(("animal", "place"), "single_label_classification")
    assert labels_of(model, "the cat sat on mat")[0].label == "animal"
    record = json.loads((tmp_path / "out/training.json").read_text())
    assert record["options"]["epochs"] == 4 and record["runs"][0]["score"] == finished.score
    assert record["sha256"] and record["command"].startswith("mlxbert finetune classify --train ")
    card = (tmp_path / "out/README.md").read_text()
    assert record["command"].replace(f"{tmp_path}/", "").replace(f"{base.parent}/", "") in card
    assert str(tmp_path) not in card and str(base.parent) not in card
    evaluation = mlxbert.evaluate("classify", model, data=train)
    assert evaluation.score > 0.8 and evaluation.constant == {"best of the largest classes": 0.5}


def test_rows_once_seen_are_counted(base: Path, train: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    valid, other = write(tmp_path / "valid.csv", rows(40)[::-1]), write(tmp_path / "other.csv", rows(30))
    run("classify", train=train, valid=valid, model=base, output=tmp_path / "out", epochs=1)
    model = mlxbert.load(tmp_path / "out")
    copied = tmp_path / "copied.csv"
    copied.write_bytes(train.read_bytes())
    assert mlxbert.evaluate("classify", model, data=other).seen == 0 and not caplog.records
    for data, seen in ((copied, 40), ([other, valid], 40), ([train, valid], 80)):
        assert mlxbert.evaluate("classify", model, data=data).seen == seen
        assert caplog.records.pop().levelname == "WARNING"
    (tmp_path / "out/training.json").unlink()  # only a note
    assert mlxbert.evaluate("classify", model, data=train).seen == 0


def test_a_run_that_ends_early_says_so(base: Path, tmp_path: Path) -> None:
    found = [row for row in rows(60) if row[1] == ("animal" if "cat" in row[0] else "place")]
    train = write(tmp_path / "train.csv", found)
    finished = one(run("classify", train=train, model=base, output=tmp_path / "out", epochs=12, patience=2), Finished)
    assert finished.score == 1.0 and finished.ended < finished.planned
    assert json.loads((tmp_path / "out/training.json").read_text())["runs"][0]["ended"] == finished.ended


@together("task", TASKS)
def test_the_command_of_a_model_card_can_be_typed(task: str) -> None:
    command = COMMANDS[f"finetune {task}"]
    options = {"text_column": "a b", "epochs": 2, "lr": 1e-5, "seed": 3, "max_length": 64}
    given: dict[str, Any] = {"train": ["a.csv", "b c.csv"], "output": Path("out"), "seeds": 2, "model": "builtin"}
    line = command_line(mlxbert.finetune, task, {**given, "sweep": {"lr": [1e-5, 2e-5]}, "options": options})
    assert line is not None
    parsed = command.make_context("finetune", shlex.split(line)[3:]).params
    assert [*parsed["train"]] == given["train"] and [*parsed["sweep"]] == ["lr=1e-05,2e-05"] and parsed["seed"] == 3
    chosen = {"classify": "few_shot", "embed": "normalize"}.get(task)  # by default neither true nor false
    if chosen is not None:
        of_vectors = {"dimensions": [24, 12], "margin": 5.0, "symmetric": True} if task == "embed" else {}
        line = command_line(mlxbert.finetune, task, {**given, "options": {chosen: False} | of_vectors})
        assert line is not None and "--margin" not in line  # the default
        parsed = command.make_context("finetune", shlex.split(line)[3:]).params
        assert parsed[chosen] is False
        assert not of_vectors or (parsed["dimensions"], parsed["symmetric"]) == ("24,12", True)


def test_an_interrupted_call_resumes_to_the_same_bits(base: Path, train: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train": train, "model": base, "save_every": 3, "epochs": 2, "seeds": 2}
    run("classify", output=tmp_path / "whole", **options)
    for _ in range(100):
        stream = mlxbert.finetune("classify", **{"lr": 1e-2, "batch_size": 16} | options, output=tmp_path / "parts")
        seen = list(itertools.islice(stream, 9))
        if isinstance(seen[-1], Finished):
            break
        if isinstance(seen[-1], Evaluated):
            with pytest.raises(KeyboardInterrupt):
                stream.throw(KeyboardInterrupt)
        else:
            stream.close()
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert files[0] == files[1]


@pytest.mark.parametrize("lora", fast([None, 2], 2))
def test_a_call_that_is_run_gives_the_model_and_one_that_is_not_says_so(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, lora: int | None
) -> None:
    records = [{"text": text, "label": label} for text, label in rows(40)]
    options: dict[str, Any] = {"train": records, "model": base, "output": tmp_path / "out", "epochs": 1, "lora": lora}
    options["device"] = "cpu"
    training = mlxbert.finetune("classify", **options)
    assert "not started" in repr(training) and str(tmp_path / "out") in repr(training)
    seen: list[Any] = []
    model = training.run(seen.append)
    assert one(seen, Finished).output == str(tmp_path / "out") and "not started" not in repr(training)
    assert model.device == mx.Device(mx.cpu)
    assert model.labels is not None and {*model.labels.names} == {"animal", "place"}
    assert json.loads((tmp_path / "out/training.json").read_text())["command"] is None  # the data are in memory
    with pytest.raises(ArgumentError) as caught:
        training.run()  # its events were used
    assert "mlxbert.load" in str(caught.value.hint)
    dry = mlxbert.finetune("classify", **options, overwrite=True, dry_run=True)
    assert "not started" in repr(dry) and ".run()" not in repr(dry)
    with pytest.raises(ArgumentError):
        dry.run()
    del dry
    caplog.clear()
    mlxbert.finetune("classify", **options, overwrite=True)
    assert [record.levelname for record in caplog.records if "never started" in record.message] == ["WARNING"]


def test_another_call_is_refused_and_says_what_differs(base: Path, train: Path, tmp_path: Path) -> None:
    train.write_bytes(train.read_bytes() + "the café,place\n".encode("latin-1"))
    options: dict[str, Any] = {"train": train, "model": base, "output": tmp_path / "out", "batch_size": 16, "epochs": 1}
    options |= {"lr": 1e-3, "encoding": "latin-1", "save_every": 1}
    stream = mlxbert.finetune("classify", **options)
    assert any(isinstance(event, Saved) for event in stream)  # stops at the first
    stream.close()
    for changes, said in (
        ({"lr": 2e-3}, r"lr is 0\.002, was 0\.001"),
        ({"validation_fraction": 0.4}, "validation_examples"),  # it would validate on what it was trained on
        ({"encoding": "cp1252"}, "encoding"),
    ):
        with pytest.raises(ArgumentError, match=said):
            run("classify", **options | changes)
    train.write_bytes(train.read_bytes() + b"the cat,animal\n")
    with pytest.raises(ArgumentError, match=r"(has|have) changed"):
        run("classify", **options)
    assert one(run("classify", **options, overwrite=True), Finished)


def test_other_records_are_another_call(base: Path, tmp_path: Path) -> None:
    def call(other: str | None) -> mlxbert.TrainingEvents:
        data: dict[str, Any] = {"train": rows(48), "valid": rows(12)}
        if other is not None:
            data[other][3] = ("the largest city", data[other][3][1])
        for name, found in data.items():
            data[name] = iter([{"text": text, "label": label} for text, label in found])
        return mlxbert.finetune("classify", model=base, output=tmp_path / "out", epochs=1, **data)

    stream = call(None)
    assert any(isinstance(event, Step) for event in stream)  # stops at the first
    stream.close()
    for other in ("train", "valid"):
        with pytest.raises(ArgumentError, match=r"(has|have) changed"):
            list(call(other))
    assert isinstance(list(call(None))[-1], Finished)


def test_what_a_run_leaves_that_was_killed_at_its_very_end(base: Path, train: Path, tmp_path: Path) -> None:
    with mock.patch.object(Workspace, "remove", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        run("classify", train=train, model=base, output=tmp_path / "out", epochs=1)
    assert (tmp_path / "out.partial/manifest.json").is_file()
    clean_up(tmp_path / "out")
    assert not (tmp_path / "out.partial").exists() and mlxbert.load(tmp_path / "out").labels is not None


def test_neither_a_new_folder_nor_the_model_itself_is_replaced(base: Path, train: Path, tmp_path: Path) -> None:
    first, second = (
        mlxbert.finetune("classify", train=train, model=base, output=tmp_path / "out", epochs=1, seed=seed)
        for seed in (1, 2)
    )
    list(first)
    with pytest.raises(ArgumentError, match="already exists"):
        list(second)
    assert json.loads((tmp_path / "out/training.json").read_text())["options"]["seed"] == 1
    model = shutil.copytree(base, tmp_path / "model")
    (model / "saved.json").write_text('{"written": {}}')
    for output in (model, model / "out"):
        with pytest.raises(ArgumentError):
            mlxbert.finetune("classify", train=train, model=model, output=output, overwrite=True)


def test_licenses_go_with_the_weights_and_the_command_names_the_folder_from_here(
    base: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = shutil.copytree(base, tmp_path / "model")
    (model / "LICENSE.txt").write_text("Apache")
    (model / "NOTICE").write_text("by A. Author")
    finished = one(run("classify", train=train, model=model, output="models/my model", epochs=1), Finished)
    assert shlex.split(finished.summary.command)[3] == "models/my model"
    out = tmp_path / "models/my model"
    assert (out / "NOTICE").read_text() == "by A. Author" and (out / "LICENSE.txt").is_file()


@pytest.mark.slow
def test_seeds_and_values_are_tried_and_the_best_is_kept(base: Path, train: Path, tmp_path: Path) -> None:
    events = run("classify", train=train, model=base, output=tmp_path / "out", seeds=2, sweep={"lr": [1e-6, 2e-6]})
    finished = one(events, Finished)
    assert [(found["seed"], found["lr"]) for found in finished.runs] == [(0, 1e-6), (1, 1e-6), (0, 2e-6), (1, 2e-6)]
    assert finished.score == max(found["score"] for found in finished.runs)
    runs = json.loads((tmp_path / "out/training.json").read_text())["runs"]
    kept = [next(entry for entry in one["history"] if entry["step"] == one["step"]) for one in runs]
    # So low rates change the loss, but not the score.
    assert finished.run == max(range(4), key=lambda number: (kept[number]["accuracy"], -kept[number]["log_loss"]))
    assert finished.summary.deviation is None  # of different learning rates it would say nothing
    assert [event.varied for event in events if isinstance(event, Started)][2] == {"seed": 0, "lr": 2e-6}


def test_a_run_that_diverges_is_the_worst_and_the_deviation_is_that_of_seeds(
    base: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = "mlxbert.train.loop.training_run.learning_rate"
    monkeypatch.setattr(rate, lambda *given: math.nan if given[2].lr > 0.1 else 1e-3)
    how: dict[str, Any] = {"train": train, "model": base, "epochs": 1}
    events = run("classify", **how, output=tmp_path / "out", sweep={"lr": [0.5, 1e-3]})
    finished = one(events, Finished)
    assert finished.run == 1 and [found["score"] for found in finished.runs] == [None, finished.score]
    with pytest.raises(DivergedError):
        run("classify", **how, output=tmp_path / "other", sweep={"lr": [0.5, 0.6]})
    assert not (tmp_path / "other").exists()
    finished = one(run("classify", **how, output=tmp_path / "seeds", sweep={"seed": [3, 7]}), Finished)
    assert [found["seed"] for found in finished.runs] == [3, 7]
    assert finished.summary.deviation == pytest.approx(np.std([found["score"] for found in finished.runs], ddof=1))


def test_several_labels_with_thresholds(base: Path, tmp_path: Path) -> None:
    found = [(text, f"{label},{'milk' if 'milk' in text else 'dry'}") for text, label in rows(60)]
    data = write(tmp_path / "train.csv", found)
    finished = one(run("multilabel", train=data, model=base, output=tmp_path / "out"), Finished)
    assert finished.metric == "macro_f1"
    model = mlxbert.load(tmp_path / "out")
    assert model.labels is not None and model.labels.names == ("animal", "dry", "milk", "place")
    assert model.labels.thresholds is not None and len(model.labels.thresholds) == 4
    chosen = labels_of(model, "the cat bought milk")
    assert {label.label: label.chosen for label in chosen}.keys() == {"animal", "dry", "milk", "place"}
    assert mlxbert.evaluate("multilabel", model, data=data).metrics["macro_f1"] > 0.5


def test_numbers_of_pairs(base: Path, tmp_path: Path) -> None:
    found = [(text, other, float(a == b)) for (text, a), (other, b) in zip(rows(40), rows(41)[1:], strict=True)]
    data = write(tmp_path / "pairs.csv", found, "sentence1,sentence2,score")
    finished = one(run("regress", train=data, model=base, output=tmp_path / "out", epochs=1), Finished)
    assert finished.metric == "spearman" and "mse" in finished.evaluation.metrics
    model = mlxbert.load(tmp_path / "out")
    assert model.labels == mlxbert.Labels(("score",), "regression")
    assert isinstance(cast(Any, mlxbert.classify(model, ("the cat", "paris"))).value, float)
    other = write(tmp_path / "other.csv", found, "sentence1,sentence2,stars")  # a number keeps its head under any name
    assert not begun("regress", train=other, model=tmp_path / "out", output=tmp_path / "on").new_head


def test_a_model_remembers_its_columns(base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = [(number, label, text, other) for number, ((text, label), (other, _)) in
             enumerate(zip(rows(60), rows(61)[1:], strict=True))]  # fmt: skip
    data = write(tmp_path / "rows.csv", found, "id,kind,headline,title")
    named: dict[str, Any] = {"text_column": "headline", "pair_column": "title", "label_column": "kind"}
    started = one(run("classify", train=data, model=base, output=tmp_path / "out", epochs=1, **named), Started)
    assert started.report.unused == ("id",)
    model = mlxbert.load(tmp_path / "out")
    assert mlxbert.evaluate("classify", model, data=data) == mlxbert.evaluate("classify", model, data=data, **named)
    assert not [record for record in caplog.records if "pair" in record.message]
    single = [{"text": text, "label": label} for _, label, text, _ in found]
    assert mlxbert.evaluate("classify", model, data=single).examples == 60
    list(mlxbert.classify(model, ["the cat", "the dog"]))
    assert [record.levelname for record in caplog.records if "trained on pairs" in record.message] == ["WARNING"] * 2
    caplog.clear()
    mlxbert.classify(model, ("the cat", "the dog"))
    assert not caplog.records


def test_labels_that_a_model_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = mlxbert.load(save_classifier(tmp_path / "one", mlxbert.Labels(("a", "b"), "single_label_classification")))
    data = [{"text": "the cat", "label": label} for label in ("a", "x", "b", "x", "y")]
    with pytest.raises(InputError, match=r"record 2: labels 'x' \(2 records\), 'y' \(1 record\)"):
        mlxbert.evaluate("classify", model, data=data)
    model = mlxbert.load(save_classifier(tmp_path / "all", mlxbert.Labels(("a", "b"), "multi_label_classification")))
    sets = [["a", "x"], ["B"], ["y"], []]
    found = mlxbert.evaluate("multilabel", model, data=[{"text": "the cat", "label": names} for names in sets])
    assert found.unknown == {"x": 1, "y": 1} and [label.support for label in found.labels] == [1, 1]
    assert any("'x' (1 record), 'y' (1 record)" in record.message for record in caplog.records)
    with pytest.raises(InputError, match="'x'"):
        mlxbert.evaluate("multilabel", model, data=[{"text": "the cat", "label": ["x"]}])


def test_a_classifier_is_trained_on_though_the_data_lack_some_of_its_labels(tmp_path: Path, train: Path) -> None:
    names = ("place", "animal", "thing")
    same = save_classifier(tmp_path / "same", mlxbert.Labels(names, "single_label_classification"))
    events = run("classify", train=train, model=same, output=tmp_path / "out", epochs=1)
    labels = mlxbert.load(tmp_path / "out").labels
    assert not one(events, Started).new_head and labels is not None and labels.names == names
    other = save_classifier(tmp_path / "other", mlxbert.Labels(("a", "b", "c")))
    assert begun("classify", train=train, model=other, output=tmp_path / "new").new_head


@together(
    ("part", "text", "said"),
    [
        ("train", "text,label\nthe cat,\nthe dog,a\n", "'a'"),
        ("train", "text,label\nthe cat,a\n", None),
        ("train", "text,label\n,a\nthe dog,b\n", "line 2"),
        ("valid", "text,label\nthe cat,animal\nthe dog,Animal\n", r"bad\.csv, line 3.*Animal"),
    ],
)
def test_bad_data_are_refused(part: str, text: str, said: str | None, base: Path, train: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(MlxbertError, match=said):
        run("classify", **{"train": train, part: path}, model=base, output=tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@together(
    "options",
    [
        {"class_weights": "heavy"}, {"metric": "spearman"}, {"seeds": 0}, {"text_column": "nothing"}, {"freeze": 7},
        {"sweep": {"lr": [0]}}, {"sweep": {"lr": 3}}, {"sweep": {"freeze": [1, 7]}}, {"dtype": "float64"},
        {"label_smoothing": "a lot"}, {"model": "no/such folder"}, {"task": "regress", "label_smoothing": 0.1},
        {"max_length": 9999},
    ],
)  # fmt: skip
def test_bad_options_are_refused_before_any_work(base: Path, train: Path, tmp_path: Path, options: Any) -> None:
    with pytest.raises(MlxbertError):
        mlxbert.finetune(**{"task": "classify", "train": train, "model": base, "output": tmp_path / "out"} | options)
    assert not list(tmp_path.glob("out*"))


@together(
    "options",
    [
        {"train": "none.csv"}, {"valid": ["none.csv"]}, {"encoding": "none"}, {"check": True, "lora": 4},
        {"output": "mine"}, {"validation_fraction": 1.5}, {"valid": "train.csv", "validation_fraction": 0.1},
    ],
)  # fmt: skip
def test_bad_options_are_refused_before_a_model_is_downloaded(
    train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.chdir(train.parent)
    (tmp_path / "mine").mkdir(exist_ok=True)
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with mock.patch("mlxbert.train.finetune.find_model", side_effect=AssertionError), pytest.raises(MlxbertError):
        mlxbert.finetune(**{"task": "classify", "train": "train.csv", "model": "org/none", "output": "out"} | options)


def test_evaluate_spells_labels_as_the_model_does(tmp_path: Path) -> None:
    model = mlxbert.load(save_classifier(tmp_path / "m", mlxbert.Labels(("NEGATIVE", "POSITIVE"))))
    unnamed = mlxbert.load(save_classifier(tmp_path / "u", mlxbert.Labels()))
    text = write(tmp_path / "text.csv", [("the cat", "positive"), ("the dog", "Negative")])
    numbers = write(tmp_path / "numbers.csv", [("the cat", "1"), ("the dog", "0")])
    assert [label.support for label in mlxbert.evaluate("classify", model, data=text).labels] == [1, 1]
    assert [label.support for label in mlxbert.evaluate("classify", unnamed, data=numbers).labels] == [1, 1]
    with pytest.raises(InputError, match=r"line 2.*'1'"):
        mlxbert.evaluate("classify", model, data=numbers)
    german = mlxbert.load(save_classifier(tmp_path / "g", mlxbert.Labels(("MASSE", "GEWICHT"))))
    with pytest.raises(InputError, match="Maße"):  # not the same word
        mlxbert.evaluate("classify", german, data=write(tmp_path / "g.csv", [("the cat", "Masse"), ("a dog", "Maße")]))
    with pytest.raises(ArgumentError, match="2 outputs"):  # of a model that names no problem_type
        mlxbert.evaluate("regress", unnamed, data=numbers)


def test_a_task_of_ones_own(base: Path, tmp_path: Path) -> None:
    import examples.stars as stars

    records: Iterator[dict[str, Any]] = (
        {"text": f"the cat {'sat ' * (number % 5)}", "stars": number % 5 + 1} for number in range(60)
    )
    finished = one(run(stars.Stars(), train=records, model=base, output=tmp_path / "out"), Finished)
    assert finished.metric == "distance" and finished.evaluation is None
    wrong: list[Any] = [{"text": "the cat", "stars": stars} for stars in (5, 1, 0)]
    for bad, told in ((wrong, "record 3: stars is 0"), ([{"text": "a"}, *wrong], "record 1: stars is None")):
        with pytest.raises(InputError, match=told):
            run(stars.Stars(), train=wrong[:2], valid=bad, model=base, output=tmp_path / "bad")
    assert labels_of(mlxbert.load(tmp_path / "out"), "the cat")[0].label in "12345"


class Table:
    """A table of pandas in one respect: it cannot be compared."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("The truth value of a table is ambiguous")


def test_a_table_in_place_of_records_is_refused_in_words(tmp_path: Path) -> None:
    for part in ("train", "valid"):
        given: dict[str, Any] = {"train": [{"text": "a", "label": "b"}], part: Table()}
        with pytest.raises(MlxbertError, match="Table"):
            list(mlxbert.finetune("classify", output=tmp_path / "x", **given))


def test_a_function_that_fails_ends_the_training_and_frees_its_folder(base: Path, tmp_path: Path) -> None:
    def enough(event: Any) -> None:
        if isinstance(event, Step):
            raise ZeroDivisionError

    records = [{"text": text, "label": label} for text, label in rows(40)]
    options: dict[str, Any] = {"train": records, "model": base, "output": tmp_path / "out", "epochs": 1}
    with pytest.raises(ZeroDivisionError):
        mlxbert.finetune("classify", **options).run(enough)
    assert mlxbert.finetune("classify", **options).run().labels is not None


def test_numbers_of_labels_get_names(base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = tmp_path / "train.csv"
    table.write_text("".join(f"{int(label == 'animal')},{text}\n" for text, label in rows(40)), encoding="utf-8")
    how: dict[str, Any] = {"train": table, "no_header": True, "text_column": "2", "label_column": "1"}
    output = tmp_path / "out"
    run("classify", model=base, output=output, epochs=1, label_names="place, animal", **how)
    assert json.loads((output / "config.json").read_text())["id2label"] == {"0": "place", "1": "animal"}
    record = json.loads((output / "training.json").read_text())
    assert record["options"]["label_names"] == {"0": "place", "1": "animal"}
    assert "--label-names 'place, animal'" in record["command"] and "--no-header" in record["command"]
    model = mlxbert.load(output)
    by_number = mlxbert.evaluate("classify", model, data=table, no_header=True)
    named = write(tmp_path / "named.csv", rows(40))
    by_name = mlxbert.evaluate("classify", model, data=named, text_column="text", label_column="label")
    assert by_number.metrics == by_name.metrics and set(by_name.labels) == set(by_number.labels)
    for names, new_head in ((None, True), ("place,animal", False)):
        caplog.clear()
        started = begun("classify", model=output, output=tmp_path / f"{names}", label_names=names, **how)
        assert started.new_head == new_head == ("label_names='place,animal'" in caplog.text)
    objective = make_objective("multilabel", label_names="place, animal")
    found = objective.read(read_rows([{"text": "a", "label": "1,0"}, {"text": "b", "label": "0"}]))
    assert [one.label for one in found] == [("animal", "place"), ("place",)]
    objective = make_objective("classify", label_names=["place", "animal"])  # the names that the labels have already
    found = objective.read(read_rows([{"text": text, "label": label} for text, label in rows(4)]))
    assert objective.heads(found)["sequence_classifier"].names == ("place", "animal")  # type: ignore[union-attr]


@together(
    ("task", "given", "said"),
    [
        ("classify", {"zzz": 3}, "`zzz` is .*None$"),
        ("classify", {"sweep": "lr=1e-5"}, "`sweep` is 'lr=1e-5'"),
        ("classify", {"sweep": ["lr"]}, "`sweep` is "),
        ("embed", {"dimensions": 64}, "`dimensions` is 64"),
        ("embed", {"dimensions": "64,384"}, "`dimensions` is '64,384'"),
        ("classify", {"label_names": "a,b,c"}, r"`label_names` has 3 names, .* 2 labels \(animal, place\)"),
        ("multilabel", {"label_names": ["a"]}, "`label_names` has 1 names"),
        ("classify", {"label_names": "a,a"}, "expected different names"),
        ("classify", {"label_names": "a,"}, "expected different names"),
        ("regress", {"label_names": "a,b"}, "`label_names` is not an option of regress"),
        ("tag", {"label_names": "a,b"}, "`label_names` is not an option of tag"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_words(
    task: str, given: dict[str, Any], said: str, base: Path, train: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError) as caught:
        run(task, train=train, model=base, output=tmp_path / "out", **given)
    assert re.search(said, f"{caught.value.message} {caught.value.hint}")
    assert not [*tmp_path.glob("out*")]


@pytest.mark.parametrize(("seeds", "networks"), [(1, 2), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_the_base_is_opened_once_and_one_network_is_in_memory(
    base: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int, networks: int
) -> None:
    """The plan, the run and the folder share a network; the frozen vectors of the baselines need another one."""
    opened: list[str] = []
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def counted(name: str, usual: Any) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            opened.append(name)
            return usual(*given, **options)

        return call

    def build(*given: Any, **options: Any) -> Any:
        alive.append(sum(one() is not None for one in made))
        network = build_network(*given, **options)
        made.append(weakref.ref(network))
        return network

    for module in map(importlib.import_module, ("mlxbert.loading", "mlxbert.train.finetune")):
        for name in {"find_model", "open_checkpoint", "load_tokenizer"} & vars(module).keys():
            monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    loading = importlib.import_module("mlxbert.loading")
    build_network = loading.build_network
    monkeypatch.setattr(loading, "build_network", build)
    run("classify", train=train, model=base, output=tmp_path / "out", epochs=1, seeds=seeds)
    assert sorted(opened) == ["find_model", "load_tokenizer", "open_checkpoint"]
    assert len(made) <= networks and max(alive) <= 1 and alive[-1] == 1  # the trained one, next to the baselines'


def test_a_network_after_training_is_as_one_that_was_loaded(base: Path, train: Path, tmp_path: Path) -> None:
    """The network that was trained is written, with its frozen weights as they were: no gradient has seen bfloat16."""
    options: dict[str, Any] = {"freeze": 1, "dtype": "bfloat16", "checkpointing": True, "dropout": 0.3}
    two = mlxbert.save(mlxbert.new_model({**CONFIG, "initializer_range": 0.15}, base), tmp_path / "two")  # layers
    run("classify", train=train, model=two, output=tmp_path / "out", epochs=1, device="cpu", **options)
    before, after = (parameters(mlxbert.load(folder, device="cpu").network) for folder in (two, tmp_path / "out"))
    frozen = [name for name in before if name.startswith(("encoder.embeddings.", "encoder.layers.0."))]
    assert len(frozen) > 10 and all(mx.array_equal(after[name], before[name]) for name in frozen)


RECORDS = [{"text": text, "label": label} for text, label in rows(120)]
OPTIONS: dict[str, Any] = {"lr": 1e-2, "batch_size": 8, "device": "cpu"}


class Clock:
    """A clock that stands still but when an update is computed, which takes `update` seconds, or when it is asked."""

    def __init__(self) -> None:
        self.now, self.update, self.asked = 1000.0, 2.0, 0.0
        self.learns = False  # whether updates have gradients, which take time

    def __call__(self) -> float:
        self.now += self.asked
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found, gradients = Clock(), BatchGradients.__call__

    def slow(made: BatchGradients, parameters: Any, *given: Any) -> Any:
        found.now += found.update
        if found.learns:
            return gradients(made, parameters, *given)
        zero, names = mx.array(0.0), made._training.objective.losses
        arrays = {name: mx.zeros_like(array) for name, array in parameters.items()}
        return Gradients(zero, mx.array(1.0), arrays, dict.fromkeys(names, zero))

    monkeypatch.setattr("mlxbert.train.training_call._MIN_STEPS", 10)  # short runs are estimated
    monkeypatch.setattr(phase_times, "clock", found)
    monkeypatch.setattr(BatchGradients, "__call__", slow)
    yield found


def start(base: Path, output: Path, **changes: Any) -> Any:
    return mlxbert.finetune("classify", train=RECORDS, model=base, output=output, **OPTIONS | changes)


def test_the_phases_of_a_run_are_named_and_add_up(base: Path, tmp_path: Path, clock: Clock) -> None:
    named: list[str] = []
    clock.asked = 0.001
    begun = clock.now
    events = start(base, tmp_path / "out", epochs=2, on_phase=named.append)
    called, clock.now = clock.now - begun, clock.now + 3600  # nobody has begun to train: this does not count
    begun = clock.now
    finished = one([*events], Finished)
    whole = called + clock.now - begun
    assert finished.seconds == pytest.approx(sum(finished.phases.values())) == pytest.approx(whole, abs=1)
    assert finished.phases["training"] == pytest.approx(2 * 26, abs=1)  # 100 examples, 8 a batch
    assert finished.phases.keys() == {*named} >= {"reading the data", "tokenizing", "estimating the time", "saving"}
    assert [name for name in named if name in ("training", "evaluating")][:3] == ["training", "evaluating", "training"]
    assert named.index("tokenizing") < named.index("training") < named.index("comparing with simple methods")


def test_a_resumed_run_counts_what_was_trained_and_estimates_the_rest(base: Path, tmp_path: Path, clock: Clock) -> None:
    events = start(base, tmp_path / "out", epochs=2, seeds=2)
    assert any(isinstance(event, Step) and event.step == 10 for event in events)
    events.close()
    begun, resumed = clock.now, [*start(base, tmp_path / "out", epochs=2, seeds=2)]
    started, finished = resumed[0], one(resumed, Finished)
    assert finished.phases[EARLIER] == 20 and finished.phases["training"] == 2 * (16 + 26)
    assert finished.seconds == sum(finished.phases.values())
    assert isinstance(started, Started) and started.estimate is not None
    assert 2 * (16 + 26) <= started.estimate.seconds <= 120 and clock.now - begun <= 120


def test_the_estimate_comes_first_and_measures_a_long_update_once(base: Path, tmp_path: Path, clock: Clock) -> None:
    options = {"epochs": 1, "seeds": 2}
    [dry] = start(base, tmp_path / "dry", dry_run=True, **options)
    assert not [*tmp_path.glob("dry*")]
    estimates: list[Any] = [
        event.estimate for event in start(base, tmp_path / "out", **options) if isinstance(event, Started)
    ]
    assert estimates[1] is None and estimates[0].seconds == dry.estimate.seconds and estimates[0].memory > 0
    assert 2 * 26 <= dry.estimate.seconds <= 2 * 44  # 13 updates, evaluations, frozen vectors
    assert next(iter(start(base, tmp_path / "short", epochs=1, batch_size=100))).estimate is None
    clock.update, begun = 60.0, clock.now
    estimate = one([*start(base, tmp_path / "long", epochs=2, dry_run=True)], Started).estimate
    assert clock.now - begun == 2 * clock.update and 52 * 30 <= estimate.seconds <= 70 * 30


@pytest.mark.slow
def test_without_an_estimate_the_bits_are_the_same(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one([*start(base, tmp_path / "a", epochs=2)], Started).estimate is None
    monkeypatch.setattr("mlxbert.train.training_call._MIN_STEPS", 10)
    assert one([*start(base, tmp_path / "b", epochs=2)], Started).estimate is not None
    first, second = (tmp_path / name / "model.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_run_fits_into_the_minutes(base: Path, tmp_path: Path, clock: Clock) -> None:
    begun = clock.now
    events = [*start(base, tmp_path / "out", minutes=2)]
    steps = [event for event in events if isinstance(event, Step)]
    started, finished = one(events, Started), one(events, Finished)
    assert 90 < clock.now - begun <= 120 and finished.seconds == clock.now - begun
    assert started.steps == len(steps) > 13 and started.epochs == pytest.approx(started.steps / 13, abs=1e-3)
    assert steps[-1].lr < 0.05 * OPTIONS["lr"] and events[-3].step == started.steps
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["options"]["minutes"] == 2 and record["runs"][0]["history"][-1]["step"] == started.steps
    begun = clock.now
    first, second = (event.steps for event in start(base, tmp_path / "two", minutes=1, seeds=2)
                     if isinstance(event, Started))  # fmt: skip
    assert 40 < clock.now - begun <= 60 and abs(first - second) <= 4


def test_a_run_that_becomes_slower_still_fits(base: Path, tmp_path: Path, clock: Clock) -> None:
    begun, seen = clock.now, list[Event]()
    for event in start(base, tmp_path / "out", minutes=2):
        seen.append(event)
        if isinstance(event, Started):
            clock.update = 5.0
    steps = [event for event in seen if isinstance(event, Step)]
    last = [event for event in seen if isinstance(event, Evaluated)][-1]
    assert 100 < clock.now - begun <= 120 and len(steps) < one(seen, Started).steps
    assert last.step == steps[-1].step > 10


@pytest.mark.slow
def test_a_timed_run_resumes_to_the_same_bits(base: Path, tmp_path: Path, clock: Clock) -> None:
    clock.learns = True
    [*start(base, tmp_path / "whole", minutes=1)]
    events = start(base, tmp_path / "parts", minutes=1)
    assert any(isinstance(event, Step) and event.step == 7 for event in events)
    events.close()
    clock.update = 1.0  # a faster machine does not change how many updates there are
    started = one([*start(base, tmp_path / "parts", minutes=1)], Started)
    assert started.first_step == 7
    first, second = (tmp_path / name / "model.safetensors" for name in ("whole", "parts"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("options", fast([{}, {"eval_every": 1}, {"seeds": 3}], {"seeds": 3}), ids=str)
def test_the_minutes_of_the_hint_suffice(base: Path, tmp_path: Path, clock: Clock, options: dict[str, Any]) -> None:
    for refused in ({"epochs": 2}, {"sweep": {"epochs": [1, 2]}}):
        with pytest.raises(ArgumentError, match="`minutes` and `epochs`"):
            start(base, tmp_path / "out", minutes=0.1, **refused)
    with pytest.raises(ArgumentError, match="at least one") as caught:
        [*start(base, tmp_path / "out", minutes=0.1, **options)]
    assert not (tmp_path / "out").exists()
    [least] = re.findall(r"minutes=([\d.]+)", str(caught.value.hint))
    events = [*start(base, tmp_path / "out", minutes=float(least), **options)]
    assert isinstance(events[-1], Finished)
    assert min(event.steps for event in events if isinstance(event, Started)) >= 1


@pytest.mark.parametrize("teacher", [pytest.param(True, marks=pytest.mark.slow), False])
def test_pre_training_and_distilling_take_minutes(tmp_path: Path, clock: Clock, teacher: bool) -> None:
    corpus, model = text_file(tmp_path / "text.txt"), model_folder(tmp_path / "tiny")
    options: dict[str, Any] = {"length": "16:0.5,24:0.5", "batch_size": 8, "minutes": 1}
    train: Any = partial(mlxbert.distill, teacher=model) if teacher else partial(mlxbert.pretrain, model=model)
    begun = clock.now
    events = [*train(corpus, output=tmp_path / "out", **options)]
    started, finished = one(events, Started), one(events, Finished)
    assert 45 < clock.now - begun <= 60 and finished.seconds == clock.now - begun
    assert started.steps == len([event for event in events if isinstance(event, Step)]) > 10
    assert {"reading the corpus", "training", "evaluating", "saving"} <= finished.phases.keys()
    assert json.loads((tmp_path / "out" / "training.json").read_text())["options"]["minutes"] == 1
    for other in ({"steps": 5}, {"epochs": 1.0}):
        with pytest.raises(ArgumentError, match="minutes"):
            mlxbert.pretrain(corpus, output=tmp_path / "no", **options, **other)


def test_evaluations_of_a_short_pre_training_are_counted() -> None:
    order = Phases([mock.Mock(share=1.0, batches=10_000)], steps=None, epochs=1.0, gradient_accumulation=1, seed=0)
    run = mock.Mock(order=order)
    type(run).every = property(lambda run: order.epoch_steps)
    for evaluation in (0.1, 5.0, 15.0):
        steps = Costs(update=1.0, evaluation=evaluation, once=0.0, memory=0, free=None).updates(run, 200.0)
        order.end_after(steps)
        assert 180 < steps + (steps - 1) // order.epoch_steps * evaluation <= 200
