"""Records the entities that the package gliner finds with tiny random models: writes tests/tasks/gliner_goldens.

Needs gliner with its own versions of torch and transformers (`pip install gliner==0.2.29`); the tests that read the
goldens do not.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers import gliner_models as models

FOLDER = Path(__file__).parents[1] / "tests" / "tasks" / "gliner_goldens"


def main() -> None:
    """Writes a folder for each kind."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for kind in models.FROZEN:
        with tempfile.TemporaryDirectory() as temporary:
            model = models.make(Path(temporary), kind)
            target = FOLDER / kind
            target.mkdir(parents=True)
            for parameter in model.model.parameters():  # to numbers that float16 can hold
                parameter.data = parameter.data.half().float()
            found = {
                f"{threshold} {nested}": models.predicted(
                    model, models.TEXTS, models.LABELS, threshold=threshold, flat_ner=not nested
                )
                for threshold in models.THRESHOLDS
                for nested in (False, True)
            }
            model.save_pretrained(target, safe_serialization=True)
        weights = {name: tensor.half() for name, tensor in load_file(target / "model.safetensors").items()}
        save_file(weights, target / "model.safetensors")
        config = json.loads((target / "gliner_config.json").read_text(encoding="utf-8"))
        config |= {"model_name": kind, "encoder_config": {**config["encoder_config"], "_name_or_path": kind}}
        (target / "gliner_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        (target / "entities.json").write_text(json.dumps(found), encoding="utf-8")
        print(kind, {name: sum(map(len, rows)) for name, rows in found.items()}, torch.__version__)


if __name__ == "__main__":
    main()
