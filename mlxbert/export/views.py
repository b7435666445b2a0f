"""Draws the results of this room in a terminal: verifications, conversions and uploads."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Cell, Column, PlainTable

if TYPE_CHECKING:
    from mlxbert.export.compare.reports import Conversion, GgufConversion, OutputDifferences, Verification
    from mlxbert.export.vector_verification import VectorSizes, VectorVerification


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


_NAMES = 3  # names
# Optimizer states and training counters, by the last part of a tensor's name.
TRAINING = re.compile(
    r"(.*[/.])?(adam\w*|lamb\w*|momentum\w*|exp_avg\w*|ExponentialMovingAverage"
    r"|global_step|beta\d_power|(current_)?loss_scale\w*|(good|bad)_steps\w*)",
    re.I,
)


def conversion(result: "Conversion") -> Iterator["rich.RenderableType"]:
    """Draws which files were written, and how the result differs from the source."""
    rows: list[tuple[str, object]] = [
        ("from", f"{result.source} ({result.family}, {result.format})"),
        ("files", f"{len(result.written)} and a manifest, {console.size(result.bytes)}"),
    ]
    rows += [("changed", sentence) for sentence in result.changed or ("nothing",)]
    optimizer = [name for name in result.left_out if TRAINING.fullmatch(name)]
    tensors = [name for name in result.left_out if not TRAINING.fullmatch(name)]
    rows += [("left out", _named(console.counted(len(tensors), "tensor"), tensors))] if tensors else []
    rows += [("left out", _named(f"{len(optimizer):,} of an optimizer", optimizer))] if optimizer else []
    yield from console.facts(str(result.folder), rows)
    comparison = result.difference
    if not comparison.agree:
        yield from console.facts("the result does not agree with its source", [])
        yield from differences(comparison)
    if comparison.notes:
        yield from console.facts("notes on source (A) and result (B)", [("", note) for note in comparison.notes])
    yield from measured(comparison, " against the source")


def gguf_file(result: "GgufConversion") -> Iterator["rich.RenderableType"]:
    """Draws what a GGUF file holds."""
    rows: list[tuple[str, object]] = [
        ("from", f"{result.source} ({result.family})"),
        ("runs as", f"{result.architecture}, {result.pooling}"),
        ("size", f"{console.size(result.bytes)}, {console.counted(result.tensors, 'tensor')}, {result.type}"),
    ]
    yield from console.facts(str(result.file), rows + [("left out", phrase) for phrase in result.left_out])


def _named(what: str, names: list[str]) -> str:
    more = ", …" if len(names) > _NAMES else ""
    return f"{what}: {', '.join(names[:_NAMES])}{more}"


def draw_vectors(result: "VectorVerification") -> Iterator["rich.RenderableType"]:
    """Draws whether the vectors agree and why not, the cosines, the worst texts, and remarks."""
    rows = [("model", result.model), ("vectors", result.against), *_cause(result)]
    yield from console.facts(f"the vectors {'agree' if result.agrees else 'differ'}", rows)
    yield rich.Text(
        f"cosines of {console.counted(result.texts, 'text')}: lowest {result.cosine.lowest:.4f}, median "
        f"{result.cosine.median:.4f}",
        style="bold",
    )
    yield _distribution(result)
    if result.worst:
        yield rich.Text("lowest cosines", style="bold")
        columns = (*(Column(name, right=True) for name in ("text", "tokens", "cosine")), Column(wraps=True))
        shown = ((str(each.index), f"{each.tokens:,}", f"{each.cosine:.4f}", each.text) for each in result.worst)
        yield PlainTable(
            columns, [[*map(rich.Text, row[:3]), rich.Text(console.line(row[3], 50))] for row in shown], indent=2
        )
    numbers = [("the model's", _numbers(result.ours)), ("the other ones", _numbers(result.theirs))]
    yield from console.facts("numbers", numbers)
    if result.notes:
        yield from console.facts("notes", [("", note) for note in result.notes])


def _cause(result: "VectorVerification") -> Iterator[tuple[str, str]]:
    for cause in result.causes:
        yield "cause", cause.text
    if result.cosine_explained is not None:
        yield "with that", f"the lowest cosine is {result.cosine_explained.lowest:.4f}"
    for other in result.alternatives:
        yield "or", other
    if not result.agrees and not result.causes:
        same = result.texts - result.differ
        guess = "perhaps another model or version"
        if same:
            guess = f"{same:,} of {result.texts:,} texts agree, so perhaps the others were cut or changed before"
        yield "cause", f"none of {result.tried:,} ways to compute vectors gives these: {guess}"


def _distribution(result: "VectorVerification") -> PlainTable:
    """Draws a line for each band of cosines that has texts."""
    above, rows = 1.0, list[list[Cell]]()
    for band in result.cosine.ranges:
        if band.texts:
            label = f"{band.least:g} to {above:g}"
            share = band.texts / result.texts
            rows.append([rich.Text(label), console.bar_of(share, "cyan"), rich.Text(f"{band.texts:,}")])
        above = band.least
    columns = (Column(), Column(bar=True, most=console.BAR_WIDTH), Column(right=True))
    return PlainTable(columns, rows, indent=2)


def _numbers(facts: "VectorSizes") -> str:
    shortest, longest = f"{facts.shortest:.4g}", f"{facts.longest:.4g}"
    lengths = shortest if shortest == longest else f"{shortest} to {longest}"
    return f"{facts.width:,} values of {facts.stored}, length {lengths}"


def summary_of(upload: dict[str, Any]) -> str:
    """Returns a sentence with the files of an upload, their sizes, and what is left out."""
    files = ", ".join(f"{file['path']} ({console.size(file['bytes'])}, {file['change']})" for file in upload["files"])
    left_out = f"; not sent: {', '.join(upload['left_out'])}" if upload["left_out"] else ""
    return f"{_place(upload)}: {files}{left_out}"


def draw_files(upload: dict[str, Any]) -> Iterator["rich.RenderableType"]:
    """Draws the files of an upload with their sizes, and what is left out."""
    yield rich.Text(console.visible(_place(upload)), style="bold")
    rows = [(file["path"], console.size(file["bytes"]), file["change"]) for file in upload["files"]]
    yield console.listing(("file", "size", "on the hub"), rows)
    facts = [("to send", console.size(upload["bytes"]))]
    facts += [("not sent", ", ".join(upload["left_out"]))] if upload["left_out"] else []
    facts += [("stays on the hub", ", ".join(upload["kept"]))] if upload["kept"] else []
    yield from console.facts("", facts)


def draw_upload(upload: dict[str, Any], *, listed: bool) -> Iterator["rich.RenderableType"]:
    """Draws the result of an upload; with its files if `listed` is set."""
    if listed:
        yield from draw_files(upload)
    names = ("url", "revision", "commit")
    yield from console.facts(upload["name"], [(name, upload[name]) for name in names])


def _place(upload: dict[str, Any]) -> str:
    """Returns where an upload goes, and who can see it."""
    kind = f"{'a new ' if upload['created'] else ''}{'public' if upload['public'] else 'private'} repository"
    return f"{upload['name']}, {kind}, branch {upload['revision']}"
