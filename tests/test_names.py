"""Names of files as on a Mac: accents may be decomposed, and one file answers to several spellings."""

import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from mlxbert.cli.output.resumable_file import check_output
from mlxbert.durable_files import identity
from mlxbert.errors import ArgumentError
from mlxbert.folders.atomic_folder import check_link_targets, check_target
from tests.helpers.mac import MacDisk, decomposed
from tests.helpers.rooms import needs

LABELS = ("Zürich", "ergänzt", "plain", "é")


def label_folder(folder: Path, form: Any) -> Path:
    """Texts for each label, in folders and files whose names are in a Unicode form."""
    for label in LABELS:
        for name in ("a.txt", "ä.txt", "b.txt"):
            path = folder / unicodedata.normalize(form, f"{label}/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{label} {name}", encoding="utf-8")
    return folder


@needs("train")
def test_labels_and_their_order_are_the_same_in_each_unicode_form(tmp_path: Path) -> None:
    from mlxbert.train.data.labelled_rows import read_rows

    composed, other = (read_rows(label_folder(tmp_path / form, form)) for form in ("NFC", "NFD"))
    assert [row.values for row in other] == [row.values for row in composed]
    assert {row.values["label"] for row in other} == {*LABELS}
    assert [*other.sha256.values()] == [*composed.sha256.values()]
    assert os.path.isdir(tmp_path / "NFD" / decomposed("é"))  # the file system kept the form


@needs("train")
def test_a_file_under_another_name_is_the_same(tmp_path: Path) -> None:
    from mlxbert.train.data.labelled_rows import read_rows
    from mlxbert.train.event_outputs import EventLog

    path, link = tmp_path / "x.jsonl", tmp_path / decomposed("é.jsonl")
    path.write_text('{"text": "a", "label": "b"}\n')
    os.link(path, link)
    with pytest.raises(ArgumentError, match="is also an input"):
        check_output(link, True, sources=[str(path)])
    with pytest.raises(ArgumentError, match="is also an input"):
        EventLog(link, [str(path)])
    with pytest.raises(ArgumentError, match="named twice"):
        read_rows([path, link])
    assert path.read_text() == '{"text": "a", "label": "b"}\n'


def test_a_folder_in_another_spelling_is_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mac = MacDisk(tmp_path, monkeypatch).folder
    source = mac / "Modèle" / "weights"
    source.mkdir(parents=True)
    other = mac / decomposed("modÈle")
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
