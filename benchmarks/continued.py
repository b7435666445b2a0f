"""Measures the effect of continued pre-training on a task's unlabelled texts on fine-tuning with few labels.

Run: python benchmarks/continued.py SETS MODEL RESULTS.jsonl [--only bbc|goemotions] [--labels 50 500] [--seeds 3]
    [--steps 1000] [--gpu]

SETS has the folders bbc-news and goemotions as published. The model is pre-trained once per set, on all training texts;
then it and the original are fine-tuned on the same labelled texts (different ones for each seed), and scored on the
same test texts. Fine-tuning uses mlxbert's defaults, except for the epochs: enough for at least 100 updates. Writes a
line of JSON per run.
"""

import argparse
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from few_shot import SETS as TOPICS, Texts
from runs import use_cores

_MIN_UPDATES, _BATCH, _TESTED = 100, 16, 500
_PLAIN, _CONTINUED = "as it is", "continued"


SETS: dict[str, Callable[[Path], tuple[Texts, Texts]]] = {"bbc": TOPICS["bbc"], "goemotions": TOPICS["goemotions"]}


def continue_training(texts: Texts, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Pre-trains on texts, each a document. Returns the metrics over time and the duration."""
    import mlxbert

    corpus = folder / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in texts), encoding="utf-8")
    begun, history = time.perf_counter(), []
    for event in mlxbert.pretrain(
        corpus,
        output=folder / "model",
        model=args.model,
        steps=args.steps,
        batch_size=32,
        eval_every=args.steps // 4,
    ):
        if isinstance(event, mlxbert.Evaluated):
            history.append({"step": event.step, **event.metrics})
    return {"history": history, "seconds": time.perf_counter() - begun}


def score(model: Any, train: Texts, test: list[dict[str, str]], seed: int) -> float:
    """Accuracy on the test texts after fine-tuning."""
    import mlxbert

    records = [{"text": text, "label": label} for text, label in train]
    epochs = max(3, math.ceil(_MIN_UPDATES * _BATCH / len(train)))
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "model"
        for _ in mlxbert.finetune(
            "classify",
            train=records,
            model=model,
            output=output,
            epochs=epochs,
            batch_size=_BATCH,
            eval_every=25,
            max_length=128,
            seed=seed,
        ):
            pass
        return mlxbert.evaluate("classify", mlxbert.load(output, task="classify"), data=test).metrics["accuracy"]


def main() -> None:
    """Runs all sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path)
    parser.add_argument("model")
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", choices=SETS, action="append")
    parser.add_argument("--labels", type=int, nargs="*", default=[50, 500])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--gpu", action="store_true", help="compute on the GPU; otherwise on the CPU")
    args = parser.parse_args()
    os.environ["MLXBERT_DEVICE"] = "gpu" if args.gpu else "cpu"
    use_cores(args)
    for name in args.only or SETS:
        train, test = SETS[name](args.sets)
        tested = [{"text": text, "label": label} for text, label in random.Random(0).sample(test, _TESTED)]
        with tempfile.TemporaryDirectory() as place:
            spent = continue_training(train, args, Path(place))
            print(name, spent, flush=True)
            for count in args.labels:
                for seed in range(args.seeds):
                    labelled = random.Random(f"labels {seed}").sample(train, count)
                    for kind, model in ((_PLAIN, args.model), (_CONTINUED, Path(place) / "model")):
                        result = {"set": name, "labels": count, "seed": seed, "model": kind, "steps": args.steps}
                        result |= {
                            "accuracy": score(model, labelled, tested, seed),
                            **(spent if kind == _CONTINUED else {}),
                        }
                        with args.results.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(result) + "\n")
                        print({key: value for key, value in result.items() if key != "history"}, flush=True)


if __name__ == "__main__":
    main()
