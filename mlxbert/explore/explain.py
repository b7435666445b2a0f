"""Explains a result by the tokens that decided it: by integrated gradients, or by occlusion.

Integrated gradients (Sundararajan et al. 2017, arXiv:1703.01365) follow a straight line from a baseline, in which the
word vectors of the text are those of the padding token, to the text; the gradients of the score on the way, times the
difference of the vectors, add up to the difference of the scores. The line is sampled at the points of Gauss-Legendre,
as captum does it. Occlusion replaces a word by the mask token, or by padding, and looks how far the score falls.

Shapes: B batch, L length, E embedding size, N points on the line.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from mlxbert.errors import ArgumentError, InputError, MissingHeadError
from mlxbert.explore.options import ExplainOptions
from mlxbert.explore.results import SIMILARITY, Explanation, Share
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx, nn
from mlxbert.machine.device_errors import device_errors
from mlxbert.model import Model
from mlxbert.nn.embedder import Normalize
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.other_libraries import not_one_of
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.catalogue import find_task
from mlxbert.tasks.fill_mask import respell, target_ids
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.prompted_task import choose_prompt
from mlxbert.tasks.task import check_finite
from mlxbert.text.encoding import Encoding
from mlxbert.text.words import Span, split_words, trimmed, words_of_tokens

Array: TypeAlias = "NDArray[np.float32]"

_ROWS_TOKENS = 2048  # tokens per batch of points: gradients keep the arrays of all layers
_Score = Callable[[EncoderOutput], mx.array]  # output for B rows → the scores (B,)


class _GivenVectors(nn.Module):
    """Stands in for the table of word vectors, and returns given vectors (B, L, E) for any ids."""

    def __init__(self, table: nn.Module, vectors: mx.array) -> None:
        super().__init__()
        self.weight = table.weight  # tied heads and the encoder look at it
        self._vectors = vectors
        self._table = table

    def __call__(self, input_ids: mx.array) -> mx.array:
        """(B, L) → (B, L, E)."""
        return self._vectors

    def as_linear(self, x: mx.array) -> mx.array:
        """The table as a linear layer, for tied heads."""
        return self._table.as_linear(x)


@dataclass(frozen=True)
class _Explained:
    """A text, or a pair in one input, and the score of a target."""

    encoding: Encoding  # the input
    score: _Score  # computes the score from the output of the encoder
    target: str  # the name of the target
    texts: tuple[str, ...]  # the text, or the pair, as it was tokenized, but without a prompt
    prompt: int = 0  # the number of code points of the prompt before each text
    restore: Callable[[int], int] = int  # maps an offset in the tokenized text to the offset in the given text

    @property
    def spans(self) -> list[Span | None]:
        """The offsets of each token in its text (L,); `None` for special tokens and those of a prompt."""
        spans: list[Span | None] = []
        for number, place in zip(self.encoding.sequence_ids, self.encoding.offsets, strict=True):
            size = 0 if number is None else len(self.texts[number])
            start, end = (at - self.prompt for at in place)
            spans.append((max(start, 0), min(end, size)) if end > 0 and start < size else None)
        return spans

    @property
    def words(self) -> list[list[int]]:
        """The tokens of each word, in the order of the input; a blank token belongs to the word before it."""
        words: dict[tuple[int, int], list[int]] = {}
        owned = [*zip(self.encoding.sequence_ids, self.spans, strict=True)]
        for number, text in enumerate(self.texts):
            spans = {token: span for token, (owner, span) in enumerate(owned) if owner == number and span is not None}
            word = 0
            for token, found in zip(spans, words_of_tokens(text, spans.values(), split_words(text)), strict=True):
                word = word if found is None else found[0]
                words.setdefault((number, word), []).append(token)
        return [*words.values()]


@takes_keywords
def explain(model: Model, text: str, pair: str | None = None, *, options: ExplainOptions) -> Explanation:
    """Explains a result by the tokens and words that decided it.

    Example:
        >>> model = mlxbert.load("distilbert/distilbert-base-uncased-finetuned-sst-2-english")
        >>> result = mlxbert.explain(model, "A dull plot, but a wonderful cast.")
        >>> [(word.token, round(word.score, 2)) for word in result.words]

    Args:
        model: A model with the head of the task, or any model for `similarity`.
        text: The text; for `rerank` the query.
        pair: The second text: of a pair to classify, to compare, or to rank.
        options: See `ExplainOptions`.

    Raises:
        InputError: The text is unusable.
        ArgumentError: An argument has an invalid value, or the model cannot do the task.
    """
    check_model(model, text)
    for name, value in (("the text", text), ("the second text", pair)):
        if not isinstance(value, str) and (value is text or value is not None):
            raise InputError(f"{name} is {value!r:.60}, expected a string")
        if isinstance(value, str) and not value.strip():
            raise InputError(f"{name} is {value!r:.60}, expected one that is not empty")
    name = _task_of(model, pair) if options.task is None else options.task
    _check_unused(name, pair, options)
    try:
        model.require("embed" if name == "similarity" else "classify" if name == "rerank" else name)
    except MissingHeadError as problem:
        problem.hint = find_task("rerank").hint if name == "rerank" else problem.hint
        raise
    with _evaluating(model), device_errors():
        explained = _FINDERS[name](model, text, pair, options)
        parts = [_attribute(model, one, options) for one in explained]
    return _result(model, (text, pair), explained, parts, options.method)


def _check_unused(task: str, pair: str | None, options: ExplainOptions) -> None:
    """Raises ArgumentError for an argument that changes nothing in a task."""
    unused = {
        "pair": pair is not None and task in ("tag", "fill-mask"),
        "target": options.target is not None and task in ("similarity", "rerank"),
        "at": options.at is not None and task != "tag",
        "steps": options.steps != ExplainOptions().steps and options.method == "occlusion",
    }
    for name, is_unused in unused.items():
        if is_unused:
            hint = "omit the second text" if name == "pair" else f"omit `{name}=`"
            user = options.method if name == "steps" else task
            raise ArgumentError(f"`{name}` is given, but {user} does not use it", hint=hint)


def _task_of(model: Model, pair: str | None) -> str:
    """Returns the first task that the model can do with one text, or with two."""
    heads = model.network.heads
    if "sequence_classifier" in heads:
        return "rerank" if pair is not None and model.labels is not None and len(model.labels) == 1 else "classify"
    if pair is not None:
        return "similarity"
    if "token_classifier" not in heads and "masked_lm" not in heads:
        raise ArgumentError(
            f"{model.source} has no head whose result could be explained, only vectors",
            hint="give a second text, to explain how similar the two are",
        )
    return "tag" if "token_classifier" in heads else "fill-mask"


@contextlib.contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Puts the network into evaluation mode, with operations that have gradients, and keeps batches in one piece."""
    network = model.network
    training, divisible = network.training, network.encoder.divisible
    network.eval()
    network.encoder.divisible = False  # the word vectors of a batch are given as one array
    try:
        yield
    finally:
        network.encoder.divisible = divisible
        network.train(training)


