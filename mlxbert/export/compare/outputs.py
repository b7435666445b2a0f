"""Measures the differences between the outputs of two models on the fixed texts, and judges them after quantization.

With few bits per weight, the difference of outputs has no useful bound. Instead, the results that matter in use are
judged: vectors, words for masks, and the choices of heads, each by a number from 0 to 1.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from mlxbert.errors import InputError, MlxbertError
from mlxbert.export.compare.compared_model import OpenedModel
from mlxbert.export.compare.facts import encoded, spelled
from mlxbert.export.compare.fixed_texts import MASKED, TEXTS
from mlxbert.export.compare.reports import Difference, MaskDifferences, OutputDifferences, VectorDifferences
from mlxbert.frozen_dict import FrozenDict
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.embedder import Embedder
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from mlxbert.results.text_results import FillMask
from mlxbert.tasks.embed import embed_stream
from mlxbert.tasks.fill_mask import fill_mask
from mlxbert.tasks.runner import run_batches
from mlxbert.tasks.task import NotFiniteError
from mlxbert.text.encoding import Encoding
from mlxbert.weights.formats.quantized import BITS, GROUP_SIZES, Quantization

Array: TypeAlias = "NDArray[np.float32]"


T = TypeVar("T")

_WORDS = 10  # the most probable ones for a mask are compared
_TINY = 1e-9  # a probability
_HIDDEN = "last_hidden_state"


def compare(a: OpenedModel, b: OpenedModel) -> tuple[OutputDifferences, dict[str, str]]:
    """Runs both models on the fixed texts and compares their outputs.

    Returns:
        The differences, whose `tolerance` is not set, and the error message of each model that failed, keyed by the
        model's letter, `A` or `B`. After an error, no further outputs are compared.
    """
    broken: dict[str, str] = {}
    differences = _network_differences(a, b, broken)
    first, second = a.embedder, b.embedder
    if not broken and isinstance(first, Embedder) and isinstance(second, Embedder) and first.size == second.size:
        differences = replace(differences, vectors=_vector_differences(a, b, broken))
    if not broken and a.has_loaded("masked_lm") and b.has_loaded("masked_lm"):
        differences = replace(differences, fill_mask=_mask_differences(a, b, broken))
    return differences, broken


def _on_each(a: OpenedModel, b: OpenedModel, compute: Callable[[OpenedModel], T], broken: dict[str, str]) -> list[T]:
    """Calls `compute` with each model; returns the results, and stores the message of each error in `broken`."""
    results = []
    for letter, model in (("A", a), ("B", b)):
        try:
            results.append(compute(model))
        except MlxbertError as problem:
            if isinstance(problem, InputError) and not isinstance(problem, NotFiniteError):
                raise
            broken[letter] = problem.message
    return results


def _network_differences(a: OpenedModel, b: OpenedModel, broken: dict[str, str]) -> OutputDifferences:
    inputs = [
        (encoding_a, encoding_b)
        for encoding_a, encoding_b in zip(encoded(a), encoded(b), strict=True)
        if spelled(a, encoding_a) == spelled(b, encoding_b) and encoding_a.token_type_ids == encoding_b.token_type_ids
    ]
    if not inputs:
        return OutputDifferences(texts=0)
    heads = [part for part in a.parts if part in HEADS and HEADS[part].scope != "vocabulary"]  # see `_mask_differences`
    heads = [part for part in heads if a.has_loaded(part) and b.has_loaded(part)]
    both = _on_each(a, b, lambda model: _run(model.model, [pair[model is b] for pair in inputs], heads), broken)
    if broken:
        return OutputDifferences()
    first, second = both
    differences = {}
    for name in (_HIDDEN, *heads):
        shapes = [outputs[0][name].shape for outputs in both]
        if shapes[0][1:] == shapes[1][1:] and shapes[0][-1:] == shapes[1][-1:]:
            differences[name] = max(_apart(x[name], y[name]) for x, y in zip(first, second, strict=True))
    hidden = differences.pop(_HIDDEN, None)
    choices = {name: _same_choices(name, [x[name] for x in first], [y[name] for y in second]) for name in differences}
    measured = {name: share for name, share in choices.items() if share is not None}
    return OutputDifferences(len(inputs), hidden, heads=FrozenDict(differences), choices=FrozenDict(measured))


def _same_choices(head: str, first: list["Array"], second: list["Array"]) -> float | None:
    """Returns how often a head makes the same choice in both models (see `OutputDifferences.choices`).

    `first` and `second` hold the logits of the two models, an array for each input.
    """
    if HEADS[head].scope == "span":  # (tokens, 2): the best token for each end
        same = [x.argmax(axis=0) == y.argmax(axis=0) for x, y in zip(first, second, strict=True)]
        return float(np.concatenate(same).mean())
    joined = np.stack if HEADS[head].scope == "text" else np.concatenate
    logits_a, logits_b = joined(first), joined(second)
    if logits_a.ndim == 1:  # a number for each token, whose sign is the choice
        return float(((logits_a > 0) == (logits_b > 0)).mean())
    if logits_a.shape[1] > 1:
        return float((logits_a.argmax(axis=1) == logits_b.argmax(axis=1)).mean())
    varies = logits_a.std() > 0 and logits_b.std() > 0
    return float(np.corrcoef(logits_a[:, 0], logits_b[:, 0])[0, 1]) if varies else None


def _apart(left: "Array", right: "Array") -> float:
    return float(abs(left - right).max(initial=0.0))


def _run(model: Model, encodings: Sequence[Encoding], heads: Sequence[str]) -> list[dict[str, "Array"]]:
    """Runs a model. Returns, for each input, the hidden states and the logits of each head, keyed by name."""
    network = model.network

    def forward(batch: Batch, group: list[int]) -> dict[str, mx.array]:
        output = network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        arrays: dict[str, mx.array] = {_HIDDEN: output.last_hidden_state}
        for name in heads:
            arrays[name] = network.logits(name, output)
        return {name: array.astype(mx.float32) for name, array in arrays.items()}

    def read(outputs: dict[str, mx.array], group: list[int]) -> list[dict[str, "Array"]]:
        arrays = {name: np.array(array) for name, array in outputs.items()}
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise MlxbertError(_not_finite(arrays))
        return [
            {
                name: array[row, : len(encodings[number])]
                if name == _HIDDEN or HEADS[name].scope in ("token", "span")
                else array[row]
                for name, array in arrays.items()
            }
            for row, number in enumerate(group)
        ]

    return list(run_batches(encodings, forward, read, model.config, None))


def _not_finite(arrays: Mapping[str, "Array"]) -> str:
    """Returns a message that names the first array with NaN or infinite numbers."""
    name, array = next((name, array) for name, array in arrays.items() if not np.isfinite(array).all())
    what = "hidden states" if name == _HIDDEN else f"logits of {name}"
    return f"the model computed {what} that are not numbers ({'NaN' if np.isnan(array).any() else 'infinite'})"


def _embeddings(model: OpenedModel) -> list[Embedding | Failure]:
    results = list(embed_stream(model.model, TEXTS, on_error="return"))
    for result in results:
        if isinstance(result, Failure) and isinstance(result.error, NotFiniteError):
            raise result.error
    return results


def _vector_differences(a: OpenedModel, b: OpenedModel, broken: dict[str, str]) -> VectorDifferences | None:
    results = _on_each(a, b, _embeddings, broken)
    if broken:
        return None
    cosines, differences = [], []
    for result_a, result_b in zip(*results, strict=True):
        if isinstance(result_a, Embedding) and isinstance(result_b, Embedding):
            x, y = result_a.embedding.astype(np.float64), result_b.embedding.astype(np.float64)
            length = float(np.linalg.norm(x) * np.linalg.norm(y)) or 1.0
            cosines.append(1.0 if (x == y).all() else float(x @ y) / length)  # exactly 1, whatever the rounding
            differences.append(_apart(result_a.embedding, result_b.embedding))
    if not cosines:
        return None
    return VectorDifferences(sum(cosines) / len(cosines), min(cosines), max(differences))


def _mask_differences(a: OpenedModel, b: OpenedModel, broken: dict[str, str]) -> MaskDifferences | None:
    count = min(_WORDS, a.model.tokenizer.vocab_size, b.model.tokenizer.vocab_size)
    try:
        results = _on_each(a, b, lambda model: list(fill_mask(model.model, list(MASKED), top_k=count)), broken)
    except InputError:  # a vocabulary without a mask token
        return None
    if broken:
        return None
    same, gaps, shares = [], [0.0], []
    for result_a, result_b in zip(*results, strict=True):
        assert isinstance(result_a, FillMask) and isinstance(result_b, FillMask)
        for mask_a, mask_b in zip(result_a.masks, result_b.masks, strict=False):  # a tokenizer may miss a mask
            same.append(mask_a.fills[0].token == mask_b.fills[0].token)
            scores = {fill.token: fill.score for fill in mask_b.fills}
            gaps += [abs(fill.score - scores[fill.token]) for fill in mask_a.fills if fill.token in scores]
            shares.append(math.exp(-_divergence({fill.token: fill.score for fill in mask_a.fills}, scores)))
    return MaskDifferences(len(same), sum(same) / len(same), sum(shares) / len(shares), max(gaps))


def _divergence(probabilities: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Returns the Kullback-Leibler divergence between two distributions of words, in nats.

    Only the most probable words are listed; all others together count as a single word.
    """
    least = min(*other.values(), max(1 - sum(other.values()), _TINY))  # no unlisted word is more probable
    listed = sum(p * math.log(p / max(other.get(word, least), _TINY)) for word, p in probabilities.items() if p > 0)
    rest, other_rest = (max(1 - sum(values.values()), _TINY) for values in (probabilities, other))
    return max(0.0, listed + rest * math.log(rest / other_rest))


