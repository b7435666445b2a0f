"""Reads a folder that has a subfolder of .txt files for each label."""

import hashlib
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from mlxbert.durable_files import is_system_file
from mlxbert.errors import InputError
from mlxbert.readers.input_files import open_source
from mlxbert.readers.parsing import Item
from mlxbert.readers.pipes import Opened
from mlxbert.readers.text_lines import Lines

_LAYOUT = "name the files LABEL/NAME.txt"


class LabelFolder(Opened):
    """The texts in the subfolders of a folder; the names of the subfolders are their labels.

    Files next to the subfolders, and hidden files, are left out. Names are normalized to NFC, because macOS may
    decompose them, and the same data must give the same labels in the same order everywhere.

    Args:
        path: The folder.
        name: The name of the folder in errors.
        encoding: The encoding of the files.

    Attributes:
        done: The number of bytes read so far.
    """

    done = 0

    def __init__(self, path: Path, name: str, encoding: str) -> None:
        self.name, self._encoding = name, encoding
        try:
            labels = [entry for entry in _visible(path) if entry.is_dir()]
            self._files = [(_name(label), file) for label in labels for file in _visible(label)]
        except OSError as problem:
            raise InputError(f"{name}: cannot be read ({problem.strerror})") from None
        if not labels:
            raise InputError(f"{name}: has no subfolders, expected a subfolder for each label", hint=_LAYOUT)
        for _, file in self._files:
            if file.suffix.lower() != ".txt" or not file.is_file():
                raise InputError(f"{file}: the folder of a label can contain only .txt files", hint=_LAYOUT)
        self._hash = hashlib.sha256()

    def __iter__(self) -> Iterator[Item]:
        """Yields each file's path, text and label; the files are sorted."""
        for label, path in self._files:
            with open_source(path, pipes=False) as file:
                lines = Lines(str(path), file, encoding=self._encoding)
                text = "\n".join(lines)
            self.done += lines.done
            for part in (label, _name(path), text):
                self._hash.update(part.encode("utf-8", "surrogateescape") + b"\0")
            yield str(path), {"text": text, "label": label}

    def sha256(self) -> str:
        """A hash of the labels, names and texts read so far, in hexadecimal digits."""
        return self._hash.hexdigest()


def _visible(folder: Path) -> list[Path]:
    files = (file for file in os.scandir(folder) if not file.name.startswith(".") and not is_system_file(file.name))
    return sorted(map(Path, files), key=_name)


def _name(path: Path) -> str:
    return unicodedata.normalize("NFC", path.name)
