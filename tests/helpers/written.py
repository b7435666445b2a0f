"""Writes every kind of folder that mlxbert can write, with tiny models."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlxbert
from mlxbert import Labels
from mlxbert.machine.device import mx
from tests.helpers.frozen import add_vocabulary, write_model
from tests.helpers.st_folder import NORMALIZE, dense, pooling, write_modules
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config

CLASSES = Labels(("red", "green", "blue"), "single_label_classification")
SEVERAL = Labels(("red", "green", "blue"), "multi_label_classification")
NUMBER = Labels(("label",), "regression")
TAGS = Labels(("O", "B-PER", "I-PER"))
TEXTS = [
    *("the cat sat on the mat", "a man is in paris", "he bought milk in tokyo", "the largest city , tokyo"),
    *("the store !", "playing", "the man went to the store .", "milk is on the mat", "he went to paris ."),
    *("cat , man , city", "is the man in tokyo", "a largest cat sat in the city of paris"),
]
_HOW: dict[str, Any] = {"epochs": 1, "batch_size": 4, "lr": 1e-3, "device": "cpu"}
_STEPS: dict[str, Any] = {"steps": 2, "batch_size": 4, "length": 16, "device": "cpu"}
Write = Callable[[Path, Path], object]


def _records(task: str) -> list[dict[str, Any]]:
    labels: Mapping[str, list[Any]] = {
        "classify": [*CLASSES.names] * 4,
        "multilabel": [["red"], ["red", "green"], [], ["blue"]] * 3,
        "regress": [0.5, -1.0, 2.25, 4.0] * 3,
    }
    if task in labels:
        return [{"text": text, "label": label} for text, label in zip(TEXTS, labels[task], strict=True)]
    records: list[dict[str, Any]] = []
    for number, text in enumerate(TEXTS):
        words = text.split()
        tags = ["O" if word < "m" else "B-PER" for word in words]
        examples: dict[str, dict[str, Any]] = {
            "tag": {"words": words, "tags": tags}, "embed": {"anchor": text, "positive": words[-1]},
            "answer": {"question": "is it ?", "context": text, "answers": {"text": words[:1], "answer_start": [0]}},
            "rerank": {"query": text, "text": words[-1], "label": number % 2},
        }  # fmt: skip
        records.append(examples[task])
    return records


def start(folder: Path) -> Path:
    """Writes the models and the corpus from which all other folders are made; returns their folder."""
    settings = {"tokenizer_class": "BertTokenizer"}
    save(folder / "encoder", tensors_of(random_network(tiny_config(), ())), settings=settings)
    save(folder / "pretrained", settings=settings)
    # As embedding models on the hub: with the class and the labels of the model that they were trained from.
    claims = CONFIG | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}
    embedder = save(folder / "embedder", tensors_of(random_network(tiny_config(), ())), claims, settings=settings)
    write_modules(embedder, [pooling("mean", old=True), NORMALIZE])
    layers = save(folder / "dense", tensors_of(random_network(tiny_config(), ())), claims, settings=settings)
    weight = mx.random.normal((12, 24), key=mx.random.key(1))
    write_modules(layers, [pooling("cls", old=True), dense(weight), NORMALIZE])
    wide = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    tensors = tensors_of(random_network(tiny_config(**wide, embedding_size=32)))
    save(folder / "wide", tensors, CONFIG | wide, settings=settings)
    add_vocabulary(write_model("albert", "ForPreTraining", folder / "albert"))
    (folder / "electra.json").write_text(json.dumps(CONFIG | {"model_type": "electra", "embedding_size": 16}))
    documents = ["\n".join(TEXTS[number:] + TEXTS[:number]) for number in range(12)]
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return folder


def _with_head(head: str | None, labels: Labels | None = None, source: str = "encoder") -> Write:
    def write(sources: Path, target: Path) -> None:
        model = mlxbert.load(
            sources / source, new_heads={} if head is None else {head: labels}, dtype="float32", device="cpu"
        )
        mlxbert.save(model, target)

    return write


def _saved(source: str) -> Write:
    return lambda sources, target: mlxbert.save(mlxbert.load(sources / source, dtype="float32", device="cpu"), target)


def _converted(source: str, **options: Any) -> Write:
    return lambda sources, target: mlxbert.convert(sources / source, target, **options)


def trained(task: str, source: str = "encoder", **options: Any) -> Write:
    def write(sources: Path, target: Path) -> None:
        data = _records(task)
        arguments = {"train": data, "valid": data, "model": sources / source, "output": target, **_HOW, **options}
        [*mlxbert.finetune(task, **arguments)]

    return write


def _pretrained(objective: str, source: str = "pretrained", **options: Any) -> Write:
    def write(sources: Path, target: Path) -> None:
        arguments = {"model": sources / source, "output": target, "objective": objective, **_STEPS, **options}
        [*mlxbert.pretrain(sources / "corpus.txt", **arguments)]

    return write


def _new_electra(sources: Path, target: Path) -> None:
    new: dict[str, Any] = {"config": sources / "electra.json", "vocabulary": sources / "encoder"}
    [*mlxbert.pretrain(sources / "corpus.txt", output=target, objective="electra", **new, **_STEPS)]


def _distilled(sources: Path, target: Path) -> None:
    [*mlxbert.distill(sources / "corpus.txt", teacher=sources / "pretrained", layers="1", output=target, **_STEPS)]


def _merged(sources: Path, target: Path) -> None:
    adapter = target.with_name(f"{target.name}-adapter")
    trained("classify", lora=2)(sources, adapter)
    mlxbert.convert(sources / "encoder", target, adapter=adapter)


def _inside(write: Write, folder: str) -> Write:
    """Returns a function that writes a folder and keeps only a folder inside of it."""

    def write_both(sources: Path, target: Path) -> None:
        whole = target.with_name(f"{target.name}-whole")
        write(sources, whole)
        shutil.copytree(whole / folder, target)

    return write_both


def _converted_vectors(sources: Path, target: Path) -> None:
    saved = target.with_name(f"{target.name}-saved")
    SAVED["classes of vectors"](sources, saved)
    mlxbert.convert(saved, target)


_VECTORS = Labels(CLASSES.names, CLASSES.problem_type, head_pooling="mean")
SAVED: dict[str, Write] = {
    "encoder": _with_head(None),
    "masked LM": _with_head("masked_lm"),
    "next sentence": _with_head("next_sentence"),
    "masked LM and next sentence": _saved("pretrained"),
    "classes": _with_head("sequence_classifier", CLASSES),
    "several labels": _with_head("sequence_classifier", SEVERAL),
    "a number": _with_head("sequence_classifier", NUMBER),
    "tags": _with_head("token_classifier", TAGS),
    "answers": _with_head("question_answering"),
    "embedder": _saved("embedder"),
    "embedder with a dense layer": _saved("dense"),
    "classes of vectors": _with_head("sequence_classifier", _VECTORS, "embedder"),
}
CONVERTED: dict[str, Write] = {
    "converted": _converted("pretrained"),
    "converted embedder": _converted("dense"),
    "converted classes of vectors": _converted_vectors,
    "quantized": _converted("wide", quantize=8, group_size=32),
    "merged": _merged,
}
TRAINED: dict[str, Write] = {
    "classify": trained("classify"),
    "classify (few-shot)": trained("classify", "embedder"),
    "`encoder/` of few-shot": _inside(trained("classify", "embedder"), "encoder"),
    "multilabel": trained("multilabel"),
    "regress": trained("regress"),
    "tag": trained("tag"),
    "tag (CRF)": trained("tag", crf=True),
    "answer": trained("answer"),
    "embed": trained("embed", "embedder"),
    "rerank": trained("rerank"),
    "mlm": _pretrained("mlm"),
    "mlm,nsp": _pretrained("mlm,nsp"),
    "mlm,sop": _pretrained("mlm,sop", "albert"),
    "electra": _new_electra,
    "`generator/` of electra": _inside(_new_electra, "generator"),
    "distill": _distilled,
}
ADAPTERS: dict[str, Write] = {
    **{
        f"{task} (LoRA)": trained(task, lora=2)
        for task in ("classify", "multilabel", "regress", "tag", "answer", "rerank")
    },
    "embed (LoRA)": trained("embed", "embedder", lora=2),
    "mlm (LoRA)": _pretrained("mlm", lora=2),
}
KINDS: dict[str, Write] = SAVED | CONVERTED | TRAINED | ADAPTERS
