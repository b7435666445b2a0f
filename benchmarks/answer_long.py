"""Answers planted in a long text: whether each is found where it stands, in what time and memory.

Run: python benchmarks/answer_long.py MODEL SQUAD.json [--pages 20 200] [--places 50] [--misses]

MODEL answers questions. The text is made of the contexts of SQUAD.json, 3,000 code points to the page; at each place in
turn one sentence, `The password of the harbour master is …`, stands between two of its paragraphs, and the model is
asked for the password. A line of JSON per size of the text, each measured in a process of its own: how many were found
exactly where they stand, how many more overlap with what stands there, how often "no answer" was said, seconds per
question, and the peak of memory. With `--misses` there is a line per answer that is not exact, too, with the best span
by the computation of transformers in windows of its own tokenizer; this needs torch and transformers,
which count in the peak.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PAGE = 3000
QUESTION = "What is the password of the harbour master?"
SECRETS = ("winter rose", "Wolkenkuckucksheim", "four green lamps", "7391", "Aunt Matilda", "blue whale")


def paragraphs(path: Path, pages: int) -> list[str]:
    """The contexts of a file in the format of SQuAD, again and again, until there are so many pages."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    found: list[str] = []
    length = 0
    for context in itertools.cycle(contexts):
        if length >= pages * PAGE:
            return found
        found.append(context)
        length += len(context) + 2
    raise AssertionError


def theirs(model: str, context: str, planted: tuple[int, int]) -> dict[str, Any]:
    """What transformers computes: the best span of all windows, and how probable this and the planted one are."""
    import torch
    from spans_reference import candidates
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    network, tokenizer = AutoModelForQuestionAnswering.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    windows = tokenizer(
        QUESTION, context, truncation="only_second", max_length=384, stride=128, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    scores: dict[tuple[int, int], float] = {}
    with torch.no_grad():
        for start, end, score in candidates(network.eval(), context, windows, probabilities=True):
            scores[start, end] = max(score, scores.get((start, end), 0.0))
    best = max(scores, key=scores.__getitem__)
    return {"best": context[slice(*best)], "at": best, "score": scores[best], "planted": scores.get(planted)}


def measure(model: str, squad: Path, pages: int, places: int, misses: bool) -> dict[str, Any]:
    """Asks for the password at each of the places."""
    import mlxbert

    loaded = mlxbert.load(model, task="answer")
    mlxbert.answer(loaded, (QUESTION, "The harbour master sleeps."))
    text = paragraphs(squad, pages)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = overlapping = silent = 0
    start = time.perf_counter()
    for number in range(places):
        place, secret = number * len(text) // max(places - 1, 1), SECRETS[number % len(SECRETS)]
        planted = f"The password of the harbour master is {secret}."
        context = "\n\n".join([*text[:place], planted, *text[place:]])
        answer = mlxbert.answer(loaded, (QUESTION, context))
        begin = context.index(planted) + planted.index(secret)
        exact = (answer.start, answer.end) == (begin, begin + len(secret))
        found += exact
        silent += answer.answer is None
        if answer.start is not None and answer.end is not None:
            overlapping += not exact and answer.start < begin + len(secret) and begin < answer.end
        if misses and not exact:
            own = {"best": answer.answer, "at": (answer.start, answer.end), "score": answer.score}
            other = theirs(model, context, (begin, begin + len(secret)))
            print(json.dumps({"place": number, "secret": secret, "ours": own, "theirs": other}), flush=True)
    seconds = (time.perf_counter() - start) / places
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "pages": pages, "places": places, "found": found, "overlapping": overlapping, "no_answer": silent,
        "seconds": round(seconds, 2), "mib_before": before // 1024, "mib_peak": peak // 1024,
    }  # fmt: skip


def main() -> None:
    """Measures each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("squad", type=Path)
    parser.add_argument("--pages", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--places", type=int, default=50)
    parser.add_argument("--misses", action="store_true", help="compare answers that are not exact with transformers")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        found = measure(given.model, given.squad, given.pages[0], given.places, given.misses)
        print(json.dumps(found), flush=True)
        return
    for pages in given.pages:
        how = ["--pages", str(pages), "--places", str(given.places), "--alone", *["--misses"] * given.misses]
        subprocess.run([sys.executable, __file__, given.model, str(given.squad), *how], check=True)


if __name__ == "__main__":
    main()
