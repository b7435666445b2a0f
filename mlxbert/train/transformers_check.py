"""Opens a finished folder with transformers, and compares the logits of transformers and mlxbert."""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, on_cpu
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import FINE_TUNED, HEADS, Network, has_own
from mlxbert.other_libraries import pip_install
from mlxbert.tasks.task import evaluation_mode
from mlxbert.text.batch import make_batch
from mlxbert.train.objectives.objective import Example
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats.config_json import ConfigJson

_PACKAGES = ("torch", "transformers")
_MAX_EXAMPLES = 32
_TOLERANCE = 1e-4  # relative to the largest logit, or absolute if that is less than 1
_HINT = "repeat the call without `check=True` to move the trained model, which is kept, into place"


def require_packages() -> None:
    """Raises `ArgumentError` if transformers or another package that the check needs is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(
            f"`check` needs {' and '.join(_PACKAGES)}, but {' and '.join(missing)} cannot be found",
            hint=pip_install(" ".join(missing)),
        )


def require_counterpart(heads: Mapping[str, Labels | None], config_json: ConfigJson) -> None:
    """Raises `ArgumentError` before training if transformers cannot compute the model that training will produce."""
    if not [*heads]:
        raise ArgumentError("`check` needs a head that computes logits, but a model for vectors has no head")
    if len([*heads]) != 1 or not {*heads} <= {*FINE_TUNED}:
        raise ArgumentError(
            f"`check` works only with one of the heads {', '.join(FINE_TUNED)}, but the model gets {', '.join(heads)}"
        )
    if any(has_own([head], labels) for head, labels in heads.items()):
        raise ArgumentError("`check` compares with transformers, which has no classifier like that of `few_shot`")
    family = family_of(config_json)[1]
    if family.read_config(config_json).is_static:
        raise ArgumentError("`check` compares with transformers, which has no static models")
    if family.foreign(config_json, family.read_config(config_json)):
        raise ArgumentError(
            "`check` compares with transformers, which runs this model only with the code of the model's authors"
        )


def check(folder: Path, network: Network, examples: Sequence[Example], head: str) -> float:
    """Returns the largest absolute difference between the logits of mlxbert and transformers.

    Both compute the first 32 examples in float32 on the CPU.
    """
    encodings = [example.encoding for example in examples[:_MAX_EXAMPLES]]
    with evaluation_mode(network), on_cpu():
        batches = [make_batch([encoding], network.encoder.config) for encoding in encodings]
        ours = [np.array(network.logits(head, batch)[0].astype(mx.float32)) for batch in batches]
    try:
        with _silent():
            theirs = _theirs(folder, batches, head)
    except Exception as problem:  # anything can go wrong in third-party code
        raise MlxbertError(f"{folder}: transformers cannot open the model ({problem})", hint=_HINT) from problem
    for logits, reference in zip(ours, theirs, strict=True):
        if logits.shape != reference.shape:
            raise MlxbertError(
                f"{folder}: transformers computes {reference.shape[-1]} logits, but mlxbert computes "
                f"{logits.shape[-1]}",
                hint=_HINT,
            )
    difference = float(np.max([np.abs(logits - other).max() for logits, other in zip(ours, theirs, strict=True)]))
    largest = float(np.max([np.abs(logits).max() for logits in ours]))
    if not difference <= _TOLERANCE * max(1.0, largest):  # also true for NaN
        raise MlxbertError(
            f"{folder}: the logits of transformers and mlxbert differ by {difference:.1e}, while the largest logit is "
            f"{largest:.3g}",
            hint=_HINT,
        )
    return difference


def _theirs(folder: Path, batches: Sequence[Batch], head: str) -> list[NDArray[np.float32]]:
    """Returns the logits of transformers for each example: (C,), or (L, C) for heads that score tokens."""
    torch, transformers = (importlib.import_module(name) for name in _PACKAGES)
    model_class = getattr(transformers, f"AutoModel{HEADS[head].class_names[0]}")
    # Otherwise transformers may ask on the terminal whether to run code of the model's authors.
    model = model_class.from_pretrained(str(folder), dtype=torch.float32, trust_remote_code=False).eval()
    rows: list[NDArray[np.float32]] = []
    with torch.no_grad():
        for batch in batches:
            ids = torch.tensor(batch.input_ids.tolist())
            segments = batch.token_type_ids
            optional = {} if segments is None else {"token_type_ids": torch.tensor(segments.tolist())}
            outputs = model(ids, attention_mask=torch.ones_like(ids), **optional)
            if HEADS[head].scope == "span":
                ends = [outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()]
                rows.append(np.array(ends, np.float32).T)
            else:
                rows.append(np.array(outputs.logits[0].tolist(), np.float32))
    return rows


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps transformers from drawing progress bars and printing reports to the terminal."""
    logging = importlib.import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
