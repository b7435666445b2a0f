"""Writes model cards, including sentences that describe a conversion."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from mlxbert.folders.atomic_folder import MANIFEST
from mlxbert.folders.copied_files import CARD, card_of
from mlxbert.model import Model
from mlxbert.nn.heads import HEADS, OWN_LAYERS
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.version import __version__
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.formats.quantized import Quantization
from mlxbert.weights.save import TensorToWrite


@dataclass(frozen=True)
class Scores:
    """The task that a model was trained for, and how well the model does it."""

    task: str | None  # the name of the task in the catalogue; `None` if the catalogue has no such task
    metrics: Mapping[str, float]  # the metrics on data that the model was not trained on, by name
    datasets: tuple[str, ...] = ()  # the data sets on the hub that the model was trained on
    # The data set on the hub that the metrics were measured on; `None` for other data, which the card does not name.
    tested_on: str | None = None
    held_out: bool = True  # whether the metrics were measured on a part of the training data

    @property
    def pipeline(self) -> str | None:
        """The name of the task on the hub, if it has one."""
        entry = None if self.task is None else CATALOGUE.get(self.task)
        return None if entry is None else entry.pipeline

    def to_results(self) -> list[Any]:
        """Returns the metrics as the hub's list of results has them; empty if the hub has no such task."""
        from huggingface_hub import EvalResult

        if self.pipeline is None:
            return []
        data = "held-out part of the training data" if self.held_out else "validation data"
        name = data if self.tested_on is None else f"{self.tested_on}, {data}"
        return [
            EvalResult(self.pipeline, self.tested_on or "private", name, metric, round(value, 4))
            for metric, value in self.metrics.items()
            if isfinite(value)
        ]


_CALLS = {  # of the function of each task, in examples; MASK stands for the mask token
    "embed": 'embed(model, "A text.")', "classify": 'classify(model, "A text.")', "tag": 'tag(model, "A text.")',
    "answer": 'answer(model, "A question?", context="A text with the answer.")',
    "rerank": 'rerank(model, "A query", ["A text.", "Another text."])', "fill-mask": 'fill_mask(model, "A MASK.")',
}  # fmt: skip
_WITH_PIPELINES = ("classify", "tag", "fill-mask")  # tasks whose pipeline in transformers 5 takes a text alone
_ANSWER = """\
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("NAME")
inputs = tokenizer("A question?", "A text with the answer.", return_tensors="pt")
with torch.no_grad():
    output = AutoModelForQuestionAnswering.from_pretrained("NAME")(**inputs)
start, end = output.start_logits.argmax(), output.end_logits.argmax()
tokenizer.decode(inputs["input_ids"][0, start : end + 1])"""  # transformers 5 has no pipeline for questions
_RERANK = """\
from sentence_transformers import CrossEncoder

CrossEncoder("NAME").rank("A query", ["A text.", "Another text."])"""
_EMBED = """\
from sentence_transformers import SentenceTransformer

SentenceTransformer("NAME").encode(["A text.", "Another text."])"""
_SECTION = "## Conversion\n\nConverted from "
_END = "<!-- end of the conversion -->"  # the original text of the card may follow
_OLD_NOTE = re.compile(rf"^{_SECTION}.*?^{_END}$", re.MULTILINE | re.DOTALL)
_USAGE = re.compile(r"^How to use it:\n\n(?:```python\n.*?^```\n*)+", re.MULTILINE | re.DOTALL)  # see `examples`
_OUR_USAGE = re.compile(
    r'How to use it:\n\n```python\nimport mlxbert\n\nmodel = mlxbert\.load\("([^"]*)"\)\n.*?\n```\n', re.DOTALL
)
_ADAPTER = re.compile(r"^This is an adapter in PEFT's format, for .*: it needs that model\.\n*", re.MULTILINE)
_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$", re.MULTILINE | re.DOTALL)
_LIBRARY = re.compile(r"^library_name: *(.*)\n", re.MULTILINE)


def library_of(*, own: bool, embeds: bool) -> str:
    """Returns the name of the library that can use every part of a model, for the card's field `library_name`."""
    return "mlxbert" if own else "sentence-transformers" if embeds else "transformers"


