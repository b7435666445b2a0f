"""Every view on terminals of any width: bars go first, answers stay, and no text hides or steers there."""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.cells import cell_len

import mlxbert
from mlxbert.cli.views import (
    answer,
    classify,
    console,
    fill_mask,
    inspect as inspect_view,
    models,
    tag,
    tokens,
    vectors,
)
from mlxbert.doctor import views as machine
from mlxbert.export import views as exported
from mlxbert.export.compare.reports import Conversion, Difference, OutputDifferences, TensorCounts, Verification
from mlxbert.folders.inspection import UnusedTensor
from mlxbert.frozen_dict import FrozenDict
from mlxbert.results.embed import Embedding
from mlxbert.results.json import INVISIBLE
from mlxbert.results.text_relations import NextSentence, PairSimilarity, Reranked, Similarity
from mlxbert.results.text_results import (
    Answer,
    Classification,
    Entity,
    Fill,
    FillMask,
    Label,
    Mask,
    Regression,
    Replaced,
    ReplacedToken,
    Span,
    Tagged,
    Token,
    Tokens,
)
from mlxbert.search import views as found
from mlxbert.search.hit import Hit
from mlxbert.train.pretraining.vocabulary import Vocabulary
from mlxbert.train.views import evaluation, report, summary
from mlxbert.train.views.frame import DrawnRuns, frame
from tests.helpers import events
from tests.helpers.cases import together
from tests.helpers.measured import measured
from tests.helpers.program import terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

Parts = Iterable["RenderableType"]
WIDTHS = (1, 10, 20, 50, 200)
WORD = "Paris"
# Overrides and isolates of direction, a space without width, a line and a paragraph separator, tags, joiners between
# Latin letters, and control characters of both kinds.
HOSTILE = "Pa\u202e\u2066ri\u200bs\u2028\u2029\U000e0001\U000e0041\u200d\u200cx\x1b[5A\x9b5A\xad\ufeff\u3164[/x][bold]"


def _ranked(word: str, width: int) -> Parts:
    yield from vectors.draw_ranked(Similarity("query", 1, 0, 0.91, word))
    yield from vectors.draw_ranked(Reranked("query", 12, 0, -3.25, f"{word} again", -3.25), bars=False)


def _found(word: str, width: int) -> Parts:
    hit = Hit(
        word, 1, 0.031, f"/docs/{word}.md", "", 3, 4, None, f"{word} > b", f"{word}\n", {}, 0.5, 8.25, vector_rank=2
    )
    passage = found.DrawnPassage(hit, hit.text, (0, len(word)), 6, 0.5, 3)
    yield from found.draw(passage, found.QueryWords(word), explain="hybrid")
    one = {"index": word, "covers": [f"/{word}"], "model": word, "files": 2, "chunks": 3, "bytes": 10, "updated": word}
    yield from found.draw_indexes({"folder": word, "indexes": [one]})
    yield from found.draw_index({**one, "left_out": {word: 2}, "failed": [{"path": word, "reason": f"no {word}"}]})


def _tagged(word: str, width: int, *, words: bool) -> Parts:
    entities = [Entity("LOC", 0, len(word), word, 0.9)]
    entities += [Entity(f"{word}-tag", len(word) + 1, len(word) + 4, "sat", 0.9)]
    return tag.draw(Tagged(f"{word} sat down", tuple(entities)), ["LOC"], words=words)


def _answered(word: str, width: int) -> Parts:
    context = f"It stands in {word}, by the river."
    span = Span(word, 13, 13 + len(word), 0.97)
    yield from answer.draw(Answer(f"Where is {word}?", word, 13, 18, 0.97, 0.01, (span,), context))
    yield from answer.draw(replace(Answer("Where?", None, None, None, 0.1, 0.9, (span,), context)))


def _tokens(word: str, width: int) -> Parts:
    found = [Token("[CLS]", 101, 0, 0, 0, 0), Token(word, 3000, 1, 1, 0, len(word))]
    return tokens.draw_tokens(Tokens(word, tuple(found)))


def _replaced(word: str, width: int) -> Parts:
    found = [ReplacedToken(word, place, 0, len(word), 0.83, True) for place in (1, 2)]  # of bytes: one place
    return tokens.draw_replaced(Replaced(f"{word} sat", tuple(found)))


def _embedded(word: str, width: int) -> Iterator["RenderableType"]:
    drawn = vectors.VectorView(compare=True)
    for text in (word, "another text"):
        yield from drawn.draw(Embedding(text, np.linspace(-1, 1, 24, dtype=np.float32), 7, True))
    yield from drawn.draw_cosines()


