"""Train a spam filter from a CSV file, measure it on messages it has not seen, and use it.

    python examples/spam_filter.py "You have won a prize, click here"
    python examples/spam_filter.py --train mine.csv --test mine_test.csv --model my-filter "Lunch at noon?"

The files have the columns `text` and `label` (`spam` or `ham`). The folder `--model` is made by the first run; later
runs use it, until you delete it. Messages of `--test` must not be in `--train`: the score would be too good.

A lost message costs more than one that has to be deleted by hand. So a message counts as spam only from a probability
of `--threshold` on, and both mistakes are counted apart. With up to 64 messages per label, as here, `finetune` trains
on pairs of texts. The 80 messages of the example are enough to try this out, not to protect a mailbox.
"""

import argparse
import csv
from pathlib import Path

import mlxbert

DATA = Path(__file__).parent / "data"


def train(messages, folder):
    """Trains the filter and returns it; a part of the messages is set aside to choose the best epoch."""
    for event in mlxbert.finetune("classify", train=messages, output=folder):
        if isinstance(event, mlxbert.Evaluated):
            print(f"epoch {event.epoch:g}: accuracy {event.metrics['accuracy']:.2f} on messages that were set aside")


def spam_probabilities(model, texts):
    """Returns the probability of spam of each text."""
    results = mlxbert.classify(model, texts)
    return [next(label.score for label in result.labels if label.label == "spam") for result in results]


def report(model, path, threshold):
    """Prints how many messages of a labelled file the filter gets right."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    flagged = [score >= threshold for score in spam_probabilities(model, [row["text"] for row in rows])]
    for label, mistake, wrong in (("spam", "let through", False), ("ham", "taken for spam", True)):
        of_label = [flag for row, flag in zip(rows, flagged, strict=True) if row["label"] == label]
        print(f"{label}: {len(of_label)} messages, {of_label.count(wrong)} {mistake}")


def main():
    """Trains the filter unless its folder exists, tests it, and judges the messages of the command line."""
    arguments = argparse.ArgumentParser(description="Train and use a spam filter.")
    arguments.add_argument("messages", nargs="*")
    arguments.add_argument("--train", type=Path, default=DATA / "messages.csv")
    arguments.add_argument("--test", type=Path, default=DATA / "messages_test.csv")
    arguments.add_argument("--model", type=Path, default=Path("spam-filter"))
    arguments.add_argument("--threshold", type=float, default=0.7)
    given = arguments.parse_args()
    if not given.model.exists():
        train(given.train, given.model)
    model = mlxbert.load(given.model)
    report(model, given.test, given.threshold)
    for message, score in zip(given.messages, spam_probabilities(model, given.messages), strict=True):
        print(f"{'spam' if score >= given.threshold else 'ham '}  {score:.2f}  {message}")


if __name__ == "__main__":
    main()
