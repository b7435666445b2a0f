"""`mlxbert.distill_static`: makes a static model from an embedder, in the format of model2vec.

Each token of the vocabulary goes through the encoder alone; a principal component analysis (PCA) shortens the vectors,
and each vector is weighted by how rare its token is: a / (a + p) for a token of probability p (SIF, Arora et al. 2017).

Shapes: V tokens, D size of the teacher's vectors, K size of the static vectors.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Plain

from mlxbert.durable_files import sha256
from mlxbert.errors import ArgumentError, InputError
from mlxbert.export import card
from mlxbert.folders import atomic_folder, copied_files
from mlxbert.folders.atomic_folder import SAVED
from mlxbert.loading import load
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder, EmbeddingConfig
from mlxbert.option_declarations import COUNT, Bounds
from mlxbert.other_libraries import not_one_of
from mlxbert.progress import OnProgress
from mlxbert.readers.text_lines import UTF8
from mlxbert.results.json import NOT_IN_JSON
from mlxbert.results.result import Shown
from mlxbert.tasks.embed import EmbedTask
from mlxbert.tasks.options import EmbedOptions
from mlxbert.tasks.task import PreparedItem, check_finite
from mlxbert.text.encoding import Encoding, Pieces
from mlxbert.train.pretraining.corpus.documents import DocumentReader, check_files
from mlxbert.version import __version__
from mlxbert.weights.formats.safetensors import SINGLE
from mlxbert.weights.formats.static_table import MODEL2VEC, TABLE
from mlxbert.weights.hub.needed_files import CONFIG
from mlxbert.weights.save import write_file, write_json
from mlxbert.weights.tokenizers.tokenizer_files import TOKENIZER_JSON
from mlxbert.weights.write_sentence_transformers import write_embedder

_DTYPES = ("float32", "float16")
_MAX_LENGTH = 512  # tokens of a text that a static model reads
_UNUSED = re.compile(r"[\[<]unused_?\d+[\]>]")
_PART = 4096  # tokens between two calls of `on_progress`
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StaticDistillation(Shown):
    """A description of a static model that was written.

    Attributes:
        folder: The folder that was written.
        teacher: The name of the embedder.
        tokens: The number of tokens in the vocabulary.
        words: The number of these that were added from texts.
        dimensions: The size of a vector.
        variance: The share of the variance of the teacher's vectors that the static vectors keep.
        bytes: The total size of the files.
    """

    folder: Path = field(metadata=NOT_IN_JSON)
    teacher: str
    tokens: int
    words: int
    dimensions: int
    variance: float
    bytes: int


def distill_static(
    teacher: str | Path = "builtin",
    *,
    output: str | Path,
    texts: Sequence[str | Path] = (),
    words: int = 30_000,
    dimensions: int = 256,
    rarity: float = 1e-4,
    dtype: str = "float16",
    text_field: str = "text",
    encoding: str = UTF8,
    device: str = "auto",
    revision: str | None = None,
    offline: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> StaticDistillation:
    """Makes a static model from an embedder: a vector for each token, without an encoder.

    A static model embeds texts hundreds of times faster than its teacher, and less accurately. mlxbert, model2vec and
    sentence-transformers open the folder.

    Example:
        >>> mlxbert.distill_static("builtin", output="my-static")

    Args:
        teacher: The embedder: hub name, folder or `builtin`.
        output: The folder to write, new or empty.
        texts: Text files whose most frequent words become tokens; the tokens are then weighted by how often the texts
            contain them, otherwise by their rank in the vocabulary. The teacher needs a WordPiece vocabulary.
        words: The largest number of words that are added from `texts`.
        dimensions: The size of a vector, at most that of the teacher's vectors.
        rarity: The number a in the weight a / (a + p) of a token of probability p; the smaller it is, the less frequent
            tokens count. 0 weights all tokens equally.
        dtype: The dtype of the written table: `float32` or `float16`.
        text_field: The field of JSON objects that holds the text.
        encoding: The encoding of the files.
        device: See `load`.
        revision: See `load`.
        offline: See `load`.
        overwrite: Whether to replace a folder that an earlier call wrote.
        on_progress: Called with the number of tokens that have a vector, and the number of all tokens.

    Raises:
        ArgumentError: An argument is invalid, or the teacher is itself static.
        InputError: A file is unreadable or has no words.
        MlxbertError: The teacher cannot be loaded, or the folder cannot be written.
    """
    if dtype not in _DTYPES:
        raise not_one_of("dtype", dtype, _DTYPES)
    words = COUNT.check_whole("words", words)
    dimensions = COUNT.check_whole("dimensions", dimensions)
    rarity = Bounds(0, 1).check_number("rarity", rarity)
    paths = check_files(texts, text_field, "line") if texts else ()
    target = atomic_folder.check_target(output, None, overwrite)
    model = load(teacher, task="embed", device=device, revision=revision, offline=offline)
    if model.config.is_static:
        raise ArgumentError(f"`teacher` is {str(teacher)!r}, which is itself a static model, expected an encoder")
    atomic_folder.check_location(target, model.folder)
    counts = _count_words(model, paths, text_field, encoding) if paths else Counter[str]()
    vocabulary = _vocabulary(model, counts, words)
    table, variance = _table(model, vocabulary, dimensions, on_progress)
    stored = (table * _weights(vocabulary, counts, rarity)[:, None]).astype(dtype)
    if lost := int((table.any(axis=1) & ~stored.any(axis=1)).sum()):
        message = f"`rarity` is {rarity!r:.60}: the vectors of {lost:,} tokens become 0 in {dtype}"
        raise ArgumentError(message, hint="use a larger number such as 1e-4, or 0 for equal weights")
    with atomic_folder.unfinished_folder(target, model.folder, overwrite) as partial:
        settings = {"apply_pca": dimensions, "sif_coefficient": rarity or None}
        _write(partial, model, vocabulary, stored, settings, target.name)
        files = atomic_folder.written_files(partial)
        result = StaticDistillation(
            folder=target, teacher=str(teacher), tokens=len(vocabulary.tokens), words=len(vocabulary.added),
            dimensions=dimensions, variance=variance, bytes=sum(path.stat().st_size for path in files),
        )  # fmt: skip
        hashes = {path.relative_to(partial).as_posix(): sha256(path) for path in files}
        write_json(partial / SAVED, {"mlxbert": __version__, **result.to_dict(), "written": hashes})
        atomic_folder.move(partial, target)
    return result


@dataclass(frozen=True)
class _StaticVocabulary:
    tokens: tuple[str, ...]  # the tokens, by their new ids
    # The teacher's id of each token; `None` for added words, and for tokens that never get a vector.
    ids: tuple[int | None, ...]
    added: tuple[str, ...]  # the words that were added
    file: Mapping[str, Any]  # the content of `tokenizer.json`


def _count_words(model: Model, paths: Sequence[Path], text_field: str, encoding: str) -> Counter[str]:
    """Counts the words of texts, as the teacher's tokenizer separates them."""
    tokenizer = model.embed_tokenizer.files.tokenizer
    if json.loads(tokenizer.to_str())["model"]["type"] != "WordPiece":
        raise ArgumentError(
            "`texts` cannot be combined with this teacher, because its vocabulary is not WordPiece",
            hint="omit texts, or choose a teacher of the BERT family",
        )
    counts: Counter[str] = Counter()
    for part in DocumentReader(paths, field=text_field, documents="line", encoding=encoding):
        for sentence in part.sentences:
            plain = tokenizer.normalizer.normalize_str(sentence) if tokenizer.normalizer else sentence
            counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(plain))
    if not counts:
        raise InputError(f"{', '.join(map(str, paths[:3]))}: there are no words, expected texts")
    return counts


