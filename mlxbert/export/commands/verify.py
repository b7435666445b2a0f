"""`mlxbert verify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.shared_options import ComputingOptions, InputOptions, Offline, OutputOptions
from mlxbert.cli.views import progress
from mlxbert.errors import ArgumentError
from mlxbert.export import views
from mlxbert.export.vector_verification import VectorCheckOptions
from mlxbert.option_declarations import TOLERANCE, Device, Option
from mlxbert.readers.vector_files import ARRAY

if TYPE_CHECKING:
    from mlxbert.export.vector_verification import VectorVerification


def verify(
    out: OutputOptions,
    source: InputOptions,
    check: VectorCheckOptions,
    a: Annotated[str, typer.Argument(metavar="A", help="Hub name, folder of a checkpoint, or 'builtin'.")],
    b: Annotated[str | None, typer.Argument(metavar="B", help="The model to compare it with.")] = None,
    against: Annotated[
        str | None,
        Option(
            "Check another program's vectors. A URL with OpenAI's or TEI's routes, or a file of "
            "vectors. --input has their texts, if the file does not. A server's key is in MLXBERT_API_KEY.",
            "URL|FILE",
            panel=VectorCheckOptions.panel,
        ),
    ] = None,
    offline: Offline = False,
    tolerance: Annotated[
        float | None,
        Option(
            "Maximum difference between outputs. If tensors are equal only after rounding to float16 or bfloat16, the "
            "default is 0.02 or 0.2. Quantized models are judged by it only if you set it. With --against, it is the "
            "maximum of 1 - cosine.",
            usual="0.0001",
            bounds=TOLERANCE,
        ),
    ] = None,
    device: Annotated[Device, Option("Device. With auto, the GPU if there is one.", panel="Model")] = "auto",
) -> None:
    """Check whether two models agree, or a model and another program's vectors.

    Exit status: 0 if they agree, 1 if they differ or if one cannot be read; in the latter case stdout stays empty.

    Vectors are checked with --against, as in: mlxbert verify builtin --against vectors.jsonl

    Example: mlxbert verify builtin ./my-copy
    """
    if against is not None:
        if b is not None:
            raise ArgumentError("B cannot be combined with --against", hint="omit B or --against")
        vectors = _check_vectors(against, source, check, ComputingOptions(a, offline=offline, device=device), tolerance)
        session.show_object(vectors.to_dict(), lambda: views.draw_vectors(vectors), out)
        raise typer.Exit(0 if vectors.agrees else 1)
    if b is None:
        raise ArgumentError("B is missing, expected a second model", hint="--against checks vectors of another program")
    changed = [name for name, value in (vars(check) | vars(source)).items() if value != _default(name)]
    if changed:
        raise ArgumentError(f"`{changed[0]}` works only with --against")
    from mlxbert.export.verify import verify as compare

    with progress.download(f"{a} and {b}") as update:
        verification = compare(a, b, tolerance=tolerance, device=device, offline=offline, on_progress=update)
    session.show_object(verification.to_dict(), lambda: views.verification(verification), out)
    raise typer.Exit(0 if verification.agree else 1)


def _default(name: str) -> object:
    return getattr(VectorCheckOptions, name, getattr(InputOptions, name, None))


def _check_vectors(
    against: str, source: InputOptions, check: VectorCheckOptions, computing: ComputingOptions, tolerance: float | None
) -> "VectorVerification":
    """Compares vectors of another program with those of the model that `computing` names."""
    texts = None
    if source.input:
        texts = []
        for record in open_input((), source, "text"):
            if record.problem is not None:
                raise record.located(record.problem)
            texts.append(record.text)
    elif Path(against).suffix.lower() == ARRAY:
        raise ArgumentError(
            f"{against}: holds vectors without their texts", hint="add the file that was embedded: --input FILE"
        )
    from mlxbert.export.against.verify_vectors import VECTOR_TOLERANCE, verify_vectors

    model = session.load(None, computing)
    with progress.waiting("computing") as show:
        allowed = VECTOR_TOLERANCE if tolerance is None else tolerance
        return verify_vectors(model, against, texts, tolerance=allowed, on_step=show, **vars(check))
