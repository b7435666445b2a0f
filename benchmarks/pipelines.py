"""Compares whole processes that read a file or a pipe with pipelines of transformers: fill-mask, tag, answer.

Run: python benchmarks/pipelines.py ENCODER SENTENCES SQUAD [--rounds 3] [--masks 10000] [--tags 2000] [--questions 500]

Needs torch and transformers (requirements-parity.txt). ENCODER is a folder with a BERT encoder and its tokenizer, on
which random heads are put; SENTENCES is a .jsonl with the field `text`, repeated as often as needed; SQUAD is a file in
SQuAD's format. Each side reads the same file, fills one mask of each sentence, tags each sentence, or answers each
question, and prints a line for each. transformers gets batches of 32; it has no pipeline for answers any more, so a
typical loop of batches takes its place, which cuts a context at 384 tokens. Processes run in turn, one at a time.
Prints lines of JSON with the medians in seconds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from in_turn import drop_unusual_settings

PIPELINE = """
import json, sys
from transformers import pipeline

task, model, path = sys.argv[1:]
run = pipeline(task, model=model, device="cpu", dtype="float32", batch_size=32)
rows = (json.loads(line)["text"] for line in open(path))
for result in run(rows):
    print(json.dumps([{"word": str(each.get("word", each.get("token_str"))), "score": float(each["score"])}
                      for each in result]))
"""
ANSWERS = """
import json, sys
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

_, model, path = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
network = AutoModelForQuestionAnswering.from_pretrained(model, dtype=torch.float32).eval()
rows = [json.loads(line) for line in open(path)]
for start in range(0, len(rows), 32):
    part = rows[start : start + 32]
    texts = [row["question"] for row in part], [row["context"] for row in part]
    inputs = tokenizer(*texts, truncation="only_second", max_length=384, padding=True, return_tensors="pt",
                       return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")
    with torch.inference_mode():
        output = network(**inputs)
    for number, row in enumerate(part):
        scores = output.start_logits[number][:, None] + output.end_logits[number]
        allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(29)
        context = torch.tensor([part == 1 for part in inputs.sequence_ids(number)])
        scores = scores.masked_fill(~(allowed & context[:, None] & context), -torch.inf)
        first, last = divmod(int(scores.argmax()), scores.shape[1])
        span = offsets[number][first][0], offsets[number][last][1]
        print(json.dumps(row["context"][span[0] : span[1]]))
"""
HEADS = {"fill-mask": "BertForMaskedLM", "tag": "BertForTokenClassification", "answer": "BertForQuestionAnswering"}
NAMES = {"fill-mask": "fill-mask", "tag": "token-classification"}


def write_models(encoder: Path, folder: Path) -> None:
    """Writes the encoder with a random head for each task."""
    import torch
    import transformers

    torch.manual_seed(0)
    for task, name in HEADS.items():
        options = {"num_labels": 9} if task == "tag" else {}
        model = getattr(transformers, name).from_pretrained(encoder, **options)
        model.save_pretrained(folder / task)
        transformers.AutoTokenizer.from_pretrained(encoder).save_pretrained(folder / task)


def rows(args: argparse.Namespace) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yields the inputs of each task."""
    texts = [json.loads(line)["text"] for line in args.sentences.read_text(encoding="utf-8").splitlines()]
    masked = [{"text": " ".join(["[MASK]", *text.split()[1:]])} for text in texts]
    yield "fill-mask", [masked[number % len(masked)] for number in range(args.masks)]
    yield "tag", [{"text": texts[number % len(texts)]} for number in range(args.tags)]
    articles = json.loads(args.squad.read_text(encoding="utf-8"))["data"]
    every = (paragraph for article in articles for paragraph in article["paragraphs"])
    answered = islice((each for each in every if each["qas"]), args.questions)
    yield "answer", [{"question": each["qas"][0]["question"], "context": each["context"]} for each in answered]


def seconds(command: list[str], count: int) -> float:
    """The wall time of a process that must print `count` lines."""
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    elapsed = time.perf_counter() - started
    lines = done.stdout.count(b"\n")
    assert lines == count, f"{command} prints {lines} lines, expected {count}"
    return elapsed


def main() -> None:
    """Prints a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoder", type=Path)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("squad", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    for name, count in (("--masks", 10_000), ("--tags", 2_000), ("--questions", 500)):
        parser.add_argument(name, type=int, default=count)
    args = parser.parse_args()
    drop_unusual_settings()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(args.encoder, folder)
        for task, inputs in rows(args):
            path, model = folder / f"{task}.jsonl", str(folder / task)
            path.write_text("".join(json.dumps(row) + "\n" for row in inputs), encoding="utf-8")
            ours = [sys.executable, "-m", "mlxbert", task, "--model", model, "--input", str(path), "--quiet"]
            theirs = [sys.executable, "-c", PIPELINE if task in NAMES else ANSWERS, NAMES.get(task, task), model]
            times = [
                (seconds(ours, len(inputs)), seconds([*theirs, str(path)], len(inputs))) for _ in range(args.rounds)
            ]
            mine, peer = (round(statistics.median(each), 2) for each in zip(*times, strict=True))
            print(json.dumps({"task": task, "inputs": len(inputs), "mlxbert_s": mine, "transformers_s": peer,
                              "ratio": round(statistics.median(b / a for a, b in times), 2)}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