def _head_score(model: Model, head: str, number: int, token: int | None = None) -> _Score:
    """Returns the function that computes a logit: of the text, or of one of its tokens."""

    def score(output: EncoderOutput) -> mx.array:
        if token is not None:
            rows = mx.arange(output.last_hidden_state.shape[0])
            output = output.select(rows, mx.full(rows.shape, token, mx.int32))
        return model.network.logits(head, output)[:, number].astype(mx.float32)

    return score


def _one_input(model: Model, text: str, pair: str | None) -> Encoding:
    return model.tokenizer.encode(text, pair, overflow="truncate")


def _space(model: Model, pair: str | None) -> int:
    """Returns how many code points the model's prompt adds before each text of a pair."""
    return 0 if pair is None else model.tokenizer.inside("", pair)[1].index(pair)


def _label(names: Sequence[str], target: str | None, logits: mx.array) -> int:
    """Returns the number of the label that is explained: the given one, or the one with the largest logit (C,)."""
    if target is None:
        return cast(int, mx.argmax(logits).item())
    if target not in names:
        raise not_one_of("target", target, names)
    return list(names).index(target)


def _find_classify(model: Model, text: str, pair: str | None, options: ExplainOptions) -> list[_Explained]:
    assert model.labels is not None  # a model with the head has labels
    encoding = _one_input(model, text, pair)
    names = model.labels.names
    number = _label(names, options.target, model.network.logits("sequence_classifier", _run(model, encoding))[0])
    texts = (text,) if pair is None else (text, pair)
    score = _head_score(model, "sequence_classifier", number)
    return [_Explained(encoding, score, names[number], texts, _space(model, pair))]


def _find_rerank(model: Model, text: str, pair: str | None, options: ExplainOptions) -> list[_Explained]:
    """The relevance of the second text to the first, which is the query."""
    if pair is None:
        raise ArgumentError("rerank ranks a text for a query, but only one text is given", hint="give the second text")
    score = _head_score(model, "sequence_classifier", 0)
    return [_Explained(_one_input(model, text, pair), score, "relevance", (text, pair), _space(model, pair))]


