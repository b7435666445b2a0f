"""Draws the comparison of two models."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich

if TYPE_CHECKING:
    from mlxbert.export.compare.reports import OutputDifferences, Verification

_SHOWN, _EXAMPLES = 8, 3  # if there are more differences of a kind than _SHOWN, only _EXAMPLES are listed
_LARGEST = "largest difference"


def verification(result: "Verification") -> Iterator["rich.RenderableType"]:
    """Draws whether two models agree, their differences, and the measurements."""
    yield from console.facts(f"the models {_verdict(result)}", [("A", result.a), ("B", result.b)])
    yield from differences(result)
    if result.notes:
        yield from console.facts("notes", [("", note) for note in result.notes])
    yield from measured(result)


def _verdict(result: "Verification") -> str:
    if result.agree and result.outputs.tolerance is None:
        return "agree in what they are used for"
    if result.agree and result.outputs.texts is None:
        return "agree, and neither computes numbers"
    count = len(result.differences)
    return "agree" if result.agree else f"differ in {count:,} thing{'s' if count > 1 else ''}"


def differences(result: "Verification") -> Iterator["rich.RenderableType"]:
    """Draws a list for each kind of difference."""
    counts = result.tensors
    for kind in dict.fromkeys(difference.kind for difference in result.differences):
        texts = [difference.text for difference in result.differences if difference.kind == kind]
        lines = texts if len(texts) <= _SHOWN else texts[:_EXAMPLES]
        if kind == "tensor" and len(texts) > _SHOWN:
            lines.insert(0, f"{counts.different:,} of {counts.compared:,} tensors differ")
        if len(texts) > _SHOWN:
            lines.append(f"… and {len(texts) - _EXAMPLES:,} more")
        yield from console.facts(kind, [("", line) for line in lines])


def measured(result: "Verification", against: str = "") -> Iterator["rich.RenderableType"]:
    """Draws the counts of tensors and the differences of outputs, each below a heading.

    `against` is the end of the headings, such as ` against the source`.
    """
    labels = {"rounded": "equal once rounded"}
    counts = result.tensors.to_dict()
    if result.tensors.compared:
        yield from console.facts(
            f"tensors{against}", [(labels.get(name, name), f"{count:,}") for name, count in counts.items()]
        )
    if result.outputs.texts is not None:
        yield from console.facts(f"outputs{against}", outputs(result.outputs))


def outputs(compared: "OutputDifferences") -> Iterator[tuple[str, object]]:
    """Yields the name and the value of each measured difference of outputs."""
    from mlxbert.export.compare.fixed_texts import PAIRS, TEXTS

    yield "texts with the same tokens", f"{compared.texts} of {len(TEXTS) + len(PAIRS)}"
    if compared.last_hidden_state is not None:
        yield f"hidden states, {_LARGEST}", f"{compared.last_hidden_state:.6g}"
    for name, difference in compared.heads.items():
        yield f"logits of {name}, {_LARGEST}", f"{difference:.6g}"
    for name, share in compared.choices.items():
        yield f"same choices of {name}", f"{share:.1%}"
    if vectors := compared.vectors:
        yield "vectors, mean cosine", f"{vectors.mean_cosine:.6g}"
        yield "vectors, smallest cosine", f"{vectors.smallest_cosine:.6g}"
        yield f"vectors, {_LARGEST}", f"{vectors.largest_difference:.6g}"
    if masked := compared.fill_mask:
        yield "same first word", f"{round(masked.same_first_word * masked.masks)} of {masked.masks} masks"
        yield f"probabilities of words, {_LARGEST}", f"{masked.largest_score_difference:.6g}"
        yield "probabilities of words, kept", f"{masked.kept_probability:.6g}"
    if compared.tolerance is not None:
        yield "allowed difference", f"{compared.tolerance:.6g}"
