"""`tag` and `answer` beside transformers on trained models: the same entities and answers?

Run: python benchmarks/spans_pipelines.py SETS TAGGER ANSWERER [--texts 200]

SETS is what `spans_sets.py` wrote. Sentences are compared with the token-classification pipeline in each aggregation;
questions, for which transformers has no pipeline any more, with the model class and the search of
`spans_reference.py`. A line of JSON per comparison. Needs torch and transformers.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from spans_reference import candidates
from spans_sets import MAX_WORDS, SETTINGS, STRIDE, read_questions, read_sentences
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, pipeline

AGGREGATIONS = ("none", "simple", "first", "average", "max")


def compare_tags(sets: Path, folder: str, texts: int) -> None:
    """Entities of every aggregation: how many texts differ, and the largest difference of a score."""
    import mlxbert

    model = mlxbert.load(folder, task="tag", dtype="float32", device="cpu")
    sentences = read_sentences(sets / "wnut17" / "test.conll")[:texts]
    for how in AGGREGATIONS:
        pipe = pipeline("token-classification", model=folder, aggregation_strategy=how, device="cpu")
        different, entities, worst = 0, 0, 0.0
        for sentence in sentences:
            text = " ".join(word for word, _ in sentence)
            found = pipe(text)
            theirs = [(one.get("entity_group") or one["entity"], one["start"], one["end"]) for one in found]
            ours: Any = mlxbert.tag(model, text, aggregation=how)
            entities += len(theirs)
            if theirs != [(one.label, one.start, one.end) for one in ours.entities]:
                different += 1
            else:
                pairs = zip(found, ours.entities, strict=True)
                worst = max([worst, *(abs(float(a["score"]) - b.score) for a, b in pairs)])
        print(json.dumps({"aggregation": how, "texts": len(sentences), "entities": entities, "differ": different,
                          "largest_difference": worst}), flush=True)  # fmt: skip


def compare_answers(sets: Path, folder: str, texts: int) -> None:
    """The best span of each question."""
    import mlxbert

    setting = SETTINGS["squad"]
    ours = mlxbert.load(folder, task="answer", dtype="float32", device="cpu")
    model, tokenizer = (
        AutoModelForQuestionAnswering.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    same, several, worst = 0, 0, 0.0
    questions = [*read_questions(sets / "squad" / "test.json")][:texts]
    for question in questions:
        found = tokenizer(
            question["question"], question["context"], truncation="only_second", max_length=setting.max_length,
            stride=STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        with torch.no_grad():
            spans = [*candidates(model, question["context"], found, probabilities=True)]
        start, end, score = max(spans, key=lambda span: span[2])
        one: Any = mlxbert.answer(
            ours, (question["question"], question["context"]), max_length=setting.max_length, stride=STRIDE,
            max_words=MAX_WORDS, no_answer_threshold=1.0,
        )  # fmt: skip
        several += len(found["input_ids"]) > 1
        same += (start, end) == (one.start, one.end)
        worst = max(worst, abs(score - one.score))
    print(json.dumps({"questions": len(questions), "of_several_windows": several, "same_span": same,
                      "largest_difference": worst}), flush=True)  # fmt: skip


def main() -> None:
    """Compares both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path)
    parser.add_argument("tagger")
    parser.add_argument("answerer")
    parser.add_argument("--texts", type=int, default=200)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    np.seterr(all="ignore")
    compare_tags(given.sets, given.tagger, given.texts)
    compare_answers(given.sets, given.answerer, given.texts)


if __name__ == "__main__":
    main()
