"""Labelled data as training material: the records of a task, its objective and, optionally, a teacher."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlxbert.export.card import Scores
from mlxbert.folders.fingerprint import hash_model
from mlxbert.model import Model
from mlxbert.nn import dropout
from mlxbert.nn.heads import OWN_LAYERS
from mlxbert.readers.text_lines import UTF8
from mlxbert.tasks.training_record import trained_names
from mlxbert.train.base_model import BaseModel
from mlxbert.train.data.hub_datasets import repositories_of
from mlxbert.train.distillation import Distillation
from mlxbert.train.final_evaluation import Assessment, assess
from mlxbert.train.loop.data_order import Epochs
from mlxbert.train.loop.training_run import Run
from mlxbert.train.lora_adapters import Adapters, adapt_model, check_adapters
from mlxbert.train.objectives.objective import LoopObjective, alone
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.training_call import Material, TrainingCall, usual_rate
from mlxbert.train.training_folders import FolderContent, metrics_table
from mlxbert.train.training_plan import TrainingPlan
from mlxbert.train.transformers_check import check as compare

_LOG = logging.getLogger("mlxbert")

_MIN_UPDATES, _MAX_EPOCHS = 300, 20  # limits for the default number of epochs
_PATIENCE = 5  # epochs without improvement (benchmarks/README.md)


@dataclass(frozen=True, kw_only=True)
class LabelledMaterial(Material):
    """Labelled data, split and tokenized."""

    base: BaseModel  # the model that training starts from
    objective: LoopObjective[Any]  # the objective of the loop: the task alone, or the task with its teacher
    plan: TrainingPlan  # the data, and the objective of the task
    distillation: Distillation | None  # the scores of the teacher; `None` without a teacher
    # The encoding of the files. The manifest names it, because the hashes of the files do not depend on it.
    encoding: str
    compares: bool  # whether the finished folder is compared with transformers

    def usual(self, options: TrainingOptions) -> Mapping[str, Any]:
        plan = self.plan
        config = plan.objective.config
        updates = -(-len(plan.train.examples) // (options.batch_size * options.gradient_accumulation))
        return {
            # Few examples need more epochs: a few hundred updates are the minimum even for the head.
            "epochs": min(max(TrainingOptions.epochs, -(-_MIN_UPDATES // updates)), _MAX_EPOCHS),
            "patience": max(_PATIENCE, _PATIENCE * updates // (options.eval_every or updates)),
            "lr": usual_rate(config.hidden_size, options, plan.objective.lr_factor, static=config.is_static),
        }

    def check(self, options: TrainingOptions) -> None:
        options.check_layers(max(self.plan.objective.config.num_stored_layers, 1))  # a static model has only its table
        if options.lora is not None:
            check_adapters(self.base.checkpoint, options, self.plan)

    def manifest(self, call: TrainingCall) -> dict[str, Any]:
        plan = self.plan
        return {
            "task": call.task,
            "model": hash_model(self.base.files),
            **({} if self.distillation is None else self.distillation.manifest()),
            "heads": {head: labels and list(labels.names) for head, labels in plan.heads.items()},
            "options": {**call.options.to_dict(), **plan.objective.settings()},
            "variants": [dict(variant) for variant in call.variants],
            **({} if self.encoding == UTF8 else {"encoding": self.encoding}),
            "sha256": dict(plan.sha256),
            "training_examples": len(plan.train.examples),
            "validation_examples": len(plan.valid.examples),
        }

    def model(self, options: TrainingOptions) -> tuple[Model, Adapters | None]:
        model = self.plan.models.take(self.plan.objective, options.seed)
        if options.dropout is not None:
            dropout.set_rate(model.network, options.dropout)
        return model, adapt_model(model, options)

    def training(self, call: TrainingCall, options: TrainingOptions, model: Model) -> Mapping[str, Any]:
        plan, distillation, share, examples = self.plan, self.distillation, call.group.shared, self.plan.train.examples

        def evaluate() -> Mapping[str, float]:
            plan.objective.fit(model.network, share)
            predictions = predict(model.network, plan.objective, plan.valid.examples, share=share)
            distances = {} if distillation is None else distillation.measured(model.network, share)
            return distances | plan.objective.metrics(plan.valid.examples, predictions)

        order = Epochs(examples, options)
        if distillation is not None:
            examples = distillation.examples(None if call.dry_run else share)
        return {
            "objective": self.objective, "examples": examples, "place": plan.train.places.__getitem__,
            "order": order, "evaluate": evaluate,
        }  # fmt: skip

    def reads(self) -> tuple[int, int]:
        """See `Material.reads`. The final evaluation of a built-in task also embeds all texts, for a baseline."""
        valid, train = (sum(map(len, part.examples)) for part in (self.plan.valid, self.plan.train))
        return valid, valid + (0 if self.plan.report is None else train + valid)

    def facts(self, call: TrainingCall, number: int, loop: Run) -> Mapping[str, Any]:
        plan = self.plan
        keeps_head = self.base.keeps(plan.heads)
        if number == 0 and not keeps_head:
            self._say_what_keeps_the_head()
        return {
            "examples": len(plan.train.examples),
            "epochs": loop.order.epochs(loop.steps) if call.options.minutes else call.chosen(number).epochs,
            "new_head": not keeps_head if plan.heads else None,
            "report": plan.report if number == 0 else None,
        }  # fmt: skip

    def _say_what_keeps_the_head(self) -> None:
        """Logs a warning if the data have the labels that the model's own head was trained with under other names."""
        renamed = trained_names(self.base.files.own)
        for labels in self.plan.heads.values():
            if labels is not None and renamed and {*labels.names} == {*renamed}:
                _LOG.warning(
                    "the head of %s is replaced, because it has other names for the labels of the data; to train it "
                    "further: `label_names='%s'`",
                    *(self.base.public_name, ",".join(renamed[name] for name in labels.names)),
                )

    def content(self, call: TrainingCall, model: Model, results: Sequence[Mapping[str, Any]]) -> FolderContent:
        plan, objective = self.plan, self.plan.objective
        objective.fit(model.network, alone)
        assessment = assess(self.base, model, plan, results, call.target, call.times)

        def complete(folder: Path) -> Mapping[str, Any]:
            compared = (assessment.model.network, plan.valid.examples, next(iter(plan.heads), ""))
            with call.times.phase("checking with transformers" if self.compares else "saving"):
                return {"check": compare(folder, *compared) if self.compares else None}

        return FolderContent(
            model=assessment.model, record=self._record(call, assessment, results),
            card=self._card(call.task, assessment), scores=self._scores(call.task, assessment),
            keys=objective.config_keys(), embedder=objective.embedder_to_save(),
            facts={"evaluation": assessment.evaluation, "summary": assessment.summary}, complete=complete,
        )  # fmt: skip

    def _scores(self, task: str, assessment: Assessment) -> Scores:
        train, valid = self.plan.train_files, self.plan.valid_files
        tested = repositories_of(valid)
        return Scores(
            task=TASKS[task].use if task in TASKS else None, metrics=assessment.metrics,
            datasets=repositories_of(train), tested_on=tested[0] if len(valid) == len(tested) == 1 else None,
            held_out=train == valid,
        )  # fmt: skip

    def _record(
        self, call: TrainingCall, assessment: Assessment, results: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        report, evaluation, summary = self.plan.report, assessment.evaluation, assessment.summary
        # Mistakes have texts, and a published folder should not contain the data.
        scores = evaluation and {name: value for name, value in asdict(evaluation).items() if name != "mistakes"}
        return {
            "command": call.line, "report": report and asdict(report), "runs": list(results),
            "metrics": dict(assessment.metrics), "evaluation": scores,
            "baselines": dict(summary.baselines) if summary else None,
        }  # fmt: skip

    def _card(self, task: str, assessment: Assessment) -> list[str]:
        plan, labels = self.plan, assessment.model.labels
        facts = [
            f"Trained by mlxbert for `{task}` from {self.base.public_name}, on {len(plan.train.records):,} examples. "
            f"On {len(plan.valid.records):,} validation examples, which also selected the checkpoint:",
            "", *metrics_table(assessment.metrics),
        ]  # fmt: skip
        if labels is not None and not plan.objective.numeric:
            facts += [f"Labels: {', '.join(labels.names)}.", ""]
            facts += [line for layer in OWN_LAYERS if layer.used(labels) for line in (f"{layer.note}.", "")]
        return facts
