"""Results and errors as they are shown: JSON, `repr`, tracebacks, what a notebook shows, and its bars of long work."""

import dataclasses
import inspect
import json
import math
import re
import sys
import traceback
import unicodedata
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import progress
from mlxbert.errors import InputError, MlxbertError
from mlxbert.results.embed import Embedding, Words, WordVector
from mlxbert.results.json import INVISIBLE, plain, to_json, without_invisible
from mlxbert.results.result import Failure, to_html
from mlxbert.results.short_repr import Brief
from mlxbert.results.text_results import (
    Answer,
    Classification,
    Entity,
    Fill,
    FillMask,
    Label,
    Mask,
    Regression,
    Span,
    Tagged,
    Token,
    Tokens,
)
from mlxbert.weights import model_source
from mlxbert.weights.hub import cache
from tests.helpers.cases import together
from tests.helpers.rooms import needs, public_names


def test_a_line_has_no_invisible_characters_and_the_same_value() -> None:
    value = Tagged("a\u202eb\x1b\n\u00e9\u6771", (Entity("LOC", 0, 1, "a", 0.5),)).to_dict()
    line = to_json(value)
    assert line.isprintable() and "\u00e9\u6771" in line and json.loads(line) == json.loads(json.dumps(value))


@needs("train")
def test_numbers_that_json_does_not_have_are_null() -> None:
    from mlxbert.train.loop.events import Evaluated

    assert plain({1: (math.nan, 1.5, [-math.inf])}) == {"1": [None, 1.5, [None]]}
    assert plain(np.array([1.5, math.nan, 0.1], np.float32)) == [1.5, None, 0.1]
    assert plain(np.array([[0.1], [math.inf]], np.float32)) == [[0.1], [None]]
    event = Evaluated(step=1, epoch=1, metrics={"loss": math.nan}, metric="loss", best=False, seconds=1)
    assert json.loads(to_json(event.to_dict()))["metrics"] == {"loss": None}


CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Cs")
SIGNS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}  # format characters with a shape


def test_every_control_format_and_separator_is_invisible() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    invisible = {*INVISIBLE.findall(every)}
    found = {char for char in every if unicodedata.category(char) in CATEGORIES}
    assert found - invisible <= {*map(chr, SIGNS)}
    others = [*map(unicodedata.category, invisible - found)]
    assert {*others} == {"Cn", "Mn", "Lo"} and len(others) - others.count("Cn") == 7


@together(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian
        "\u0915\u094d\u200d \u0915\u094d\u200c\u0937",  # Hindi, also at the end of a word
        "\u0dc1\u0dca\u200d\u0dbb\u0dd3",  # Sinhala
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f\u200d\U0001f525 \U0001f441\ufe0f\u200d\U0001f5e8\ufe0f",
        "\U0001f9d1\U0001f3fd\u200d\U0001f91d\u200d\U0001f9d1\U0001f3fb",
        "\u0661\u06dd \u2603\ufe0f \u845b\U000e0100 \u1820\u180b",  # a sign of Arabic, variation selectors
        "na\u00efve \u00a0\u3000 \u6771\u4eac",
    ],
)
def test_what_scripts_and_emoji_need_stays(text: str) -> None:
    assert not INVISIBLE.search(text)


@together("text", ["pa\u200dypal", "cat\u200c", "\u200dcat", "cat\ufe0f", "ca\u200bt", "cat\U000e0041"])
def test_labels_that_look_the_same_are_the_same_without(text: str) -> None:
    assert without_invisible(text) in ("cat", "paypal")


SETTINGS = {"ModelRef", "EngineOptions", "Usage", "Example", "TrainBatch"}  # what is given, not what is returned
LONG = "many words " * 200
VECTOR = np.ones(1024, dtype=np.float32)
FILL = Fill("token", 7, 0.123456789, LONG)
LARGE = (
    Embedding(LONG, VECTOR, 400),
    Words(LONG, tuple(WordVector("word", 0, 4, 1, VECTOR) for _ in range(200))),
    FillMask(LONG, tuple(Mask(place, 0, 6, tuple([FILL] * 50)) for place in range(30))),
    Tokens(LONG, tuple(Token("token", 7, 0, 1, 0, 5) for _ in range(512)), False),
)


