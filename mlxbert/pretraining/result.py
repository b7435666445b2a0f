"""The folder that pre-training writes: the model, its card, and the record of the training."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlxbert.folders import destination
from mlxbert.folders.card import adapter_note, trained
from mlxbert.folders.save import write_trained
from mlxbert.model import Model
from mlxbert.pretraining.call import Call
from mlxbert.pretraining.data import Data
from mlxbert.pretraining.electra import Electra, discriminator_of, write_generator
from mlxbert.training.events import Finished
from mlxbert.training.gradients import install
from mlxbert.training.plan import Source
from mlxbert.training.workspace import Workspace


def finish(call: Call, model: Model, data: Data, workspace: Workspace, manifest: Mapping[str, Any]) -> Finished:
    """Writes the folder."""
    result = workspace.result(0)
    install(model.network, workspace.weights(0))
    call.objective.use(model.config)
    record = {
        **manifest, "corpus": asdict(data.report), "run": result, "python": sys.version.split()[0],
        "training_examples": len(data.train), "validation_examples": len(data.valid),
    }  # fmt: skip

    electra = isinstance(model.network, Electra)

    def describe(folder: Path) -> Mapping[str, str]:
        if electra:
            write_generator(model, folder)
        return {"training.json": json.dumps(record, indent=1) + "\n", "README.md": _card(call, data, result)}

    with workspace.model() as folder:
        kept = "vectors" in [term.name for term in call.objective.weighted] and call.start.files.modules
        write_trained(
            discriminator_of(model) if electra else model, folder, describe,
            embedder=model.embedder if kept else None, adapter=_adapter(call, model),
        )  # fmt: skip
        destination.check_target(call.target, call.start.files.path, call.overwrite)  # hours have passed
        destination.move(folder, call.target)
    workspace.remove()
    return Finished(
        run=0, output=str(call.target), metric=call.objective.metric, score=result["score"], step=result["step"],
        seconds=result["seconds"], runs=({"seed": call.options.seed, "score": result["score"]},),
    )  # fmt: skip


def _adapter(call: Call, model: Model) -> Callable[[Path], None] | None:
    """Writes adapters in place of all weights, where they were trained."""
    if call.adapters is None:
        return None
    return call.adapters.writer(
        model, Source(name=call.start.name, files=call.start.files, revision=call.start.revision)
    )


def _card(call: Call, data: Data, result: Mapping[str, Any]) -> str:
    """The model card."""
    measured: Mapping[str, float] = next((one for one in result["history"] if one["step"] == result["step"]), {})
    rows = [f"| {name} | {value:.4f} |" for name, value in measured.items() if name not in ("step", "epoch")]
    terms = " + ".join(f"{weight:g} {term.name}" for term, weight in call.objective.weighted.items())
    report = data.report
    begun = f"from {call.start.name}" if call.start.config is None else f"with fresh weights ({call.start.name})"
    facts = [
        f"Pre-trained by mlxbert {begun}: {terms}, {result['step']:,} updates, "
        f"{measured.get('epoch', 0):g} passes over {report.tokens:,} tokens of {report.documents:,} documents.",
        "", f"On {len(data.valid):,} examples that were not trained on:", "",
        "| metric | value |", "|---|---|", *rows, "",
    ]  # fmt: skip
    if call.adapters is not None:
        facts += adapter_note(call.start.name)
    library = "transformers" if call.adapters is None else "peft"
    return trained(call.start.name, call.target.name, "\n".join(facts), library)
