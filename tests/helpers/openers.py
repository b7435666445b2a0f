"""Opens a folder with every class of other programs that may open it, and compares the results with mlxbert's.

The outcomes are:

- `same`: The results equal mlxbert's within 1e-5.
- `vectors`: The vectors equal mlxbert's within 1e-5.
- `new head`: The head is new, the program says so, and the folder does not claim to have the head.
- `another task`: No weight is new, but mlxbert has no such head: the heads of two tasks have the same tensor names.
- `refused`: The program does not open the folder.
- `other vectors`: No file states the pooling, and the program chooses another pooling than mlxbert.
- `random head`: The folder claims to have the head, but the results differ. This must not happen.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import peft
import sentence_transformers
import torch
import transformers
from transformers.pipelines import pipeline

import mlxbert
from mlxbert.goldens.golden_outputs import Array, Case, difference, make_cases, outputs
from mlxbert.nn.heads import HEADS, probabilities
from mlxbert.text.batch import make_batch
from tests.helpers.frozen import read_config
from tests.helpers.parity import reference_outputs

BOUND = 1e-5
TEXTS = ("the cat sat on the mat", "he bought milk")
_ENDINGS = "", "ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction", "ForSequenceClassification"
CLASSES = {f"AutoModel{end}": end for end in (*_ENDINGS, "ForTokenClassification", "ForQuestionAnswering")}
PIPELINES = {
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}
Numbers = Mapping[str, Array]


class Refused(Exception):
    """Raised if a program does not open a folder."""


@contextmanager
def opening() -> Iterator[list[str]]:
    """Collects the log messages of transformers while it opens a folder."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    propagates, logger.propagate = logger.propagate, False
    handlers, logger.handlers = logger.handlers, [handler]
    try:
        with warnings.catch_warnings(action="ignore"):
            yield messages
    except (ValueError, OSError, RuntimeError, KeyError, TypeError) as problem:
        raise Refused from problem
    finally:
        logger.propagate, logger.handlers = propagates, handlers


class Opened:
    """A folder, and the results of mlxbert for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = mlxbert.load(folder, dtype="float32", device="cpu")
        config = self.model.config
        self.case: Case = make_cases(config.vocab_size, 16, 0, config.type_vocab_size or 1)["pairs"]
        self.numbers: Numbers = outputs(self.model.network, self.case)

    def claims(self, ending: str) -> bool:
        if not ending or not (self.folder / "config.json").is_file():
            return False
        config, heads = read_config(self.folder), self.model.network.heads
        named = any(name.endswith(ending) for name in config.get("architectures") or ())
        standard = (HEADS[head] for head in heads if not HEADS[head].is_own(self.model.labels))
        labelled = ending.endswith("Classification") and not any(head.labelled for head in standard)
        return named or (labelled and bool({"id2label", "problem_type"} & config.keys()))

    def judge(self, model: Any, ending: str) -> str:
        """Returns the outcome for a model of torch, all of whose weights are from the folder."""
        theirs = reference_outputs(model.eval(), self.case)
        names = {name for name in theirs if name in HEADS} if ending else {"last hidden"}
        if names - self.numbers.keys() and not self.claims(ending):
            return "another task"
        return "same" if all(close(self.numbers.get(name), theirs[name]) for name in names) else "random head"


def close(ours: Any, theirs: Any) -> bool:
    """Whether two arrays are equal within `BOUND`."""
    ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
    return ours.shape == theirs.shape and difference(ours, theirs) <= BOUND


def _of_class(opened: Opened, name: str) -> str:
    with opening() as messages:
        kind = getattr(transformers, name)
        model, report = kind.from_pretrained(opened.folder, output_loading_info=True, attn_implementation="eager")
    new = report["missing_keys"]
    assert all(any(key in line for line in messages) for key in new), "a weight is new, and nothing was said"
    if new and CLASSES[name]:
        return "random head" if opened.claims(CLASSES[name]) else "new head"
    return opened.judge(model, CLASSES[name])


def _of_pipeline(opened: Opened, task: str) -> str:
    """Returns the outcome of the pipeline's class, if the results of the pipeline are the same where that is `same`."""
    with opening():
        run = pipeline(task, model=str(opened.folder), device="cpu")
    outcome = _of_class(opened, PIPELINES[task])
    if outcome != "same":
        return outcome
    text = TEXTS[0] if task != "fill-mask" else TEXTS[0].replace("cat", "[MASK]")
    return "same" if _RESULTS[task](opened.model, run, text) else "random head"