@needs("export", "train", "serve")
def test_every_public_result_prints_briefly() -> None:
    found = [getattr(mlxbert, name) for name in dir(mlxbert)]
    results = [one for one in found if inspect.isclass(one) and dataclasses.is_dataclass(one)]
    others = {one.__name__ for one in results if not issubclass(one, Brief) or one.__repr__ is not Brief.__repr__}
    assert len(results) > 30 and others == SETTINGS


@together("large", [*LARGE, mlxbert.Labels(tuple(f"many words {number}" for number in range(1000)))])
def test_a_large_result_prints_on_one_screen(large: Brief) -> None:
    lines = repr(large).splitlines()
    assert 1 < len(lines) <= 24 and max(map(len, lines)) <= 100
    assert lines[0] == f"{type(large).__name__}(" and lines[-1] == ")"
    assert "many words" in repr(large) and "1., 1." not in repr(large)


def test_a_small_result_prints_on_one_line_without_defaults_and_what_a_large_one_leaves_out_is_counted() -> None:
    assert "512 in all" in repr(LARGE[3]) and "float32 1024" in repr(LARGE[0])
    assert repr(FILL.__class__("japan", 7, 0.69351, "a")) == "Fill(token='japan', token_id=7, score=0.6935, text='a')"
    label = mlxbert.Label("good", 0.98765)
    shown = repr(mlxbert.Classification("A film.", (label,)))
    assert shown == "Classification(text='A film.', labels=(Label(label='good', score=0.9877),))"
    assert "truncated=True" in repr(mlxbert.Classification("A film.", (label,), truncated=True))


@needs("export")
@together("values", [(), (1.0,), {}, {"a": None}, [float("nan")], (True, "x", b"y")])
def test_plain_values_print_as_python_writes_them(values: object) -> None:
    assert repr(mlxbert.Difference("config", "x", values, None, "t")).count(repr(values)) == 1


def test_a_traceback_shows_the_hint() -> None:
    shown = traceback.format_exception_only(InputError("`texts` is a DataFrame", hint="give one of its columns"))
    assert "".join(shown).splitlines()[1] == "hint: give one of its columns"
    assert len(traceback.format_exception_only(MlxbertError("no hint"))) == 1


STEERING = '<script>alert("&")</script>'


def table(shown: Any) -> list[list[str]]:
    """The cells of the outermost table, tags left out."""
    html = shown._repr_html_()
    assert html.startswith("<table>") and "<script" not in html
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", html)]


def test_results_are_tables_of_escaped_text(tiny: mlxbert.Model) -> None:
    shown = Tagged(STEERING, (Entity(STEERING, 0, 3, "abc", 0.75),))._repr_html_()
    assert shown.count("&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;") == 2 and "<script" not in shown
    assert "0.75" in shown and "<th>score</th>" in shown
    [heads, first, second] = table(tiny.similarity("the cat", ["the dog", STEERING]))
    assert heads == ["query", "rank", "index", "score", "text", "unknown_tokens"] and first[1] == "1"
    assert "&lt;script" in first[4] + second[4]
    for result in (
        *(tiny.fill_mask(f"the [MASK] {STEERING}"), tiny.tokenize(STEERING), *tiny.embed_stream([STEERING])),
        *(Classification(STEERING, (Label(STEERING, 0.5),)), Regression(STEERING, 0.5)),
        Failure(0, InputError(STEERING)),
        Answer(STEERING, STEERING, 0, 3, 0.5, 0.1, (Span(STEERING, 0, 3, 0.5), Span("b", 0, 1, 0.1))),
    ):
        assert len(table(result)) > 1 and "&lt;script" in result._repr_html_()
    about = mlxbert.inspect(tiny)
    assert ["family", "bert"] in table(about)
    assert "num_attention_heads" not in about._repr_html_() and "num_attention_heads" in about.to_dict()["config"]
    assert to_html([float(number) for number in range(384)]).endswith("… 384 in all")


@needs("explore")
def test_attention_is_a_grid_of_tokens(tiny: mlxbert.Model) -> None:
    found = tiny.attention("the cat")
    [heads, *rows] = table(found)
    assert heads == ["", "[CLS]", "the", "cat", "[SEP]"] and [row[0] for row in rows] == heads[1:]
    assert np.allclose([[float(cell) for cell in row[1:]] for row in rows], found.mean, atol=1e-3)


