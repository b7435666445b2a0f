"""Answer questions from an FAQ, by meaning; a question that no entry fits gets no answer.

    python examples/faq.py "I want to send my lamp back"
    python examples/faq.py --check examples/data/faq_check.csv

A question is compared with the questions of the FAQ, not with its answers: two questions that mean the same are more
similar than a question and its answer. An entry may have several wordings, with ` / ` between them; the nearest counts.

What similarity is enough depends on the model and on the FAQ. `--check` reads questions with the entry that is
expected (or none), and shows how many are answered rightly, wrongly and not at all: choose `--threshold` by it. The
default was chosen on the 20 questions of the second command, so it fits them better than others. For your own FAQ,
collect what people really ask, and include questions that the FAQ does not answer.
"""

import argparse
import csv
from pathlib import Path

import mlxbert

FAQ = Path(__file__).parent / "data" / "faq.csv"


def read(path):
    """Reads the rows of a CSV file as dicts."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def match(model, entries, questions, threshold):
    """Yields for each question the best entry, `None` if no entry is similar enough, and the similarity."""
    wordings = [(wording, entry) for entry in entries for wording in entry["questions"].split(" / ")]
    scores = mlxbert.similarity_matrix(model, questions, [wording for wording, _ in wordings])
    for row in scores:
        best = int(row.argmax())
        yield wordings[best][1] if row[best] >= threshold else None, float(row[best])


def check(model, entries, rows, threshold):
    """Prints how the questions of a CSV file with the columns `question` and `expected` are answered."""
    counts = {"right": 0, "wrong": 0, "not answered": 0}
    found = match(model, entries, [row["question"] for row in rows], threshold)
    for row, (entry, score) in zip(rows, found, strict=True):
        wordings = entry["questions"].split(" / ") if entry else [""]
        refused = entry is None and bool(row["expected"])
        outcome = "not answered" if refused else "right" if row["expected"] in wordings else "wrong"
        counts[outcome] += 1
        print(f"{outcome:12}  {score:.2f}  {row['question']}")
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


def main():
    """Answers one question, or checks a file of questions."""
    arguments = argparse.ArgumentParser(description="Answer questions from an FAQ.")
    arguments.add_argument("question", nargs="?", default="I want to send my lamp back")
    arguments.add_argument("--faq", type=Path, default=FAQ)
    arguments.add_argument("--check", type=Path)
    arguments.add_argument("--threshold", type=float, default=0.4)
    given = arguments.parse_args()
    model, entries = mlxbert.load(), read(given.faq)
    if given.check:
        check(model, entries, read(given.check), given.threshold)
        return
    [(entry, score)] = match(model, entries, [given.question], given.threshold)
    print(f"{entry['questions']}\n{entry['answer']}" if entry else "no good answer", f"(similarity {score:.2f})")


if __name__ == "__main__":
    main()
