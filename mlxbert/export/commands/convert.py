"""`mlxbert convert`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import Adapter, Offline, OutputOptions, Revision
from mlxbert.cli.views import console, progress
from mlxbert.durable_files import writing
from mlxbert.errors import ArgumentError
from mlxbert.export import views
from mlxbert.option_declarations import Option, OutputPath
from mlxbert.paths import replace_file
from mlxbert.weights.formats.file_names import GGUF, ONNX

_SOURCE = "Hub name, 'builtin' or a checkpoint. Safetensors, torch .bin, TensorFlow 1 or .npz."


StoredDType = Literal["float32", "float16", "bfloat16"]
_SHARD_SIZE = "5GB"
_FORMATS = {GGUF: "gguf", ".onnx": "onnx"}  # by the ending of a file


def convert(
    out: OutputOptions,
    source: Annotated[str, typer.Argument(metavar="SRC", help=_SOURCE)],
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Output folder, new or empty, or a file NAME.onnx or NAME.gguf."),
        OutputPath("folder", file_endings=(*_FORMATS,), file_if=("to", "gguf")),
    ],
    to: Annotated[
        Literal["safetensors", "onnx", "gguf"] | None, Option("Format of the result.", usual="by the ending")
    ] = None,
    task: Annotated[str | None, Option("Task, in ONNX or GGUF. By default, what the model is for.", "TASK")] = None,
    adapter: Adapter = None,
    dtype: Annotated[StoredDType | None, Option("Dtype of the weights. Unchanged by default.", "DTYPE")] = None,
    quantize: Annotated[
        int | None,
        Option("Bits per weight, in MLX's layout: transformers cannot open it. In GGUF, 8: Q8_0.", "4|8"),
    ] = None,
    group_size: Annotated[
        int | None, Option("Number of quantized weights that share a scale.", "32|64|128", "64")
    ] = None,
    max_shard_size: Annotated[str, Option("Maximum size of a file.", "SIZE")] = _SHARD_SIZE,
    overwrite: Annotated[bool, Option("Replace an earlier conversion.")] = False,
    revision: Revision = None,
    offline: Offline = False,
) -> None:
    """Write a model for transformers, onnxruntime, llama.cpp or MLX.

    For an embedding model, sentence-transformers opens the folder, too. llama.cpp and ollama run a .gguf file. A folder
    made with --to onnx has the tokenizer and the configuration, which a .onnx file alone lacks.

    Example: mlxbert convert ./bert-from-2019 ./bert --dtype float16
    """
    from mlxbert.export.convert import convert as write
    from mlxbert.folders.written_models import remember

    meant = _FORMATS.get(folder.suffix.lower())
    format = to or meant or "safetensors"
    if meant not in (None, format):
        raise ArgumentError(f"{folder}: is named like a file, but --to is {to}", hint="omit --to, or use another name")
    options: dict[str, Any] = {
        "task": task, "adapter": adapter, "dtype": dtype, "quantize": quantize, "revision": revision,
        "offline": offline, "overwrite": overwrite,
    }  # fmt: skip
    if format == "gguf":
        folder_options = {"--group-size": group_size is not None, "--max-shard-size": max_shard_size != _SHARD_SIZE}
        write_gguf(source, folder, out, [name for name, given in folder_options.items() if given], **options)
        return
    is_file = meant is not None
    with (
        _folder(folder, is_file=is_file, overwrite=overwrite) as target,
        progress.download(source) as fetched,
        progress.transfer(f"writing {folder}") as written,
    ):
        result = write(
            source, target, to=format, group_size=group_size, max_shard_size=max_shard_size, on_progress=fetched,
            on_written=written, **options,
        )  # fmt: skip
    if is_file:
        value = {"file": str(folder), "bytes": folder.stat().st_size, "changed": result.changed}
        rows = [("size", console.size(folder.stat().st_size)), *(("changed", sentence) for sentence in result.changed)]
        session.show_object(value, lambda: console.facts(str(folder), rows), out)
        console.say("note", f"{folder.name} has no tokenizer and no configuration; a folder of --to onnx has both")
        return
    remember(result.folder, "convert" if format == "safetensors" else f"convert --to {format}")
    session.show_object(result.to_dict() | {"folder": str(result.folder)}, lambda: views.conversion(result), out)


@contextmanager
def _folder(path: Path, *, is_file: bool, overwrite: bool) -> Iterator[Path]:
    """Yields the folder to write; if the path is that of a file, a temporary one, whose file in ONNX is moved there."""
    if not is_file:
        yield path
        return
    if path.exists() and not overwrite:
        raise ArgumentError(f"{path}: already exists", hint="--overwrite replaces the file")
    with writing(path), TemporaryDirectory(dir=path.parent, prefix=".") as temporary:
        yield (folder := Path(temporary) / path.stem)
        if len([*(folder / ONNX).parent.iterdir()]) > 1:
            raise ArgumentError(f"{path}: the weights do not fit into one file", hint="write a folder with --to onnx")
        replace_file(folder / ONNX, path)


def write_gguf(source: str, file: Path, out: OutputOptions, folder_options: Sequence[str], **options: Any) -> None:
    """Writes the file, shows the report, and says what the file does not give.

    Args:
        folder_options: The options in the call that do not apply to a GGUF file.
    """
    from mlxbert.export.gguf.write_gguf import convert_to_gguf

    if folder_options:
        raise ArgumentError(f"{folder_options[0]} does not apply to a GGUF file")
    with progress.download(source) as fetched, progress.transfer(f"writing {file}") as written:
        result = convert_to_gguf(source, file, on_progress=fetched, on_written=written, **options)
    session.show_object(result.to_dict() | {"file": str(result.file)}, lambda: views.gguf_file(result), out)
    if result.left_out and not console.draws(out.json):  # the drawn report lists what is left out
        console.say("note", f"left out: {'; '.join(result.left_out)}")
