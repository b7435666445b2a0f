"""A machine with an empty cache, and a hub with one model."""

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from huggingface_hub.errors import HfHubHTTPError

from mlxbert.goldens.golden_outputs import arrays
from mlxbert.machine.device import mx
from tests.helpers.fake_hub import FakeHub, Repository, call_with_hub, client_settings
from tests.helpers.program import Outcome, process

# The library of HTTP that huggingface_hub uses: httpx2, and httpx before its version 2.
HTTPX: Any = importlib.import_module(HfHubHTTPError.__mro__[1].__module__.split(".")[0])
NAME = "org/tiny"
FILL = ("fill-mask", "the [MASK]", "--top-k", "2", "--model", NAME)


class Machine:
    """A machine with an empty cache, and a hub with one model."""

    def __init__(self, hub: FakeHub, home: Path) -> None:
        self.hub, self.home, self.folder = hub, home, home / "hub" / "models--org--tiny"
        self.variables = {"HF_HOME": str(home), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
        self.variables |= {"HF_TOKEN": "", "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}

    @property
    def repository(self) -> Repository:
        return self.hub.repositories[NAME]

    @property
    def commit(self) -> str:
        return self.repository.references["main"]

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / self.commit

    def run(self, *arguments: str, prelude: str = "", **variables: str) -> Outcome:
        """Runs the program in this process, or in a new process if there is a prelude."""
        if prelude:
            return process(*arguments, prelude=prelude, **{**self.variables, **variables})  # type: ignore[arg-type]
        return call_with_hub(*arguments, **{**self.variables, **variables})

    def run_anew(self, *arguments: str) -> Outcome:
        """Runs the program in a new process, which has not asked the hub: huggingface_hub lists a commit only once."""
        return process(*arguments, **self.variables)  # type: ignore[arg-type]

    def download(self) -> Outcome:
        return self.run("models", "download", NAME)

    def inspect(self, *options: str) -> dict[str, Any]:
        outcome = self.run("inspect", NAME, *options)
        assert outcome.status == 0, outcome
        facts: dict[str, Any] = outcome.lines[0]
        return facts

    @contextmanager
    def client(self) -> Iterator[None]:
        with mock.patch.dict(os.environ, self.variables), client_settings(str(self.home), self.hub.url, ""):
            yield

    def forget_listing(self) -> None:
        """Removes the lists of files from the cache, as if a program had downloaded single files."""
        for path in self.folder.glob("trees/*"):
            path.unlink()


def write_shards(model: Path, folder: Path) -> list[str]:
    tensors = arrays(model / "model.safetensors")
    shards = {f"model-0000{part + 1}-of-00002.safetensors": sorted(tensors)[part::2] for part in range(2)}
    folder.mkdir(exist_ok=True)
    for file, names in shards.items():
        mx.save_safetensors(str(folder / file), {name: tensors[name] for name in names})
    index = {"weight_map": {name: file for file, names in shards.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for file in ("config.json", "vocab.txt"):
        (folder / file).write_bytes((model / file).read_bytes())
    return [*shards]
