"""Trains the vocabulary of a new model from text files, and writes it as a folder that transformers opens."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxbert.durable_files import sha256
from mlxbert.errors import InputError
from mlxbert.folders import atomic_folder
from mlxbert.folders.atomic_folder import VOCABULARY
from mlxbert.option_declarations import COUNT
from mlxbert.other_libraries import not_one_of
from mlxbert.progress import OnProgress
from mlxbert.readers.input_files import stamp_of
from mlxbert.readers.text_lines import UTF8
from mlxbert.results.json import NOT_IN_JSON
from mlxbert.results.result import Shown
from mlxbert.train.pretraining import subword_training
from mlxbert.train.pretraining.corpus.documents import DocumentReader, check_files
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.save import write_json
from mlxbert.weights.tokenizers.tokenizer_files import TOKENIZER_JSON, read_tokenizer

_LOG = logging.getLogger("mlxbert")
_MAX_LENGTH = 512
# Required keys of a configuration; the sizes are those of base models.
_BASE = {
    **{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    **{"hidden_act": "gelu", "max_position_embeddings": _MAX_LENGTH, "type_vocab_size": 2},
}
_FAIRSEQ = {"max_position_embeddings": _MAX_LENGTH + 2, "type_vocab_size": 1, "pad_token_id": 1}
_FAIRSEQ |= {"bos_token_id": 0, "eos_token_id": 2}
_BERT_TOKENS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_FAIRSEQ_TOKENS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"}
_FAIRSEQ_TOKENS |= {"mask": "<mask>"}


@dataclass(frozen=True)
class _Kind:
    train: Callable[..., subword_training.Subwords]  # the function that trains such a vocabulary
    tokenizer: str  # the class of the tokenizer in transformers
    model_type: str  # the model family that uses such a vocabulary
    tokens: Mapping[str, str]  # the special tokens by role
    config: Mapping[str, int]  # the keys of `config.json` other than the sizes


KINDS = {
    "wordpiece": _Kind(subword_training.word_piece, "BertTokenizer", "bert", _BERT_TOKENS, {"pad_token_id": 0}),
    "bpe": _Kind(subword_training.byte_pairs, "RobertaTokenizer", "roberta", _FAIRSEQ_TOKENS, _FAIRSEQ),
    "unigram": _Kind(subword_training.unigram, "XLMRobertaTokenizer", "xlm-roberta", _FAIRSEQ_TOKENS, _FAIRSEQ),
}


@dataclass(frozen=True)
class Vocabulary(Shown):
    """A description of a vocabulary that was written.

    Its JSON form is the manifest in the folder, which therefore does not contain the path of the folder.

    Attributes:
        folder: The folder that was written.
        kind: `wordpiece`, `bpe` or `unigram`.
        size: The number of tokens.
        wanted: The requested number of tokens; `size` is smaller if the corpus is too small.
        cased: Whether the vocabulary distinguishes case.
        files: The text files of the corpus.
        sentences: The number of sentences in the corpus.
        characters: The number of characters in the corpus.
        skipped: The number of unusable lines and records.
        problems: The reasons for the first skipped lines and records.
        frequent: The most frequent tokens that have several characters.
        written: The SHA-256 of each file in the folder, by name.
    """

    folder: Path = field(metadata=NOT_IN_JSON)
    kind: str
    size: int
    wanted: int
    cased: bool
    files: tuple[str, ...]
    sentences: int
    characters: int
    skipped: int
    problems: tuple[str, ...]
    frequent: tuple[str, ...]
    written: Mapping[str, str]


def vocabulary(
    files: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    kind: str = "wordpiece",
    size: int = 30_000,
    cased: bool = False,
    field: str = "text",
    documents: str = "blank",
    encoding: str = UTF8,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> Vocabulary:
    """Trains a vocabulary, and writes it as a folder for `mlxbert.new_model` and transformers.

    The same files give the same vocabulary, byte for byte.

    Example:
        >>> mlxbert.vocabulary(["articles.txt.gz"], "my-vocabulary", size=8000)

    Args:
        files: Text files: `.txt`, `.jsonl` or `.json`, optionally compressed with `.gz` or `.xz`.
        output: The folder to write, new or empty.
        kind: `wordpiece` like BERT, `bpe` like RoBERTa, or `unigram` like XLM-RoBERTa.
        size: The number of tokens, special tokens included.
        cased: Whether a `wordpiece` vocabulary distinguishes case; the other kinds always do.
        field: The field of JSON objects that holds the text.
        documents: Where a document of a .txt file ends: at an empty line (`blank`) or after each line (`line`). Each
            line is split into sentences.
        encoding: The encoding of the files.
        overwrite: Whether to replace a folder that an earlier call wrote.
        on_progress: Called with the number of bytes read and the total; the files are read twice.

    Raises:
        ArgumentError: An argument is invalid, or `size` is too small for the characters of the corpus.
        InputError: A file is unreadable or has no usable text.
        MlxbertError: The folder cannot be written.
    """
    if kind not in KINDS:
        raise not_one_of("kind", kind, KINDS)
    size = COUNT.check_whole("size", size)
    paths = check_files(files, field, documents)
    targets = [atomic_folder.check_target(output, path, overwrite) for path in paths]
    corpus = _CorpusSentences(paths, {"field": field, "documents": documents, "encoding": encoding}, on_progress)
    characters = subword_training.count_characters(corpus())
    if not characters.texts:
        raise InputError(f"{', '.join(map(str, paths[:3]))}: there is no text, expected sentences")
    cased = cased or kind != "wordpiece"
    trained = KINDS[kind].train(corpus, characters, size, cased=cased)
    if trained.size < size:
        _LOG.warning(
            "the vocabulary has only %s of %s tokens, because the corpus is too small", f"{trained.size:,}", f"{size:,}"
        )
    with atomic_folder.unfinished_folder(targets[0], paths[0], overwrite) as partial:
        _write(partial, KINDS[kind], trained, cased)
        names = [path.name for path in atomic_folder.written_files(partial)]
        result = Vocabulary(
            folder=targets[0], kind=kind, size=trained.size, wanted=size, cased=cased, files=tuple(map(str, paths)),
            sentences=characters.texts, characters=characters.total, skipped=corpus.skipped, problems=corpus.problems,
            frequent=trained.frequent, written={name: sha256(partial / name) for name in names},
        )  # fmt: skip
        manifest = json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n"
        (partial / VOCABULARY).write_text(manifest, encoding="utf-8")
        atomic_folder.move(partial, targets[0])
    return result


class _CorpusSentences:
    """Reads the sentences of a corpus. Each call reads the files again; training makes two calls."""

    def __init__(self, paths: Sequence[Path], options: Mapping[str, Any], on_progress: OnProgress | None) -> None:
        self._paths, self._options, self._on_progress = paths, options, on_progress
        self._stamps = [stamp_of(path) for path in paths]  # to refuse files that changed before the second pass
        self._before = 0
        self.skipped = 0
        self.problems: tuple[str, ...] = ()

    def __call__(self) -> Iterator[str]:
        reader = DocumentReader(self._paths, **self._options, stamps=self._stamps)
        for part in reader:
            yield from part.sentences
            if self._on_progress is not None:
                self._on_progress(self._before + reader.done, 2 * reader.total)
        self._before = reader.total
        self.skipped, self.problems = reader.place.skipped, reader.place.problems


def _write(folder: Path, kind: _Kind, trained: subword_training.Subwords, cased: bool) -> None:
    """Writes the vocabulary, the configuration files, and the `tokenizer.json` that mlxbert makes from them."""
    for name, content in trained.files.items():
        (folder / name).write_bytes(content)
    settings: dict[str, Any] = {"tokenizer_class": kind.tokenizer, "model_max_length": _MAX_LENGTH}
    settings |= {f"{role}_token": token for role, token in kind.tokens.items()}
    if kind.model_type == "bert":
        settings |= {"do_lower_case": not cased, "tokenize_chinese_chars": True, "strip_accents": None}
    else:
        mask = {"content": "<mask>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
        settings |= {"mask_token": {"__type": "AddedToken", **mask}}
    write_json(folder / "tokenizer_config.json", settings)
    config = {"model_type": kind.model_type, "vocab_size": trained.size} | _BASE | dict(kind.config)
    unfinished = ModelFolder(folder, described_by=ConfigJson(folder / "config.json", config))
    tokenizer = read_tokenizer(unfinished).tokenizer
    (folder / TOKENIZER_JSON).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    write_json(folder / "config.json", config)
