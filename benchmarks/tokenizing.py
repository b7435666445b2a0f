"""Lines per second of tokenizing beside transformers, and the time it takes to read each vocabulary.

`python benchmarks/tokenizing.py TOKENIZERS TEXTS [--rounds 5]` needs transformers (requirements-parity.txt) and, for
SentencePiece models, protobuf. TOKENIZERS is a folder with original vocabularies in folders by their models' names,
TEXTS a file with a text a line. Both tokenizers are given one text after another, as mlxbert's tasks do, in turn, so
that both meet the same noise. Medians are printed, and the ratio to transformers; ids are compared on the way.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mlxbert.config import Absolute, EncoderConfig
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.files import read_tokenizer

os.environ["TOKENIZERS_PARALLELISM"] = "false"
LIMIT = 1_000_000
# Name: the model's type, and the files it has here.
VOCABULARIES = {
    "bert-base-uncased": ("bert", {"vocab.txt": "vocab.txt"}),
    "roberta-base": ("roberta", {"vocab.json": "vocab.json", "merges.txt": "merges.txt"}),
    "albert-base-v2": ("albert", {"spiece.model": "spiece.model"}),
    "xlm-roberta-base": ("xlm-roberta", {"sentencepiece.bpe.model": "sentencepiece.bpe.model.rebuilt"}),
}
CONFIG = EncoderConfig(
    vocab_size=LIMIT, hidden_size=8, embedding_size=8, layer_schedule=(0,), num_attention_heads=1, intermediate_size=8,
    hidden_act="gelu", layer_norm_eps=1e-5, type_vocab_size=2, pad_token_id=0, positions=Absolute(LIMIT),
)  # fmt: skip
Encode = Callable[[str], list[int]]


def mlxbert(folder: Path) -> Encode:
    """This project."""
    tokenizer = Tokenizer(read_tokenizer(folder), CONFIG)
    return lambda text: tokenizer.encode(text).ids


def transformers(folder: Path) -> Encode:
    """The reference, asked for offsets as mlxbert gives them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return lambda text: tokenizer(text, return_offsets_mapping=True)["input_ids"]


CONTESTANTS = {"mlxbert": mlxbert, "transformers": transformers}


def measure(folder: Path, texts: list[str], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]], int]:
    """Seconds to read the vocabulary and lines per second, for each contestant; lines whose ids differ."""
    reading: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    speed: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    ids: dict[str, list[list[int]]] = {}
    for number in range(rounds + 1):
        for name, make in CONTESTANTS.items():
            start = time.perf_counter()
            encode = make(folder)
            middle = time.perf_counter()
            ids[name] = [encode(text) for text in texts]
            if number:  # the first round imports what is imported late
                reading[name].append(middle - start)
                speed[name].append(len(texts) / (time.perf_counter() - middle))
    return reading, speed, sum(one != other for one, other in zip(*ids.values(), strict=True))


def main() -> int:
    """Prints a line per vocabulary and contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizers", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()
    print(f"{len(texts)} texts                       lines/s       min to max  ratio  read, s  other ids")
    for name, (kind, files) in VOCABULARIES.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
            for target, source in files.items():
                shutil.copyfile(arguments.tokenizers / name / source, folder / target)
            reading, speed, other = measure(folder, texts, arguments.rounds)
        for contestant, found in speed.items():
            median = statistics.median(found)
            ratio = median / statistics.median(speed["transformers"])
            print(
                f"{name:18}{contestant:13}{median:10.0f} {min(found):9.0f} to {max(found):6.0f}  {ratio:5.2f}"
                f"  {statistics.median(reading[contestant]):7.3f}  {other:9}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
