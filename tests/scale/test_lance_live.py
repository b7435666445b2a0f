"""Several processes that write a Lance table at once, and processes that are killed while they write it."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlxbert.search.index_stores import open_store
from mlxbert.search.store import IndexStore
from tests.helpers.cases import ALL
from tests.helpers.object_storage import object_storage
from tests.search.test_store import ABOUT

pytest.importorskip("lance", reason="pylance is not installed")
pytestmark = pytest.mark.slow
KILLS = 30 if ALL else 5
ROOT = Path(__file__).parents[2]
# Changes files, records and settings at random; each text names the writer and the transaction. Tidies often.
WRITER = """
import random, sys
from dataclasses import replace
from mlxbert.scale import lance_store, lance_table
from mlxbert.search.store import StoredFile
from tests.search.test_store import document, open_store, vector
lance_table._SMALL, lance_store._COMMITS = 4, 10
store, me, steps = open_store(sys.argv[1]), sys.argv[2], int(sys.argv[3])
draws = random.Random(me)
for step in range(steps):
    name = f"/docs/{draws.randrange(6)}"
    texts = [f"writer {me} step {step} line {line}" for line in range(draws.randrange(1, 6))]
    vectors = {text.encode(): vector(len(text)) for text in texts}
    with store.writing():
        match draws.choice(("put", "put", "put", "remove", "record", "root", "prune")):
            case "put":
                store.put(StoredFile(name, step), [document(*texts)], vectors)
            case "remove":
                store.remove([name])
            case "record":
                store.put_documents([document(*texts, place=f"r{draws.randrange(3)}")], vectors)
            case "root":
                store.set_about(replace(store.about, roots=(*store.about.roots, f"/{me}-{step}")))
                print("root", flush=True)
            case "prune":
                store.prune()
    print("done", flush=True)
"""


def start(location: str, name: str, steps: int) -> "subprocess.Popen[str]":
    """Starts a writer."""
    command = [sys.executable, "-c", WRITER, location, name, str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def check_whole(store: IndexStore) -> None:
    """Each file and record has the chunks of one transaction."""
    store.refresh()
    store.check()
    with store.reading():
        documents = [[*store.documents(path)] for path in store.files()]
        documents += [[document] for document in store.documents("")]
    for listed in documents:
        assert len({chunk.text.partition(" line")[0] for one in listed for chunk in one.chunks}) == 1


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_writers_at_once(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        check_writers(f"lance:{tmp_path}/table", 25)
        return
    with object_storage() as bucket:
        check_writers(f"{bucket}/table", 6)


def check_writers(location: str, steps: int) -> None:
    """Nothing of three writers is lost or mixed."""
    store = open_store(location, ABOUT)
    writers = [start(location, f"w{number}", steps) for number in range(3)]
    out = [writer.communicate()[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert all(each.count("done") == steps for each in out)
    check_whole(store)
    assert len(store.about.roots) == 1 + sum(each.count("root") for each in out)


def test_killed_writers(tmp_path: Path) -> None:
    location, draws = f"lance:{tmp_path}/table", random.Random(0)
    store, statuses = open_store(location, ABOUT), []
    for number in range(KILLS):
        with start(location, f"k{number}", 10_000) as writer:
            assert writer.stdout
            for _ in range(draws.randrange(1, 15)):
                assert writer.stdout.readline()
            time.sleep(draws.random() * 0.1)
            os.kill(writer.pid, signal.SIGKILL)
        statuses.append(writer.returncode)
        check_whole(store)
    assert statuses == [-signal.SIGKILL] * KILLS and store.stats().documents
