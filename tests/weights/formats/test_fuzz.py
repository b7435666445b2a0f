"""The fuzzer: a sample of its mutants for every reader, and that it notices what it is there to notice."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.helpers.rooms import needs

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
import fuzz

SCRIPTS = Path(fuzz.__file__).parent
MUTANTS = 60
PLANTED = """
import os, sys, time
sys.path.insert(0, {scripts!r})
import fuzz, fuzz_readers
from mlxbert.errors import CheckpointError

def load(folder):
    if (folder / "other").read_bytes():  # which must be whole again for the next mutant
        raise CheckpointError("refused")
    match int((folder / "number").read_bytes()):
        case 1: os.abort()
        case 2: time.sleep(60)
        case 3: return len(bytearray(fuzz.GROWTH + 2**25))
        case 4: raise KeyError("x")
        case 6: raise BaseException("no Exception")
        case 7: return len(bytearray(fuzz.GROWTH + 2**24))
        case 8: return len(bytearray(2 * fuzz.ROOM))

def seeds(folder):
    (folder / "number").write_bytes(b"0")
    (folder / "other").write_bytes(b"")
    return [folder]

fuzz.SECONDS = 2
numbers = range(*map(int, sys.argv[-2:]))
mutate = lambda rng, files: {{"other": b"x"}} if (number := next(places)) == 5 else {{"number": b"%d" % number}}
places = iter(numbers)
fuzz.ALL["planted"] = fuzz_readers.FuzzedReader(seeds, mutate, load)
fuzz.child("planted", 1, numbers)
"""


@needs("export")
@pytest.mark.slow
def test_a_sample_of_mutants_of_every_reader_loads_or_is_refused() -> None:
    names = [*fuzz.ALL]
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(names, pool.map(lambda name: fuzz.fuzz(name, 7, range(MUTANTS)), names), strict=True))
    for name, result in results.items():
        assert result.findings == [], name
        assert sum(result.counts.values()) == MUTANTS, name
        assert result.counts["refused"] >= 10 and result.counts["loaded"] >= 1, name


@pytest.mark.slow
def test_what_must_not_happen_is_noticed_and_the_next_mutant_tried(tmp_path: Path) -> None:
    script = tmp_path / "planted.py"
    script.write_text(PLANTED.format(scripts=str(SCRIPTS)), encoding="utf-8")
    result = fuzz.fuzz("planted", 1, range(9 if sys.platform == "linux" else 7), [sys.executable, str(script)])
    found = {number: said for number, said in result.findings}
    assert found[1].startswith("crash with status -6")
    assert found[2].startswith("hang of more than")
    assert found[3].startswith("memory ")
    assert found[4] == "exception KeyError: 'x'"
    assert found[6] == "exception BaseException: no Exception"
    if sys.platform == "linux":
        assert found[7].startswith("memory ")  # less than the third took, and counted anew
        assert found[8].startswith("exception MemoryError")
    assert result.counts["loaded"] == 1 and result.counts["refused"] == 1  # the first, and the one told to
    assert result.row("planted").startswith("| planted | ")