# The minimum for models that agree. all-MiniLM in 8 bits has a mean cosine of 0.9999 with the original, in 4 bits with
# plain rounding 0.96: such vectors should not be mixed with the original ones.
LEAST_COSINE = 0.98  # of the two vectors of a text, on average
LEAST_WORDS = 0.9  # e to the minus divergence (in nats) of the words for a mask, on average
LEAST_CHOICES = 0.9  # share of equal classes of texts and tokens, and of equal spans; correlation of scores


def more_bits(how: Quantization) -> str:
    """Returns advice on which options keep more accuracy than this quantization."""
    smaller = f"`group_size={min(GROUP_SIZES)}`" if how.group_size > min(GROUP_SIZES) else ""
    more = "`quantize=8`" if how.bits < max(BITS) else ""
    return f"{' or '.join(filter(None, (more, smaller))) or 'a dtype without quantize'} keeps more"


def judge(found: OutputDifferences, *, makes_vectors: bool) -> Iterator[Difference]:
    """Yields a difference for each kind of result that differs too much.

    Args:
        makes_vectors: Whether the models are meant to make vectors. If not, vectors are judged only if the models have
            no other results.
    """
    measures: list[tuple[str, str, float, float]] = []
    for head, share in found.choices.items():
        measures.append((head, f"same choices of {head}", share, LEAST_CHOICES))
    if found.fill_mask is not None:
        measures.append(("masked_lm", "probabilities of words", found.fill_mask.kept_probability, LEAST_WORDS))
    if found.vectors is not None and (makes_vectors or not measures):
        measures.append(("vectors", "the cosine of a text's vectors", found.vectors.mean_cosine, LEAST_COSINE))
    for name, what, share, least in measures:
        if not share >= least:
            text = f"{what}: {share:.3f} on average, expected at least {least:g}"
            yield Difference("output", name, round(share, 6), least, text)