def _verification(word: str) -> Verification:
    apart = (Difference("tensor", word, 0, 1, f"{word}: 0 in A; 1 in B"),)
    counts, outputs = TensorCounts(2, 1, 0, 1), OutputDifferences(18, 0.5, FrozenDict({"classify": 0.25}))
    return Verification(False, f"{word}-A", f"{word}-B", apart, (f"a note on {word}",), counts, outputs)


def _converted(word: str, width: int) -> Parts:
    found = Conversion(
        folder=Path(word), source=word, revision=None, family="bert", format="npz", changed=(f"dtype of {word}",),
        left_out=(f"{word}/adam_m", word), read=FrozenDict(), written=FrozenDict(), bytes=90_000_000,
        difference=_verification(word),
    )  # fmt: skip
    return exported.conversion(found)


def _vocabulary(word: str, width: int) -> Parts:
    numbers = {"size": 8000, "wanted": 8000, "cased": True, "sentences": 12, "characters": 900, "skipped": 2}
    names = {"files": (word,), "problems": (word,), "frequent": (word, "the"), "written": {word: "0" * 64}}
    return report.vocabulary(Vocabulary(folder=Path(word), kind="bpe", **numbers, **names))  # type: ignore[arg-type]


def _models(word: str, width: int) -> Parts:
    revision = {"commit": "0" * 40, "names": [word], "bytes": 90_000_000, "complete": True}
    builtin = {"name": "builtin", "family": "bert", "tasks": ["embed"], "quality": {"embed": word}, "bytes": 10}
    made = {"folder": word, "kind": "pretrain", "family": None, "bytes": 80_000_000, "written": "2026-01-02T03"}
    cached = {"name": word, "family": word, "revisions": [revision]}
    return models.draw_list({"cache": word, "models": [builtin, cached], "written": [made]})


def _bench(word: str, width: int) -> Parts:
    return machine.draw_bench(measured(word))


def _names(word: str) -> tuple[str, ...]:
    return (word, *list(events.LABELS)[1:])


def _report(word: str, width: int) -> Parts:
    found = replace(events.report({name: 400 for name in _names(word)}), warnings=(f"look at {word}",), unused=(word,))
    started = events.started(model=word, output=word, report=found)
    return report.before(started, replace(found, columns={"text": word}, only_in={"train": (word,)}))


def _evaluation(word: str, width: int) -> Parts:
    found = events.evaluation(_names(word))
    wrong = replace(found.mistakes[0], text=word, pair=f"pair {word}", place=f"{word}.csv, line 1")
    return evaluation.evaluation(replace(found, model=word, data=(word,), mistakes=(wrong,), unknown={word: 3}), width)


def _summary(word: str, width: int) -> Parts:
    runs = tuple({"lr": rate, "seed": seed, "score": 0.9 + rate} for rate in (1e-5, 2e-5) for seed in (0, 1))
    event = events.finished(runs)
    assert event.summary is not None
    told = replace(event.summary, weakest=f"{word}: recall 0.71", command=f"mlxbert classify {word}")
    return summary.finished(replace(event, output=word, summary=told))


def _live(word: str, width: int) -> Parts:
    state = DrawnRuns()
    first = (events.started(run=0, runs=2, varied={"seed": 0}), events.evaluated(9, 0.5, metric=word))
    last = (events.started(run=1, runs=2, varied={"seed": word}, model=word, output=word), events.step(200))
    for event in (*first, *last, events.evaluated(200, 0.921, metric=word)):
        state.note(event)
    return [frame(state, width, 24)]


def _corpus(word: str, width: int) -> Parts:
    facts: dict[str, Any] = {"files": [word], "problems": [word]}
    facts |= {"documents": 3, "sentences": 9, "tokens": 99, "unknown": 1, "skipped": 2}
    yield from report.before_pretraining(events.started(corpus=facts), facts)
    filled = replace(events.evaluated(9, 0.5), filled=(f"the city of {word}",))
    yield from report.below(None, filled)


def _classified(word: str, width: int) -> Parts:
    known = mlxbert.Labels((word, "other"), "multilabel", (0.5, 0.25))
    labels = (Label(word, 0.98, True), Label("other", 0.02, False))
    yield from classify.draw(Classification(f"about {word}", labels, f"and {word}"), known=known)
    yield from classify.draw(Regression("a text", 3.25, ((word, 3.25), ("other", 1.5))))


def _filled(word: str, width: int) -> Parts:
    fills = (Fill(word, 3000, 0.41, f"in {word} now"), Fill("rome", 3001, 0.2, "in rome now"))
    return fill_mask.draw(FillMask("in [MASK] now", (Mask(1, 3, 9, fills),) * 2))


