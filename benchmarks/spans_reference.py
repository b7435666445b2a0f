"""Trains with transformers on the sets of `spans_sets.py`; writes a line of JSON per run.

Run: python benchmarks/spans_reference.py SETS MODEL RESULTS.jsonl [--only NAME] [--seeds 3] [--first N]

The first token of a word has its label; answers are selected from windows with a stride, from the 20 best starts and
ends of each window, as in transformers' examples. Needs torch, transformers, accelerate and seqeval.
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

_BEST = 20  # starts and ends per window
Span = tuple[int, int, float]


def tag(name: str, arguments: argparse.Namespace, seed: int, output: Path | None) -> dict[str, Any]:
    """Trains once and scores the test sentences."""
    setting, tokenizer = SETTINGS[name], AutoTokenizer.from_pretrained(arguments.model)
    train, test = (read_sentences(arguments.sets / name / f"{split}.conll") for split in ("train", "test"))
    train = sampled(train, arguments.first)
    names = sorted({tag for sentence in train for _, tag in sentence})

    def encoded(sentence: list[tuple[str, str]]) -> dict[str, Any]:
        words = [word for word, _ in sentence]
        encoding = tokenizer(words, is_split_into_words=True, truncation=True, max_length=setting.max_length)
        ids = encoding.word_ids()
        first = [word is not None and word != before for word, before in zip(ids, [None, *ids], strict=False)]
        labels = [
            names.index(sentence[word][1]) if begins and sentence[word][1] in names else -100
            for word, begins in zip(ids, first, strict=True)
        ]
        return {
            **encoding,
            "labels": labels,
            "first": [word if begins else -1 for word, begins in zip(ids, first, strict=True)],
        }

    transformers.set_seed(seed)
    labels = {"id2label": dict(enumerate(names)), "label2id": {label: number for number, label in enumerate(names)}}
    model = AutoModelForTokenClassification.from_pretrained(arguments.model, **labels)
    collator = DataCollatorForTokenClassification(tokenizer)
    rows = [{key: value for key, value in encoded(sentence).items() if key != "first"} for sentence in train]
    trainer, spent = train_theirs(model, collator, rows, setting, seed, arguments.gpu)
    if output is not None:
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    predicted = []
    inputs = [encoded(sentence) for sentence in test]
    logits = trainer.predict([{k: v for k, v in each.items() if k != "first"} for each in inputs]).predictions
    for sentence, encoding, row in zip(test, inputs, logits, strict=True):
        tags = ["O" if setting.metric == "f1" else names[0]] * len(sentence)
        for place, word in enumerate(encoding["first"]):
            if word >= 0:
                tags[word] = names[int(row[place].argmax())]
        predicted.append(tags)
    measure = entity_f1 if setting.metric == "f1" else accuracy
    return {"score": measure([[tag for _, tag in sentence] for sentence in test], predicted), **spent}


def answer(name: str, arguments: argparse.Namespace, seed: int, output: Path | None) -> dict[str, Any]:
    """Trains once and scores the test questions."""
    setting, tokenizer = SETTINGS[name], AutoTokenizer.from_pretrained(arguments.model)
    train, test = ([*read_questions(arguments.sets / name / f"{split}.json")] for split in ("train", "test"))
    train = sampled(train, arguments.first)

    def windows(question: dict[str, Any]) -> Any:
        return tokenizer(
            question["question"], question["context"], truncation="only_second", max_length=setting.max_length,
            stride=STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip

    rows = []
    for question in train:
        gold = question["answers"][0]
        start, end = gold["answer_start"], gold["answer_start"] + len(gold["text"])
        encodings = windows(question)
        for number in range(len(encodings["input_ids"])):
            places = [place for place, part in enumerate(encodings.sequence_ids(number)) if part == 1]
            offsets = encodings["offset_mapping"][number]
            row = {
                key: encodings[key][number]
                for key in encodings
                if key not in ("offset_mapping", "overflow_to_sample_mapping")
            }
            first = last = 0
            if offsets[places[0]][0] <= start and offsets[places[-1]][1] >= end:
                first = max(place for place in places if offsets[place][0] <= start)
                last = min(place for place in places if offsets[place][1] >= end)
            rows.append({**row, "start_positions": first, "end_positions": last})
    transformers.set_seed(seed)
    model = AutoModelForQuestionAnswering.from_pretrained(arguments.model)
    _, spent = train_theirs(model, DataCollatorWithPadding(tokenizer), rows, setting, seed, arguments.gpu)
    if output is not None:
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    model.eval()
    answers = [_best_answer(model, question["context"], windows(question)) for question in test]
    golds = [[gold["text"] for gold in question["answers"]] for question in test]
    exact, f1 = answer_scores(golds, answers)
    return {"score": f1, "exact": exact, **spent}


def candidates(model: Any, context: str, windows: Any, *, probabilities: bool = False) -> Iterator[Span]:
    """The spans in all windows of a context: their starts, ends and scores.

    Args:
        model: The model in evaluation mode.
        context: The text.
        windows: The windows of the text, as returned by the tokenizer, with offsets.
        probabilities: Whether scores are products of the probabilities of the first and the last token, normalized over
            the context and the first token of the window; otherwise they are sums of logits.
    """
    for number in range(len(windows["input_ids"])):
        columns = ("input_ids", "attention_mask", "token_type_ids")
        inputs = {key: torch.tensor([windows[key][number]], device=model.device) for key in columns}
        output = model(**inputs)
        inside = np.array([part == 1 for part in windows.sequence_ids(number)])
        allowed = inside | (np.arange(len(inside)) == 0)
        starts, ends = (
            np.where(allowed, logits[0].cpu().numpy(), -np.inf) for logits in (output.start_logits, output.end_logits)
        )
        if probabilities:
            starts, ends = (logits - np.log(np.exp(logits).sum()) for logits in (starts, ends))
        offsets = windows["offset_mapping"][number]
        for first in np.argsort(-np.where(inside, starts, -np.inf))[:_BEST]:
            for last in np.argsort(-np.where(inside, ends, -np.inf))[:_BEST]:
                start, end = offsets[first][0], offsets[last][1]
                usable = inside[first] and inside[last] and first <= last
                if usable and len(context[start:end].split()) <= MAX_WORDS:
                    score = float(starts[first] + ends[last])
                    yield start, end, math.exp(score) if probabilities else score


def _best_answer(model: Any, context: str, windows: Any) -> str:
    with torch.no_grad():
        start, end, _ = max(candidates(model, context, windows), key=lambda span: span[2], default=(0, 0, 0.0))
    return context[start:end]


def run(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains once and scores the test set."""
    torch.set_num_threads(1)
    output = arguments.save / name if arguments.save and seed == 0 else None
    train = tag if SETTINGS[name].task == "tag" else answer
    return train(name, arguments, seed, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, help="folder for the models of the first seed")
    run_missing(parser, SETTINGS, run)
