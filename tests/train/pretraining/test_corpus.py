"""Corpora: documents of files, token ids on disk, interrupted runs."""

import gzip
import itertools
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.loading import load_tokenizer_of, new_model
from mlxbert.readers.pipes import LONGEST
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.train.pretraining.corpus import documents as reading, token_writer
from mlxbert.train.pretraining.corpus.documents import CorpusPosition, DocumentReader, check_files, split_sentences
from mlxbert.train.pretraining.corpus.token_store import Corpus, read_corpus
from mlxbert.train.pretraining.vocabulary import vocabulary
from mlxbert.weights.model_source import ModelRef
from tests.helpers.cases import together
from tests.helpers.tiny import save
from tests.helpers.vocabularies import put, trained

FILES = ("ids.bin", "sentences.bin", "documents.bin")
SIZES = {
    **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8},
    **{"max_position_embeddings": 20, "pad_token_id": 1},
}
TEXT = "The cat sat.\nThe dogs sat on mats.\n\n\nTokyo, Paris!\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer_of(ModelRef("builtin"))[1]


@pytest.fixture(scope="module")
def few_words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer of a small vocabulary, whose size each block asks for."""
    return load_tokenizer_of(ModelRef(save(tmp_path_factory.mktemp("tiny"))))[1]


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    if path.suffix in (".gz", ".xz"):
        data = gzip.compress(data) if path.suffix == ".gz" else lzma.compress(data)
    path.write_bytes(data)
    return path


def read(paths: list[Path], **options: Any) -> tuple[list[list[str]], CorpusPosition]:
    """The documents of files, their parts joined, and where reading ended."""
    reader = DocumentReader(check_files(paths, "text", "blank"), **options)
    found: list[list[str]] = [[]]
    for part in reader:
        found[-1] += part.sentences
        if not part.continues:
            found.append([])
    assert not found.pop()
    assert reader.done == reader.total == sum(path.stat().st_size for path in paths)
    return [one for one in found if one], reader.place


@pytest.mark.slow
def test_a_corpus_may_be_a_single_line_longer_than_a_record(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat " * (LONGEST // 20), encoding="utf-8")
    part = next(iter(DocumentReader([tmp_path / "a.txt"])))
    assert part.continues and part.sentences[0].startswith("the cat sat")


def test_files_become_documents(tmp_path: Path) -> None:
    lines = [{"text": "A cat. A dog."}, {"text": "One\ntwo. Three.\n\n"}, {"text": ""}]
    expected = [["The cat sat.", "The dogs sat on mats."], ["Tokyo, Paris!"]]
    for ending in ("", ".gz", ".xz"):
        text = write(tmp_path / f"a.txt{ending}", TEXT)
        objects = write(tmp_path / f"b.jsonl{ending}", "".join(json.dumps(line) + "\n" for line in lines))
        found, place = read([text, objects])
        assert found == [*expected, ["A cat.", "A dog."], ["One", "two.", "Three."]]
        assert (place.file, place.skipped, place.problems) == (2, 0, ())
    assert read([text], documents="line")[0] == [["The cat sat."], ["The dogs sat on mats."], ["Tokyo, Paris!"]]


@together("text,sentences", [
    ("One. Two? Three!", ["One.", "Two?", "Three!"]),
    ('He said "no." (He left.) She stayed, e.g. here.', ['He said "no."', "(He left.)", "She stayed, e.g. here."]),
    ("Version 3.5 is out.  日本", ["Version 3.5 is out.", "日本"]),
    ("  ", []),
])  # fmt: skip
def test_sentences_of_a_line(text: str, sentences: list[str]) -> None:
    assert list(split_sentences(text)) == sentences


def test_long_sentences_are_split_and_documents_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_PART", 50_000)
    path = write(tmp_path / "a.txt", f"{'word ' * 21_250}\n{'x' * 25_000}\n" + "A line.\n" * 8_000)
    parts = list(DocumentReader([path]))
    sentences = [sentence for part in parts for sentence in part.sentences]
    assert max(map(len, sentences)) <= reading.MAX_SENTENCE
    assert " ".join(sentences).split().count("word") == 21_250
    assert "".join(sentences).count("x") == 25_000
    assert len(parts) > 2 and [part.continues for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [part.resumable for part in parts].count(False) == 1  # the part that ends within a line


def test_what_cannot_be_used_is_skipped_and_named(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", b"good one\nLatin-1 \xe9\nzero\0byte\nstill the same\n")
    bad = ["{", "[1]", '{"other": "x"}', '{"text": 3}', '{"text": "\\ud800"}', '{"text": "fine here"}']
    objects = write(tmp_path / "b.jsonl", "\n".join([*bad, *["{"] * 30]))
    empty = write(tmp_path / "c.txt", "")
    found, place = read([text, objects, empty])
    assert found == [["good one", "still the same"], ["fine here"]]
    assert (place.skipped, place.empty, len(place.problems)) == (2 + 5 + 30, 1, reading.MAX_PROBLEMS)
    assert place.problems[0].startswith(f"{text}, line 2: ") and "0xe9" in place.problems[0]
    assert place.problems[2].startswith(f"{objects}, line 1: ")


@together("name,content,said", [
    ("a.txt", b"caf\xe9\n\xe9t\xe9\n", "encoding='latin-1'"),
    ("a.txt", b"PK\x03\x04 and more", "save the document"),
    ("a.txt", b"\0\0\0\n\0\0", "UTF-16"),
    ("a.jsonl", b'{"body": "x"}\n', "field="),
    ("a.txt", b"\xfd7zXZ\0 and more", ".xz"),
    ("a.txt", b"\n \n", ""),
    ("damaged.xz", lzma.compress(os.urandom(1000))[:-100], "xz"),
])  # fmt: skip
def test_a_file_without_a_usable_line_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name.replace("damaged", "a.txt")
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read([path])
    assert str(path) in caught.value.message and said in f"{caught.value.message} {caught.value.hint}"


def test_arguments_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    path, table = write(tmp_path / "a.txt", TEXT), write(tmp_path / "a.csv", TEXT)
    for wrong in (tmp_path, tmp_path / "missing.txt", "/dev/null"):
        with pytest.raises(InputError, match=str(wrong)):
            check_files([path, wrong], "text", "blank")
    for files, field, documents, said in (
        ([], "text", "blank", "file"), ([path], "", "blank", "field"), ([path], "text", "page", "page"),
        ([table], "text", "blank", r"a\.csv"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=said):
            check_files(files, field, documents)


def ends_of(corpus: Corpus) -> list[tuple[int, int]]:
    return [*itertools.pairwise([0, *corpus.sentences[:].tolist()])]


def test_a_corpus_holds_tokens_sentences_and_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.txt", "Hello, playwrights!\n\u200b\nA cat.\n\n\u200b\n\nTokyo.\n")
    seen: list[tuple[int, int]] = []
    corpus = read_corpus([path], tmp_path / "c", tokenizer, on_progress=lambda *now: seen.append(now))
    sentences = [[tokenizer.token(number) for number in corpus.tokens(*ends).tolist()] for ends in ends_of(corpus)]
    assert sentences == [["hello", ",", "playwright", "##s", "!"], ["a", "cat", "."], ["tokyo", "."]]
    assert corpus.documents[:].tolist() == [2, 3]
    assert corpus.continues(0, 5).tolist() == [False, False, False, True, False]
    assert corpus.tokens(3, 4).dtype == np.int32 and corpus.ids.dtype == np.uint16
    report = corpus.report
    assert (report.documents, report.sentences, report.tokens, report.unknown) == (2, 3, 10, 0)
    assert report.bytes == path.stat().st_size and seen[-1] == (report.bytes, report.bytes)
    assert sorted(one.name for one in (tmp_path / "c").iterdir()) == sorted([*FILES, "corpus.json"])


def test_special_tokens_spelled_out_are_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.txt", "a [MASK] and [SEP] or <mask> here\n")
    corpus = read_corpus([path], tmp_path / "c", tokenizer)
    special = {tokenizer.token_id(token) for token in tokenizer.special.values()}
    assert not special & {*corpus.tokens(0, corpus.report.tokens).tolist()}
    files: dict[str, Any] = {"sentencepiece.bpe.model": trained()}
    files["config.json"] = {"model_type": "xlm-roberta", "vocab_size": 100, **SIZES}
    files["tokenizer_config.json"] = {"tokenizer_class": "XLMRobertaTokenizer"}
    pieces = load_tokenizer_of(ModelRef(put(tmp_path / "v", files)))[1]
    corpus = read_corpus([path], tmp_path / "d", pieces)  # of <mask> this vocabulary makes the mask token
    assert pieces.token_id("<mask>") not in corpus.tokens(0, corpus.report.tokens)
    assert pieces.encode("a <mask>").ids.count(pieces.token_id("<mask>") or -1) == 1  # elsewhere it stays one


def content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


@pytest.fixture
def paths(tmp_path: Path, few_words: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files of long documents and skipped lines, which were read as a whole, and now take several blocks and parts."""
    text = "\n\n".join("\n".join(f"Sentence {n} of {d}, here." for n in range(d % 7 + 1)) for d in range(20))
    lines = b"bad \xe9\n" + b'{"text": "A record. Of two."}\n' * 20
    contents: dict[str, str | bytes] = {"a.txt": text, "b.jsonl.gz": lines, "c.txt.xz": text}
    found = [write(tmp_path / name, content) for name, content in contents.items()]
    read_corpus(found, tmp_path / "whole", few_words)
    monkeypatch.setattr(token_writer, "BLOCK", 50)
    monkeypatch.setattr(token_writer, "BATCH_SENTENCES", 3)
    monkeypatch.setattr(reading, "MAX_PART", 60)
    return found