def opened_by(model: Model, *, embeds: bool, adapter: bool) -> str:
    """Describes which programs can open a trained model.

    If the model has a head that other programs lack, the text also says what these programs can open, and suggests an
    alternative.
    """
    if adapter:
        return "mlxbert, PEFT"
    config_json, family = model.architecture.config_json, model.architecture.family
    code = " with the code of its authors" if family.foreign(config_json, model.config) else ""
    for layers in (HEADS[head].own for head in model.network.heads):
        if layers is not None and layers.used(model.network.encoder.config.labels):
            return f"mlxbert; {layers.elsewhere}{code}; {layers.instead}"
    if model.config.is_static:
        others = "sentence-transformers and model2vec"
        return f"mlxbert, {others}" if embeds else f"mlxbert; {others}, as an embedding model"
    return ", ".join(["mlxbert", *(["sentence-transformers"] if embeds else []), f"transformers{code}"])


def changes(
    checkpoint: Checkpoint, tensors: list[TensorToWrite], files: int, config: dict[str, Any], how: Quantization | None
) -> Iterator[str]:
    """Yields a sentence for each difference between a conversion and its source.

    Args:
        config: The changed keys of `config.json` (see `mlxbert.weights.save.config_changes`).
    """
    if checkpoint.weights.format != "safetensors":
        yield f"weights: {checkpoint.weights.format} → safetensors"
    if len(checkpoint.weights.headers) != files:
        yield f"weights: in {len(checkpoint.weights.headers)} → {files} file{'s' if files > 1 else ''}"
    merged = {} if checkpoint.adapter is None else checkpoint.adapter.replaced
    if checkpoint.adapter is not None:
        yield f"weights: the adapter {checkpoint.adapter.folder.resolve().name} is merged into them"
    names = [(checkpoint.names[tensor.plain], tensor.name) for tensor in tensors if tensor.plain not in merged]
    renamed = [(old, new) for old, new in names if old != new]
    if renamed:
        more = " and so on" if len(renamed) > 1 else ""
        yield f"names of {len(renamed)} of {len(names)} tensors: {renamed[0][0]} → {renamed[0][1]}{more}"
    stored = {checkpoint.tensors[checkpoint.names[tensor.plain]].dtype for tensor in tensors}
    written = {tensor.dtype for tensor in tensors}
    if stored != written:
        yield f"dtype: {', '.join(sorted(stored))} → {', '.join(sorted(written))}"
    if how is not None:
        packed = sum(1 for tensor in tensors if tensor.quantization)
        wide = [tensor for tensor in tensors if not tensor.quantization and len(tensor.shape) == 2]
        yield f"quantized: {packed} matrices, {how.name}; not quantized: {len(wide)} matrices and all vectors"
    read = {tensor.file.name for tensor in checkpoint.tensors.values()}
    yield from (layers.note if how is None else layers.content for layers in OWN_LAYERS if layers.file in read)
    for key, value in config.items():
        yield f"config.json: {key} " + ("removed" if value is None else f"is {json.dumps(value)}")


_ONLY = {  # by the library that alone opens a folder
    "mlx": "The weights are quantized in MLX's layout: transformers and sentence-transformers cannot open them.",
    "onnx": "The folder holds a file in ONNX in place of the weights: mlxbert cannot load it, onnxruntime runs it.",
}


def describe(source: str, sentences: tuple[str, ...], opener: str | None) -> str:
    """Returns the section of the model card that describes the conversion.

    Args:
        opener: The library that alone opens the folder, `mlx` or `onnx`, if there is one.
    """
    lines = [
        f"{_SECTION}{source} by mlxbert {__version__}.",
        f"`{MANIFEST}` lists the files and how far the results differ.",
        "",
        *(f"- {sentence}" for sentence in sentences or ("weights and configuration are unchanged",)),
    ]
    if opener is not None:
        lines += ["", _ONLY[opener]]
    return "\n".join([*lines, "", _END])


