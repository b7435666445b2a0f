"""`mlxbert verify`."""

from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import Offline, OutputOptions
from mlxbert.cli.views import progress, verify as views
from mlxbert.option_declarations import TOLERANCE, Device, Option


def verify(
    out: OutputOptions,
    a: Annotated[str, typer.Argument(metavar="A", help="Hub name, folder of a checkpoint, or 'builtin'.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The model to compare it with.")],
    offline: Offline = False,
    tolerance: Annotated[
        float | None,
        Option(
            "Maximum difference between outputs. If tensors are equal only after rounding to float16 or bfloat16, the "
            "default is 0.02 or 0.2. Quantized models are judged by it only if you set it.",
            usual="0.0001",
            bounds=TOLERANCE,
        ),
    ] = None,
    device: Annotated[Device, Option("Device. With auto, the GPU if there is one.", panel="Model")] = "auto",
) -> None:
    """Check whether two models agree, and show what differs.

    Exit status: 0 if they agree, 1 if they differ or if one cannot be read; in the latter case stdout stays empty.

    Example: mlxbert verify builtin ./my-copy
    """
    from mlxbert.folders.verify import verify as compare

    with progress.download(f"{a} and {b}") as update:
        verification = compare(a, b, tolerance=tolerance, device=device, offline=offline, on_progress=update)
    session.show_object(verification.to_dict(), lambda: views.verification(verification), out)
    raise typer.Exit(0 if verification.agree else 1)
