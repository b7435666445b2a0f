"""Tiny models of all tasks."""

from pathlib import Path

from mlxbert.labels.labels import Labels
from tests.helpers.answering import save_answering
from tests.helpers.classifiers import EMOTIONS, NLI, SENTIMENT, STARS, save_classifier
from tests.helpers.families import COMMON
from tests.helpers.frozen import write_model
from tests.helpers.st_folder import NORMALIZE, PROMPTS, pooling, save_st
from tests.helpers.taggers import NER, save_random_tagger
from tests.helpers.tiny import WORDS, save


def save_models(folder: Path) -> dict[str, Path]:
    return {
        "embed": save_st(folder / "embed", pooling("mean", include_prompt=False), NORMALIZE, settings=PROMPTS),
        "fill-mask": save(folder / "fill-mask"),
        "sentiment": save_classifier(folder / "sentiment", SENTIMENT),
        "emotions": save_classifier(folder / "emotions", EMOTIONS),
        "nli": save_classifier(folder / "nli", NLI),
        "stars": save_classifier(folder / "stars", STARS),
        "rerank": save_classifier(folder / "rerank", Labels(("LABEL_0",), None)),
        "tag": save_random_tagger(folder / "tag", NER),
        "answer": save_answering(folder / "answer"),
    }


def save_discriminator(folder: Path) -> Path:
    """Writes an ELECTRA discriminator with a small vocabulary of words; returns the folder."""
    model = write_model("electra", "ForPreTraining", folder)
    tokens = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
    tokens += [f"[unused{number}]" for number in range(COMMON["vocab_size"] - len(tokens) - 1)]
    (model / "vocab.txt").write_text("\n".join([*tokens[:7], "[PAD]", *tokens[7:]]), encoding="utf-8")
    return model