def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path: Path, few_words: Tokenizer, paths: list[Path]) -> None:
    append, calls, found, interruptions = token_writer.TokenWriter._append, itertools.count(1), None, 0

    def interrupted(self: Any, parts: Any) -> None:
        append(self, parts)
        if next(calls) % 17 == 0:
            raise KeyboardInterrupt

    with mock.patch.object(token_writer.TokenWriter, "_append", interrupted):
        while found is None:
            try:
                found = read_corpus(paths, tmp_path / "c", few_words)
            except KeyboardInterrupt:
                interruptions += 1
    assert interruptions > 2 and content(tmp_path / "c") == content(tmp_path / "whole")
    whole = read_corpus(paths, tmp_path / "whole", few_words)
    assert replace(found.report, seconds=0) == replace(whole.report, seconds=0)
    assert found.report.skipped == 1


def test_a_full_disk_keeps_what_is_committed(tmp_path: Path, few_words: Tokenizer, paths: list[Path]) -> None:
    full = [None] * 12 + [OSError(28, "No space left on device")] * 9
    with mock.patch.object(os, "fsync", side_effect=full), pytest.raises(MlxbertError, match="No space") as caught:
        read_corpus(paths, tmp_path / "c", few_words)
    assert caught.value.hint
    committed = json.loads((tmp_path / "c" / "corpus.json").read_bytes())
    assert committed["tokens"] > 50 and not committed["complete"]
    read_corpus(paths, tmp_path / "c", few_words)
    assert content(tmp_path / "c") == content(tmp_path / "whole")


