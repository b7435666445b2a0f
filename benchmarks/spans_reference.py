"""transformers' own training on the sets of `spans_sets.py`; a line of JSON per run.

Run: python benchmarks/spans_reference.py SETS MODEL RESULTS.jsonl [--only NAME] [--seeds 3] [--first N]

The first token of a word carries its label; answers are searched through windows with a stride, of the 20 best starts
and ends of each, as in transformers' examples. Needs torch, transformers, accelerate and seqeval.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from runs import run_missing, sampled, train_theirs
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
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)  # fmt: skip

_BEST = 20  # starts and ends of a window
Span = tuple[int, int, float]


def tag(name: str, given: argparse.Namespace, seed: int, output: Path | None) -> dict[str, Any]:
    """Trains once and scores the test sentences."""
    setting, tokenizer = SETTINGS[name], AutoTokenizer.from_pretrained(given.model)
    train, test = (read_sentences(given.sets / name / f"{split}.conll") for split in ("train", "test"))
    train = sampled(train, given.first)
    names = sorted({tag for sentence in train for _, tag in sentence})

    def encoded(sentence: list[tuple[str, str]]) -> dict[str, Any]:
        words = [word for word, _ in sentence]
        found = tokenizer(words, is_split_into_words=True, truncation=True, max_length=setting.max_length)
        ids = found.word_ids()
        first = [word is not None and word != before for word, before in zip(ids, [None, *ids], strict=False)]
        labels = [
            names.index(sentence[word][1]) if begins and sentence[word][1] in names else -100
            for word, begins in zip(ids, first, strict=True)
        ]
        return {
            **found,
            "labels": labels,
            "first": [word if begins else -1 for word, begins in zip(ids, first, strict=True)],
        }

    transformers.set_seed(seed)
    labels = {"id2label": dict(enumerate(names)), "label2id": {label: number for number, label in enumerate(names)}}
    model = AutoModelForTokenClassification.from_pretrained(given.model, **labels)
    collator = DataCollatorForTokenClassification(tokenizer)
    rows = [{key: value for key, value in encoded(one).items() if key != "first"} for one in train]
    trainer, spent = train_theirs(model, collator, rows, setting, seed, given.gpu)
    if output is not None:
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    predicted = []
    asked = [encoded(one) for one in test]
    logits = trainer.predict([{k: v for k, v in one.items() if k != "first"} for one in asked]).predictions
    for sentence, one, row in zip(test, asked, logits, strict=True):
        tags = ["O" if setting.metric == "f1" else names[0]] * len(sentence)
        for place, word in enumerate(one["first"]):
            if word >= 0:
                tags[word] = names[int(row[place].argmax())]
        predicted.append(tags)
    measure = entity_f1 if setting.metric == "f1" else accuracy
    return {"score": measure([[tag for _, tag in one] for one in test], predicted), **spent}


def answer(name: str, given: argparse.Namespace, seed: int, output: Path | None) -> dict[str, Any]:
    """Trains once and scores the test questions."""
    setting, tokenizer = SETTINGS[name], AutoTokenizer.from_pretrained(given.model)
    train, test = ([*read_questions(given.sets / name / f"{split}.json")] for split in ("train", "test"))
    train = sampled(train, given.first)

    def windows(question: dict[str, Any]) -> Any:
        return tokenizer(
            question["question"], question["context"], truncation="only_second", max_length=setting.max_length,
            stride=STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip

    rows = []
    for question in train:
        gold = question["answers"][0]
        start, end = gold["answer_start"], gold["answer_start"] + len(gold["text"])
        found = windows(question)
        for number in range(len(found["input_ids"])):
            places = [place for place, part in enumerate(found.sequence_ids(number)) if part == 1]
            offsets = found["offset_mapping"][number]
            row = {
                key: found[key][number] for key in found if key not in ("offset_mapping", "overflow_to_sample_mapping")
            }
            first = last = 0
            if offsets[places[0]][0] <= start and offsets[places[-1]][1] >= end:
                first = max(place for place in places if offsets[place][0] <= start)
                last = min(place for place in places if offsets[place][1] >= end)
            rows.append({**row, "start_positions": first, "end_positions": last})
    transformers.set_seed(seed)
    model = AutoModelForQuestionAnswering.from_pretrained(given.model)
    _, spent = train_theirs(model, DataCollatorWithPadding(tokenizer), rows, setting, seed, given.gpu)
    if output is not None:
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    model.eval()
    answers = [_best_answer(model, question["context"], windows(question)) for question in test]
    golds = [[gold["text"] for gold in question["answers"]] for question in test]
    exact, f1 = answer_scores(golds, answers)
    return {"score": f1, "exact": exact, **spent}


def candidates(model: Any, context: str, found: Any, *, probabilities: bool = False) -> Iterator[Span]:
    """The spans of all windows of a context: where they begin and end, and their scores.

    Args:
        model: The model in evaluation mode.
        context: The text.
        found: Its windows, as the tokenizer gives them, with offsets.
        probabilities: Whether scores are products of the probabilities of first and last token, among those of the
            context and the first one of the window; otherwise they are sums of logits.
    """
    for number in range(len(found["input_ids"])):
        columns = ("input_ids", "attention_mask", "token_type_ids")
        inputs = {key: torch.tensor([found[key][number]], device=model.device) for key in columns}
        output = model(**inputs)
        inside = np.array([part == 1 for part in found.sequence_ids(number)])
        kept = inside | (np.arange(len(inside)) == 0)
        starts, ends = (
            np.where(kept, logits[0].cpu().numpy(), -np.inf) for logits in (output.start_logits, output.end_logits)
        )
        if probabilities:
            starts, ends = (logits - np.log(np.exp(logits).sum()) for logits in (starts, ends))
        offsets = found["offset_mapping"][number]
        for first in np.argsort(-np.where(inside, starts, -np.inf))[:_BEST]:
            for last in np.argsort(-np.where(inside, ends, -np.inf))[:_BEST]:
                start, end = offsets[first][0], offsets[last][1]
                usable = inside[first] and inside[last] and first <= last
                if usable and len(context[start:end].split()) <= MAX_WORDS:
                    score = float(starts[first] + ends[last])
                    yield start, end, math.exp(score) if probabilities else score


def _best_answer(model: Any, context: str, found: Any) -> str:
    with torch.no_grad():
        start, end, _ = max(candidates(model, context, found), key=lambda span: span[2], default=(0, 0, 0.0))
    return context[start:end]


def run(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set."""
    torch.set_num_threads(1)
    output = given.save / name if given.save and seed == 0 else None
    train = tag if SETTINGS[name].task == "tag" else answer
    return train(name, given, seed, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, help="folder for the models of the first seed")
    run_missing(parser, SETTINGS, run)
