"""Files of JSON: arrays of records, wherever JSON lines are read."""

import io
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mlxbert.errors import InputError
from mlxbert.readers import json_records
from mlxbert.readers.formats import read_records
from tests.helpers.cases import together
from tests.helpers.rooms import needs
from tests.readers.test_records import contents, whole_records, write

RECORDS: list[dict[str, Any]] = [{"text": "the", "id": 1}, {"text": "cat\n", "more": [None, {"a": 0.5}]}]


@together("indent,ending", [(None, ""), (2, ".gz")])
def test_an_array_is_read_as_records(tmp_path: Path, indent: int | None, ending: str) -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(RECORDS, indent=indent).encode()
    path = write(tmp_path / f"in.json{ending}", raw)
    rows = whole_records(path)
    assert [dict(row.values) for row in rows] == RECORDS
    assert [row.where for row in rows] == [f"{path}, record 1", f"{path}, record 2"]
    records = [*read_records(path, keep=["id"])]
    assert [(one.text, one.values["id"], one.place) for one in records] == [
        ("the", 1, "record 1"), ("cat\n", None, "record 2"),
    ]  # fmt: skip


def test_records_that_are_none_fail_in_their_place() -> None:
    raw = io.BytesIO(b'[{"text": "the"}, 3, {"body": "x"}, {"text": 1}, {"text": "cat"}]')
    first, number, without, other, last = contents(read_records(raw, format="json"))
    assert (first, last) == ("the", "cat")
    for problem, said in ((number, "the record is a number"), (without, "no field 'text'"), (other, "is a number")):
        assert isinstance(problem, InputError) and said in problem.message
    raw.seek(0)
    with pytest.raises(InputError, match=r"record 2: the record is a number, expected a JSON object"):
        whole_records(raw, format="json")


@together(
    "raw,said",
    [
        (b'[{"text": "the"},\n{"text" 1}]', "line 2 column 9"),
        (b'[{"text": "the"} {"text": "cat"}]', "line 1 column 18"),
        (b'[{"text": "the"}', "line 1 column 17"),
        (b'[{"text": "the"}] x', "line 1 column 19"),
        (b"[" * 10**5, "not valid JSON"),
        (b"", "not valid JSON"),
        (b'[{"text": "a", "n": ' + b"1" * 5000 + b"}]", "a number has 5,000 digits"),
        (b'{"text": "the"}', "the content is an object, expected a JSON array"),
        (b'[\n{"text": "\xe9"}]', "line 2: byte 0xe9 at offset 12"),
        (b'[{"text": "the\0"}]', "line 1: the byte at offset 14 is zero"),
    ],
)
def test_damaged_json_names_its_position(raw: bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        list(read_records(io.BytesIO(raw), name="in.json"))
    assert caught.value.message.startswith("in.json") and said in caught.value.message


def test_json_has_a_limit_with_a_way_out() -> None:
    raw = b'[{"text": "the"},\n{"text": "cat"}]'
    with mock.patch.object(json_records, "_MAX_SIZE", 20), pytest.raises(InputError, match="more than 20") as caught:
        list(read_records(io.BytesIO(raw), format="json"))
    assert caught.value.hint and "jq" in caught.value.hint
    with mock.patch.object(json_records, "_MAX_SIZE", len(raw)):
        assert contents(read_records(io.BytesIO(raw), format="json")) == ["the", "cat"]


@needs("train")
def test_corpora_may_be_arrays(tmp_path: Path) -> None:
    from mlxbert.train.pretraining.corpus.documents import DocumentReader, check_files

    raw = '[{"text": "Café. Yes."}, {"text": "No."}]'.encode("latin-1")
    files = check_files([write(tmp_path / "in.json.gz", raw)], "text", "blank")
    parts = DocumentReader(files, encoding="latin-1")
    assert [[sentence.strip() for sentence in part.sentences] for part in parts] == [["Café.", "Yes."], ["No."]]
