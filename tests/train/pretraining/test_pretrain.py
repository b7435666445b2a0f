"""From text files to a model folder, and the commands: what is written, what resumes, what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.train.pretraining.objective import read_terms
from tests.helpers.cases import together
from tests.helpers.program import call
from tests.train.pretraining.files import model_folder, text_file

OPTIONS: dict[str, Any] = {"length": "24", "batch_size": 8, "steps": 6, "eval_every": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretraining")
    text_file(folder / "text.txt")
    model_folder(folder / "tiny")
    return folder


def start(folder: Path, output: Path, **changes: Any) -> Iterator[mlxbert.Event]:
    given = {**OPTIONS, "corpus": folder / "text.txt", "model": folder / "tiny", **changes}
    return mlxbert.pretrain(given.pop("corpus"), output=output, **given)


def run(folder: Path, output: Path, **changes: Any) -> list[mlxbert.Event]:
    return [*start(folder, output, **changes)]


def config(path: Path, **changes: Any) -> Path:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    path.write_text(json.dumps(sizes | {"max_position_embeddings": 40, "pad_token_id": 0} | changes))
    return path


def test_a_model_is_continued(folder: Path, tmp_path: Path) -> None:
    events = run(folder, tmp_path / "out", objective="mlm,nsp", fill=["the [MASK] sat on the mat"])
    steps = [event for event in events if isinstance(event, mlxbert.Step)]
    evaluated = [event for event in events if isinstance(event, mlxbert.Evaluated)]
    assert [event.step for event in steps] == [1, 2, 3, 4, 5, 6] and [event.step for event in evaluated] == [3, 6]
    for event in steps:
        assert {*event.terms} == {"mlm", "nsp"} and event.loss == pytest.approx(sum(event.terms.values()), rel=1e-5)
    found = evaluated[-1].metrics
    assert found["loss"] == pytest.approx(found["mlm_loss"] + found["nsp_loss"])
    assert found["pseudo_perplexity"] == pytest.approx(np.exp(found["mlm_loss"]))
    assert "[MASK]" not in evaluated[0].filled[0]
    model = mlxbert.load(tmp_path / "out")
    assert {*model.network.heads} == {"masked_lm", "next_sentence"}
    assert not (tmp_path / "out.partial").exists()
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["corpus"]["documents"] == 40 and record["options"]["terms"] == {"mlm": 1.0, "nsp": 1.0}
    # The same text is evaluated alike later.
    again = mlxbert.evaluate_words(model, folder / "text.txt", objective="mlm,nsp", length=24)
    assert again.metrics.keys() == found.keys() and again.hidden > 100
    small = mlxbert.evaluate_words(model, folder / "text.txt", objective="mlm,nsp", length=24, batch_tokens=80)
    assert small.metrics == pytest.approx(again.metrics, rel=1e-5)
    with pytest.raises(ArgumentError, match="batch_tokens"):
        mlxbert.evaluate_words(model, folder / "text.txt", batch_tokens=0)


def test_a_new_model_begins_with_a_size_or_a_file(folder: Path, tmp_path: Path) -> None:
    new: dict[str, Any] = {"model": None, "vocabulary": folder / "tiny"}
    run(folder, tmp_path / "out", config=config(tmp_path / "size.json", model_type="bert"), **new)
    model = mlxbert.load(tmp_path / "out")
    assert model.config.hidden_size == 16 and {*model.network.heads} == {"masked_lm"}
    run(folder, tmp_path / "tiny", config="tiny", steps=1, **new)
    assert mlxbert.load(tmp_path / "tiny").config.hidden_size == 128
    # ALBERT in phases.
    new["config"] = config(tmp_path / "albert.json", model_type="albert", embedding_size=8)
    events = run(folder, tmp_path / "albert", objective="mlm,sop", length="16:0.5,32:0.5", **new)
    assert "order_accuracy" in next(event for event in events if isinstance(event, mlxbert.Evaluated)).metrics
    assert {*mlxbert.load(tmp_path / "albert").network.heads} == {"masked_lm", "sentence_order"}


def test_token_ids_are_kept_for_other_runs(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "one", shards=tmp_path / "shards", steps=1)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("*")}
    read: list[int] = []
    run(folder, tmp_path / "two", shards=tmp_path / "shards", steps=1, on_read=lambda done, of: read.append(done))
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("*")}
    assert not read


@together("changes", [
    {"objective": "mlm,other"}, {"objective": "mlm,mlm"}, {"objective": "mlm:0"}, {"objective": "nsp,sop"},
    {"objective": "mlm,sop"},  # BERT has no such head
    {"steps": 0}, {"steps": None, "epochs": -1}, {"steps": None, "epochs": True}, {"steps": 3, "epochs": 2},
    {"valid": "other.txt", "validation_fraction": 0.1}, {"length": "1000"}, {"mask_probability": 1.5},
    {"masks": 0}, {"documents": "page"}, {"config": "tiny"}, {"vocabulary": "builtin"},
    {"model": None, "config": "huge", "vocabulary": "builtin"}, {"model": None, "config": "tiny"},
    {"corpus": []}, {"freeze": 5}, {"model": None, "config": "tiny", "vocabulary": "builtin", "layers": [0]},
    {"model": None, "config": "tiny", "vocabulary": "builtin", "adapter": "x"}, {"corpus": [3]}, {"lora": 0},
    {"lora": 8, "model": None, "config": "tiny", "vocabulary": "builtin"}, {"lora": 8, "layers": [0]},
    {"lora": 8, "lora_layers": "keys"}, {"lora": 8, "objective": "electra"}, {"lora": 8, "freeze": 1},
    {"dora": True}, {"patience": 3}, {"objective": "electra", "freeze": 1},
    {"objective": "electra", "layer_decay": 0.9}, {"unknown": 1},
    {"across_documents": True, "objective": "mlm,nsp"}, {"fill": "the cat sat"},
])  # fmt: skip
def test_arguments_that_are_refused(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError if "fill" in changes else ArgumentError):
        start(folder, tmp_path / "out", **changes)
    assert not [*tmp_path.iterdir()]


def test_arguments_that_are_refused_before_a_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    Path("text.txt").write_text("the cat\n")
    with mock.patch("mlxbert.train.pretraining.pretrain.find_initial", side_effect=AssertionError):
        given: dict[str, Any] = {"corpus": "text.txt", "model": "org/none", "output": "out"}
        for changes in ({"corpus": "none.txt"}, {"valid": "none.txt"}, {"encoding": "none"}, {"output": "mine"}):
            with pytest.raises(MlxbertError):
                mlxbert.pretrain(**given | changes)


@together("name,content,objective", [
    ("one.txt", b"the\n\ncat\n\nmat\n", "mlm"), ("few.txt", b"the cat sat\n", "mlm"),
    ("document.txt", b"the cat sat\nthe dog sat on the mat\n" * 30, "mlm,nsp"),
    ("words.txt", b"the cat sat on the mat\n\n" * 30, "mlm,nsp"), ("text.docx", b"PK\x03\x04", "mlm"),
])  # fmt: skip
def test_corpora_that_cannot_be_used(folder: Path, tmp_path: Path, name: str, content: bytes, objective: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MlxbertError):
        run(folder, tmp_path / f"out {name}", corpus=tmp_path / name, objective=objective)
    assert not (tmp_path / f"out {name}").exists()


@pytest.mark.parametrize("objective", ["nsp", "vectors", "hidden"])
def test_objectives_without_a_masked_word_head(folder: Path, tmp_path: Path, objective: str) -> None:
    run(folder, tmp_path / "out", objective=objective, steps=1)
    heads = {*mlxbert.load(tmp_path / "out").network.heads}
    assert heads == ({"next_sentence"} if objective == "nsp" else set())


def test_what_is_held_out_counts_as_other_data(folder: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "b.txt", seed=3)
    stream = start(folder, tmp_path / "out", corpus=[folder / "text.txt", tmp_path / "b.txt"])
    next(stream), next(stream)
    stream.close()  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError):
        run(folder, tmp_path / "out", valid=tmp_path / "b.txt")


def test_the_objective_as_it_is_written() -> None:
    for text, terms in (
        ("mlm, nsp:0.5", {"mlm": 1.0, "nsp": 0.5}), ("electra", {"electra": 50.0}), ("electra:20", {"electra": 20.0})
    ):  # fmt: skip
        assert read_terms(text) == terms
    for wrong in ("electra,nsp", "mlm,electra", "electra:0"):
        with pytest.raises(ArgumentError):
            read_terms(wrong)


SHORT = ("--length", "24", "--steps", "2", "--batch-size", "8")


def test_the_commands_train_and_evaluate(folder: Path, tmp_path: Path) -> None:
    text, model, output = (str(path) for path in (folder / "text.txt", folder / "tiny", tmp_path / "out"))
    outcome = call("pretrain", text, "--model", model, "--output", output, "--objective", "mlm,nsp", *SHORT)
    assert outcome.status == 0
    events = [line["event"] for line in outcome.lines]
    assert events[0] == "started" and events[-1] == "finished" and events.count("step") == 2
    outcome = call("evaluate", "mlm", "--data", text, "--model", output, "--length", "24", "--batch-tokens", "100")
    assert outcome.status == 0
    assert {"accuracy", "loss", "pseudo_perplexity"} == {*json.loads(outcome.out)["metrics"]}
    outcome = call("distill", text, "--teacher", model, "--layers", "0", "--output", f"{output}2", *SHORT)
    step = next(line for line in outcome.lines if line["event"] == "step")
    assert outcome.status == 0 and {*step["terms"]} == {"mlm", "soft", "hidden"}


def test_a_new_model_continues_none(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, model = str(folder / "text.txt"), str(folder / "tiny")
    size = str(config(tmp_path / "size.json", model_type="bert"))
    new = ("pretrain", text, "--config", size, "--vocabulary", model, "--output", str(tmp_path / "out"), *SHORT)
    for name in (model, "builtin"):
        call(*new, "--model", name).fails(2, "model and --config cannot be combined")
    monkeypatch.setenv("MLXBERT_MODEL", model)  # the usual model, which nobody asked for here
    assert call(*new).status == 0
    for more in (("--objective", "mlm,x"), ("--length", "x"), ("--config", "tiny"), ("--generator", "0.5")):
        outcome = call("pretrain", text, "--model", model, "--output", str(tmp_path / "none"), *more)
        outcome.fails(2)
        assert outcome.err.count("error:") == 1