def _find_tag(model: Model, text: str, pair: str | None, options: ExplainOptions) -> list[_Explained]:
    if "token_classifier" not in model.network.heads or model.labels is None:
        raise ArgumentError("the model finds entities of any types, which cannot be explained")
    encoding, at = _one_input(model, text, None), options.at
    if at is None:
        raise ArgumentError("there is no word whose tag is explained", hint="add `at='WORD'`, a word of the text")
    match = re.search(rf"(?<!\w){re.escape(at)}(?!\w)", text) if at else None
    start = match.start() if match else text.find(at) if at else -1
    if start < 0:
        raise ArgumentError(f"`at` is {at!r:.60}, expected a word of the text")
    token = next((number for number, span in enumerate(encoding.offsets) if span[0] <= start < span[1]), None)
    if token is None:
        raise ArgumentError(f"`at` is {at!r:.60}, which is beyond the tokens that the model reads")
    logits = model.network.logits("token_classifier", _run(model, encoding))[0, token]
    number = _label(model.labels.names, options.target, logits)
    score = _head_score(model, "token_classifier", number, token)
    return [_Explained(encoding, score, model.labels.names[number], (text,))]


def _find_fill_mask(model: Model, text: str, pair: str | None, options: ExplainOptions) -> list[_Explained]:
    """A word in the place of the first mask."""
    tokenizer = model.tokenizer
    mask = None if tokenizer.mask_token is None else tokenizer.token_id(tokenizer.mask_token)
    spelled, restore = respell(text, tokenizer.mask_token or "")
    encoding = _one_input(model, spelled, None)
    if mask is None or mask not in encoding.ids:
        raise InputError(
            f"the text {text!r:.60} has no {tokenizer.mask_token or 'mask token'}",
            hint="put [MASK] where a word is missing, give a second text to explain a similarity, or another model to "
            "explain a label",
        )
    token, target = encoding.ids.index(mask), options.target
    if target is None:
        output = _run(model, encoding).select(mx.array([0]), mx.array([token]))
        number = cast(int, mx.argmax(model.network.logits("masked_lm", output)[0]).item())
    else:
        (number,) = target_ids(tokenizer, [target])
    score = _head_score(model, "masked_lm", number, token)
    return [_Explained(encoding, score, tokenizer.token(number), (spelled,), restore=restore)]


def _find_similarity(model: Model, text: str, pair: str | None, options: ExplainOptions) -> list[_Explained]:
    """The cosine of two texts: each is explained while the other stays as it is."""
    if pair is None:
        raise ArgumentError("similarity compares two texts, but only one text is given", hint="give the second text")
    embedder, prompt = model.embedder, choose_prompt(model.source, model.embedder.config, None, None)
    skip = model.embed_tokenizer.prompt_length(prompt) if prompt else 0
    encodings = [model.embed_tokenizer.encode(prompt + one, None, overflow="truncate") for one in (text, pair)]

    def vectors(output: EncoderOutput) -> mx.array:
        return Normalize()(embedder(output, None, skip))

    def compared(other: mx.array) -> _Score:
        return lambda output: (vectors(output) * other).sum(-1)

    fixed = [vectors(_run(model, encoding)) for encoding in encodings]
    return [
        _Explained(encoding, compared(other), SIMILARITY, (one,), len(prompt))
        for encoding, other, one in zip(encodings, reversed(fixed), (text, pair), strict=True)
    ]


_FINDERS: dict[str, Callable[[Model, str, str | None, ExplainOptions], list[_Explained]]] = {
    "classify": _find_classify,
    "tag": _find_tag,
    "fill-mask": _find_fill_mask,
    "similarity": _find_similarity,
    "rerank": _find_rerank,
}


def _run(model: Model, encoding: Encoding, vectors: mx.array | None = None) -> EncoderOutput:
    """Runs the encoder on an input, or on B rows of it with other word vectors (B, L, E)."""
    encoder = model.network.encoder
    rows = 1 if vectors is None else vectors.shape[0]
    ids, segments = (
        mx.broadcast_to(mx.array([values], mx.int32), (rows, len(encoding)))
        for values in (encoding.ids, encoding.token_type_ids)
    )
    needs = model.embedder.needs_attentions if model.embedders.get("dense") is not None else False
    if vectors is None:
        return encoder(ids, None, segments, output_attentions=needs)
    table = encoder.embeddings.word
    encoder.embeddings.word = cast(nn.Embedding, _GivenVectors(table, vectors))
    try:
        return encoder(ids, None, segments, output_attentions=needs)
    finally:
        encoder.embeddings.word = table


class _Attributed(NamedTuple):
    shares: "Array"  # of the tokens of an input in a score, (L,)
    score: float
    baseline: float  # the score of an input without content