# What draws a view with a word in its texts, and what must be there whatever the width; {} is the word.
VIEWS: dict[str, tuple[Callable[[str, int], Parts], tuple[str, ...]]] = {
    "fill-mask": (_filled, ("{}", "41.0%", "rome", "mask 2 of 2")),
    "classify": (_classified, ("{}98.0%", "about {}", "{}3.25")),
    "similarity and rerank": (_ranked, ("0.910", "{}", "12-3.250", "{} again")),
    "similarity --pairs": (lambda word, _: vectors.draw_pair(PairSimilarity(word, "b", 0.5)), ("0.500", "A{}")),
    "tag": (lambda word, width: _tagged(word, width, words=False), ("[{} LOC]", "[sat {}-tag]")),
    "tag, words": (lambda word, width: _tagged(word, width, words=True), ("{}", "LOC", "{}-tag")),
    "answer": (_answered, ("{}97.0%13to", "no answer90.0%", "stands in {}, by the river")),
    "next-sentence": (
        lambda word, _: classify.draw_next_sentence(NextSentence(word, f"{word}!", True, 0.75)),
        ("follows75.0%", "B{}!"),
    ),
    "replaced": (_replaced, ("{} sat", "{}83.0%")),
    "tokenize": (_tokens, ("{}", "3000")),
    "embed": (_embedded, ("{}24 values", "truncated", "1.00")),
    "verify": (lambda word, _: exported.verification(_verification(word)), ("differ in 1 thing", "{}: 0 in A", "{}-B")),
    "convert": (_converted, ("{}(bert, npz)", "dtype of {}", "a note on {}")),
    "doctor": (
        lambda word, _: machine.draw({"gflops": 51.2, "blas": word, "problems": [], "packages": {word: "1.0"}}),
        ("GFLOP/s51.2", "blas{}", "package{}1.0"),
    ),
    "models list": (_models, ("{}", "90.0 MB", "yes", "pretrain", "80.0 MB", "2026-01-02")),
    "vocabulary": (_vocabulary, ("tokens8,000", "frequent{} the")),
    "search": (_found, ("1/docs/{}.md:3{}>b", "vectors:rank2,similarity0.500", "10 bytes", "2{}", "no {}")),
    "bench": (_bench, ("chip{}", "torch{} on mps", "12.5", "0.41 s", "0.25 GB", "50%", "2.50", "arrays and cache")),
    "training report": (_report, ("{}", "400", "look at {}", "model{}→{}")),
    "evaluation": (_evaluation, ("accuracy0.964", "{}", "0.990", "model{}", "pair{}", "expected{}predictedHUM")),
    "summary": (_summary, ("accuracy0.964", "this model0.964", "★ kept", "weakest{}: recall", "mlxbert classify {}")),
    "live view": (_live, ("classify", "run 2 of 2", "step 200 of 462", "0.921", "★ best", "loss", "43%")),
    "corpus": (_corpus, ("documents3", "{}", "the city of {}")),
}  # fmt: skip


def _shown(parts: Parts) -> str:
    """What a terminal of COLUMNS columns shows."""
    with redirect_stdout(io.StringIO()) as shown:
        screen = console.stdout()
        for part in parts:
            screen.print(part)
    return shown.getvalue()


def _squeezed(text: str) -> str:
    """The text without spaces, bars and lines: what is left of it on any terminal."""
    return re.sub("[\\s\u2581-\u258f━┣┫╋╌]", "", text)


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


