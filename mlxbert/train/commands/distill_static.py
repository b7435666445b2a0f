"""`mlxbert distill-static`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import ComputingDevice, Encoding, OutputOptions
from mlxbert.cli.views import console, progress
from mlxbert.option_declarations import COUNT, Bounds, Option, OutputPath
from mlxbert.readers.text_lines import UTF8


def distill_static(
    out: OutputOptions,
    output: Annotated[Path, Option("Folder to write.", "DIR", short="-o"), OutputPath("folder")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE…", help="Texts whose frequent words become tokens: .txt, .jsonl or .json."),
    ] = None,
    teacher: Annotated[str, Option("Embedding model to make it from.", "MODEL")] = "builtin",
    dimensions: Annotated[int, Option("Size of a vector.", bounds=COUNT)] = 256,
    words: Annotated[int, Option("Largest number of words to add from the files.", bounds=COUNT)] = 30_000,
    rarity: Annotated[
        float,
        Option("Weight of rare tokens: a / (a + p) at probability p. 0 weights all equally.", "A", bounds=Bounds(0, 1)),
    ] = 1e-4,
    dtype: Annotated[Literal["float16", "float32"], Option("Dtype of the written vectors.")] = "float16",
    field: Annotated[str, Option("Field with the text, in .jsonl and .json files.")] = "text",
    encoding: Encoding = UTF8,
    device: ComputingDevice = "auto",
    offline: Annotated[bool, Option("Make no requests to the hub.")] = False,
    overwrite: Annotated[bool, Option("Replace an earlier result.")] = False,
) -> None:
    """Make a static model from an embedding model: a vector for each token, and no encoder.

    A static model embeds texts hundreds of times faster, but less accurately. mlxbert, model2vec and
    sentence-transformers open the folder.

    Example: mlxbert distill-static --output my-static
    """
    from mlxbert.train.pretraining.static_distillation import distill_static as distill

    with progress.counted("tokens") as update:
        result = distill(
            teacher,
            output=output,
            texts=files or (),
            words=words,
            dimensions=dimensions,
            rarity=rarity,
            dtype=dtype,
            text_field=field,
            encoding=encoding,
            device=device,
            offline=offline,
            overwrite=overwrite,
            on_progress=update,
        )
    rows: list[tuple[str, object]] = [
        ("teacher", result.teacher),
        ("tokens", f"{result.tokens:,}" + (f", {result.words:,} of them from the files" if files else "")),
        ("vectors", f"{result.dimensions} dimensions, which keep {result.variance:.0%} of the variance"),
        ("size", f"{result.bytes / 1e6:.1f} MB"),
    ]
    value = {"folder": str(result.folder)} | result.to_dict()
    session.show_object(value, lambda: console.facts(str(result.folder), rows), out)
