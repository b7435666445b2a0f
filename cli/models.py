"""`mlxbert models …`."""

from mlxbert.cli import render, session
from mlxbert.cli.options import OutputOptions


def models_list(out: OutputOptions) -> None:
    """List the models that are on this machine.

    Example: mlxbert models list
    """
    from mlxbert.model import TASKS
    from mlxbert.weights.inspect import inspect_folder
    from mlxbert.weights.source import BUILTIN, builtin_folder

    found = inspect_folder(builtin_folder())
    model = {
        "name": BUILTIN,
        "family": found["family"],
        "parameters": found["parameters"]["total"],
        "max_length": found["max_length"],
        "tasks": [task for task, parts in TASKS.items() if set(parts) <= set(found["parts"])],
        "bytes": sum(path.stat().st_size for path in builtin_folder().rglob("*") if path.is_file()),
        "folder": found["folder"],
        "quality": session.BUILTIN_QUALITY,
    }
    rows = [(key, _shown(value)) for key, value in model.items()]
    session.show_object(model, lambda: render.facts(BUILTIN, rows[1:]), out)


def _shown(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return "; ".join(f"{task}: {quality}" for task, quality in value.items())
    return f"{value:,}" if isinstance(value, int) else value
