"""Describes a conversion: in sentences, and in the model card."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlxbert.folders.copied_files import CARD, is_own
from mlxbert.folders.destination import MANIFEST
from mlxbert.model import Model
from mlxbert.nn.heads import HEADS, OWN_LAYERS
from mlxbert.version import __version__
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.formats.quantized import Quantization
from mlxbert.weights.save import TensorToWrite

_SECTION = "## Conversion\n\nConverted from "
_END = "<!-- end of the conversion -->"  # a card's own text may follow
_OLD_NOTE = re.compile(rf"^{_SECTION}.*?^{_END}$", re.MULTILINE | re.DOTALL)
_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$", re.MULTILINE | re.DOTALL)
_LIBRARY = re.compile(r"^library_name:.*$", re.MULTILINE)


def library_of(*, own: bool, embeds: bool) -> str:
    """The library that opens a model as what it is, for `library_name`.

    Args:
        own: Whether its head is one that transformers does not have.
        embeds: Whether its files say how it makes vectors.
    """
    return "mlxbert" if own else "sentence-transformers" if embeds else "transformers"


def opened_by(model: Model, *, embeds: bool, adapter: bool) -> str:
    """Which programs open a trained model; if none has its head, as what, and how to train one that they have.

    Args:
        model: The model.
        embeds: Whether its files say how it makes vectors.
        adapter: Whether the folder holds an adapter alone.
    """
    if adapter:
        return "mlxbert, PEFT"
    config_json, family = model.architecture.config_json, model.architecture.family
    code = " with the code of its authors" if family.foreign(config_json, model.config) else ""
    for own in (HEADS[head].own for head in model.network.heads):
        if own is not None and own.used(model.network.encoder.config.labels):
            return f"mlxbert; {own.elsewhere}{code}; {own.instead}"
    return ", ".join(["mlxbert", *(["sentence-transformers"] if embeds else []), f"transformers{code}"])


def changes(
    checkpoint: Checkpoint, tensors: list[TensorToWrite], files: int, config: dict[str, Any], how: Quantization | None
) -> Iterator[str]:
    """What differs from the source, in sentences.

    Args:
        checkpoint: The opened source.
        tensors: The tensors that are written.
        files: The number of files that they are written to.
        config: The keys of `config.json` that changed, see `mlxbert.folders.copied_files.write_config`.
        how: How tensors are quantized, if they are.
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
    yield from (own.note if how is None else own.content for own in OWN_LAYERS if own.file in read)
    for key, value in config.items():
        yield f"config.json: {key} " + ("removed" if value is None else f"is {json.dumps(value)}")


def describe(source: str, sentences: tuple[str, ...], how: Quantization | None) -> str:
    """The section of the model card that describes the conversion.

    Args:
        source: The name of the source.
        sentences: What changed.
        how: How it is quantized, if it is.
    """
    lines = [
        f"{_SECTION}{source} by mlxbert {__version__}.",
        f"`{MANIFEST}` lists the files and how far the results differ.",
        "",
        *(f"- {sentence}" for sentence in sentences or ("weights and configuration are unchanged",)),
    ]
    if how is not None:
        lines += [
            "",
            "The weights are quantized in MLX's layout: transformers and sentence-transformers cannot open them.",
        ]
    return "\n".join([*lines, "", _END])


def read_from(source: Path) -> list[Path]:
    """The model card of a folder, if the folder has its own."""
    return [path for path in [source / CARD] if path.is_file() and is_own(path, source)]


def write(source: Path, folder: Path, title: str, note: str, library: str, *, quantized: bool) -> None:
    """Writes the model card: the card of the source with a note, or the note alone.

    Args:
        source: The model folder.
        folder: The folder to write to.
        title: The title of a new card.
        note: The section on the conversion, in Markdown.
        library: The library that opens the model.
        quantized: Whether other programs cannot open the model: then the note comes first, and the library is MLX.
    """
    text = f"---\nlibrary_name: {library}\n---\n\n# {title}"
    for old in read_from(source):
        text = old.read_bytes().decode("utf-8-sig", "replace").replace("\r\n", "\n")
        text = _OLD_NOTE.sub("", text)
    found = _FRONT.match(text)
    front, text = (found[1], text[found.end() :].strip()) if found else ("", text.strip())
    stale = [f"library_name: {name}" for name in ("mlx", "mlxbert") if name != library]
    if quantized or any(line in stale for line in _LIBRARY.findall(front)):
        front = _LIBRARY.sub("", front).strip()
        front += "\nlibrary_name: mlx" if quantized else ""
    parts = [f"---\n{front.strip()}\n---"] if front.strip() else []
    parts += [note, text] if quantized else [text, note]
    (folder / CARD).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def trained(source: str, title: str, text: str, library: str) -> str:
    """The card of a trained model.

    Args:
        source: The model that training started from.
        title: The name of the model.
        text: What there is to say, in Markdown.
        library: The library that opens it.
    """
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None and not Path(source).exists()
    front = [f"library_name: {library}", *([f"base_model: {source}"] if on_hub else [])]
    return "\n".join(["---", *front, "---", "", f"# {title}", "", text])


def adapter_note(base: str) -> list[str]:
    """The lines that say of a folder that it is an adapter."""
    return [f"This is an adapter in PEFT's format, for {base}: without that model it computes nothing.", ""]
