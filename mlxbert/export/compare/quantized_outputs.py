"""Judges whether two models whose weights are equal up to quantization still give the same results.

With few bits per weight, the difference of outputs has no useful bound. Instead, the results that matter in use are
judged: vectors, words for masks, and the choices of heads, each by a number from 0 to 1.
"""

from collections.abc import Iterator

from mlxbert.export.compare.reports import Difference, OutputDifferences
from mlxbert.weights.formats.quantized import BITS, GROUP_SIZES, Quantization

# The minimum for models that agree. all-MiniLM in 8 bits has a mean cosine of 0.9999 with the original, in 4 bits with
# plain rounding 0.96: such vectors should not be mixed with the original ones.
LEAST_COSINE = 0.98  # of the two vectors of a text, on average
LEAST_WORDS = 0.9  # e to the minus divergence (in nats) of the words for a mask, on average
LEAST_CHOICES = 0.9  # share of equal classes of texts and tokens, and of equal spans; correlation of scores


def more_bits(how: Quantization) -> str:
    """Returns advice on which options keep more accuracy than this quantization."""
    smaller = f"group_size={min(GROUP_SIZES)}" if how.group_size > min(GROUP_SIZES) else ""
    more = "quantize=8" if how.bits < max(BITS) else ""
    return f"{' or '.join(filter(None, (more, smaller))) or 'a dtype without quantize'} keeps more"


def judge(found: OutputDifferences, *, makes_vectors: bool) -> Iterator[Difference]:
    """Yields a difference for each kind of result that differs too much.

    Args:
        found: The measured differences of the outputs.
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
