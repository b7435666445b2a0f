"""Trains with mlxbert on the sets of `spans_sets.py`, like `spans_reference.py`; writes a line of JSON per run.

Run: python benchmarks/spans_ours.py SETS MODEL RESULTS.jsonl [--only NAME] [--seeds 3] [--first N] [--crf]
    [--save FOLDER]

The weights after the last update are scored on the test set; there is no validation, as in the reference. Runs in
RESULTS are not repeated. Needs seqeval, which scores both sides.
"""

import argparse
from pathlib import Path
from typing import Any

from runs import run_missing, sampled, train_ours, use_cores
from spans_sets import (
    MAX_WORDS,
    SETTINGS,
    STRIDE,
    accuracy,
    answer_scores,
    entity_f1,
    read_questions,
    read_sentences,
)  # fmt: skip


def run(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set."""
    use_cores(arguments)
    import mlxbert
    from mlxbert.loading import load
    from mlxbert.train.data.labelled_rows import read_rows
    from mlxbert.train.objectives import make_objective
    from mlxbert.train.training_plan import prepared

    setting = SETTINGS[name]
    options = {"crf": arguments.crf} if setting.task == "tag" else {"stride": STRIDE, "max_words": MAX_WORDS}
    objective: Any = make_objective(setting.task, max_length=setting.max_length, **options)
    ending = "conll" if setting.task == "tag" else "json"
    rows = read_rows(arguments.sets / name / f"train.{ending}")
    records = sampled(objective.read(rows), arguments.first)
    model = load(arguments.model, new_heads=objective.heads(records), dtype="float32", seed=seed)
    objective.bind(model)
    part = prepared(objective, [(record, record.place) for record in records])
    spent = train_ours(model, objective, part.examples, setting, seed)
    if arguments.save and seed == 0:
        mlxbert.save(model, arguments.save / name)
    if setting.task == "answer":
        questions = [*read_questions(arguments.sets / name / "test.json")]
        pairs = [(question["question"], question["context"]) for question in questions]
        answers = [result.answer or "" for result in mlxbert.answer(
            model, pairs, max_length=setting.max_length, stride=STRIDE, max_words=MAX_WORDS, no_answer_threshold=1.0
        )]  # fmt: skip
        exact, f1 = answer_scores([[gold["text"] for gold in question["answers"]] for question in questions], answers)
        return {"score": f1, "exact": exact, **spent}
    sentences = read_sentences(arguments.sets / name / "test.conll")
    tagged = mlxbert.tag(model, [tuple(word for word, _ in sentence) for sentence in sentences])
    predicted = [
        _tags(result, len(sentence), setting.metric) for result, sentence in zip(tagged, sentences, strict=True)
    ]
    measure = entity_f1 if setting.metric == "f1" else accuracy
    return {"score": measure([[tag for _, tag in sentence] for sentence in sentences], predicted), **spent}


def _tags(tagged: Any, words: int, metric: str) -> list[str]:
    """The tag of each word, from entities or tagged words with their offsets in the words joined by spaces."""
    word_of = [number for number, word in enumerate(tagged.text.split(" ")) for _ in range(len(word) + 1)]
    tags = ["O"] * words
    for entity in tagged.entities:
        first, last = word_of[entity.start], word_of[entity.end - 1]
        for number in range(first, last + 1):
            tags[number] = entity.label if metric == "accuracy" else f"{'I' if number > first else 'B'}-{entity.label}"
    return tags


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crf", action="store_true")
    parser.add_argument("--save", type=Path, help="folder for the models of the first seed")
    run_missing(parser, SETTINGS, run, kinds=("crf",))
