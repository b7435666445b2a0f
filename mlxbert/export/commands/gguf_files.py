"""The part of `mlxbert convert` that writes GGUF files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxbert.cli import session
from mlxbert.cli.shared_options import OutputOptions
from mlxbert.cli.views import console, progress
from mlxbert.errors import ArgumentError
from mlxbert.export import views


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
