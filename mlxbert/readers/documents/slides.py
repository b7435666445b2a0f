"""Slides (.pptx): their titles, texts, tables and notes, and the texts of their diagrams and charts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from mlxbert.readers.documents.document import Document, Heading, ReadProblem, UnreadableError, joined
from mlxbert.readers.documents.zipped_parts import opened, part_xml, properties, related_parts

if TYPE_CHECKING:
    from zipfile import ZipFile

_OPEN_XML = "http://schemas.openxmlformats.org"
_A, _P = f"{{{_OPEN_XML}/drawingml/2006/main}}", f"{{{_OPEN_XML}/presentationml/2006/main}}"
_CHART = f"{{{_OPEN_XML}/drawingml/2006/chart}}"
_ID = f"{{{_OPEN_XML}/officeDocument/2006/relationships}}id"
_FALLBACK = f"{{{_OPEN_XML}/markup-compatibility/2006}}Fallback"  # the same once more, for older programs
_SEPARATED = {f"{_A}br": " ", f"{_CHART}v": " "}
_TEXTS = {f"{_A}t", *_SEPARATED}
_TITLES = {"title", "ctrTitle"}
_ON_EACH_SLIDE = {"sldNum", "dt", "ftr"}
_DRAWN = ("diagramData", "chart")


def read_slides(data: bytes, name: str) -> Iterator[Document]:
    """Reads the slides in their order as one document, with a page for each; a hidden slide is a page, too."""
    with opened(data, ".pptx") as archive:
        title, fields = properties(archive)
        slides, problems = list[Document](), list[ReadProblem]()
        for number, part in enumerate(_slide_parts(archive), 1):
            try:
                slide, reason = _slide(archive, part)
            except UnreadableError as problem:  # other slides may be readable
                slide, reason = Document(""), problem.message
            slides.append(slide)
            if reason:
                problems.append(ReadProblem("left out", f"slide {number}: {reason}"))
    text, headings, starts = joined(slides)
    if not text.strip():
        raise UnreadableError(f"has no text ({problems[0].reason})" if problems else "has no text")
    yield Document(text, title, fields, headings=headings, pages=starts, problems=tuple(problems))


def _slide_parts(archive: "ZipFile") -> list[str]:
    """The names of the parts that are slides, in the order of the presentation."""
    main = next((part for kind, part in related_parts(archive, "").values() if kind == "officeDocument"), None)
    if main is None:
        raise UnreadableError("is not a .pptx, because the presentation is missing")
    related = related_parts(archive, main)
    return [
        related.get(slide.get(_ID, ""), ("", "the part of the slide"))[1]
        for slide in part_xml(archive, main).iter(f"{_P}sldId")
    ]


def _slide(archive: "ZipFile", part: str) -> tuple[Document, str]:
    """Reads a slide: its title, its other texts, and its notes; returns also what was left out."""
    root, related = part_xml(archive, part), related_parts(archive, part).values()
    lines = [*_lines(root)]
    titles = [line for kind, line in lines if kind in _TITLES]
    texts = [line for kind, line in lines if kind not in _TITLES | _ON_EACH_SLIDE]
    notes, reason = list[str](), ""
    for kind, other in related:
        try:
            if kind in _DRAWN:
                texts += (line for _, line in _lines(part_xml(archive, other)))
            elif kind == "notesSlide":
                notes += (line for kind, line in _lines(part_xml(archive, other)) if kind == "body")
        except UnreadableError as problem:
            reason = problem.message
    text = "\n\n".join(filter(None, ("\n".join([*titles, *texts]), "\n".join(notes))))
    if not text and not reason and next(root.iter(f"{_A}blip"), None) is not None:
        reason = "the slide has only pictures, no text"
    heading = " ".join(titles) or text.partition("\n")[0]  # a slide does not belong to the title of an earlier one
    return Document(text, headings=(Heading.of(0, 1, heading),) if heading else ()), reason


def _lines(element: Element, kind: str = "") -> Iterator[tuple[str, str]]:
    """The paragraphs in an element, and the rows of its tables, each with the kind of its placeholder."""
    for child in element:
        if child.tag == f"{_P}sp":
            placeholder = next(child.iter(f"{_P}ph"), None)
            yield from _lines(child, "" if placeholder is None else placeholder.get("type", ""))
        elif child.tag in (f"{_A}p", f"{_CHART}strCache"):
            pieces = (
                _SEPARATED.get(piece.tag, "") + (piece.text or "") for piece in child.iter() if piece.tag in _TEXTS
            )
            if line := " ".join("".join(pieces).split()):
                yield kind, line
        elif child.tag == f"{_A}tr":
            yield kind, " ".join(line for cell in child for _, line in _lines(cell))
        elif child.tag != _FALLBACK:
            yield from _lines(child, kind)
