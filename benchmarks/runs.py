"""Runs of training that are compared: which are missing from a file of results, and how long each takes."""

import argparse
import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

Run = Callable[[str, int, argparse.Namespace], dict[str, Any]]


def timed(train: Callable[[], object]) -> dict[str, float]:
    """The seconds that training takes: of a clock, and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    train()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def run_missing(parser: argparse.ArgumentParser, names: Collection[str], run: Run, kinds: Collection[str] = ()) -> None:
    """Runs every set with every seed that the file of results does not hold, and adds a line of JSON for each.

    Args:
        parser: Has the options of these runs; what all runs need is added: SETS MODEL RESULTS `--only` `--seeds`.
        names: The sets.
        run: Trains once: the name of a set, a seed, and the arguments, to what is written.
        kinds: Options that make a run another one, beside its set and its seed.
    """
    parser.add_argument("sets", type=Path)
    parser.add_argument("model")
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", choices=list(names), action="append")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    known = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    for seed in range(given.seeds):
        for name in given.only or names:
            one = {"set": name, "seed": seed, **{kind: getattr(given, kind) for kind in kinds}}
            if not any(one.items() <= line.items() for line in known):
                result = {**one, **run(name, seed, given)}
                with given.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                print(result, flush=True)