def _same_states(model: mlxbert.Model, run: Any, text: str) -> bool:
    batch = make_batch([model.tokenizer.encode(text)], model.config)
    return close(np.array(model.network.encode(batch).last_hidden_state), run(text))


def _same_fills(model: mlxbert.Model, run: Any, text: str) -> bool:
    ours = {fill.token_id: fill.score for fill in mlxbert.fill_mask(model, text, top_k=5).masks[0].fills}
    theirs = {entry["token"]: entry["score"] for entry in run(text, top_k=5)}
    return ours.keys() == theirs.keys() and close([*ours.values()], [theirs[key] for key in ours])


def _same_classes(model: mlxbert.Model, run: Any, text: str) -> bool:
    result, theirs = mlxbert.classify(model, text), run(text, top_k=None)
    if isinstance(result, mlxbert.Regression):
        return close([result.value], [theirs[0]["score"]])
    ours = {label.label: label.score for label in result.labels}
    return ours.keys() == {entry["label"] for entry in theirs} and close(
        [ours[entry["label"]] for entry in theirs], [entry["score"] for entry in theirs]
    )


def _same_tags(model: mlxbert.Model, run: Any, text: str) -> bool:
    batch = make_batch([model.tokenizer.encode(text)], model.config)
    ours = probabilities(model.network.logits("token_classifier", batch))
    return close(np.array(ours)[0, 1:-1].max(-1), [token["score"] for token in run(text, ignore_labels=[])])


_RESULTS: Mapping[str, Callable[[mlxbert.Model, Any, str], bool]] = {
    "feature-extraction": _same_states,
    "fill-mask": _same_fills,
    "text-classification": _same_classes,
    "token-classification": _same_tags,
}


def _of_embedder(opened: Opened, name: str) -> str:
    with opening():
        embedder = sentence_transformers.SentenceTransformer(str(opened.folder), device="cpu", local_files_only=True)
    theirs = embedder.encode([*TEXTS], show_progress_bar=False)
    model = mlxbert.load(opened.folder, task="embed", dtype="float32", device="cpu")
    return "vectors" if close(mlxbert.embed(model, [*TEXTS]), theirs) else "other vectors"


def _of_cross_encoder(opened: Opened, name: str) -> str:
    with opening():
        encoder = sentence_transformers.CrossEncoder(str(opened.folder), device="cpu", local_files_only=True)
    kind = _of_class(opened, "AutoModelForSequenceClassification")
    if kind != "same":
        return kind
    theirs = encoder.predict([TEXTS], activation_fn=torch.nn.Identity(), show_progress_bar=False)
    batch = make_batch([opened.model.tokenizer.encode(*TEXTS)], opened.model.config)
    ours = np.array(opened.model.network.logits("sequence_classifier", batch))
    return "same" if close(ours.reshape(-1), np.reshape(theirs, -1)) else "random head"


def _of_peft(opened: Opened, name: str) -> str:
    """Returns the outcome of opening an adapter with PEFT; the base model gets the same number of labels."""
    labels = {} if opened.model.labels is None else {"num_labels": len(opened.model.labels)}
    heads = [HEADS[head].class_names[0] for head in opened.model.network.heads]
    ending = heads[0] if heads else ""
    with opening():
        settings = peft.PeftConfig.from_pretrained(str(opened.folder))
        kind = getattr(transformers, f"AutoModel{ending}")
        base = kind.from_pretrained(settings.base_model_name_or_path, attn_implementation="eager", **labels)
        model = peft.PeftModel.from_pretrained(base, str(opened.folder))
    return opened.judge(model.merge_and_unload(), ending)  # PEFT's own class for questions leaves out segments


_Open = Callable[[Opened, str], str]
OPENERS: Mapping[str, _Open] = {
    **dict.fromkeys(CLASSES, _of_class),
    **dict.fromkeys(PIPELINES, _of_pipeline),
    "SentenceTransformer": _of_embedder,
    "CrossEncoder": _of_cross_encoder,
    "PeftModel": _of_peft,
}


def outcomes(folder: Path) -> dict[str, str]:
    opened, outcomes_by_name = Opened(folder), {}
    for name, opens in OPENERS.items():
        try:
            outcomes_by_name[name] = opens(opened, name)
        except Refused:
            outcomes_by_name[name] = "refused"
    return outcomes_by_name


def cells(outcomes_by_name: Mapping[str, str]) -> list[str]:
    """Returns the cells of the table in docs/formats.md."""
    return [outcomes_by_name[name] for name in OPENERS if name not in PIPELINES]
