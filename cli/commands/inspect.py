"""`mlxbert inspect`."""

from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import Offline, OutputOptions, Revision
from mlxbert.cli.views import inspect as views, progress
from mlxbert.option_declarations import Option


def inspect(
    out: OutputOptions,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", envvar="MLXBERT_MODEL", help="Hub name, folder or 'builtin'.")
    ] = "builtin",
    revision: Revision = None,
    offline: Offline = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show the configuration and all parts, with mlxbert's own tensor names.")
    ] = False,
    tensors: Annotated[bool, Option("Like --all, but with a line for every tensor.")] = False,
) -> None:
    """Describe a model without running it: kind, tasks and size, whether it fits this machine, and its problems.

    Only the headers of the weights are read. Safetensors files that are not in the cache are not downloaded.

    Example: mlxbert inspect builtin
    """
    from mlxbert.folders.inspect import inspect as inspect_model
    from mlxbert.machine import device

    device.use()
    with progress.download(model) as update:
        inspected = inspect_model(model, revision=revision, offline=offline, on_progress=update)
    session.show_object(
        inspected.to_dict(),
        lambda: views.inspection(inspected, whole=tensors) if everything or tensors else views.short(inspected, model),
        out,
    )
