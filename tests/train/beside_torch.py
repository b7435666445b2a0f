"""The same training twice: by our loop, and by torch with the optimizer and the schedule of transformers."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from mlxbert.config import EncoderConfig
from mlxbert.goldens.golden_outputs import load_network
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.text.encoding import Encoding
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.loop.data_order import Epochs, Training
from mlxbert.train.loop.events import Step
from mlxbert.train.loop.training_run import Run
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.classify import Classify
from mlxbert.train.objectives.objective import Example
from mlxbert.train.objectives.text_objective import TextObjective
from mlxbert.train.options.loop_options import TrainingOptions
from tests.helpers.families import FAMILIES, Compared
from tests.helpers.gradients import Arrays, arrays_of
from tests.train.test_gradients_live import their_model

NAMES = ("A", "B", "C", "D")
PROBLEMS = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}
Rate = Callable[[str], float]


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    family: str  # a name in `FAMILIES`
    task: str = "classify"
    objective: dict[str, Any] = field(default_factory=dict)  # options of the objective
    options: dict[str, Any] = field(default_factory=dict)  # options of the loop
    count: int = 40  # training examples

    @property
    def loop(self) -> TrainingOptions:
        """Twenty updates of all weights, unless something else is asked for."""
        usual = {"epochs": 4, "batch_size": 8, "lr": 1e-3, "weight_decay": 0.1, "max_grad_norm": 1.0, "seed": 5}
        return TrainingOptions(**usual | self.options)


class Pair:
    """A model of transformers, and a run of the same weights on the same examples; they are stored in a folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case, self._folder = case, folder
        compared = FAMILIES[case.family]
        self.model = their_model(case.family, PROBLEMS[case.task])
        self.model.save_pretrained(folder / "start")
        network = load_network(folder / "start")
        self.examples, records = _examples(compared, case)
        self.objective = _objective(case, records, network.encoder.config)
        self.run = Run(
            Training(
                network=network, objective=self.objective, examples=self.examples, place=str,
                order=Epochs(self.examples, case.loop), options=case.loop, dtype=mx.float32, evaluate=None,
            ),
            None,
        )  # fmt: skip

    def ours(self) -> list[float]:
        """The losses of our loop."""
        return [event.loss for event in self.run.events() if isinstance(event, Step)]

    def theirs(self, dtype: Any = torch.float32, rate: Rate = lambda name: 1.0) -> list[float]:
        """The losses of torch, which takes the examples of an update as one batch.

        `rate` gives the factor of the learning rate by the name of a parameter; 0 leaves the parameter as it is.
        """
        options, steps = self._case.loop, self.run.steps
        model = self.model.to(dtype).train()
        optimizer = _optimizer(model, options, rate)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(options.warmup * steps), steps)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        losses = []
        for step in range(steps):
            loss = self._loss([number for batch in self.run.order.batches(step) for number in batch], dtype)
            optimizer.zero_grad()
            loss.backward()
            if options.max_grad_norm:
                torch.nn.utils.clip_grad_norm_(trained, options.max_grad_norm)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        return losses

    def _loss(self, numbers: list[int], dtype: Any) -> Any:
        batch = self.objective.collate([self.examples[number] for number in numbers], random.Random())
        given = {name: getattr(batch.inputs, name) for name in ("input_ids", "attention_mask", "token_type_ids")}
        inputs = {name: torch.tensor(np.array(array)).long() for name, array in given.items() if array is not None}
        targets = torch.tensor(np.array(batch.targets))
        targets = targets.long() if self._case.task == "classify" else targets.to(dtype)
        if not self._case.objective:
            return self.model(**inputs, labels=targets).loss
        assert isinstance(self.objective, Classify)
        how = self.objective.learning
        weights = self.objective.weights() if how.class_weights == "balanced" else [1.0] * len(NAMES)
        return torch.nn.functional.cross_entropy(
            self.model(**inputs).logits, targets, torch.tensor(weights, dtype=dtype),
            label_smoothing=how.label_smoothing,
        )  # fmt: skip

    def parameters(self) -> tuple[Arrays, Arrays]:
        """Ours and theirs after training, by our names."""
        self.model.float().save_pretrained(self._folder / "end")
        trained = {name: np.array(array) for name, array in self.run.best().items()}
        start = arrays_of(load_network(self._folder / "start").parameters())  # frozen ones stay as they are
        return start | trained, arrays_of(load_network(self._folder / "end").parameters())


def _examples(compared: Compared, case: Case) -> tuple[list[Example], list[LabelledText]]:
    """Random texts and pairs with random labels, the first label more often than the others."""
    rng, pad = random.Random(11), compared.facts["pad_token_id"]
    words = [number for number in range(compared.facts["vocab_size"]) if number != pad]
    examples, records = [], []
    for _ in range(case.count):
        length = rng.randint(3, compared.max_length)
        first = rng.randint(1, length)
        segments = [0] * first + [min(1, compared.segments - 1)] * (length - first)
        none: list[int | None] = [None] * length
        ids, places = rng.choices(words, k=length), list(range(length))
        encoding = Encoding(ids, segments, [(0, 0)] * length, none, none, places, False)
        number = rng.choices(range(4), [4, 2, 1, 1])[0]
        several = [float(rng.random() < 0.4) for _ in NAMES]
        target = {"classify": number, "multilabel": several, "regress": rng.gauss(0.0, 2.0)}[case.task]
        examples.append(Example(encoding, target))
        records.append(LabelledText("", None, NAMES[number], ""))
    return examples, records


def _objective(case: Case, records: list[LabelledText], config: EncoderConfig) -> TextObjective:
    objective = make_objective(case.task, **case.objective)
    assert isinstance(objective, TextObjective)
    if case.task == "classify":
        objective.heads(records)  # counts the classes
    objective.labels = Labels(NAMES[:1] if case.task == "regress" else NAMES, PROBLEMS[case.task])
    objective.config = config
    return objective


def _optimizer(model: Any, options: TrainingOptions, rate: Rate) -> Any:
    """AdamW with the groups of transformers' Trainer, a group for each rate; a rate of 0 freezes."""
    decayed = set(transformers.Trainer.get_decay_parameter_names(None, model))
    groups: dict[tuple[float, float], list[Any]] = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(rate(name) > 0)
        key = rate(name), options.weight_decay if name in decayed else 0.0
        groups.setdefault(key, []).append(parameter)
    settings = [{"params": members, "lr": options.lr * factor, "weight_decay": decay}
                for (factor, decay), members in groups.items() if factor]  # fmt: skip
    return torch.optim.AdamW(settings, betas=(0.9, 0.999), eps=1e-8)


def depth(name: str, layers: int) -> int:
    """0 for embeddings, the number of a layer of transformers from 1, and one more for everything above."""
    if found := re.search(r"\.(?:layer|layers|albert_layer_groups|transformer_encoder)\.(\d+)\.", name):
        return int(found[1]) + 1
    below = re.search(r"embed|emb_ln|^model\.encoder\.|relative_attention_bias|deberta\.encoder\.", name)
    return 0 if below else layers + 1


def deviation(ours: list[float], theirs: list[float]) -> float:
    """The largest relative difference of losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
