"""Distil a small model from a larger one: half the layers, and similar vectors.

    python examples/distill_model.py
    python examples/distill_model.py notes.txt more.txt --teacher sentence-transformers/all-MiniLM-L6-v2 --steps 5000

The student starts with three of the teacher's six layers, the last one among them, as it makes the vectors; `--layers`
chooses others. From plain text the student learns to give the teacher's vectors (the objective `vectors`). It is
compared with the teacher on texts that are not in the corpus: questions to the FAQ.
"cosine" is how close the vectors are to the teacher's (1: the same direction), "ms" the time for these 20 questions.

Without files of your own, the corpus is the prose of this project's documentation: enough to see the student come
closer in half a minute, not enough for a good model. For that, take millions of words of the kind that the model will
read, and thousands of steps.
"""

import argparse
import csv
import re
import time
from pathlib import Path

import mlxbert

ROOT = Path(__file__).parents[1]


def documentation(path):
    """Writes the paragraphs of the documentation, without code and tables, to a text file."""
    paragraphs = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        paragraphs += [" ".join(part.split()) for part in prose.split("\n\n") if re.match(r"\w", part.lstrip())]
    path.write_text("\n\n".join(paragraphs), encoding="utf-8")  # an empty line ends a document
    return [path]


def compare(name, model, texts, wanted):
    """Prints how close the vectors of a model are to those that are wanted, and how long they take."""
    mlxbert.embed(model, texts)  # the first pass also prepares the weights
    start = time.perf_counter()
    vectors = mlxbert.embed(model, texts, normalize=True)
    seconds = time.perf_counter() - start
    layers = model.config.num_stored_layers
    print(f"{name}: {layers} layers, cosine {(vectors * wanted).sum(axis=1).mean():.3f}, {seconds * 1000:.0f} ms")


def main():
    """Distils the student, and compares it with the teacher before and after training."""
    arguments = argparse.ArgumentParser(description="Distil a small model from a larger one.")
    arguments.add_argument("corpus", nargs="*", type=Path, help="text files; by default the documentation")
    arguments.add_argument("--teacher", default="builtin")
    arguments.add_argument("--layers", default="0,2,5")
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--output", type=Path, default=Path("small-model"))
    given = arguments.parse_args()
    corpus = given.corpus or documentation(given.output.with_suffix(".txt"))
    with open(ROOT / "examples" / "data" / "faq_check.csv", encoding="utf-8", newline="") as file:
        texts = [row["question"] for row in csv.DictReader(file)]
    teacher = mlxbert.load(given.teacher)
    wanted = mlxbert.embed(teacher, texts, normalize=True)
    options = {"objective": "vectors", "layers": given.layers, "length": 48, "batch_size": 16, "lr": 3e-4}
    run = mlxbert.distill(corpus, teacher=given.teacher, output=given.output, steps=given.steps, **options)

    def show(event):
        if isinstance(event, mlxbert.Step) and (event.step == 1 or event.step % 10 == 0):
            print(f"step {event.step}: 1 - cosine {event.loss:.3f}")

    compare("teacher", teacher, texts, wanted)
    compare("student", run.run(show), texts, wanted)


if __name__ == "__main__":
    main()
