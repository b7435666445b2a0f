"""Answer questions from a folder of files: each answer is a few words, printed with its file and line.

    python examples/answer_with_line.py "Where is the first aid kit?"
    python examples/answer_with_line.py "Who has the key?" --folder ~/notes --model deepset/roberta-base-squad2

Two models work together: the search finds passages that are about the question, and a question-answering model finds
the answer in them, or says that they have none. The line is the one on which the answer begins; a PDF has pages
instead of lines, and a row of a table or a message of a mailbox is named by its place.

mlxbert has no built-in model that answers questions. Without `--model`, the first run trains one from 257 invented
questions (`examples/data/questions.jsonl`; one in seven has no answer), in the folder `small-answers`. It knows only
such simple questions (who, where, when, how much, how long), and gets about a third wrong even then. A model that
was trained on a large data set, as in the second command, answers any question; it is downloaded once.
"""

import argparse
import os
from pathlib import Path

import mlxbert

DATA = Path(__file__).parent / "data"
QUESTIONS = ("Where is the first aid kit?", "How much does membership cost?", "Who has the key to the sauna?")
CLOSE = 3  # passages with lower scores are not read: in a text about something else, any answer is wrong


def train(folder):
    """Trains the small model. The lowest layer stays as it is, which saves time."""
    options = {"epochs": 4, "lr": 4e-4, "batch_size": 12, "max_length": 128, "stride": 32, "dropout": 0, "freeze": 1}
    for event in mlxbert.finetune("answer", train=DATA / "questions.jsonl", output=folder, **options):
        if isinstance(event, mlxbert.Evaluated):
            print(f"epoch {event.epoch:g}: F1 {event.metrics['f1']:.2f} on questions that were set aside")


def place_of(found):
    """Says where an answer begins: `rules.md:12`, `manual.pdf, page 2`, or the row of a table."""
    path = os.path.relpath(found.path)
    if found.line is not None:
        return f"{path}:{found.line}"
    if found.page is not None:
        return f"{path}, page {found.page}"
    return f"{path}, {found.place}" if found.place else path  # a web page has neither


def main():
    """Brings the index of the folder up to date, and answers the questions."""
    arguments = argparse.ArgumentParser(description="Answer questions from a folder of files.")
    arguments.add_argument("questions", nargs="*", default=QUESTIONS)
    arguments.add_argument("--folder", type=Path, default=DATA / "handbook")
    arguments.add_argument("--model", help="a question-answering model; by default a small one is trained")
    given = arguments.parse_args()
    name, folder = given.model or "small-answers", given.folder.expanduser().resolve()
    if given.model is None and not Path(name).exists():
        train(name)
    model = mlxbert.load(name, task="answer")
    with mlxbert.open_index(paths=[folder], tokens=32) as index:  # a paragraph each
        for _ in index.update():  # the work is done while its events are read
            pass
        for question in given.questions:
            hits = index.search(question, paths=[folder], top_k=1, min_score=CLOSE)
            found = index.answer(question, model=model, hits=hits) if hits else None
            print(question)
            if found is None or found.answer is None:
                print("    no answer")
            else:
                print(f"    {place_of(found)}: {found.answer}")


if __name__ == "__main__":
    main()