def write(
    source: Path, folder: Path, title: str, note: str, library: str, opener: str | None, base: Path | None = None
) -> None:
    """Writes the model card of a conversion: the source's card with a note added, or a new card with the note.

    Args:
        source: The folder of the source; if an adapter was merged, the folder of the adapter.
        opener: The library that alone opens the model, if there is one. Then the note comes first, and the card
            names the library.
        base: The folder of the model into which an adapter was merged, whose license and languages the card
            states unless the card of the adapter states others.
    """
    text = f"---\nlibrary_name: {library}\n---\n\n# {title}"
    for old in card_of(source):
        text = old.read_bytes().decode("utf-8-sig", "replace").replace("\r\n", "\n")
        text = _ADAPTER.sub("", _OLD_NOTE.sub("", text))
        text = _USAGE.sub(lambda usage: _usage_of(usage[0], title, opener), text)
    match = _FRONT.match(text)
    front, text = (match[1], text[match.end() :].strip()) if match else ("", text.strip())
    stated, named = _LIBRARY.search(front), f"library_name: {library}\n"
    library_before = "" if stated is None else stated[1]
    if stated is not None and (opener is not None or library_before in {"mlx", "mlxbert", "peft"} - {library}):
        front = _LIBRARY.sub(named if opener is not None or library_before == "peft" else "", front)
    elif opener is not None:
        front += named
    for name, value in ({} if base is None else stated_terms(base)).items():
        front += "" if re.search(rf"^{name}:", front, re.MULTILINE) else f"{name}: {json.dumps(value)}\n"
    parts = [f"---\n{front.strip()}\n---"] if front.strip() else []
    parts += [text, note] if opener is None else [note, text]
    (folder / CARD).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _usage_of(usage: str, title: str, opener: str | None) -> str:
    """Returns the examples of a card of ours for a converted model: with its name, and only those that still hold."""
    ours = _OUR_USAGE.match(usage)
    if ours is None:
        return usage
    kept = {None: usage, "mlx": f"{ours[0]}\n"}.get(opener, "")
    return kept.replace(f'"{ours[1]}"', f'"{title}"')


def trained(title: str, text: str, library: str, source: str, base: Path, scores: Scores) -> str:
    """Returns the card of a trained model, whose front matter tells the hub what the model is.

    Args:
        base: The folder of that model, whose card may state a license and languages, which the new model inherits.
    """
    from huggingface_hub import ModelCardData

    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None and not Path(source).exists()
    results = scores.to_results()
    data = ModelCardData(
        **stated_terms(base), library_name=library, pipeline_tag=scores.pipeline, datasets=[*scores.datasets] or None,
        base_model=source if on_hub else None, tags=["mlxbert"], model_name=title if results else None,
        eval_results=results or None, ignore_metadata_errors=True,
    )  # fmt: skip
    return f"---\n{data.to_yaml()}\n---\n\n# {title}\n\n{text}"


def examples(task: str | None, title: str, library: str, mask: str = "[MASK]") -> list[str]:
    """Returns the lines of a model card that show how to use the model."""
    if task not in _CALLS:
        return []
    call = _CALLS[task].replace("MASK", mask)
    ours = f'import mlxbert\n\nmodel = mlxbert.load("{title}")\nmlxbert.{call}'
    theirs = ""
    if library == "sentence-transformers":
        theirs = _EMBED.replace("NAME", title)
    elif library == "transformers" and task in _WITH_PIPELINES:
        text = f"A {mask}." if task == "fill-mask" else "A text."
        line = f'pipeline("{CATALOGUE[task].pipeline}", model="{title}")("{text}")'
        theirs = f"from transformers import pipeline\n\n{line}"
    elif library == "transformers":
        theirs = {"answer": _ANSWER, "rerank": _RERANK}.get(task, "").replace("NAME", title)
    blocks = [["```python", code, "```", ""] for code in (ours, theirs) if code]
    return ["How to use it:", "", *(line for block in blocks for line in block)]


def stated_terms(base: Path) -> dict[str, Any]:
    """Returns what the card of a model says about its license and languages; nothing if it cannot be read."""
    from huggingface_hub.repocard import metadata_load

    try:
        stated = metadata_load(base / CARD) if (base / CARD).is_file() else None
    except Exception:  # the library raises errors of its own, of PyYAML and of the system
        stated = None
    kept = ("license", "license_name", "license_link")
    facts = {name: value for name, value in (stated or {}).items() if name in kept and value}
    languages = (stated or {}).get("language")
    codes = [
        "no" if code is False else code  # YAML reads the code of Norwegian as a boolean
        for code in (languages if isinstance(languages, list) else [languages])
        if code is False or (isinstance(code, str) and code)
    ]
    if codes:
        facts["language"] = codes if isinstance(languages, list) else codes[0]
    return facts


def adapter_note(base: str) -> list[str]:
    """Returns the lines of a model card that say that the folder holds an adapter."""
    return [f"This is an adapter in PEFT's format, for {base}: it needs that model.", ""]
