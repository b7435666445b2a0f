"""Draws vectors: strips of values, heat maps of cosines, rankings with bars, and the tokens of sparse vectors."""

from collections.abc import Iterable, Iterator, Sequence

from mlxbert.cli.views import console, rich
from mlxbert.cli.views.table import Column, PlainTable
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.results.embed import Embedding, SparseEmbedding, TokenVectors, Words
from mlxbert.results.text_relations import PairSimilarity, Reranked, Similarity

MOST_COMPARED = 20  # texts in a heat map
_HEIGHTS = "▁▂▃▄▅▆▇█"
_LABEL, _SHORT_LABEL = 45, 16  # the maximum and the minimum width of a row's text
_CELL = 7  # terminal columns of a cosine
_WIDE = 64  # minimum terminal columns for bars in a ranking
_MAX_TEXT = 300  # characters of a text in a ranking
_COLD, _HOT = (38, 70, 120), (200, 60, 40)  # colours of the cosines 0 and 1


class VectorView:
    """Draws vectors one by one and, if `compare` is true, at the end their cosines, unless there are too many."""

    def __init__(self, *, compare: bool) -> None:
        self.compare = compare
        self.results: list[Embedding] = []

    def draw(self, result: Embedding) -> Iterator["rich.RenderableType"]:
        if self.compare and len(self.results) <= MOST_COMPARED:
            self.results.append(result)
        return _embedding(result)

    def draw_cosines(self) -> Iterable["rich.RenderableType"]:
        """Draws the cosine of every pair of texts, if there are several texts but not too many."""
        return _heat_map(self.results) if 1 < len(self.results) <= MOST_COMPARED else ()


class WordVectors(VectorView):
    """Draws the vectors of words, and at the end the cosines of words that occur several times."""

    _text = 0

    def draw(self, result: Words) -> Iterator["rich.RenderableType"]:  # type: ignore[override]
        self._text += 1
        width = min(console.stdout().width, 100)
        yield rich.Text(console.line(result.text, width), "bold")
        for word in result.words:
            self.results += [Embedding(f"{word.word} ({self._text})", word.embedding, word.tokens)] * self.compare
            name = rich.set_cell_size(console.visible(word.word), _SHORT_LABEL)
            yield rich.Text(name).append_text(_strip(word.embedding, max(width - _SHORT_LABEL, 1)))

    def draw_cosines(self) -> Iterable["rich.RenderableType"]:
        """Draws the cosines between occurrences of the same word, each with the number of its text in brackets."""
        names = [result.text.rpartition(" ")[0].casefold() for result in self.results]
        self.results = [result for result, name in zip(self.results, names, strict=True) if names.count(name) > 1]
        return super().draw_cosines()


def _embedding(result: Embedding) -> Iterator["rich.RenderableType"]:
    size, norm = len(result.embedding), float(np.linalg.norm(result.embedding.astype(np.float32)))
    unknown = f", {result.unknown_tokens} unknown" if result.unknown_tokens else ""
    tokens = f"{console.counted(result.tokens, 'token')}{unknown}{', truncated' if result.truncated else ''}"
    width = console.stdout().width
    text = rich.Text(console.line(result.text, max(width, _SHORT_LABEL)), "bold")
    facts = rich.Text(f"{size} values, norm {norm:.3f}, {tokens}")
    fits = text.cell_len + 2 + facts.cell_len <= width
    yield from [rich.Text("  ").join([text, facts])] if fits else [text, facts]
    yield _strip(result.embedding.astype(np.float32), min(width, 100))


def _strip(vector: "NDArray[np.float32]", width: int) -> "rich.Text":
    """Draws the values of a vector as heights; if several values share a column, it shows the one farthest from 0."""
    groups = np.array_split(vector, min(width, len(vector)))
    values = [float(group[np.abs(group).argmax()]) for group in groups]
    largest = max(map(abs, values)) or 1.0
    strip = rich.Text(no_wrap=True)
    for value in values:
        height = _HEIGHTS[min(int((value / largest + 1) / 2 * len(_HEIGHTS)), len(_HEIGHTS) - 1)]
        strip.append(height, style="red" if value > 0 else "blue")
    return strip


