"""The smallest and the largest value of every number that a user can give, to the library or on the command line.

No sane use comes near the ends; without them, a slip of the finger takes all memory, or days. What a model allows is
often narrower, and checked where the model is known.
"""

import math
from collections.abc import Sized

from mlxbert.errors import ArgumentError

_RATE = (0, 0.99)
_TINY = 1e-6  # of what has to be above 0
_COUNT = (1, 10_000_000)  # of what memory or the data limit, too
_STEPS = (1, 1_000_000_000)
MOST_RUNS = 1000  # of a sweep, with all its seeds
MOST_SHOWN = 10**60  # a whole number that is written out in a message, or is a label
MOST_LISTED = 1000  # numbers or names in one option

# By the names of arguments; `mine.margin` is the `margin` of `mine`, whose range differs from that of the others.
BOUNDS: dict[str, tuple[float, float]] = {
    "around": (0, 10_000),
    "batch_size": (1, 1_000_000),
    "batch_tokens": _COUNT,
    "candidates": (1, 100_000),
    "chunk": (1, 1_000_000),
    "chunk_tokens": (16, 1_000_000),
    "context": (0, 1000),
    "dimensions": (1, 1_000_000),
    "dropout": _RATE,
    "epochs": (_TINY, 100_000),
    "eval_every": _STEPS,
    "examples": _STEPS,
    "freeze": (0, 1000),
    "generator": (0.01, 1),
    "gradient_accumulation": (1, 100_000),
    "head": (-10_000, 10_000),
    "label_smoothing": _RATE,
    "layer": (-1000, 1000),
    "layer_decay": (_TINY, 1),
    "layers": (0, 1000),
    "length": (8, 1_000_000),
    "limit": (1, 10_000),
    "line": (1, 1_000_000_000_000),
    "lora": (1, 8192),
    "lora_alpha": (_TINY, 1_000_000),
    "lora_dropout": _RATE,
    "lr": (1e-12, 1),
    "idle_minutes": (0.001, 1_000_000),
    "margin": (_TINY, 1_000_000),
    "mcp.around": (0, 50),
    "mine.margin": (-1000, 1000),
    "mask_probability": (_TINY, 0.9),
    "masks": (1, 1_000_000),
    "max_grad_norm": (0, 1_000_000_000),
    "max_answer": (0.001, 1_000_000),
    "max_body": (0.001, 10_000),
    "max_batch_tokens": _COUNT,
    "max_connections": (1, 1_000_000),
    "max_length": (8, 1_000_000),
    "max_memory": (_TINY, 1_000_000),
    "max_models": (1, 1000),
    "max_queue": _COUNT,
    "max_texts": _COUNT,
    "max_characters": _COUNT,
    "max_score": (_TINY, 1_000_000),
    "max_words": (1, 10_000),
    "min_score": (-1_000_000, 1_000_000),
    "minutes": (0.01, 1_000_000),
    "negatives": (1, 10_000),
    "number": (-1e15, 1e15),  # to learn: its square is a float32
    "no_answer_threshold": (0, 1),
    "patience": (1, 1_000_000),
    "port": (0, 65_535),
    "read_seconds": (0.01, 100_000),
    "rounds": (1, 1000),
    "save_every": _STEPS,
    "seed": (0, 2**32 - 1),
    "seeds": (1, MOST_RUNS),
    "size": _COUNT,
    "skip": (0, 1_000_000),
    "steps": _STEPS,
    "stride": (0, 1_000_000),
    "teacher_weight": (_TINY, 1),
    "temperature": (_TINY, 1_000_000),
    "tolerance": (0, 1_000_000),
    "top_k": _COUNT,
    "mcp.top_k": (1, 100),
    "validation_fraction": (_TINY, 0.99),
    "pretrain.validation_fraction": (_TINY, 0.5),
    "warmup": (0, 1),
    "weight": (_TINY, 1_000_000),
    "weight_decay": (0, 1),
}


def check_whole(name: str, value: object) -> None:
    """Refuses a value that is not a whole number within the bounds of an argument."""
    least, most = BOUNDS[name]
    least = math.ceil(least)
    if type(value) is not int or not least <= value <= most:
        raise ArgumentError(f"{_named(name)} is {shown(value)}, expected a whole number from {least:,} to {most:,}")


def check_number(name: str, value: object) -> None:
    """Refuses a value that is not a finite number within the bounds of an argument."""
    least, most = BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ArgumentError(f"{_named(name)} is {shown(value)}, expected a number from {least:,} to {most:,}")


def check_listed(name: str, values: Sized) -> None:
    """Refuses more numbers or names than anybody lists in one argument."""
    if len(values) > MOST_LISTED:
        raise ArgumentError(f"{name} has {len(values):,} values, expected at most {MOST_LISTED:,}")


def shown(value: object) -> str:
    """A value in a few characters; Python refuses to write whole numbers of thousands of digits."""
    if isinstance(value, int) and abs(value) >= MOST_SHOWN:
        return f"{'-' if value < 0 else ''}a number of more than 60 digits"
    try:
        return f"{value!r:.60}"
    except ValueError:
        return f"a {type(value).__name__} with a number of thousands of digits"


def _named(name: str) -> str:
    return name.rpartition(".")[2]
