"""A tiny model and a text in its words, in files."""

import json
import random
from pathlib import Path

from mlxbert.weights.model_folder import open_folder
from mlxbert.weights.tokenizers.tokenizer_files import read_tokenizer
from tests.helpers.tiny import VOCAB, save

_WORDS = [word for word in VOCAB[5:40] if not word.startswith("##")]


def text_file(path: Path, documents: int = 40, seed: int = 0) -> Path:
    """Sentences of known words, a line each, with empty lines between documents."""
    rng = random.Random(seed)
    found = [
        "\n".join(" ".join(rng.choices(_WORDS, k=rng.randint(3, 12))) for _ in range(rng.randint(2, 8)))
        for _ in range(documents)
    ]
    path.write_text("\n\n".join(found) + "\n", encoding="utf-8")
    return path


def model_folder(folder: Path) -> Path:
    """The folder of a tiny BERT with both heads of pre-training, and a vocabulary that other families open, too."""
    save(folder)
    files = read_tokenizer(open_folder(folder))
    files.tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | {
        f"{role}_token": one for role, one in files.special.items()
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
