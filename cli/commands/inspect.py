"""`mlxbert inspect`."""

from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.options import Offline, OutputOptions, Revision
from mlxbert.cli.views import inspect as views, progress
from mlxbert.options import Option


def inspect(
    out: OutputOptions,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", envvar="MLXBERT_MODEL", help="Hub name, folder or 'builtin'."),
    ] = "builtin",
    revision: Revision = None,
    offline: Offline = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also show the configuration and all parts. With mlxbert's name for each tensor."),
    ] = False,
    tensors: Annotated[bool, Option("Like --all, with every tensor. Not one line for all layers.")] = False,
) -> None:
    """Describe a model without running it: what it is and can do, its size, whether that fits here, and what is wrong.

    Only the headers of the weights are read. Safetensors files on the hub that are not in the cache are not
    downloaded.

    Example: mlxbert inspect builtin
    """
    from mlxbert.folders.inspect import inspect as look
    from mlxbert.machine import device

    device.use()
    with progress.download(model) as update:
        found = look(model, revision=revision, offline=offline, on_progress=update)
    session.show_object(
        found.to_dict(),
        lambda: views.inspection(found, whole=tensors) if everything or tensors else views.short(found, model),
        out,
    )
