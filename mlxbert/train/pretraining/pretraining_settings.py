"""The settings of a pre-training run, checked before it starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mlxbert.durable_files import to_path
from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import SMALLEST, Bounds, Option, check_fields
from mlxbert.readers.input_files import Stamp, hashed
from mlxbert.readers.text_lines import UTF8, check_encoding

if TYPE_CHECKING:
    from mlxbert.train.pretraining.examples import Pairs

_SHARE = Bounds(SMALLEST, 0.5)  # of the corpus, to evaluate on
DISTILLED = "mlm:2,soft:5,hidden:1"  # DistilBERT's terms and weights (arXiv:1910.01108)
Documents = Literal["blank", "line"]
_PAIRS: "dict[str, Pairs]" = {"nsp": "next", "sop": "order"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that decide how a corpus becomes examples."""

    panel: ClassVar[str] = "Data"
    corpus: tuple[Path, ...]  # the text files to train on
    valid: tuple[Path, ...] = ()  # other text files to evaluate on; if empty, a part of the corpus is held out
    field: Annotated[str, Option("Field with the text, in .jsonl and .json files.")] = "text"
    encoding: Annotated[str, Option("Text encoding, such as latin-1.")] = UTF8
    documents: Annotated[
        Documents, Option("What ends a document in .txt files. blank: a blank line. line: each line.")
    ] = "blank"
    across_documents: Annotated[bool, Option("Let examples continue in the next document.")] = False
    length: Annotated[str, Option("Tokens per example, or phases such as 128:0.9,512:0.1.", "N")] = "128"
    whole_words: Annotated[bool, Option("Mask all tokens of a word together.")] = False
    masks: Annotated[
        int | None,
        Option(
            "Reuse the masks of the first N epochs. By default each epoch has new ones.", bounds=Bounds(1, 1_000_000)
        ),
    ] = None
    mask_probability: Annotated[float, Option("Share of tokens to mask.", bounds=Bounds(SMALLEST, 0.9))] = 0.15
    validation_fraction: float = 0.01  # the share of examples to hold out
    generator: Annotated[
        float,
        Option(
            "Relative width of a new ELECTRA generator. The discriminator's width is 1.",
            usual="0.25",
            panel="Model",
            bounds=Bounds(0.01, 1),
        ),
    ] = 0.25
    shards: Path | None = None  # the folder that holds the token ids; by default a folder inside the unfinished output

    def __post_init__(self) -> None:
        if not self.corpus:
            raise ArgumentError("`corpus` is empty, expected one or more files")
        check_fields(self)
        check_encoding(self.encoding)
        _SHARE.check_number("validation_fraction", self.validation_fraction)

    @cached_property
    def hashes(self) -> Mapping[Path, tuple[str, Stamp]]:
        """The SHA-256, size and modification time of each file. Reading a file fails if it has changed since."""
        return {path: hashed(path) for path in (*self.corpus, *self.valid)}

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings by name, except the files and folders."""
        left_out = ("corpus", "valid", "shards")
        return {name: getattr(self, name) for name in (field.name for field in fields(self)) if name not in left_out}


def files_of(files: str | Path | Sequence[str | Path] | None, name: str) -> tuple[Path, ...]:
    """Converts a file, a list of files or `None` to a tuple of paths; `name` is the name of the argument in errors."""
    listed = [] if files is None else [files] if isinstance(files, str | Path) else [*files]
    for file in listed:
        if not isinstance(file, str | Path):
            raise ArgumentError(f"`{name}` has {file!r:.60}, expected file names")
    return tuple(to_path(file, name) for file in listed)


def pairs_of(terms: Sequence[str], across: bool) -> "Pairs | None":
    """Returns the kind of text pairs that the loss terms need; `None` if they need single texts."""
    names = [term for term in terms if term in _PAIRS]
    if len(names) > 1:
        raise ArgumentError(
            f"the objective has {' and '.join(names)}, which cannot be combined, because each needs different pairs"
        )
    if names and across:
        raise ArgumentError(f"`across_documents` is True, but {names[0]} takes its texts from a single document")
    return _PAIRS[names[0]] if names else None
