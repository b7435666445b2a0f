"""Questions without an answer: scores with and without the threshold, which is tuned on half of the questions.

Run: python benchmarks/no_answer.py MODEL dev-v2.0.json [--questions 2000]

Every other question goes to each half. A line of JSON with exact match and F1, by the rules of SQuAD 2.0, on the other
half: with the tuned threshold, and with an answer always.
"""

import argparse
import json
from pathlib import Path

from mlxbert.model import load
from mlxbert.readers.rows import read_rows
from mlxbert.training.objectives.answer import AnswerObjective
from mlxbert.training.plan import prepared
from mlxbert.training.predict import predict
from mlxbert.training.scores import answers


def main() -> None:
    """Prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("squad", type=Path)
    parser.add_argument("--questions", type=int, default=2000, help="of the file, spread over all of it")
    given = parser.parse_args()
    model, objective = load(given.model, task="answer", dtype="float32"), AnswerObjective()
    records = objective.read(read_rows(given.squad))
    objective.bind(model)
    step = max(len(records) // given.questions, 1)
    chosen = records[::step][: given.questions]
    judged = []
    for half in (chosen[::2], chosen[1::2]):
        part = prepared(objective, [(record, record.place) for record in half])
        judged.append(objective._judge(part.examples, predict(model.network, objective, part.examples)))
    threshold = answers.tune_threshold(judged[0])
    scores = {
        "tuned": answers.answer_metrics(judged[1], threshold),
        "always": answers.answer_metrics(judged[1], answers.ALWAYS),
    }
    print(json.dumps({"questions": len(chosen), "threshold": threshold, **scores}, indent=1))


if __name__ == "__main__":
    main()
