"""What a notebook shows, its bars of long work, which a script never has, and the functions as methods of a model."""

import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert import progress
from mlxbert.errors import InputError
from mlxbert.results.result import Failure, to_html
from mlxbert.results.text_results import Answer, Classification, Entity, Label, Regression, Span, Tagged
from mlxbert.weights import model_source
from mlxbert.weights.hub import cache
from tests.helpers.rooms import needs, public_names

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