@needs("train")
def test_an_evaluation_shows_a_matrix_with_its_classes_and_no_empty_column() -> None:
    from mlxbert.train.scores.evaluation_summary import Evaluation, Mistake

    mistake = Mistake(text="a", pair=None, expected="no", predicted="yes", score=0.9, place="record 1")
    found = Evaluation(
        task="classify", model="m", data=("records",), examples=10, metric="accuracy", score=0.6, interval=(0.3, 0.8),
        metrics={"accuracy": 0.6}, confusion=((1, 2), (3, 4)), classes=("no", "yes"), mistakes=(mistake,),
    )  # fmt: skip
    html = found._repr_html_()
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", html)
    start = cells.index("expected \\ predicted")
    assert cells[start + 1 : start + 9] == ["no", "yes", "no", "1", "2", "yes", "3", "4"]
    assert "<th>place</th>" in html and "<th>pair</th>" not in html
    assert found.to_dict()["classes"] == ["no", "yes"]
    assert "<table>" in replace(found, confusion=None)._repr_html_()


def test_functions_are_methods_of_a_model(tiny: mlxbert.Model) -> None:
    """All public functions that take a model first, with their own signatures and help."""
    public = {name: one for name in public_names() if inspect.isfunction(one := getattr(mlxbert, name))}
    functions = {name: one for name, one in public.items() if "model" in [*inspect.signature(one).parameters][:1]}
    methods = {name for name in dir(tiny) if name in public}
    assert methods == {name for name in functions if not name.startswith("evaluate")} >= {"embed", "fill_mask", "save"}
    for name in methods:
        function, method = functions[name], getattr(tiny, name)
        assert method.__doc__ == function.__doc__ and getattr(mlxbert.Model, name) is function
        assert [*inspect.signature(method).parameters] == [*inspect.signature(function).parameters][1:]
    assert np.array_equal(tiny.embed(["the cat"], normalize=True), mlxbert.embed(tiny, ["the cat"], normalize=True))


@needs("train")
def test_training_in_a_notebook_has_a_bar(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.train.test_finetune import rows

    records = [{"text": text, "label": label} for text, label in rows(12)]
    options: dict[str, Any] = {"train": records, "model": tiny_folder, "epochs": 1, "batch_size": 4}
    seen: list[mlxbert.Event] = []
    mlxbert.finetune("classify", output=tmp_path / "a", **options).run(seen.append)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setitem(sys.modules, "IPython", _in({"IPKernelApp": {}}))
    named: list[str] = []
    mlxbert.finetune("classify", output=tmp_path / "b", on_phase=named.append, **options).run()
    drawn = capsys.readouterr()
    assert drawn.out == "" and "loss=" in drawn.err and "accuracy=" in drawn.err
    steps = [event for event in seen if isinstance(event, mlxbert.Step)]
    assert f"{len(steps)}/{len(steps)}" in drawn.err
    assert all(f"{name}:" in drawn.err for name in named[named.index("training") :])


def _in(config: dict[str, Any] | None) -> Any:
    """IPython in a notebook, in a terminal, or imported only."""
    return SimpleNamespace(get_ipython=lambda: None if config is None else SimpleNamespace(config=config))


def test_only_a_notebook_gets_a_bar(
    tiny: mlxbert.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_DELAY", 0)
    for config, shown in ((None, False), ({}, False), ({"IPKernelApp": {}}, True)):
        monkeypatch.setitem(sys.modules, "IPython", _in(config))
        mlxbert.embed(tiny, ["a", "b"])
        drawn = capsys.readouterr()
        assert drawn.out == "" and ("2/2" in drawn.err) == bool(drawn.err) == shown
    seen: list[tuple[int, int]] = []
    mlxbert.embed(tiny, ["a", "b"], on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)] and capsys.readouterr().err == ""


def test_a_download_in_a_notebook_has_a_bar_of_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_folder: Any
) -> None:
    def download(name: str, revision: str | None, on_progress: Any) -> Any:
        on_progress(1_000_000, 3_000_000)
        on_progress(3_000_000, 3_000_000)
        return tiny_folder

    monkeypatch.setitem(sys.modules, "IPython", _in({"IPKernelApp": {}}))
    monkeypatch.setattr(progress, "_DELAY", 0)
    monkeypatch.setattr("mlxbert.weights.hub.download.download", download)
    monkeypatch.setattr(cache, "find_snapshot", lambda *given: None)
    monkeypatch.setattr(cache, "is_offline", lambda: False)
    assert model_source.find_folder(model_source.ModelRef("some/name")) == tiny_folder
    assert "3.00M/3.00M" in capsys.readouterr().err
