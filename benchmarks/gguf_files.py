"""Compares GGUF files in llama.cpp with mlxbert: size, Spearman on STS-B, cosines of short and of long texts.

`python benchmarks/gguf_files.py MODEL STSB_CSV TEXTS`: MODEL is the folder of an embedding model; it is written in
float32, float16 and 8 bits. STSB_CSV has a pair of sentences and a score per line. TEXTS has a paragraph per line, and
may be compressed (`.xz`): 200 texts are the first 250 characters of paragraphs, and 200 are pieces of 1,300 to 1,460
characters that have 263 to 510 tokens. mlxbert computes these both whole and cut. Needs
`llama-cpp-python`.
"""

import argparse
import csv
import io
import json
import lzma
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from quantized import spearman

import mlxbert

Vectors = NDArray[np.float32]
FILES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "float16": {"dtype": "float16"},
    "8": {"quantize": 8},
}
SENTENCES, LENGTH, COUNT, SHORT = "sentence_bert_config.json", 512, 200, 250
LONG = range(263, 511)  # tokens


def whole(source: Path, folder: Path) -> mlxbert.Model:
    """The model without the maximum length that is shorter than the network's own."""
    shutil.copytree(source, folder)
    settings = json.loads((folder / SENTENCES).read_text(encoding="utf-8"))
    (folder / SENTENCES).write_text(json.dumps(settings | {"max_seq_length": LENGTH}), encoding="utf-8")
    return mlxbert.load(folder, dtype="float32")


def passages(model: mlxbert.Model, path: Path) -> tuple[list[str], list[str]]:
    """Short texts, and texts longer than the model takes."""
    with lzma.open(path) if path.suffix == ".xz" else open(path, "rb") as file:
        text = io.TextIOWrapper(file, encoding="utf-8").read(6_000_000)
    paragraphs = [line for line in text.split("\n") if len(line) > COUNT]
    joined = " ".join(paragraphs)
    pieces = (joined[at : at + 1300 + at // 5000 % 5 * 40] for at in range(0, len(joined) - 2000, 5000))
    long = [piece for piece in pieces if tokens(model, piece) in LONG]
    return [text[:SHORT] for text in paragraphs[:COUNT]], long[:COUNT]


def tokens(model: mlxbert.Model, text: str) -> int:
    """The number of tokens of a text that is not cut, with the two special ones."""
    return len(model.tokenizer.split(text)) + 2


def cosines(first: Vectors, second: Vectors) -> str:
    """The lowest and the mean cosine of two vectors of the same text."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    values = (first * second).sum(axis=1) / norms
    return f"{values.min():.6f}, {values.mean():.6f}"


def main() -> None:
    """Prints a line for each file."""
    from llama_cpp import Llama

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("sts", type=Path)
    parser.add_argument("texts", type=Path)
    args = parser.parse_args()
    model = mlxbert.load(args.model, dtype="float32")
    with open(args.sts, encoding="utf-8", newline="") as file:
        firsts, seconds, numbers = zip(*csv.reader(file), strict=True)
    pairs, scores = [*firsts, *seconds], [float(number) for number in numbers]
    short, long = passages(model, args.texts)
    counts = [[tokens(model, text) for text in texts] for texts in (short, long)]
    print("\n".join(f"{len(each)} texts of {min(each)} to {max(each)} tokens" for each in counts))
    with tempfile.TemporaryDirectory() as temporary:
        uncut = whole(args.model, Path(temporary, "whole"))
        ours = [np.asarray(mlxbert.embed(model, texts)) for texts in (pairs, short, long)]
        ours.append(np.asarray(mlxbert.embed(uncut, long)))
        half = len(scores)
        print("| file | MB | Spearman | short | long | long, cut by mlxbert |\n|---|---|---|---|---|---|")
        print(f"| mlxbert | - | {spearman(ours[0][:half], ours[0][half:], scores):.2f} | - | - | - |")
        for name, options in FILES.items():
            written = mlxbert.convert_to_gguf(args.model, Path(temporary, f"{name}.gguf"), **options)
            llama = Llama(
                str(written.file), embedding=True, n_ctx=LENGTH, n_batch=LENGTH, n_ubatch=LENGTH, verbose=False
            )
            sts, near, far = (np.array(llama.embed(texts, normalize=True)) for texts in (pairs, short, long))
            print(
                f"| {name} | {written.bytes / 1e6:.1f} | {spearman(sts[:half], sts[half:], scores):.2f} "
                f"| {cosines(near, ours[1])} | {cosines(far, ours[3])} | {cosines(far, ours[2])} |",
                flush=True,
            )
            llama.close()


if __name__ == "__main__":
    main()