def _heat_map(results: Sequence[Embedding]) -> Iterator["rich.RenderableType"]:
    stacked = np.stack([result.embedding for result in results]).astype(np.float32)
    units = unit_length(stacked)
    cosines = units @ units.T
    width = console.stdout().width
    if width < _SHORT_LABEL + _CELL:
        yield from _listed(cosines)
        return
    room = min(_LABEL, max(width - _CELL * len(results), _SHORT_LABEL))
    across = max((width - room) // _CELL, 1)
    for start in range(0, len(results), across):  # as many columns as fit side by side, the others below
        title = "cosines" if start == 0 else ""
        table = rich.Table(
            box=None, pad_edge=False, padding=(0, 0), header_style="dim", title=title, title_justify="left"
        )
        table.add_column("", no_wrap=True)
        for number in range(start, min(start + across, len(results))):
            table.add_column(f"{number + 1}", justify="center", min_width=_CELL, no_wrap=True)
        for number, (result, row) in enumerate(zip(results, cosines, strict=True), 1):
            name = rich.Text(f"{number} {console.line(result.text, _LABEL)}")
            name.truncate(room - 2, overflow="ellipsis")
            cells = [
                rich.Text(f" {value:5.2f} ", style=f"white on {_colour(float(value))}")
                for value in row[start : start + across]
            ]
            table.add_row(name.append("  "), *cells)
        yield table


def _listed(cosines: "NDArray[np.float32]") -> Iterator["rich.Text"]:
    """Lists the cosines of all pairs, for terminals that are too narrow for a table."""
    yield rich.Text("cosines", "dim")
    for first, row in enumerate(cosines, 1):
        for second, value in enumerate(row[first:], first + 1):
            yield rich.Text(f"{first} and {second}: {value:.2f}")


def _colour(cosine: float) -> str:
    share = min(max(cosine, 0.0), 1.0)
    mixed = (round(cold + (hot - cold) * share) for cold, hot in zip(_COLD, _HOT, strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def draw_pair(result: PairSimilarity, *, bars: bool = True) -> Iterator["rich.RenderableType"]:
    """Draws the score as a number, with a bar if scores are at most 1, and the two texts."""
    score = rich.Text(f"{result.score:6.3f}")
    yield console.meter(score, max(result.score, 0.0), "green") if bars else score
    yield from console.pair(result.a, result.b)


def draw_ranked(result: Similarity | Reranked, *, bars: bool = True) -> Iterator["rich.RenderableType"]:
    """Draws the rank, the score, a bar if scores are at most 1 and the terminal is wide enough, and the text."""
    score = 6 if bars else 7
    bar = f"  {console.bar(max(result.score, 0.0))}" if bars and console.stdout().width >= _WIDE else ""
    line = rich.Text.assemble((f"{result.rank:>3}  ", "dim"), f"{result.score:{score}.3f}", (bar, "green"))
    yield PlainTable(console.BESIDE, [(line, rich.Text(console.line(result.text, _MAX_TEXT)))])


_SHOWN_WEIGHTS = 15  # tokens of a vector
_LONGEST = 30  # characters of a token
_WEIGHT_COLUMNS = (Column(), Column(bar=True, most=console.BAR_WIDTH), Column())


def draw_sparse(result: SparseEmbedding) -> Iterator["rich.RenderableType"]:
    """Draws the text, and its heaviest tokens with their weights."""
    weights = result.weights(_SHOWN_WEIGHTS)
    more = len(result.ids) - len(weights)
    largest = max(weights.values(), default=0.0)
    facts = [console.counted(len(result.ids), "weight"), console.counted(result.tokens, "token")]
    facts += [f"{result.unknown_tokens} unknown"] * bool(result.unknown_tokens) + ["truncated"] * result.truncated
    yield rich.Text(console.line(result.text), "bold")
    yield rich.Text(", ".join(facts), "dim")
    yield PlainTable(
        _WEIGHT_COLUMNS,
        [
            (
                rich.Text(console.line(token, _LONGEST)),
                console.bar_of(weight / largest if largest > 0 else 0.0, "green"),
                rich.Text(f"{weight:.3f}"),
            )
            for token, weight in weights.items()
        ],
    )
    if more:
        yield rich.Text(f"and {console.counted(more, 'lighter token')}", "dim")


_SHOWN_VALUES = 4  # values of the first vector


def draw_tokens(result: TokenVectors) -> Iterator["rich.RenderableType"]:
    """Yields the text, the shape of its vectors, and the first values of the first one."""
    rows, size = result.embeddings.shape
    facts = [f"{console.counted(rows, 'vector')} of {size} values", console.counted(result.tokens, "token")]
    facts += [f"{result.unknown_tokens} unknown"] * bool(result.unknown_tokens) + ["truncated"] * result.truncated
    yield rich.Text(console.line(result.text), "bold")
    yield rich.Text(", ".join(facts), "dim")
    if rows:
        yield rich.Text(" ".join(f"{value:.3g}" for value in result.embeddings[0, :_SHOWN_VALUES].tolist()) + " …")