def _vocabulary(model: Model, counts: Counter[str], words: int) -> _StaticVocabulary:
    """Returns the vocabulary without special and unused tokens, and with the most frequent words of the texts.

    Only in a WordPiece vocabulary can tokens be removed. In others, these tokens keep their ids and get no vector.
    """
    file = json.loads(model.embed_tokenizer.files.tokenizer.to_str())
    special = model.embed_tokenizer.special
    kept_roles = {special.get(role) for role in ("unk", "pad")}
    removed = {entry["content"] for entry in file["added_tokens"] if entry["special"]} - kept_roles
    by_id = {number: token for token, number in model.embed_tokenizer.files.tokenizer.get_vocab().items()}
    removed |= {token for token in by_id.values() if _UNUSED.fullmatch(token)}
    file |= {"post_processor": None, "padding": None}
    file["truncation"] = {"direction": "Right", "max_length": _MAX_LENGTH, "strategy": "LongestFirst", "stride": 0}
    if file["model"]["type"] != "WordPiece":
        tokens = tuple(by_id.get(number, "") for number in range(max(by_id) + 1))
        ids = tuple(None if token in removed or token == "" else number for number, token in enumerate(tokens))
        return _StaticVocabulary(tokens, ids, (), file)
    kept = [(number, by_id[number]) for number in sorted(by_id) if by_id[number] not in removed]
    known = {token for _, token in kept} | removed
    added = tuple(word for word, _ in counts.most_common() if word not in known)[:words]
    tokens = (*(token for _, token in kept), *added)
    new = {token: number for number, token in enumerate(tokens)}
    file["added_tokens"] = [
        entry | {"id": new[entry["content"]]} for entry in file["added_tokens"] if entry["content"] in new
    ]
    file["model"]["vocab"] = new
    return _StaticVocabulary(tokens, (*(number for number, _ in kept), *[None] * len(added)), added, file)


