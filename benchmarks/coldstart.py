"""Compares the time of a whole process that fills one mask with transformers; and lists the times of imports.

`python benchmarks/coldstart.py [--checkpoint FOLDER] [--vocabulary FOLDER …] [--runs 10]`: runs `mlxbert fill-mask`
with the built-in model, a program that does only what mlxbert cannot do without, and with FOLDER the same text through
the transformers pipeline on that checkpoint (from which the built-in model was made), in turn; prints medians, and the
ratios of pairs of runs. The imports are listed once, as timed by Python itself.

The program between the two imports the libraries, reads the weights and the vocabulary, and multiplies once: no
encoder, no options, no checks. Less than its time cannot be reached with these libraries.

With vocabularies, both sides read a random model of two narrow layers with each vocabulary, first from the original
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

from in_turn import drop_unusual_settings

TEXT = "Tokyo is the largest city in [MASK]."
PIPELINE = """
import sys, transformers
fill = transformers.pipeline("fill-mask", model=sys.argv[1], dtype="float32", device="cpu")
print(fill(sys.argv[2].replace("[MASK]", fill.tokenizer.mask_token))[0]["token_str"])
"""
LIBRARIES = """
import sys
import mlx.core as mx, mlx.nn, numpy, rich.console, tokenizers, typer
mx.set_default_device(mx.cpu)
weights = mx.load(sys.argv[1] + "/model.safetensors")
ids = tokenizers.BertWordPieceTokenizer(sys.argv[1] + "/vocab.txt").encode(sys.argv[2]).ids
app = typer.Typer()
@app.command()
def fill(text: str):
    table = max(weights.values(), key=lambda value: value.size)
    rows = table[mx.array(ids)].astype(mx.float32)
    print(numpy.array(rows @ table.astype(mx.float32).T).argmax(1), "japan")
sys.argv[1:] = sys.argv[2:]
app()
"""
BUILTIN = Path(__file__).parent.parent / "weights" / "builtin"
SHOWN = ("mlx.core", "mlx.nn", "tokenizers", "typer", "rich.console", "numpy", "huggingface_hub", "mlxbert.model")
FAMILIES = {"vocab.txt": "bert", "merges.txt": "roberta", "spiece.model": "albert", "sentencepiece": "xlm-roberta"}


def seconds(command: Sequence[str], answer: str) -> float:
    """The wall time of a process that must succeed and print `answer`."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    elapsed = time.perf_counter() - start
    assert answer in done.stdout, done.stdout
    return elapsed


def imports() -> dict[str, float]:
    """Cumulative milliseconds of some imports, without modules that are not imported."""
    code = f"from mlxbert.cli.app import run; run(['fill-mask', {TEXT!r}, '--quiet'])"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    rows = re.findall(r"import time:\s+\d+ \|\s+(\d+) \|\s+(\S+)", done.stderr)
    return {name: int(micro) / 1000 for micro, name in rows if name in SHOWN}


def models(vocabulary: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """Yields the titles and folders of random models: one with the files of a vocabulary, one with a tokenizer.json."""
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

    family = next(family for start, family in FAMILIES.items() if any(vocabulary.glob(f"{start}*")))
    original, converted = (work / f"{vocabulary.name}-{kind}" for kind in ("own", "whole"))
    original.mkdir()
    for file in vocabulary.iterdir():
        shutil.copy(file, original / file.name.removesuffix(".rebuilt"))
    (original / "config.json").write_text(f'{{"model_type": "{family}"}}')
    tokenizer = AutoTokenizer.from_pretrained(original)
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=130, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = AutoModelForMaskedLM.from_config(config)
    model.save_pretrained(original)
    model.save_pretrained(converted)
    tokenizer.save_pretrained(converted)
    yield f"{vocabulary.name}, {len(tokenizer):,} tokens", original
    yield f"{vocabulary.name}, tokenizer.json", converted


def compare(title: str, folder: str | None, theirs: str | None, runs: int, answer: str = "") -> None:
    """Prints the medians of both sides, which run in turn.

    Args:
        title: The title of the output.
        folder: The model of mlxbert; `None` for the built-in model.
        theirs: The model of transformers; `None` to measure mlxbert only.
        runs: The number of runs.
        answer: A text that both must print.
    """
    commands = {"mlxbert": [sys.executable, "-m", "mlxbert", "fill-mask", TEXT, "--quiet"]}
    if folder:
        commands["mlxbert"] += ["--model", folder]
    if theirs:
        commands["transformers"] = [sys.executable, "-c", PIPELINE, theirs, TEXT]
    if not folder:
        commands["libraries"] = [sys.executable, "-c", LIBRARIES, str(BUILTIN), TEXT]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(runs + 1):  # the first run warms the page cache
        for name, command in commands.items():
            elapsed = seconds(command, answer)
            times[name] += [elapsed] if number else []
    print(title)
    for name, durations in times.items():
        low, high = min(durations), max(durations)
        print(
            f"  {name:13} median {statistics.median(durations):.3f} s, {low:.3f} to {high:.3f} s, {len(durations)} runs"
        )
    for name in [*commands][1:]:
        ratios = [other / ours for other, ours in zip(times[name], times["mlxbert"], strict=True)]
        ratio = f"{statistics.median(ratios):.2f} times as long ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {name} takes {ratio}", flush=True)


def main() -> None:
    """Prints medians, ratios and imports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint")
    parser.add_argument("--vocabulary", type=Path, nargs="+", default=[])
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    drop_unusual_settings()
    compare("built-in model", None, args.checkpoint, args.runs, "japan")
    with tempfile.TemporaryDirectory() as work:
        for vocabulary in args.vocabulary:
            for title, folder in models(vocabulary, Path(work)):
                compare(title, str(folder), str(folder), args.runs)
    found_imports = imports()
    for name in SHOWN:
        print(f"  {name:16} {f'{found_imports[name]:6.1f} ms' if name in found_imports else 'not imported'}")


if __name__ == "__main__":
    main()
