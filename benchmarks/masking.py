"""What pre-training hides and pairs, counted over a million tokens of a corpus.

Run: python benchmarks/masking.py CORPUS MODEL [--tokens 1000000] [--length 128]

Shares of hidden, masked, replaced and kept tokens; special tokens among them; words that are hidden in part; examples
whose masks are the same in the next pass; halves of next-sentence and sentence-order pairs; and whether every pair has
its segments and separators in place.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.pretraining.data import Maker
from mlxbert.pretraining.examples import Example, Examples, Pairs
from mlxbert.pretraining.settings import Settings
from mlxbert.training.options import TrainingOptions


def counted(examples: Examples, most: int) -> Counter[str]:
    """Counts over the first `most` tokens."""
    found: Counter[str] = Counter()
    special = examples.frame.special
    for number in range(len(examples)):
        one = examples[number]
        hidden, before = one.ids[one.places], one.originals
        usable = ~np.isin(one.clean, special)
        masked, same = hidden == examples.masking.mask, hidden == before
        found.update(
            tokens=int(usable.sum()), hidden=len(one.places), masked=int(masked.sum()),
            kept=int((same & ~masked).sum()), special=int(np.isin(before, special).sum()), examples=1,
            partly=_partly_hidden(examples, number, one), other=int((one.label or 0) == 1),
            well_formed=_well_formed(one, examples),
        )  # fmt: skip
        if found["tokens"] >= most:
            break
    return found


def _partly_hidden(examples: Examples, number: int, one: Example) -> int:
    """How many words of a single text are hidden in part."""
    if one.label is not None:
        return 0
    chunk = examples.order.phases[0].chunks[number]
    continues = examples.corpus.continues(chunk.start, chunk.stop)
    hidden = np.zeros(len(one), bool)
    hidden[one.places] = True
    inside, usable = hidden[1:-1], ~np.isin(one.clean[1:-1], examples.frame.special)
    return int(((inside[1:] != inside[:-1]) & continues[1:] & usable[1:] & usable[:-1]).sum())


def _well_formed(one: Example, examples: Examples) -> int:
    """Whether special tokens and segments are where they belong."""
    ends = np.flatnonzero(one.clean == examples.frame.separator)
    if one.label is None:
        return int(len(ends) == 1 and not one.segments.any())
    return int(len(ends) == 2 and (one.segments == (np.arange(len(one)) > ends[0])).all())


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=128)
    given = parser.parse_args()
    import mlxbert

    tokenizer = mlxbert.load(given.model).tokenizer
    with tempfile.TemporaryDirectory() as folder:
        cases: tuple[tuple[Pairs | None, bool], ...] = ((None, False), (None, True), ("next", False), ("order", False))
        for pairs, whole_words in cases:
            settings = Settings(corpus=(given.corpus,), length=str(given.length), whole_words=whole_words)
            maker = Maker(settings, tokenizer, pairs, 512)
            options = TrainingOptions(batch_size=32)
            data = maker.make(Path(folder), options, 1, 1.0, None)
            _show(f"pairs {pairs}, whole words {whole_words}", data.train, given.tokens)


def _show(title: str, examples: Examples, most: int) -> None:
    found = counted(examples, most)
    facts: dict[str, Any] = {
        "tokens": f"{found['tokens']:,}",
        "hidden": f"{found['hidden'] / found['tokens']:.3%}",
        "masked": f"{found['masked'] / found['hidden']:.2%}",
        "kept": f"{found['kept'] / found['hidden']:.2%}",
        "replaced": f"{1 - (found['masked'] + found['kept']) / found['hidden']:.2%}",
        "special tokens hidden": found["special"],
        "words hidden in part": found["partly"],
        "second text is another, or swapped": f"{found['other'] / found['examples']:.2%}",
        "well formed": f"{found['well_formed']:,} of {found['examples']:,}",
    }
    print(title, *(f"  {name}: {value}" for name, value in facts.items()), sep="\n")


if __name__ == "__main__":
    main()
