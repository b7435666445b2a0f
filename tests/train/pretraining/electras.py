"""Tiny runs of ELECTRA."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mlxbert.machine.device import mx, nn
from mlxbert.model import Model
from mlxbert.nn.heads import Network
from mlxbert.train.loop.events import Event
from mlxbert.train.pretraining.electra_pretraining import Electra, with_generator
from mlxbert.train.pretraining.examples import PretrainingExample
from mlxbert.train.pretraining.initial_model import find_initial
from mlxbert.train.pretraining.objective import Pretraining, make_terms, read_terms
from mlxbert.train.pretraining.pretrain import pretrain
from mlxbert.weights.model_source import ModelRef
from tests.helpers import tiny

CONFIG = tiny.CONFIG | {"model_type": "electra", "embedding_size": 16, "hidden_dropout_prob": 0.1}
SENTENCES = ("the cat sat on the mat.", "the dog is in paris, tokyo is a city!", "he went to the store of milk.")


class Folder:
    """A vocabulary, a configuration and a corpus of sixty documents, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config, self.corpus = folder, folder / "electra.json", folder / "corpus.txt"
        self.vocabulary = tiny.save(folder / "vocabulary")
        self.config.write_text(json.dumps(CONFIG), encoding="utf-8")
        self.corpus.write_text("\n\n".join(["\n".join(SENTENCES)] * 60), encoding="utf-8")

    def run(self, output: str, **given: Any) -> Iterator[Event]:
        """The events of a run of five updates from nothing, unless something else is given."""
        if "model" not in given:
            given = {"config": self.config, "vocabulary": self.vocabulary} | given
        options: dict[str, Any] = {"objective": "electra", "length": "24", "steps": 5, "batch_size": 4, "lr": 3e-3}
        options |= {"eval_every": 5, "save_every": 100}
        return pretrain(self.corpus, output=self.folder / output, device="cpu", **options | given)

    def train(self, output: str, **given: Any) -> Path:
        """The folder that a run writes."""
        for _ in self.run(output, **given):
            pass
        return self.folder / output

    def model(self, **config: Any) -> Model:
        """Both as they are trained, with weights far from 0."""
        values = {**CONFIG, **config}
        self.config.write_text(json.dumps(values), encoding="utf-8")
        start = find_initial(ModelRef(device="cpu"), self.config, self.vocabulary, None, ["discriminator"])
        model = with_generator(start.model(["discriminator"], 0), start, 0.34, 0)
        mx.random.seed(3)
        drawn = nn.utils.tree_map(lambda array: mx.random.normal(array.shape) * 0.3 + 0.1, model.network.parameters())
        model.network.update(drawn)
        return model

    def network(self) -> Electra:
        found = self.model().network
        assert isinstance(found, Electra)
        return found


def objective(network: Network) -> Pretraining:
    """ELECTRA's, with its usual weights."""
    found = Pretraining(make_terms(read_terms("electra")))
    found.use(network.encoder.config)
    return found


def examples(lengths: tuple[int, ...] = (9, 20, 14)) -> list[PretrainingExample]:
    """Random texts between special tokens, some tokens of which are hidden."""
    rng = np.random.default_rng(0)
    found = []
    for length in lengths:
        clean = rng.integers(5, tiny.CONFIG["vocab_size"], length).astype(np.int32)
        clean[0], clean[-1] = 2, 3
        places = np.sort(rng.permutation(np.arange(1, length - 1))[: length // 3]).astype(np.int32)
        ids = clean.copy()
        ids[places] = 4
        segments = (np.arange(length) > length // 2).astype(np.int32)
        found.append(PretrainingExample(ids, segments, places, clean, None, rng.random((len(places), 2), np.float32)))
    return found