def test_a_finished_corpus_is_opened_and_a_changed_one_read_again(tmp_path: Path, few_words: Tokenizer) -> None:
    path = write(tmp_path / "a.txt", TEXT)
    read_corpus([path], tmp_path / "c", few_words)
    with mock.patch.object(token_writer.TokenWriter, "write", side_effect=AssertionError):
        assert read_corpus([path], tmp_path / "c", few_words).report.documents == 2
    assert read_corpus([path], tmp_path / "c", few_words, documents="line").report.documents == 3
    write(path, TEXT + "\nAnother one.\n")
    assert read_corpus([path], tmp_path / "c", few_words).report.documents == 3
    (tmp_path / "c" / "ids.bin").write_bytes(b"")
    assert read_corpus([path], tmp_path / "c", few_words).report.tokens > 10


def test_a_corpus_of_single_tokens_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            read_corpus([path], tmp_path / "c", tokenizer)
        assert caught.value.hint


KILLED = """
import sys
from pathlib import Path
from mlxbert.loading import load_tokenizer_of
from mlxbert.train.pretraining.corpus import token_writer as writer
from mlxbert.train.pretraining.corpus.token_store import read_corpus
from mlxbert.weights.model_source import ModelRef
writer.BLOCK = 3000
writer.BATCH_SENTENCES = 100
read_corpus([sys.argv[1]], Path(sys.argv[2]), load_tokenizer_of(ModelRef("builtin"))[1])
"""


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines = (f"Sentence {number} of a text that is killed.\n" + "\n" * (number % 9 == 0) for number in range(15_000))
    path = write(tmp_path / "a.txt", "".join(lines))
    whole, folder = tmp_path / "whole", tmp_path / "c"
    read_corpus([path], whole, tokenizer)
    state, kills = folder / "corpus.json", 0
    for delay in (0.05, 0.2, None):
        variables = os.environ | {"RAYON_NUM_THREADS": str(1 + kills % 2)}  # the number of threads does not matter
        running = subprocess.Popen([sys.executable, "-c", KILLED, str(path), str(folder)], env=variables)
        before = state.stat().st_mtime_ns if state.exists() else 0
        while delay is not None and running.poll() is None:
            if state.exists() and state.stat().st_mtime_ns != before:
                time.sleep(delay)
                running.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.005)
        running.wait()
    assert kills == 2
    assert content(folder) == content(whole)


def test_sentences_within_a_document_follow_a_space(tmp_path: Path) -> None:
    """In a byte-level vocabulary the first word of a text is another token than the same word after a space."""
    text = write(tmp_path / "text.txt", "the cat sat. The dog sat. " * 40)
    files = vocabulary([text], tmp_path / "bpe", kind="bpe", size=300)
    tokenizer = new_model({"model_type": "roberta", "vocab_size": files.size, **SIZES}, files.folder).tokenizer
    path = write(tmp_path / "two.txt", "the cat sat. The dog.\nThe end.\n\nThe cat.\n")
    found = read_corpus([path], tmp_path / "corpus", tokenizer)
    texts = [tokenizer.decode(found.tokens(*ends).tolist()) for ends in ends_of(found)]
    assert texts == ["the cat sat.", " The dog.", " The end.", "The cat."]
