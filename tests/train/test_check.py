"""`finetune(check=True)`: the finished folder next to transformers, for which another module stands."""

import importlib.machinery
import importlib.util
import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.other_libraries import pip_install
from mlxbert.train.loop.events import Finished
from tests.helpers.classifiers import SENTIMENT, save_classifier

RECORDS = [{"text": f"the cat sat {'on mat ' * number}", "label": SENTIMENT.names[number % 3]} for number in range(6)]


@dataclass
class Fake:
    """Stands for transformers: opens a folder, and changes its logits."""

    change: Any = lambda logits: logits
    bars: bool = True
    opened: list[Path] = field(default_factory=list)
    shown: list[bool] = field(default_factory=list)

    def from_pretrained(self, folder: str, **given: Any) -> Any:
        self.opened.append(Path(folder))
        self.shown.append(self.bars)
        assert given["trust_remote_code"] is False
        network = mlxbert.load(folder, task="classify", dtype="float32").network

        def call(ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            assert ids.shape == attention_mask.shape and attention_mask.all()
            batch = Batch(mx.array(ids), None, None if token_type_ids is None else mx.array(token_type_ids))
            return SimpleNamespace(logits=self.change(np.array(network.logits("sequence_classifier", batch))))

        return SimpleNamespace(eval=lambda: call)


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(content)
    return module


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    logging = _module(
        "transformers.utils.logging", CRITICAL=50, get_verbosity=lambda: 30, set_verbosity=lambda level: None,
        is_progress_bar_enabled=lambda: fake.bars, disable_progress_bar=lambda: setattr(fake, "bars", False),
        enable_progress_bar=lambda: setattr(fake, "bars", True),
    )  # fmt: skip
    numbers = {"tensor": np.array, "ones_like": np.ones_like, "no_grad": nullcontext, "float32": "float32"}
    for module in (
        _module("torch", **numbers),
        _module("transformers", AutoModelForSequenceClassification=fake),
        _module("transformers.utils"),
        logging,
    ):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


def train(tmp_path: Path, **options: Any) -> Finished:
    if not (tmp_path / "model").exists():
        save_classifier(tmp_path / "model", SENTIMENT)
    given: dict[str, Any] = {"train": RECORDS, "valid": RECORDS, "model": tmp_path / "model", "epochs": 1}
    *_, last = mlxbert.finetune("classify", **given | {"output": tmp_path / "out"} | options)
    assert isinstance(last, Finished)
    return last


def test_the_folder_is_compared_before_it_is_in_place_and_not_unasked(tmp_path: Path, fake: Fake) -> None:
    fake.change = lambda logits: logits + np.float32(2e-5)
    finished = train(tmp_path, check=True)
    assert finished.check == pytest.approx(2e-5, rel=0.05)
    assert json.loads((tmp_path / "out/training.json").read_text())["check"] == finished.check
    assert fake.opened == [tmp_path / "out.partial/model"] and fake.shown == [False] and fake.bars
    assert not (tmp_path / "out.partial").exists()
    mlxbert.save(mlxbert.load(tmp_path / "model"), tmp_path / "out", overwrite=True)  # all files are those it lists
    opened = len(fake.opened)
    assert train(tmp_path, output=tmp_path / "unasked").check is None and len(fake.opened) == opened
    assert json.loads((tmp_path / "unasked/training.json").read_text())["check"] is None


def _broken(logits: Any) -> Any:
    raise OSError("no such weights")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda logits: logits + 1e-2, r"differ by 1\.0e-02"),
        (lambda logits: logits * np.nan, "differ by nan"),
        (lambda logits: logits[:, :2], "2 logits, mlxbert 3"),
        (_broken, "no such weights"),
    ],
)
def test_a_difference_is_an_error_and_the_model_is_kept(tmp_path: Path, fake: Fake, change: Any, told: str) -> None:
    fake.change = change
    with pytest.raises(MlxbertError, match=told) as caught:
        train(tmp_path, check=True)
    assert caught.value.hint and "check=True" in caught.value.hint and fake.bars
    assert not (tmp_path / "out").exists()
    assert mlxbert.load(tmp_path / "out.partial/model").labels == SENTIMENT
    assert train(tmp_path).output == str(tmp_path / "out")  # nothing is trained again
    assert not (tmp_path / "out.partial").exists()


def test_missing_packages_are_told_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name in ("torch", "transformers") else found(name, *more),
    )
    with pytest.raises(ArgumentError, match="torch") as caught:
        train(tmp_path, check=True)
    assert caught.value.hint is not None and pip_install("torch transformers") in caught.value.hint
    assert not [*tmp_path.glob("out*")]