def _attribute(model: Model, explained: _Explained, options: ExplainOptions) -> _Attributed:
    """Computes the shares of the tokens with one of the methods."""
    table, encoding = model.network.encoder.embeddings.word, explained.encoding
    mask = model.tokenizer.token_id(model.tokenizer.mask_token or "")
    neutral = model.config.pad_token_id if options.method == "gradients" or mask is None else mask
    kept = [span is None or id == mask for span, id in zip(explained.spans, encoding.ids, strict=True)]
    ids = mx.array([encoding.ids])
    here, there = table(ids), table(mx.where(mx.array([kept]), ids, neutral))
    score, baseline = _scores(model, explained, mx.concatenate([here, there]))
    attribute = _integrated if options.method == "gradients" else _occluded
    return _Attributed(attribute(model, explained, here, there, options.steps), score, baseline)


def _scores(model: Model, explained: _Explained, vectors: mx.array) -> list[float]:
    """Returns the scores of B rows of word vectors (B, L, E)."""
    rows = max(_ROWS_TOKENS // vectors.shape[1], 1)
    scores: list[float] = []
    for start in range(0, vectors.shape[0], rows):
        part = explained.score(_run(model, explained.encoding, vectors[start : start + rows]))
        scores += cast(list[float], part.tolist())
    return check_finite(scores)


def _integrated(model: Model, explained: _Explained, here: mx.array, there: mx.array, steps: int) -> "Array":
    """Integrates the gradients on the line between the word vectors (1, L, E) of the baseline and of the text."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    points, weights = (1 + points) / 2, weights / 2
    rows = max(_ROWS_TOKENS // here.shape[1], 1)

    def total(vectors: mx.array) -> mx.array:
        return explained.score(_run(model, explained.encoding, vectors)).sum()

    gradient = mx.grad(total)
    shares = np.zeros(here.shape[1], np.float64)
    for start in range(0, steps, rows):
        part = slice(start, start + rows)
        places = mx.array(points[part].astype(np.float32))[:, None, None].astype(here.dtype)
        slopes = gradient(there + places * (here - there))
        shares_here = ((here - there) * slopes).astype(mx.float32).sum(-1)
        shares += weights[part] @ np.array(shares_here, np.float64)
    return shares.astype(np.float32)


def _occluded(model: Model, explained: _Explained, here: mx.array, there: mx.array, steps: int) -> "Array":
    """Replaces each word by neutral tokens, and shares the fall of the score among the tokens of the word."""
    words = explained.words
    shares = np.zeros(here.shape[1], np.float32)
    if not words:
        return shares
    (whole,) = _scores(model, explained, here)
    rows = max(_ROWS_TOKENS // here.shape[1], 1)
    for start in range(0, len(words), rows):
        part = words[start : start + rows]
        hidden = np.zeros((len(part), here.shape[1], 1), bool)
        for row, tokens in enumerate(part):
            hidden[row, tokens] = True
        without = _scores(model, explained, mx.where(mx.array(hidden), there, here))
        for tokens, score in zip(part, without, strict=True):
            shares[tokens] = (whole - score) / len(tokens)
    return shares


def _result(
    model: Model,
    texts: tuple[str, str | None],
    explained: Sequence[_Explained],
    parts: Sequence[_Attributed],
    method: str,
) -> Explanation:
    """Makes the result from the shares of one input, or of the inputs of two texts."""
    tokens: list[Share] = []
    words: list[Share] = []
    gap = 0.0
    for number, (one, part) in enumerate(zip(explained, parts, strict=True)):
        encoding, shares, spans = one.encoding, part.shares.tolist(), one.spans
        gap += part.score - part.baseline - sum(shares)
        for token, share in enumerate(shares):
            which = (encoding.sequence_ids[token] or 0) + number
            start, end = map(one.restore, spans[token] or (0, 0))
            name = model.tokenizer.token(encoding.ids[token])
            tokens.append(Share(name, which, start, end, share))
        for members in one.words:
            own = encoding.sequence_ids[members[0]] or 0
            which, first, last = own + number, spans[members[0]], spans[members[-1]]
            text = texts[which]
            assert text is not None and first is not None and last is not None  # its tokens were read
            start, end = map(one.restore, trimmed(one.texts[own], (first[0], last[1])))
            words.append(Share(text[start:end], which, start, end, sum(shares[token] for token in members)))
    return Explanation(
        texts[0],
        texts[1],
        explained[0].target,
        method,
        parts[0].score,
        sum(part.baseline for part in parts) / len(parts),
        gap if method == "gradients" else None,
        tuple(tokens),
        tuple(words),
        any(one.encoding.truncated for one in explained),
    )
