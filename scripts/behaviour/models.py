"""Generates the model folders for `scripts/behaviour`, with the same bytes each time.

They consist of the frozen models in `mlxbert/goldens` and of random numbers; nothing of mlxbert is used.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from formats import (
    SIZE,
    VOCABULARY,
    Files,
    Tensors,
    archive,
    byte_pairs,
    sentencepiece,
    torch_zip,
    vocabulary,
)
from safetensors.numpy import load_file, save, save_file

Facts = dict[str, Any]

PRETRAINING, MASKED, SEQUENCE = "ForPreTraining", "ForMaskedLM", "ForSequenceClassification"
TOKEN, ANSWERS = "ForTokenClassification", "ForQuestionAnswering"
ALBERT = f"Albert{SEQUENCE}"
# The frozen classes of each family that become folders, named FAMILY-CLASS.
GOLDEN = {
    "bert": ("Model", PRETRAINING, MASKED, "ForNextSentencePrediction", SEQUENCE, TOKEN, ANSWERS),
    "roberta": (MASKED, SEQUENCE),
    "xlm-roberta": (MASKED, TOKEN),
    "camembert": (MASKED, ANSWERS),
    "distilbert": (MASKED, SEQUENCE),
    "albert": (PRETRAINING, MASKED),
    "albert-two-groups": ("Model", TOKEN),
    "electra": (PRETRAINING, MASKED, ANSWERS),
    "mpnet": (MASKED, SEQUENCE),
    "modernbert": (MASKED, SEQUENCE),
    "nomic": (MASKED, TOKEN),
    "gte": (MASKED, SEQUENCE),
    "deberta-v2": (MASKED, ANSWERS),
    "deberta-v3": (MASKED, SEQUENCE),
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Folder:
    """A model: its configuration, its tensors, and its other files."""

    config: Facts
    tensors: Tensors
    files: Files

    def write(self, folder: Path) -> None:
        """Writes the model in safetensors."""
        write_files(folder, {**self.files, "config.json": json.dumps(self.config)})
        save_file(self.tensors, folder / "model.safetensors")

    def changed(self, change: Callable[[Facts, Tensors], object]) -> "Folder":
        """A copy with a change to its configuration and tensors."""
        config, tensors = json.loads(json.dumps(self.config)), dict(self.tensors)
        change(config, tensors)
        return Folder(config, tensors, self.files)

    def with_files(self, **files: str | bytes) -> "Folder":
        """A copy with replaced or additional files; `_` in a keyword stands for a dot."""
        return Folder(self.config, self.tensors, {**self.files, **{k.replace("_", "."): v for k, v in files.items()}})


def write_files(folder: Path, files: Files) -> None:
    """Writes files, keyed by their paths in the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def golden(goldens: Path, family: str, head: str) -> Folder:
    """A frozen model, as saved by transformers."""
    source = goldens / family
    facts = json.loads((source / f"{head}.json").read_text(encoding="utf-8"))
    encoder = load_file(source / "encoder.safetensors")
    tensors = {facts["prefix"] + name: array for name, array in encoder.items() if name not in facts["without"]}
    head_file = source / f"{head}.safetensors"
    return Folder(facts["config"], tensors | (load_file(head_file) if head_file.is_file() else {}), vocabulary())


