"""From what a user calls a model to the folder that holds it."""

from pathlib import Path

from mlxbert.errors import CheckpointError

BUILTIN = "builtin"
_FOLDER = Path(__file__).parent / "builtin"


def builtin_folder() -> Path:
    """The folder of the model that ships with the package."""
    return _FOLDER


def find_folder(source: str) -> Path:
    """The folder that `source` means: `builtin`, or the path of a model folder.

    Raises:
        CheckpointError: There is no such folder.
    """
    if not source:
        raise CheckpointError("model is '', expected a folder or 'builtin'")
    if source == BUILTIN:
        return builtin_folder()
    folder = Path(source).expanduser()
    try:
        if folder.is_dir():
            return folder
        found = folder.exists()
    except OSError as problem:
        raise CheckpointError(f"{source}: cannot be read ({problem.strerror})") from None
    if found:
        raise CheckpointError(f"{source}: is a file, expected a model folder", hint="give the folder that it lies in")
    raise CheckpointError(
        f"{source}: no such folder",
        hint=f"give the folder of a checkpoint, or '{BUILTIN}' for the built-in model; "
        "names from the Hugging Face hub are not read yet",
    )
