"""Whether two models whose weights are equal as far as quantized weights can tell still do the same work.

Weights of few bits allow no bound for numbers. What the models are used for is judged: vectors, words for masks, and
what heads choose, each by a number that says how much of it is kept.
"""

from collections.abc import Iterator

from mlxbert.folders.compare.reports import Difference, OutputDifferences
from mlxbert.weights.formats.quantized import BITS, GROUP_SIZES, Quantization

# The least that is kept where models agree. In 8 bits all-MiniLM keeps 0.9999 of its cosines, in 4 bits plainly rounded
# 0.96: vectors of the two should not be mixed.
LEAST_COSINE = 0.98  # of the vectors of a text, in the mean
LEAST_WORDS = 0.9  # e to the minus divergence (in nats) of the words for a mask, in the mean
LEAST_CHOICES = 0.9  # of the classes of texts and tokens, and of spans; the correlation of scores


def more_bits(how: Quantization) -> str:
    """What keeps more than weights that are quantized so."""
    smaller = f"group_size={min(GROUP_SIZES)}" if how.group_size > min(GROUP_SIZES) else ""
    more = "quantize=8" if how.bits < max(BITS) else ""
    return f"{' or '.join(filter(None, (more, smaller))) or 'a dtype without quantize'} keeps more"


def judge(found: OutputDifferences, *, makes_vectors: bool) -> Iterator[Difference]:
    """What is kept too little of.

    Args:
        found: How far the outputs are apart.
        makes_vectors: Whether the models are made for vectors; else these count only if there is nothing else.
    """
    kept: list[tuple[str, str, float, float]] = []
    for head, share in found.choices.items():
        kept.append((head, f"same choices of {head}", share, LEAST_CHOICES))
    if found.fill_mask is not None:
        kept.append(("masked_lm", "probabilities of words", found.fill_mask.kept_probability, LEAST_WORDS))
    if found.vectors is not None and (makes_vectors or not kept):
        kept.append(("vectors", "the cosine of a text's vectors", found.vectors.mean_cosine, LEAST_COSINE))
    for name, what, share, least in kept:
        if not share >= least:
            text = f"{what}: {share:.3f} in the mean, expected at least {least:g}"
            yield Difference("output", name, round(share, 6), least, text)
