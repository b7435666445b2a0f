"""`mlxbert convert`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mlxbert.cli import session
from mlxbert.cli.gguf_files import ENDING, check_not_meant, write_gguf
from mlxbert.cli.shared_options import Adapter, Offline, OutputOptions, Revision
from mlxbert.cli.views import convert as views, progress
from mlxbert.option_declarations import Option, Written

_SOURCE = "Hub name, 'builtin' or a checkpoint. Safetensors, torch .bin, TensorFlow 1 or .npz."


StoredDType = Literal["float32", "float16", "bfloat16"]
_SHARD_SIZE = "5GB"


def convert(
    out: OutputOptions,
    source: Annotated[str, typer.Argument(metavar="SRC", help=_SOURCE)],
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Output folder, new or empty. With --to gguf, a file."),
        Written("folder", file_ending=ENDING, file_if=("to", "gguf")),
    ],
    to: Annotated[
        Literal["safetensors", "onnx", "gguf"],
        Option("Format of the result."),
    ] = "safetensors",
    task: Annotated[str | None, Option("Task, in ONNX or GGUF. By default, what the model is for.", "TASK")] = None,
    adapter: Adapter = None,
    dtype: Annotated[
        StoredDType | None,
        Option("Dtype of the weights. Unchanged by default.", "DTYPE"),
    ] = None,
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

    For an embedding model, sentence-transformers opens the folder, too. With --to gguf, llama.cpp and ollama run the
    result.

    Example: mlxbert convert ./bert-from-2019 ./bert --dtype float16
    """
    from mlxbert.folders.convert import convert as write
    from mlxbert.folders.written_models import remember

    if to == "gguf":
        folder_options = {
            "--group-size": group_size is not None,
            "--max-shard-size": max_shard_size != _SHARD_SIZE,
        }
        write_gguf(
            source,
            folder,
            out,
            [name for name, given in folder_options.items() if given],
            task=task,
            adapter=adapter,
            dtype=dtype,
            quantize=quantize,
            revision=revision,
            offline=offline,
            overwrite=overwrite,
        )
        return
    check_not_meant(folder)
    with progress.download(source) as fetched, progress.transfer(f"writing {folder}") as written:
        result = write(
            source,
            folder,
            to=to,
            task=task,
            adapter=adapter,
            dtype=dtype,
            quantize=quantize,
            group_size=group_size,
            max_shard_size=max_shard_size,
            revision=revision,
            offline=offline,
            overwrite=overwrite,
            on_progress=fetched,
            on_written=written,
        )
    remember(result.folder, "convert" if to == "safetensors" else f"convert --to {to}")
    session.show_object(result.to_dict() | {"folder": str(result.folder)}, lambda: views.conversion(result), out)
