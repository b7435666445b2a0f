"""How the comparison of two models looks in a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlxbert.cli.views import console, rich

if TYPE_CHECKING:
    from mlxbert.folders.compare.reports import OutputDifferences, Verification

_SHOWN, _EXAMPLES = 8, 3  # if there are more differences of a kind than _SHOWN, only _EXAMPLES are listed
_APART = "largest difference"


def verification(found: "Verification") -> Iterator["rich.RenderableType"]:
    """Whether the models agree, what differs, and what was measured."""
    yield from console.facts(f"the models {_verdict(found)}", [("A", found.a), ("B", found.b)])
    yield from differences(found)
    if found.notes:
        yield from console.facts("notes", [("", note) for note in found.notes])
    yield from measured(found)


def _verdict(found: "Verification") -> str:
    if found.agree and found.outputs.tolerance is None:
        return "agree in what they are used for"
    if found.agree and found.outputs.texts is None:
        return "agree, and neither computes numbers"
    count = len(found.differences)
    return "agree" if found.agree else f"differ in {count:,} thing{'s' if count > 1 else ''}"


def differences(found: "Verification") -> Iterator["rich.RenderableType"]:
    """What differs, a list for each kind."""
    counts = found.tensors
    for kind in dict.fromkeys(difference.kind for difference in found.differences):
        texts = [difference.text for difference in found.differences if difference.kind == kind]
        lines = texts if len(texts) <= _SHOWN else texts[:_EXAMPLES]
        if kind == "tensor" and len(texts) > _SHOWN:
            lines.insert(0, f"{counts.different:,} of {counts.compared:,} tensors differ")
        if len(texts) > _SHOWN:
            lines.append(f"… and {len(texts) - _EXAMPLES:,} more")
        yield from console.facts(kind, [("", line) for line in lines])


def measured(found: "Verification", against: str = "") -> Iterator["rich.RenderableType"]:
    """The counts of tensors, and how far outputs are apart; `against` ends the headings."""
    labels = {"rounded": "equal once rounded"}
    counts = found.tensors.to_dict()
    yield from console.facts(
        f"tensors{against}", [(labels.get(name, name), f"{count:,}") for name, count in counts.items()]
    )
    if found.outputs.texts is not None:
        yield from console.facts(f"outputs{against}", outputs(found.outputs))


def outputs(found: "OutputDifferences") -> Iterator[tuple[str, object]]:
    """How far outputs are apart, in words."""
    from mlxbert.folders.compare.fixed_texts import PAIRS, TEXTS

    yield "texts with the same tokens", f"{found.texts} of {len(TEXTS) + len(PAIRS)}"
    if found.last_hidden_state is not None:
        yield f"hidden states, {_APART}", f"{found.last_hidden_state:.6g}"
    for name, apart in found.heads.items():
        yield f"logits of {name}, {_APART}", f"{apart:.6g}"
    for name, share in found.choices.items():
        yield f"same choices of {name}", f"{share:.1%}"
    if vectors := found.vectors:
        yield "vectors, mean cosine", f"{vectors.mean_cosine:.6g}"
        yield "vectors, smallest cosine", f"{vectors.smallest_cosine:.6g}"
        yield f"vectors, {_APART}", f"{vectors.largest_difference:.6g}"
    if masked := found.fill_mask:
        yield "same first word", f"{round(masked.same_first_word * masked.masks)} of {masked.masks} masks"
        yield f"probabilities of words, {_APART}", f"{masked.largest_score_difference:.6g}"
        yield "probabilities of words, kept", f"{masked.kept_probability:.6g}"
    if found.tolerance is not None:
        yield "allowed difference", f"{found.tolerance:.6g}"
