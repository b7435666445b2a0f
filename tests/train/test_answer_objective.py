"""Question answering from data to a folder: windows and targets, the loss, the threshold, the evaluation."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.machine.device import mx
from mlxbert.text.encoding import Encoding
from mlxbert.train.base_model import BaseModel
from mlxbert.train.data.labelled_rows import read_rows
from mlxbert.train.data.questions import Question
from mlxbert.train.loop.events import Finished, Started
from mlxbert.train.loop.phase_times import Times
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.answer import AnswerObjective, target
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.training_plan import make_plan
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef
from tests.helpers.answering import save_answering
from tests.train.test_finetune import one as of_kind

WORDS = (
    *("dog", "sat", "on", "mat", "largest", "is", "of", "man"),
    *("went", "to", "store", "he", "bought", "milk", "the"),
)
CITIES = ("paris", "tokyo")


def city(number: int, rng: random.Random) -> dict[str, Any]:
    """A context with a city, which is the answer, or, for every third, without one."""
    words = rng.choices(WORDS, k=rng.randint(4, 40))
    if number % 3:
        words.insert(rng.randrange(len(words)), rng.choice(CITIES))
    context = " ".join(words)
    answers = [{"text": name, "answer_start": context.index(name)} for name in CITIES if name in context]
    return {"question": "cat in ?", "context": context, "answers": answers}


def records(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [city(number, rng) for number in range(count)]


def bound(folder: Path, **options: Any) -> tuple[AnswerObjective, mlxbert.Model]:
    objective, model = make_objective("answer", **options), mlxbert.load(folder, task="answer", dtype="float32")
    assert isinstance(objective, AnswerObjective)
    objective.bind(model)
    return objective, model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_answering(tmp_path_factory.mktemp("objective"))


def question(context: str, answer: str = "", place: int = 0) -> Question:
    start = context.index(answer, place) if answer else None
    end = None if start is None else start + len(answer)
    return Question("cat in ?", context, (answer,) if answer else (), start, end, "here")


HARD = [
    ("paris", "paris"),
    ("\U0001f468\u200d\U0001f469\U0001f600 the cat", "cat"),
    ("\u05e9\u05dc\u05d5\u05dd paris \u05e2\u05d5\u05dc\u05dd", "\u05e2\u05d5\u05dc\u05dd"),
    ("\u6211\u7231\u5317\u4eac\u3002", "\u5317\u4eac"),
    ("zzz qqq", "qqq"),  # unknown tokens alone
    ("the cat sat on " * 1250 + "tokyo", "tokyo"),
]


def test_windows_that_hold_the_answer_point_to_it_and_the_others_to_the_first_token(folder: Path) -> None:
    for context, answer in HARD:
        windows = bound(folder)[0].examples(question(context, answer))
        assert any(window.target != (0, 0) for window in windows), context[:20]
    context = " ".join([*WORDS] * 4).replace("he bought milk", "he bought playings milk", 2)
    objective, _ = bound(folder, stride=8)
    for answer in ("playings", "bought playings milk", "the", context[:200], ""):
        record = question(context, answer)
        windows = objective.examples(record)
        assert len(windows) > 3 and all(len(window) <= 32 for window in windows)
        for window in windows:
            offsets, inside = window.encoding.offsets, [n for n, s in enumerate(window.encoding.sequence_ids) if s == 1]
            first, last = window.target
            whole = answer and record.start is not None and record.end is not None and (
                offsets[inside[0]][0] <= record.start and record.end <= offsets[inside[-1]][1]
            )  # fmt: skip
            if whole:
                assert context[offsets[first][0] : offsets[last][1]] == answer
            else:
                assert (first, last) == (0, 0)
        assert any(window.target != (0, 0) for window in windows) == (
            answer in ("playings", "bought playings milk", "the")
        )


def test_an_answer_within_tokens_takes_them_whole_and_characters_of_several_tokens_too() -> None:
    offsets = [(0, 0), (0, 2), (0, 0), (0, 4), (4, 9), (10, 11), (10, 11), (10, 11), (12, 15), (0, 0)]
    sequences = [None, 0, None, *[1] * 6, None]
    window = Encoding([0] * 10, [0] * 10, offsets, sequences, sequences, [*range(10)], False)
    assert target(window, 1, 3) == (3, 3)
    assert target(window, 2, 6) == (3, 4)
    assert target(window, 10, 11) == (5, 7)  # an emoji of three tokens
    assert target(window, 9, 15) == (5, 8)
    assert target(window, 12, 16) == (0, 0) and target(window, None, None) == (0, 0)


@pytest.mark.usefixtures("exact_lengths")
def test_the_loss_is_the_mean_cross_entropy_of_both_ends_without_padding(folder: Path) -> None:
    objective, model = bound(folder)
    contexts = [("the cat sat in paris", "paris"), ("tokyo", "tokyo"), ("a dog", "")]
    examples = [objective.prepare(question(*one)) for one in contexts]
    loss, weight = objective.loss(model.network, objective.collate(examples, random.Random()))
    wanted = 0.0
    for example in examples:
        batch = objective.collate([example], random.Random())
        logits = np.array(model.network.logits("question_answering", batch.inputs)[0].astype(mx.float32), np.float64)
        for side in (0, 1):
            wanted += (np.log(np.exp(logits[:, side]).sum()) - logits[example.target[side], side]) / 2
    assert weight == 3 and float(loss) == pytest.approx(wanted, rel=1e-5)
    metrics = objective.metrics(examples, predict(model.network, objective, examples))
    assert metrics["loss"] == pytest.approx(wanted / 3, rel=1e-5)


def test_predictions_become_what_the_task_answers(folder: Path) -> None:
    objective, model = bound(folder, stride=8, max_words=3)
    found = [question(str(one["context"]), one["answers"][0]["text"] if one["answers"] else "") for one in records(12)]
    examples = [window for record in found for window in objective.examples(record)]
    told: list[tuple[int, int]] = []
    predictions = predict(
        model.network, objective, examples, batch_tokens=32, on_progress=lambda done, total: told.append((done, total))
    )
    assert told[0] == (0, len(examples)) and told[-1] == (len(examples),) * 2
    assert len(told) > 2 and told == sorted(told)  # with every batch
    _, best = objective._best(examples, predictions)
    given = mlxbert.answer(model, [(one.text, one.pair) for one in found], stride=8, max_words=3, no_answer_threshold=1)
    for one, other in zip(best, given, strict=True):
        assert (one.text, one.start) == (other.answer, other.start)
        assert one.score == pytest.approx(other.score, rel=1e-4)


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("trained")
    train = folder / "train.jsonl"
    train.write_text("".join(json.dumps(one) + "\n" for one in records(90)), encoding="utf-8")
    events = mlxbert.finetune(
        "answer", train=train, model=base, output=folder / "cities", epochs=4, lr=1e-2, batch_size=16, stride=10
    )
    return folder / "cities", [*events]


def test_a_model_learns_to_answer_and_to_say_that_there_is_no_answer(trained: tuple[Path, list[Any]]) -> None:
    folder, events = trained
    started, finished = of_kind(events, Started), of_kind(events, Finished)
    assert started.report is not None
    assert started.report.columns == {"text": "question", "pair": "context", "label": "answers"}
    assert started.report.splits[0].labels.keys() == {"answer", "no answer"} and started.examples > 72
    assert finished.score > 0.9 and finished.evaluation is not None and finished.summary is not None
    assert finished.evaluation.metrics.keys() == {
        "f1", "exact_match", "has_answer_f1", "has_answer_exact_match", "no_answer_accuracy"
    }  # fmt: skip
    assert finished.summary.baselines.keys() == {"no answer"}
    assert "mlxbert answer" in finished.summary.command and "--context" in finished.summary.command
    model = mlxbert.load(folder)
    found = mlxbert.answer(model, ("cat in ?", "the man went to tokyo ."))
    assert (found.answer, found.start, found.end) == ("tokyo", 16, 21)
    assert mlxbert.answer(model, ("cat in ?", "the man went to the store .")).answer is None
    far = "the dog sat on the mat . " * 40 + "he bought milk in paris . " + "a man went to store . " * 40
    assert mlxbert.answer(model, ("cat in ?", far)).start == far.index("paris")


def test_the_threshold_is_in_the_folder_and_evaluation_uses_it(trained: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, _ = trained
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    threshold = config["no_answer_threshold"]
    assert 0 <= threshold < 1 and config["architectures"] == ["BertForQuestionAnswering"] and "id2label" not in config
    model = mlxbert.load(folder)
    assert model.labels is None and model.config.labels is not None
    assert model.config.labels.no_answer_threshold == threshold
    again = mlxbert.load(mlxbert.save(model, tmp_path / "again"))
    assert again.config.labels is not None and again.config.labels.no_answer_threshold == threshold
    found = mlxbert.evaluate("answer", model, data=records(60, seed=9), stride=10)
    assert found.score > 0.8 and found.examples == 60 and found.confusion is not None
    config["no_answer_threshold"] = 1.0
    (tmp_path / "again" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    always = mlxbert.evaluate("answer", mlxbert.load(tmp_path / "again"), data=records(60, seed=9), stride=10)
    assert (
        always.metrics["no_answer_accuracy"] < found.metrics["no_answer_accuracy"]
        and always.metrics["has_answer_f1"] >= found.metrics["has_answer_f1"]
    )


def test_training_goes_on_with_the_head_that_a_model_has(trained: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, _ = trained
    answerable = [one for one in records(60, seed=4) if one["answers"]]
    events = [*mlxbert.finetune("answer", train=answerable, model=folder, output=tmp_path / "on", epochs=1, lr=1e-9)]
    finished = of_kind(events, Finished)
    assert finished.score > 0.8 and finished.evaluation.labels == ()
    config = json.loads((tmp_path / "on" / "config.json").read_text(encoding="utf-8"))
    assert config["no_answer_threshold"] == 1
    hard = [{"question": "cat in ?", "context": context, "answers": answer} for context, answer in HARD]
    hard += records(30, seed=5)
    last = of_kind(
        [*mlxbert.finetune("answer", train=hard, valid=hard, model=folder, output=tmp_path / "hard", epochs=1)],
        Finished,
    )
    again = mlxbert.evaluate("answer", mlxbert.load(tmp_path / "hard"), data=hard)
    assert again.metrics == pytest.approx(last.evaluation.metrics)  # the folder gives the scores of the training


def test_questions_about_a_context_are_all_in_one_part(base: Path, tmp_path: Path) -> None:
    found = [{**one, "question": f"{word} in ?"} for one in records(30) for word in ("cat", "dog", "man", "he")]
    objective = make_objective("answer")
    plan = make_plan(
        objective, BaseModel(ref=ModelRef("base"), files=ModelFolder(base)), read_rows(found), None, 0.2, 0, Times()
    )
    train, valid = ({record.pair for record in part.records} for part in (plan.train, plan.valid))
    assert valid and not train & valid and len(plan.valid.records) == 4 * len(valid) == 24
    assert plan.report is not None and plan.report.splits[0].duplicates == 0
    few = replace(plan.report.splits[0], labels={"answer": 5})
    assert not [*objective.warnings(few, [])] and [*objective.warnings(replace(few, labels={"answer": 9, "no": 1}), [])]


def test_data_and_options_that_make_no_sense_are_refused(base: Path, tmp_path: Path) -> None:
    def train(data: Any, **options: Any) -> None:
        list(mlxbert.finetune("answer", train=data, model=base, output=tmp_path / "m", **options))

    silent = [{**one, "answers": []} for one in records(20)]
    with pytest.raises(InputError, match="record 1 and below: no question has an answer"):
        train(silent)
    long = [*records(20), {"question": "cat " * 40, "context": "a", "answers": "a"}]
    with pytest.raises(InputError, match="record 21: the question has 40 tokens"):
        train(long)
    for options in ({"max_length": 64}, {"max_words": 0}, {"stride": -1}, {"metric": "accuracy"}, {"stride": 31}):
        with pytest.raises((ArgumentError, InputError)):
            train(records(20), **options)


def test_evaluation_without_a_threshold_answers_where_every_question_has_an_answer(folder: Path) -> None:
    model = mlxbert.load(folder, task="answer", dtype="float32")
    answerable = [one for one in records(30) if one["answers"]]
    found = mlxbert.evaluate("answer", model, data=answerable)
    given = mlxbert.answer(model, [(one["question"], one["context"]) for one in answerable], no_answer_threshold=1)
    exact = [one.answer == record["answers"][0]["text"] for one, record in zip(given, answerable, strict=True)]
    assert found.metrics["exact_match"] == pytest.approx(np.mean(exact)) and found.labels == ()
