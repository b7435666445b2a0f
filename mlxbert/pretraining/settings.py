"""What is asked of a pre-training run, checked before hours of work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mlxbert.bounds import check_number, check_whole
from mlxbert.errors import ArgumentError
from mlxbert.files import to_path
from mlxbert.pretraining.examples import Pairs
from mlxbert.readers.inputs import Stamp, hashed

_PAIRS: dict[str, Pairs] = {"nsp": "next", "sop": "order"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How examples are made of a corpus.

    Attributes:
        corpus: The files.
        valid: The files of another corpus to evaluate on; empty to hold out a part.
        field: The field of the text in .jsonl files.
        documents: What separates documents in .txt files: `blank` lines, or every `line` is one.
        across_documents: Whether an example continues in the next document.
        length: Tokens of an example, or phases: `128:0.9,512:0.1`.
        whole_words: Whether all tokens of a word are hidden together.
        masks: So many passes hide other tokens, then they repeat; `None` if all passes differ.
        mask_share: The share of tokens that are hidden.
        validation_share: The share of examples that are held out.
        generator: Of ELECTRA, the width of a new generator as a share of the discriminator's.
        shards: The folder of the token ids; `None` for one beside the unfinished run.
    """

    corpus: tuple[Path, ...]
    valid: tuple[Path, ...] = ()
    field: str = "text"
    documents: str = "blank"
    across_documents: bool = False
    length: str = "128"
    whole_words: bool = False
    masks: int | None = None
    mask_share: float = 0.15
    validation_share: float = 0.01
    generator: float = 0.25
    shards: Path | None = None

    def __post_init__(self) -> None:
        if not self.corpus:
            raise ArgumentError("corpus is empty, expected files")
        if self.documents not in ("blank", "line"):
            raise ArgumentError(f"documents is {self.documents!r:.60}, expected blank or line")
        if self.masks is not None:
            check_whole("masks", self.masks)
        check_number("mask_share", self.mask_share)
        check_number("pretrain.validation_share", self.validation_share)
        check_number("generator", self.generator)

    @cached_property
    def hashes(self) -> Mapping[Path, tuple[str, Stamp]]:
        """The SHA-256 of each file, and what it was then: what is read later has to be the same.

        Raises:
            InputError: One cannot be read.
        """
        return {path: hashed(path) for path in (*self.corpus, *self.valid)}

    def to_dict(self) -> dict[str, Any]:
        """What decides the examples besides the files."""
        left_out = ("corpus", "valid", "shards")
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out}


def files_of(given: str | Path | Sequence[str | Path] | None, name: str) -> tuple[Path, ...]:
    """File names as paths.

    Raises:
        ArgumentError: One is something else.
    """
    listed = [] if given is None else [given] if isinstance(given, str | Path) else [*given]
    for one in listed:
        if not isinstance(one, str | Path):
            raise ArgumentError(f"{name} has {one!r:.60}, expected names of files")
    return tuple(to_path(one, name) for one in listed)


def pairs_of(terms: Sequence[str], across: bool) -> Pairs | None:
    """How two texts are put together for some terms.

    Raises:
        ArgumentError: The terms need different pairs, or pairs would cross the borders of documents.
    """
    wanted = [term for term in terms if term in _PAIRS]
    if len(wanted) > 1:
        raise ArgumentError(f"the objective has {' and '.join(wanted)}, expected one of them: both need other pairs")
    if wanted and across:
        raise ArgumentError(f"across_documents is True with {wanted[0]}, whose texts are of one document")
    return _PAIRS[wanted[0]] if wanted else None
