"""Opens a finished folder with transformers, and compares what it computes there with what it computes here."""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import FINE_TUNED, HEADS, Network, has_own
from mlxbert.tasks.task import evaluation_mode
from mlxbert.text.batch import make_batch
from mlxbert.training.objectives.objective import Example
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats.config_json import ConfigJson

_PACKAGES = ("torch", "transformers")
_MOST = 32  # examples
_BOUND = 1e-4  # of the largest logit, or absolute where that is smaller than 1
_HINT = "the trained model is kept; the same call without check=True puts it in place"


def require(heads: Mapping[str, Labels | None], config_json: ConfigJson) -> None:
    """Refuses a check that cannot be made, before training.

    Args:
        heads: The heads that are trained, and their labels.
        config_json: The configuration of the model.
    """
    if not [*heads]:
        raise ArgumentError("check compares the logits of a head, and vectors are trained without one")
    if len([*heads]) != 1 or not {*heads} <= {*FINE_TUNED}:
        raise ArgumentError(
            f"check compares models with one of {', '.join(FINE_TUNED)}, this one gets {', '.join(heads)}"
        )
    if any(has_own([head], labels) for head, labels in heads.items()):
        raise ArgumentError("check compares with transformers, which has nothing equivalent to few_shot's classifier")
    family = family_of(config_json)[1]
    if family.foreign(config_json, family.read_config(config_json)):
        raise ArgumentError("check compares with transformers, which runs this model only with its authors' code")
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(
            f"check needs {' and '.join(_PACKAGES)}, not installed: {', '.join(missing)}",
            hint=f"install it with: pip install {' '.join(missing)}",
        )


def check(folder: Path, network: Network, examples: Sequence[Example], head: str) -> float:
    """The largest difference of a logit, in float32 on the CPU.

    Args:
        folder: The finished folder.
        network: The network in memory that was saved there.
        examples: Validation examples; the first 32 are compared.
        head: The head that was trained.
    """
    encodings = [example.encoding for example in examples[:_MOST]]
    with evaluation_mode(network), mx.stream(mx.cpu):
        batches = [make_batch([encoding], network.encoder.config) for encoding in encodings]
        ours = [np.array(network.logits(head, batch)[0].astype(mx.float32)) for batch in batches]
    try:
        with _silent():
            theirs = _theirs(folder, batches, head)
    except Exception as problem:  # whatever may go wrong in there
        raise MlxbertError(f"{folder}: transformers does not open it ({problem})", hint=_HINT) from problem
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            raise MlxbertError(
                f"{folder}: transformers computes {other.shape[-1]} logits, mlxbert {one.shape[-1]}", hint=_HINT
            )
    difference = float(np.max([np.abs(one - other).max() for one, other in zip(ours, theirs, strict=True)]))
    largest = float(np.max([np.abs(one).max() for one in ours]))
    if not difference <= _BOUND * max(1.0, largest):  # not a number, too
        raise MlxbertError(
            f"{folder}: logits of transformers differ by {difference:.1e}, the largest is {largest:.3g}", hint=_HINT
        )
    return difference


def _theirs(folder: Path, batches: Sequence[Batch], head: str) -> list[NDArray[np.float32]]:
    """The logits of transformers for each example, (C,), or for heads over tokens (L, C)."""
    torch, transformers = (importlib.import_module(name) for name in _PACKAGES)
    kind = getattr(transformers, f"AutoModel{HEADS[head].class_names[0]}")
    # Code of the model's author would be asked for at the terminal.
    model = kind.from_pretrained(str(folder), dtype=torch.float32, trust_remote_code=False).eval()
    rows: list[NDArray[np.float32]] = []
    with torch.no_grad():
        for batch in batches:
            ids = torch.tensor(batch.input_ids.tolist())
            segments = batch.token_type_ids
            more = {} if segments is None else {"token_type_ids": torch.tensor(segments.tolist())}
            found = model(ids, attention_mask=torch.ones_like(ids), **more)
            if HEADS[head].scope == "span":
                ends = [found.start_logits[0].tolist(), found.end_logits[0].tolist()]
                rows.append(np.array(ends, np.float32).T)
            else:
                rows.append(np.array(found.logits[0].tolist(), np.float32))
    return rows


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps transformers from drawing bars and printing reports over what is shown."""
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