@together("width", WIDTHS)
@together("view", VIEWS)
def test_the_answer_is_there_at_any_width(view: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    draw, answers = VIEWS[view]
    shown = _shown(draw(WORD, width))
    assert max(map(cell_len, shown.split("\n"))) <= width
    there = _squeezed(shown)
    missing = [text for text in answers if _squeezed(text.format(*[WORD] * 2)) not in there]
    assert missing == [], shown


@together("view", [*VIEWS, "inspect"])
def test_nothing_hides_or_steers_in_a_view(view: str, tiny_folder: Path) -> None:
    if view == "inspect":
        found = mlxbert.inspect(tiny_folder)
        unused = (UnusedTensor(HOSTILE, HOSTILE),)
        found = replace(found, labels=(HOSTILE,), architectures=(HOSTILE,), unused=unused, because=HOSTILE)
        shown = _shown([*inspect_view.short(found, HOSTILE), *inspect_view.inspection(found, whole=True)])
    else:
        shown = _shown(VIEWS[view][0](HOSTILE, 80))
    assert not INVISIBLE.search(shown.replace("\n", ""))
    assert {"\\u202e", "\\u200b"} & {*re.findall(r"\\u[0-9a-f]{4}", shown)} or "Pa" not in shown


@pytest.mark.parametrize("width", (1, 40, 200))
def test_an_inspection_and_a_help_are_whole_at_any_width(
    width: int, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    found = mlxbert.inspect(tiny_folder)
    shown = _shown([*inspect_view.short(found, "name"), *inspect_view.inspection(found, whole=True)])
    assert max(map(cell_len, shown.split("\n"))) <= width
    there = _squeezed(shown)
    for text in ("is bert", "problems", found.tensors[0].name, f"hidden_size {found.config.hidden_size}"):
        assert _squeezed(text) in there, text
    outcome, told = terminal("embed", "--help", COLUMNS=str(width))
    assert outcome.status == 0 and "--pooling" in told and "--model" in told


TERMINALS = pytest.mark.parametrize("width", [50, 80, 120])
SENTENCE = "Someone is having lunch in the park with two children and a dog that barks at birds all day long."


@TERMINALS
def test_a_long_text_in_a_ranking_or_a_pair_is_wrapped_beside_its_numbers(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for drawn in (vectors.draw_ranked(Similarity("q", 1, 0, 0.305, SENTENCE)), console.pair("A man eats.", SENTENCE)):
        rows = _shown(drawn).rstrip().split("\n")
        first = next(number for number, row in enumerate(rows) if "Someone" in row)
        starts = rows[first].index("Someone")
        assert " ".join(row[starts:].strip() for row in rows[first:]) == SENTENCE
        assert not "".join(row[:starts] for row in rows[first + 1 :]).strip()
        assert max(map(cell_len, rows)) <= width


@TERMINALS
def test_a_sentence_too_long_to_stand_beside_each_word_stands_once_above(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    fills = tuple(Fill(word, 0, 0.41, SENTENCE.replace("lunch", word)) for word in ("food", "fun", "breakfast"))
    start = SENTENCE.index("lunch")
    text = SENTENCE.replace("lunch", "[MASK]")
    filled = FillMask(text, (Mask(5, start, start + 6, fills),))
    shown = _shown(fill_mask.draw(filled))
    rows = shown.rstrip().split("\n")
    assert _squeezed(shown).count("twochildren") == 1
    assert [row.split()[0] for row in rows[-3:]] == ["food", "fun", "breakfast"]
    assert all("41.0%" in row for row in rows[-3:]) and max(map(cell_len, rows)) <= width
    monkeypatch.setenv("COLUMNS", "140")
    assert _shown(fill_mask.draw(filled)).count("two children") == 3


@TERMINALS
def test_answers_share_their_paragraph_and_no_number_is_broken(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    context = f"{SENTENCE} It was built from 1887 to 1889, not 1899.\n\nThe fair was in 1889. {SENTENCE}"
    found = [(text, context.index(text, start)) for text, start in (("1887 to 1889", 0), ("1889", 0), ("1889", 150))]
    spans = tuple(Span(text, place, place + len(text), 0.712) for text, place in found)
    for text in ("1887 to 1889", None):
        rows = _shown(answer.draw(Answer("When?", text, None, None, 0.7, 0.9, spans, context))).rstrip().split("\n")
        joined = " ".join(" ".join(rows).split())
        assert joined.count("It was built from 1887 to 1889, not 1899.") == 1 and joined.count(SENTENCE) == 2
        assert max(map(cell_len, rows)) <= width
        for span in spans:
            line = 1 + 2 * (span.start > 150)
            (row,) = [row for row in rows if f"{span.start} to {span.end}, line {line}" in row]
            assert "71.2%" in row


def test_facts_about_a_machine_have_names_for_people() -> None:
    numbers = ("memory_gib", "memory_free_gib", "memory_limit_gib", "cache_limit_gib", "batch_tokens", "gflops")
    report = dict.fromkeys((*numbers, "float32_products", "blas", "blas_path", "python_path"), "x")
    shown = _shown(machine.draw({**report, "packages": {}, "problems": []}))
    assert "_" not in shown and "gib" not in shown and shown.count("GiB") == 4


@together("columns", ["0", "-5", "\u00b2", "99999", "9" * 5000])
def test_a_width_that_cannot_be_is_not_believed(
    columns: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, columns)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError))  # no terminal anywhere
    assert (console.stdout().width, console.stderr().width, console.stdout().height) == (80, 80, 25)
    texts = ("The man went.", "He bought milk.")
    outcome, shown = terminal("next-sentence", *texts, "--model", str(tiny_folder), COLUMNS=columns)
    assert outcome.status == 0 and "%" in shown and "He bought milk." in shown