def wide_bert(width: int = 64, layers: int = 2) -> Folder:
    """A random BERT that is wide enough to be quantized, with 128 positions."""
    rng, inner = np.random.default_rng(5), 2 * width
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (SIZE, width),
        "embeddings.position_embeddings.weight": (128, width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    dense = {"pooler.dense": (width, width)}
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{number}." for number in range(layers)):
        dense |= {f"{layer}attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        dense |= {f"{layer}attention.output.dense": (width, width)}
        dense |= {f"{layer}intermediate.dense": (inner, width), f"{layer}output.dense": (width, inner)}
        norms += [f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
    for name, shape in dense.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    tensors = {f"bert.{name}": rng.normal(0, 0.2, shape).astype("<f4") for name, shape in shapes.items()}
    for name in norms:
        tensors[f"bert.{name}.weight"] = rng.normal(1, 0.1, width).astype("<f4")
        tensors[f"bert.{name}.bias"] = rng.normal(0, 0.1, width).astype("<f4")
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": SIZE, "max_position_embeddings": 128}
    return Folder(config | sizes | {"hidden_act": "gelu", "type_vocab_size": 2}, tensors, vocabulary())


def modules(*kinds: str) -> str:
    """A `modules.json`."""
    first = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    others = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds, 1)
    ]
    return json.dumps([first, *others])


def sentence_model(base: Folder, old: bool) -> Folder:
    """The model with additional modules, in the old or the new format of sentence-transformers."""
    rng = np.random.default_rng(8)
    width = int(base.config["hidden_size"])
    if old:
        pooling: Facts = {"word_embedding_dimension": width, "pooling_mode_cls_token": True}
        norm = {f"norm.{name}": rng.normal(1, 0.2, width).astype("<f4") for name in ("weight", "bias")}
        files: Files = {"2_LayerNorm/config.json": json.dumps({"dimension": width})}
        files["2_LayerNorm/model.safetensors"] = save(norm)
        kinds = ["Pooling", "LayerNorm"]
    else:
        pooling = {"embedding_dimension": width, "pooling_mode": ["mean", "max"], "include_prompt": False}
        shapes = {"linear.weight": (12, 2 * width), "linear.bias": (12,)}
        dense = {name: rng.normal(0, 0.3, shape).astype("<f4") for name, shape in shapes.items()}
        facts: Facts = {"in_features": 2 * width, "out_features": 12, "bias": True}
        facts |= {"activation_function": "torch.nn.modules.activation.Tanh"}
        settings = {"prompts": {"query": "the man: ", "document": "a store: "}, "similarity_fn_name": "dot"}
        files = {"2_Dense/config.json": json.dumps(facts), "2_Dense/model.safetensors": save(dense)}
        files |= {"config_sentence_transformers.json": json.dumps(settings | {"default_prompt_name": "document"})}
        kinds = ["Pooling", "Dense", "Normalize"]
    files |= {"1_Pooling/config.json": json.dumps(pooling), "modules.json": modules(*kinds)}
    files |= {"sentence_bert_config.json": json.dumps({"max_seq_length": 16, "do_lower_case": False})}
    return Folder(base.config, base.tensors, {**base.files, **files})


def write_goldens(goldens: Path, folder: Path) -> None:
    """Writes a folder for each frozen class, with a vocabulary."""
    for family, heads in GOLDEN.items():
        for head in heads:
            golden(goldens, family, head).write(folder / f"{family}-{head}")
    roberta = golden(goldens, "roberta", MASKED)
    roberta = roberta.changed(lambda config, _: config.update(pad_token_id=1, bos_token_id=0, eos_token_id=2))
    Folder(roberta.config, roberta.tensors, byte_pairs()).write(folder / "roberta-pairs")
    xlm = golden(goldens, "xlm-roberta", MASKED).changed(lambda config, _: config.update(pad_token_id=1))
    Folder(xlm.config, xlm.tensors, {"sentencepiece.bpe.model": sentencepiece()}).write(folder / "xlm-pieces")


def write_changed(goldens: Path, folder: Path) -> None:
    """Writes models that differ from `bert-ForPreTraining` in one thing each."""
    plain = golden(goldens, "bert", PRETRAINING)
    layer = "bert.encoder.layer.1.attention."
    square, query = f"{layer}output.dense.weight", f"{layer}self.query.weight"

    def put(name: str, change: Callable[[Tensors], Tensors]) -> None:
        plain.changed(lambda _, tensors: tensors.update(change(tensors))).write(folder / name)

    put("changed-nothing", lambda _: {})
    put("changed-transposed", lambda tensors: {square: np.ascontiguousarray(tensors[square].T)})
    put("changed-nudged", lambda tensors: {square: tensors[square] + np.float32(1e-3)})
    put("changed-large", lambda tensors: {square: tensors[square] * np.float32(1e6)})
    put("changed-nan", lambda tensors: {square: tensors[square] * np.float32("nan")})
    put("changed-half", lambda tensors: {name: array.astype("<f2") for name, array in tensors.items()})
    put("changed-more", lambda _: {"bert.encoder.layer.1.extra.weight": np.ones(3, "<f4")})
    plain.changed(lambda _, tensors: tensors.pop(query)).write(folder / "changed-less")
    plain.changed(lambda config, _: config.update(hidden_act="relu")).write(folder / "changed-activation")
    plain.changed(lambda config, _: config.update(hidden_dropout_prob=0.3)).write(folder / "changed-dropout")
    plain.changed(lambda config, _: config.update(model_type="ernie")).write(folder / "changed-family")
    plain.changed(lambda config, _: config.pop("hidden_size")).write(folder / "changed-facts")
    words = [*VOCABULARY[:5], VOCABULARY[6], VOCABULARY[5], *VOCABULARY[7:]]
    plain.with_files(vocab_txt="\n".join(words) + "\n").write(folder / "changed-words")
    Folder(plain.config, plain.tensors, vocabulary(do_lower_case=False)).write(folder / "changed-case")
    Folder(plain.config, plain.tensors, vocabulary(SIZE + 5)).write(folder / "changed-size")
    Folder(plain.config, plain.tensors, {}).write(folder / "changed-wordless")


def write_formats(goldens: Path, folder: Path) -> None:
    """Writes models in other formats than safetensors."""
    plain = golden(goldens, "bert", PRETRAINING)
    config: Files = {"config.json": json.dumps(plain.config)}
    write_files(folder / "torch-bert", {**plain.files, **config, "pytorch_model.bin": torch_zip(plain.tensors)})
    write_files(folder / "npz-bert", {**plain.files, **config, "weights.npz": archive(plain.tensors)})
    for path in sorted((goldens / "torch").glob("*.bin")):  # whose tensors are not those of a BERT
        write_files(folder / path.stem, {**plain.files, **config, "pytorch_model.bin": path.read_bytes()})
    for source in sorted(path for path in (goldens / "tf1").iterdir() if path.is_dir()):
        kept = (path for path in source.iterdir() if path.suffix != ".safetensors" and "generator" not in path.name)
        write_files(folder / f"tf1-{source.name}", vocabulary() | {path.name: path.read_bytes() for path in kept})


def write_broken(goldens: Path, folder: Path) -> None:
    """Writes folders that are not models."""
    plain = golden(goldens, "bert", PRETRAINING)
    weights, config = save(plain.tensors), json.dumps(plain.config)
    for name in ("broken-empty", "folder.npy"):
        (folder / name).mkdir()
    write_files(folder / "broken-config", {**plain.files, "config.json": config[:40], "model.safetensors": weights})
    write_files(folder / "broken-weights", {**plain.files, "config.json": config, "model.safetensors": weights[:9000]})
    write_files(folder / "broken-keras", {**plain.files, "config.json": config, "tf_model.h5": b"\x89HDF"})
    unknown_module = plain.with_files(modules_json=modules("Pooling", "CNN"))
    unknown_module.write(folder / "broken-modules")


def write_models(goldens: Path, folder: Path) -> None:
    """Writes every model folder.

    Args:
        goldens: `mlxbert/goldens` of a checkout.
        folder: The folder for the model folders.
    """
    write_goldens(goldens, folder)
    write_changed(goldens, folder)
    write_formats(goldens, folder)
    write_broken(goldens, folder)
    wide = wide_bert()
    wide.write(folder / "wide")
    sentence_model(wide, old=False).write(folder / "st-dense")
    sentence_model(golden(goldens, "bert", "Model"), old=True).write(folder / "st-old")


def write_cache(models: Path, home: Path) -> None:
    """Fills a hub cache: a complete model as `tests/whole`, a model without weights as `tests/half`."""
    for name, files in (("whole", ("config.json", "model.safetensors", "vocab.txt")), ("half", ("config.json",))):
        repository = home / "hub" / f"models--tests--{name}"
        write_files(repository, {"refs/main": COMMIT})
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        for file in files:
            shutil.copyfile(models / f"bert-{MASKED}" / file, snapshot / file)