def _table(
    model: Model, vocabulary: _StaticVocabulary, dimensions: int, on_progress: OnProgress | None
) -> tuple[_Floats, float]:
    """Returns the principal components (V, K) of the teacher's vectors, and the share of the variance they keep."""
    task = EmbedTask(model, EmbedOptions(pooling="mean", normalize=False, prompt=""))
    if dimensions > task.embedder.size:
        raise ArgumentError(f"`dimensions` is {dimensions}, but the teacher's vectors have {task.embedder.size} values")
    added = {*vocabulary.added}
    inputs: dict[int, Encoding] = {}
    for number, (token, old) in enumerate(zip(vocabulary.tokens, vocabulary.ids, strict=True)):
        if old is not None:
            inputs[number] = task.tokenizer.assemble([Pieces([old], [(0, 0)], [0])], truncated=False)
        elif token in added:
            inputs[number] = task.encode(token)
    numbers, vectors = [*inputs], np.zeros((len(vocabulary.tokens), task.embedder.size))
    for first in range(0, len(numbers), _PART):
        part = numbers[first : first + _PART]
        jobs = [PreparedItem(vocabulary.tokens[number], [inputs[number]], False) for number in part]
        vectors[part] = np.stack([outputs[0] for outputs in task.outputs(jobs)])
        if on_progress is not None:
            on_progress(first + len(part), len(numbers))
    if len(numbers) <= dimensions:
        raise ArgumentError(f"`dimensions` is {dimensions}, expected fewer than the {len(numbers)} tokens")
    kept, variance = _principal_components(vectors[numbers], dimensions)
    table = np.zeros((len(vectors), dimensions))
    table[numbers] = check_finite(kept, "vectors")
    return table, variance


def _principal_components(vectors: _Floats, count: int) -> tuple[_Floats, float]:
    """Returns the first components of centred vectors, and the share of the variance that they have."""
    centred = vectors - vectors.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    components = centred @ directions[:, ::-1][:, :count]
    signs = np.sign(components[np.abs(components).argmax(axis=0), np.arange(count)])  # the library may choose any
    share = float(values[::-1][:count].sum() / max(float(values.sum()), np.finfo(float).tiny))
    return components * np.where(signs == 0, 1, signs), min(share, 1.0)


def _weights(vocabulary: _StaticVocabulary, counts: Counter[str], rarity: float) -> _Floats:
    """Returns the weight of each token, (V,): from its frequency in the texts, otherwise by Zipf's law from its id."""
    size = len(vocabulary.tokens)
    if not rarity:
        return np.ones(size)
    if counts:
        shares = np.zeros(size)
        tokenizer = Plain.from_str(json.dumps(vocabulary.file))
        for word, count in counts.items():
            np.add.at(shares, tokenizer.encode(word, add_special_tokens=False).ids, count)
    else:
        shares = 1 / np.arange(2, size + 2)
    return rarity / (rarity + shares / shares.sum())


def _write(
    folder: Path, model: Model, vocabulary: _StaticVocabulary, table: NDArray[Any], settings: Mapping[str, Any],
    title: str,
) -> None:  # fmt: skip
    """Writes the files of model2vec, the modules of sentence-transformers, the licenses and the model card."""
    write_file(folder / SINGLE, {TABLE: mx.array(table)}, {"format": "pt"})
    tokenizer = Plain.from_str(json.dumps(vocabulary.file))
    (folder / TOKENIZER_JSON).write_text(tokenizer.to_str(), encoding="utf-8")
    width = table.shape[1]
    write_embedder(Embedder(EmbeddingConfig(normalize=True), width), folder, static=True)
    copied_files.copy_licenses(model.files, folder)
    source = Path(model.source)
    name = source.resolve().name if source.exists() else model.source
    text = [
        f"A static embedding model that mlxbert {__version__} made from {name}: {len(vocabulary.tokens):,} tokens with "
        f"a vector of {width} numbers each. The vector of a text is the mean of its tokens' vectors, scaled to length "
        "1. It has no encoder, so it is fast, and it ignores the order of words.",
        "",
        *card.examples("embed", title, "sentence-transformers"),
        "model2vec opens the folder, too: `StaticModel.from_pretrained`.",
        "",
    ]
    scores = card.Scores(task="embed", metrics={})
    written = card.trained(title, "\n".join(text), "sentence-transformers", model.source, model.files.path, scores)
    (folder / "README.md").write_text(written, encoding="utf-8")
    values = {"model_type": MODEL2VEC, "architectures": ["StaticModel"], "tokenizer_name": name, **settings}
    values |= {"hidden_dim": width, "normalize": True, "pooling": "mean", "max_length": _MAX_LENGTH}
    write_json(folder / CONFIG, values | {"embedding_dtype": str(table.dtype)})
