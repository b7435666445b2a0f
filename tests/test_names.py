"""Names of files as on a Mac: accents may be decomposed, and one file answers to several spellings."""

import glob
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.output.resumable_file import check_output
from mlxbert.durable_files import identity
from mlxbert.errors import ArgumentError
from mlxbert.folders.atomic_folder import check_link_targets, check_target
from tests.helpers.rooms import needs

LABELS = ("Zürich", "ergänzt", "plain", "é")


def spelled(name: str, form: Any) -> str:
    """The name in a Unicode form."""
    return unicodedata.normalize(form, name)


def label_folder(folder: Path, form: str) -> Path:
    """Texts for each label, in folders and files whose names are in a Unicode form."""
    for label in LABELS:
        (folder / spelled(label, form)).mkdir(parents=True)
        for name in ("a.txt", "ä.txt", "b.txt"):
            path = folder / spelled(label, form) / spelled(name, form)
            path.write_text(f"{label} {name}", encoding="utf-8")
    return folder


@needs("train")
def test_labels_and_their_order_are_the_same_in_each_unicode_form(tmp_path: Path) -> None:
    from mlxbert.train.data.labelled_rows import read_rows

    composed, decomposed = (read_rows(label_folder(tmp_path / form, form)) for form in ("NFC", "NFD"))
    assert [row.values for row in decomposed] == [row.values for row in composed]
    assert {row.values["label"] for row in decomposed} == {*LABELS}
    assert [*decomposed.sha256.values()] == [*composed.sha256.values()]
    assert os.path.isdir(tmp_path / "NFD" / spelled("é", "NFD"))  # the file system kept the form


@needs("train")
def test_a_file_under_another_name_is_the_same(tmp_path: Path) -> None:
    from mlxbert.train.data.labelled_rows import read_rows
    from mlxbert.train.event_outputs import EventLog

    path, link = tmp_path / "x.jsonl", tmp_path / spelled("é.jsonl", "NFD")
    path.write_text('{"text": "a", "label": "b"}\n')
    os.link(path, link)
    with pytest.raises(ArgumentError, match="is also an input"):
        check_output(link, True, sources=[str(path)])
    with pytest.raises(ArgumentError, match="is also an input"):
        EventLog(link, [str(path)])
    with pytest.raises(ArgumentError, match="named twice"):
        read_rows([path, link])
    assert path.read_text() == '{"text": "a", "label": "b"}\n'


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which names are found whatever their case and Unicode form, as in a Mac's file system."""

    def folded(name: str) -> str:
        return unicodedata.normalize("NFD", name).casefold()

    def stored(path: Any) -> Any:
        if isinstance(path, int) or not Path(os.fsdecode(path)).is_relative_to(tmp_path):
            return path
        found = tmp_path
        for part in Path(os.fsdecode(path)).relative_to(tmp_path).parts:
            there = glob.glob("*", root_dir=found)
            found /= next((name for name in there if folded(name) == folded(part)), part)
        return found

    real = {name: getattr(os, name) for name in ("stat", "lstat")}
    for name, call in real.items():
        monkeypatch.setattr(os, name, lambda path, *rest, call=call, **more: call(stored(path), *rest, **more))
    return tmp_path


def test_a_folder_in_another_spelling_is_the_source(mac: Path) -> None:
    source = mac / "Modèle" / "weights"
    source.mkdir(parents=True)
    other = mac / spelled("modÈle", "NFD")
    assert identity(other / "WEIGHTS") == identity(source) != identity(mac)
    for target, said in (
        (other / "Weights", "is the folder of the source"),
        (other / "weights" / "b", "is inside the folder of the source"),
        (other, "contains the folder of the source"),
    ):
        with pytest.raises(ArgumentError, match=said):
            check_target(target, source, overwrite=True)
    with pytest.raises(ArgumentError, match="is a link into the folder to write"):
        check_link_targets(other, [source / "model.safetensors"])
    assert check_target(mac / "other", source, overwrite=True) == mac / "other"
