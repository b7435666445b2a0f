"""Vocabularies: their tokens, their folders, that training them repeats, and that transformers opens them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError
from mlxbert.loading import load_tokenizer_of
from mlxbert.train.pretraining.corpus.token_writer import tokenize
from mlxbert.train.pretraining.vocabulary import KINDS, Vocabulary
from mlxbert.weights.model_source import ModelRef
from tests.helpers.program import call, names, snapshot, terminal
from tests.helpers.vocabularies import SENTENCES

FILES = {"wordpiece": ["vocab.txt"], "bpe": ["merges.txt", "vocab.json"], "unigram": ["sentencepiece.bpe.model"]}
SIZES = {"wordpiece": 110, "bpe": 300, "unigram": 60}
SPECIAL = {
    "wordpiece": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
    "bpe": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 299},
    "unigram": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 59},
}
TEXTS = (*SENTENCES, "naïve Tokyo  cats, 3,000 [MASK] <mask> <s>", "it's 日本語\tand 😀 İstanbul", "", "x")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES * 3), encoding="utf-8")
    return path


def train(corpus: Path, kind: str = "wordpiece", folder: str = "v", **options: Any) -> Vocabulary:
    return mlxbert.vocabulary([corpus], corpus.with_name(folder), kind=kind, **{"size": SIZES[kind]} | options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_of_a_vocabulary(corpus: Path, kind: str) -> None:
    found = train(corpus, kind)
    assert (found.kind, found.size, found.sentences) == (kind, SIZES[kind], 3 * len(SENTENCES))
    files = [*FILES[kind], "config.json", "tokenizer.json", "tokenizer_config.json", "vocabulary.json"]
    assert names(found.folder) == sorted(files)
    assert found.written.keys() == {*files} - {"vocabulary.json"}
    _, tokenizer = load_tokenizer_of(ModelRef(found.folder))
    assert {token: tokenizer.token_id(token) for token in SPECIAL[kind]} == SPECIAL[kind]
    assert (tokenizer.vocab_size, tokenizer.max_length) == (SIZES[kind], 512)
    for text in SENTENCES:
        ids = tokenizer.pieces(text)
        assert tokenizer.token_id(tokenizer.special["unk"]) not in ids
        expected = text.lower().replace("é", "e") if kind == "wordpiece" else text
        assert "".join(tokenizer.decode(ids).split()) == "".join(expected.split())


def test_words_of_wordpiece_are_cased_on_request_and_a_new_model_has_them(corpus: Path) -> None:
    folder = train(corpus, size=150, cased=True).folder
    config = json.loads((folder / "config.json").read_bytes())
    config |= {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = mlxbert.new_model(config, folder, heads={"masked_lm": None})
    assert model.config.vocab_size == 150 and len(mlxbert.fill_mask(model, "the [MASK] sat").masks) == 1
    assert model.tokenizer.token_id("P") is not None and not model.tokenizer.files.lower_cases
    assert "Paris" in model.tokenizer.decode(model.tokenizer.pieces("in Paris"))
    assert train(corpus, folder="w").frequent[0] == "the"


def test_bad_arguments_and_files_leave_nothing_behind(corpus: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        with pytest.raises(ArgumentError, match="`size` is 20, expected at least"):
            train(corpus, kind, size=20)
    with pytest.raises(ArgumentError, match="bpx"):
        mlxbert.vocabulary([corpus], tmp_path / "v", kind="bpx")
    with pytest.raises(InputError, match="missing"):
        train(tmp_path / "missing.txt")
    with pytest.raises(ArgumentError, match="contains"):
        mlxbert.vocabulary([corpus], tmp_path)
    assert names(tmp_path) == ["corpus.txt"]


def test_a_size_that_is_not_reached_is_said(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind in KINDS:
        found = train(corpus, kind, kind, size=5000)
        assert found.size < found.wanted == 5000
        assert f"{found.size:,}" in caplog.text
        assert json.loads((found.folder / "config.json").read_bytes())["vocab_size"] == found.size


def test_the_same_corpus_gives_the_same_files_and_a_folder_is_replaced_on_request(corpus: Path) -> None:
    first = snapshot(train(corpus).folder)
    with pytest.raises(ArgumentError) as caught:
        train(corpus)
    assert "overwrite" in (caught.value.hint or "")
    again = train(corpus, overwrite=True)
    assert snapshot(again.folder) == first
    (again.folder / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ArgumentError, match="mine"):
        train(corpus, overwrite=True)


def test_the_command_trains_and_tokenize_opens_the_result(corpus: Path) -> None:
    folder = str(corpus.with_name("v"))
    arguments = ["vocabulary", str(corpus), "--size", "110", "--documents", "line", "--output", folder]
    outcome = call(*arguments)
    assert outcome.status == 0
    (found,) = outcome.lines
    assert (found["folder"], found["kind"], found["size"]) == (folder, "wordpiece", 110)
    call(*arguments).fails(2, "--overwrite")
    call(*arguments[:2], "--output", f"{folder}2", "--size", "9").fails(2, "--size")
    shown, screen = terminal(*arguments, "--overwrite")
    assert shown.status == 0 and "wordpiece, lower-cased" in screen and "110" in screen
    tokens = call("tokenize", "the cat", "--model", folder).lines[0]["tokens"]
    assert [token["token"] for token in tokens][:2] == ["[CLS]", "the"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_opens_the_folder_and_gives_the_same_ids(corpus: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = train(corpus, kind).folder
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    _, ours = load_tokenizer_of(ModelRef(folder))
    assert (len(theirs), theirs.model_max_length) == (ours.vocab_size, ours.max_length)
    assert theirs.mask_token_id == ours.token_id(ours.special["mask"])
    assert transformers.AutoConfig.from_pretrained(folder).vocab_size == ours.vocab_size
    for text in TEXTS:
        assert theirs.encode(text) == ours.encode(text).ids
        assert theirs.encode(text, "the cat") == ours.encode(text, "the cat").ids
    special = {ours.token_id(token) for role, token in ours.special.items() if role != "unk"}
    assert not special & {int(number) % 2**15 for number in tokenize(ours, TEXTS, [True] * len(TEXTS)).ids}


TRAINED = "import sys, mlxbert; mlxbert.vocabulary([sys.argv[1]], sys.argv[2], kind=sys.argv[3], size=int(sys.argv[4]))"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_another_process_with_other_threads_writes_the_same_bytes(corpus: Path, kind: str) -> None:
    found = []
    for run in range(2):
        folder = corpus.with_name(f"v{run}")
        variables = os.environ | {"RAYON_NUM_THREADS": str(run + 1), "PYTHONHASHSEED": str(run)}
        arguments = [str(corpus), str(folder), kind, str(SIZES[kind])]
        subprocess.run([sys.executable, "-c", TRAINED, *arguments], env=variables, check=True)
        found.append(snapshot(folder))
    assert found[0] == found[1]
