"""How long a whole process takes from nothing to the words for one mask, next to transformers; and what it imports.

`python benchmarks/coldstart.py [--checkpoint FOLDER] [--vocabulary FOLDER …] [--runs 10]`: `mlxbert fill-mask` with the
built-in model, and with FOLDER the same text through the transformers pipeline on that checkpoint (the one the built-in
model was made from), in turn; medians, and the ratio pair by pair. The imports are listed once, with Python's own
clock.

With vocabularies, both read a random model of two narrow layers with each of them, first from the vocabulary's own
files, then from a tokenizer.json: so the time is that of the imports and the vocabulary.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

TEXT = "Tokyo is the largest city in [MASK]."
PIPELINE = """
import sys, transformers
fill = transformers.pipeline("fill-mask", model=sys.argv[1], dtype="float32", device="cpu")
print(fill(sys.argv[2].replace("[MASK]", fill.tokenizer.mask_token))[0]["token_str"])
"""
SHOWN = ("mlx.core", "mlx.nn", "tokenizers", "typer", "rich.console", "numpy", "huggingface_hub", "mlxbert.model")
FAMILIES = {"vocab.txt": "bert", "merges.txt": "roberta", "spiece.model": "albert", "sentencepiece": "xlm-roberta"}


def seconds(command: Sequence[str], answer: str) -> float:
    """Wall time of a process that must succeed, and whose output must have `answer` in it."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken = time.perf_counter() - start
    assert answer in done.stdout, done.stdout
    return taken


def imports() -> dict[str, float]:
    """Milliseconds of some imports, what they import in turn included; absent where it is not imported."""
    code = f"from mlxbert.cli.app import run; run(['fill-mask', {TEXT!r}, '--quiet'])"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    rows = re.findall(r"import time:\s+\d+ \|\s+(\d+) \|\s+(\S+)", done.stderr)
    return {name: int(micro) / 1000 for micro, name in rows if name in SHOWN}


def models(vocabulary: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """Random models with a vocabulary: one with its own files, one with a tokenizer.json; and what they are called."""
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

    family = next(family for start, family in FAMILIES.items() if any(vocabulary.glob(f"{start}*")))
    own, whole = (work / f"{vocabulary.name}-{kind}" for kind in ("own", "whole"))
    own.mkdir()
    for file in vocabulary.iterdir():
        shutil.copy(file, own / file.name.removesuffix(".rebuilt"))
    (own / "config.json").write_text(f'{{"model_type": "{family}"}}')
    tokenizer = AutoTokenizer.from_pretrained(own)
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=130, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = AutoModelForMaskedLM.from_config(config)
    model.save_pretrained(own)
    model.save_pretrained(whole)
    tokenizer.save_pretrained(whole)
    yield f"{vocabulary.name}, {len(tokenizer):,} tokens", own
    yield f"{vocabulary.name}, tokenizer.json", whole


def compare(title: str, folder: str | None, theirs: str | None, runs: int, answer: str = "") -> None:
    """Prints the medians of both, in turn.

    Args:
        title: What is printed above.
        folder: The model of mlxbert; `None` is the built-in one.
        theirs: The model of transformers; `None` is not measured.
        runs: How often.
        answer: What both must print.
    """
    commands = {"mlxbert": [sys.executable, "-m", "mlxbert", "fill-mask", TEXT, "--quiet"]}
    if folder:
        commands["mlxbert"] += ["--model", folder]
    if theirs:
        commands["transformers"] = [sys.executable, "-c", PIPELINE, theirs, TEXT]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(runs + 1):  # the first warms the page cache
        for name, command in commands.items():
            taken = seconds(command, answer)
            times[name] += [taken] if number else []
    print(title)
    for name, found in times.items():
        low, high = min(found), max(found)
        print(f"  {name:13} median {statistics.median(found):.3f} s, {low:.3f} to {high:.3f} s, {len(found)} runs")
    if theirs:
        ratios = [slow / fast for slow, fast in zip(times["transformers"], times["mlxbert"], strict=True)]
        ratio = f"{statistics.median(ratios):.1f} times as long ({min(ratios):.1f} to {max(ratios):.1f})"
        print(f"  transformers takes {ratio}", flush=True)


def main() -> None:
    """Prints medians, ratios and imports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint")
    parser.add_argument("--vocabulary", type=Path, nargs="+", default=[])
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    compare("built-in model", None, arguments.checkpoint, arguments.runs, "japan")
    with tempfile.TemporaryDirectory() as work:
        for vocabulary in arguments.vocabulary:
            for title, folder in models(vocabulary, Path(work)):
                compare(title, str(folder), str(folder), arguments.runs)
    found_imports = imports()
    for name in SHOWN:
        print(f"  {name:16} {f'{found_imports[name]:6.1f} ms' if name in found_imports else 'not imported'}")


if __name__ == "__main__":
    main()
