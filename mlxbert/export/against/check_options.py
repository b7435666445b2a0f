"""The options of `verify_vectors`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mlxbert.option_declarations import COUNT, Option, check_fields


@dataclass(frozen=True, kw_only=True)
class VectorCheckOptions:
    """Options that say which vectors are compared with which of the model's."""

    panel: ClassVar[str] = "Vectors of another program"
    prompt_name: Annotated[
        str | None,
        Option("Name of the prompt that is expected.", usual="the file's or the model's"),
    ] = None
    text_column: Annotated[str | None, Option("Column of the file of vectors with the text.", usual="guessed")] = None
    vector_column: Annotated[str | None, Option("Column of the file with the vector.", usual="guessed")] = None
    server_model: Annotated[str | None, Option("Name of the model on the server.", usual="its only one")] = None
    max_texts: Annotated[int, Option("Compare at most N texts. They are evenly spaced.", bounds=COUNT)] = 500

    def __post_init__(self) -> None:
        check_fields(self)
