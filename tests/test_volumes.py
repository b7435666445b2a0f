"""Work on a Mac's volumes that ignore case, and on some without links and extended attributes, as on memory sticks."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxbert
from mlxbert.errors import ArgumentError
from tests.helpers.fake_hub import files_of, serve
from tests.helpers.hub_machine import NAME, Machine
from tests.helpers.program import Outcome, call, command, environment, names, tiny_model
from tests.helpers.rooms import needs

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "darwin", reason="mounting takes a Mac's hdiutil")]


@pytest.fixture(scope="module", params=["ExFAT", "MS-DOS FAT32", "APFS"])
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A volume with a tiny model."""
    image = tmp_path_factory.mktemp("volume") / "image.dmg"
    place = image.with_name("volume")
    place.mkdir()
    for how in (
        ("create", "-size", "96m", "-fs", request.param, "-volname", "MLXBERT", image),
        ("attach", "-nobrowse", "-mountpoint", place, image),
    ):
        subprocess.run(["hdiutil", *how], check=True, capture_output=True)
    try:
        tiny_model(place / "tiny")
        yield place
    finally:
        subprocess.run(["hdiutil", "detach", "-force", place], check=True, capture_output=True)


def leave_attributes(folder: Path) -> None:
    """Gives each file an extended attribute, which exFAT and FAT keep in a file `._x` next to `x`."""
    for path in folder.rglob("*"):
        if not path.name.startswith("._"):
            subprocess.run(["xattr", "-w", "mlxbert.test", "x", path], check=False)


@pytest.fixture
def volume(mount: Path, request: pytest.FixtureRequest) -> Path:
    """A folder of the test, on a volume with a tiny model in a folder next to it."""
    folder = mount / request.node.originalname
    folder.mkdir()
    leave_attributes(mount)
    return folder


def train(volume: Path, *options: str) -> list[str | bytes]:
    data = volume / "train.csv"
    if not data.exists():
        rows = (f"the {'cat' if number % 2 else 'dog'} sat on {number},{number % 2}\n" for number in range(64))
        data.write_text("text,label\n" + "".join(rows))
    model, output = volume.parent / "tiny", volume / "out"
    named = ("--train", str(data), "--model", str(model), "--output", str(output))
    return ["finetune", "classify", *named, "--epochs", "8", "--save-every", "3", *options]


def weights(volume: Path) -> bytes:
    return (volume / "out" / "model.safetensors").read_bytes()


def test_a_training_is_interrupted_resumed_and_replaced(volume: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        command(*train(volume)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "saved":
                process.send_signal(signal.SIGINT)
                break
        process.communicate()
    assert process.returncode == 130 and not (volume / "out").exists()
    leave_attributes(volume)
    assert call(*train(volume)).status == 0
    leave_attributes(volume)
    tiny_model(tmp_path / "tiny")
    (tmp_path / "whole").mkdir()
    assert call(*train(tmp_path / "whole")).status == 0
    assert weights(volume) == weights(tmp_path / "whole")
    call(*train(volume)).fails(2, "already exists")
    assert call(*train(volume, "--overwrite", "--seed", "3")).status == 0
    assert weights(volume) != weights(tmp_path / "whole") and "out.partial" not in names(volume)


def test_models_are_converted_and_saved(volume: Path) -> None:
    source = volume.parent / "tiny"
    for how in ("float16", "float32"):
        mlxbert.convert(source, volume / "converted", dtype=how, overwrite=True)
        leave_attributes(volume)
    assert mlxbert.load(volume / "CONVERTED", task="fill-mask")
    model = mlxbert.load(source, task="fill-mask")
    for name in ("saved", "SAVED"):
        mlxbert.save(model, volume / name, overwrite=True)
        leave_attributes(volume)
    with pytest.raises(ArgumentError, match="already exists"):
        mlxbert.save(model, volume / "converted")
    assert not [name for name in names(volume) if name.endswith((".partial", ".replaced"))]


def run(volume: Path, *arguments: str) -> Outcome:
    outcome = call(*arguments, MLXBERT_DATA=str(volume / "data"))
    leave_attributes(volume)
    assert outcome.status == 0, outcome
    return outcome


@needs("search")
def test_an_index_is_made_updated_and_searched(volume: Path) -> None:
    from tests.helpers.indexes import write_files

    notes = write_files(volume / "notes", 6)
    count = len(names(notes))
    leave_attributes(volume)
    assert run(volume, "index", str(notes)).lines[0]["files"] == count
    (notes / "new.md").write_text("# Harbour\n\nThe pilot boat leaves at seven.\n")
    found = run(volume, "search", "the pilot boat leaves", str(notes)).lines
    assert found[0]["path"] == str(notes / "new.md")
    listed = run(volume, "indexes", "list").lines[0]["indexes"]
    assert len(listed) == 1 and "problem" not in listed[0]


def test_models_of_the_hub_are_fetched_checked_and_removed(volume: Path, tmp_path: Path) -> None:
    with serve() as hub:
        hub.add(NAME, files_of(tiny_model(tmp_path / "tiny")))
        machine = Machine(hub, volume)
        assert machine.download().status == 0
        leave_attributes(volume)
        assert machine.run("models", "verify", NAME).status == 0
        shown = machine.run("fill-mask", "the [MASK]", "--model", NAME, HF_HUB_OFFLINE="1")
        assert shown.status == 0
        (listed,) = machine.run("models", "list").lines[0]["models"][1:]
        assert listed["name"] == NAME
        assert machine.run("models", "remove", NAME.upper(), "--yes").status == 0
        machine.run("fill-mask", "the [MASK]", "--model", NAME, HF_HUB_OFFLINE="1").fails(1)
