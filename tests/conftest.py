"""The device that tests run on, what fast tests may not do, and models that many tests share."""

import contextlib
import fcntl
import functools
import gc
import importlib
import inspect
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # newer GPUs would round float32 products
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's workers would wait for each other's cores

import mlxbert
from mlxbert.folders import verify
from mlxbert.folders.sample_texts import sample
from mlxbert.machine import cores, device
from tests.helpers.cases import ALL
from tests.helpers.st_folder import NORMALIZE, pooling, save_st
from tests.helpers.tiny import save

device.use()  # MLXBERT_DEVICE=cpu keeps a Mac's tests from its GPU
_SLOW = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind")
_ALL_SLOW = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", re.MULTILINE)
_SAMPLED = 3
_FILES = 4096
_fast: list[str] = []  # the test that runs, unless it is marked slow


@pytest.fixture(scope="session", autouse=True)
def many_files() -> None:
    """As many open files as tests with hundreds of clients need: a Mac's shell allows 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@pytest.fixture(scope="session", autouse=True)
def own_data(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A data folder of the tests: they leave nothing in the user's."""
    os.environ["MLXBERT_DATA"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def hangups() -> None:
    """Processes that tests start get SIGHUP, also where the tests run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _guard(event: str, arguments: object) -> None:
    if _fast and event in _SLOW:
        pytest.fail(f"{_fast[0]} starts a process or a server ({event}): mark it slow")


sys.addaudithook(_guard)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files of slow tests, some of which import torch, to runs with slow tests."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return True if _ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) else None


def _is_slow(thing: object) -> bool:
    return any(mark.name == "slow" for mark in getattr(thing, "pytestmark", getattr(thing, "marks", ())))


def _fast_cases(function: Callable[..., object]) -> bool:
    """Takes the slow cases out of a test's parameters; returns whether any are left."""
    marks, left = [], True
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            names, cases = mark.args[0], [*mark.args[1]]
            some = [case for case in cases if not _is_slow(case)]
            mark = pytest.mark.parametrize(names, some, *mark.args[2:], **mark.kwargs).mark
            left = left and (bool(some) or not cases)
        marks.append(mark)
    if marks:
        vars(function)["pytestmark"] = marks
    return left


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    """Makes no slow tests for a run without them: there are half as many as fast ones."""
    if collector.config.option.markexpr != "not slow" or not name.startswith("test") or not inspect.isfunction(obj):
        return None
    return [] if _is_slow(obj) or not _fast_cases(obj) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects two thirds of the cases of sampled tests, so that the rest meets every family, head and dtype."""
    if ALL:
        return
    cases: dict[str, list[str]] = {}
    always: dict[str, tuple[str, ...]] = {}
    deselected = []
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker:
            name, _, case = item.nodeid.removesuffix("]").partition("[")
            number, always[name] = len(cases.setdefault(name, [])), marker.args
            cases[name].append(case)
            chosen = (number + number // _SAMPLED) % _SAMPLED == 0  # of three in turn the first, the third, the second
            if not chosen and case not in marker.args:
                deselected.append(item)
    for name, ids in always.items():
        if len(cases[name]) > 1 and (unknown := {*ids} - {*cases[name]}):  # a single case may have been asked for
            raise pytest.UsageError(f"{name}: sampled names {min(unknown)!r}, which is not a case")
    if deselected:
        dropped = {*map(id, deselected)}
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if id(item) not in dropped]


def _compile_a_share(root: Path) -> None:
    """Imports the tests from another place on in each process: what one has compiled, the others read."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{name}", "gw0").strip("gw") for name in ("", "_COUNT"))
    files = [path for path in sorted(root.rglob("test_*.py")) if (path.parent / "__init__.py").is_file()]
    for path in files[len(files) * int(worker) // max(int(count), 1) :] if int(worker) else ():
        if not _ALL_SLOW.search(path.read_text(encoding="utf-8")):
            with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest will meet the same, and say it
                importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Keeps what collecting makes out of garbage collections, of which each would look at all of it."""
    gc.disable()
    if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        _compile_a_share(Path(__file__).parent)
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keeps the fast tests fast."""
    if not item.get_closest_marker("slow"):
        _fast.append(item.nodeid)
    try:
        return (yield)
    finally:
        _fast.clear()


@pytest.fixture(scope="session", autouse=True)
def unflushed() -> Iterator[None]:
    """Files stay in the memory of the system, which writes them later: no test cuts the power, and disks are slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(fcntl, "F_FULLFSYNC", fcntl.F_GETFD, raising=False)
        yield


_all_cores = cores._cores


@pytest.fixture(scope="session", autouse=True)
def one_core(pytestconfig: pytest.Config) -> Iterator[None]:
    """Where there is a process for each core, threads that wait for a core keep it from another process.

    Slow tests compare bits with those of programs that they start, which use all cores.
    """
    fast = pytestconfig.option.markexpr == "not slow"
    with pytest.MonkeyPatch.context() as patch:
        if fast and "PYTEST_XDIST_WORKER" in os.environ and sys.platform == "linux":
            cores._stream_per_core()  # as many as `all_cores` needs
            patch.setattr(cores, "_cores", lambda: 1)
            if device.BLAS.set_threads is not None:
                device.BLAS.set_threads(1)
        yield


@pytest.fixture
def all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and training steps are split over the cores of the machine."""
    monkeypatch.setattr(cores, "_cores", _all_cores)


@pytest.fixture
def exact_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches as long as their longest text, also on a GPU, where lengths are padded to a fixed set."""
    monkeypatch.setattr("mlxbert.text.batch.on_gpu", lambda: False)


@pytest.fixture(scope="session")
def builtin() -> mlxbert.Model:
    """The built-in model."""
    return mlxbert.load("builtin", dtype="float32")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model with all heads."""
    return save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def tiny(tiny_folder: Path) -> mlxbert.Model:
    """A tiny random model with all heads, loaded afresh."""
    return mlxbert.load(str(tiny_folder), dtype="float32")


@pytest.fixture(scope="session")
def unit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of sentence-transformers with prompts, of unit length, that leaves prompts out of its mean."""
    settings = {"prompts": {"query": "man is : ", "passage": "in "}}
    return save_st(tmp_path_factory.mktemp("unit"), pooling("mean", include_prompt=False), NORMALIZE, settings=settings)


@pytest.fixture
def unit(unit_folder: Path) -> mlxbert.Model:
    """The tiny model as sentence-transformers would save it, loaded afresh."""
    return mlxbert.load(unit_folder, dtype="float32")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of tiny models of all tasks, by what a server calls them."""
    from tests.helpers.serving import save_models

    return save_models(tmp_path_factory.mktemp("served"))


# For a test of what conversions measure, and for one that does not get as far.
MEASURED, UNMEASURED = (
    pytest.mark.parametrize("measurement", [how], indirect=True) for how in ("measured", "unmeasured")
)


@functools.cache
def _agreement(folder: Path) -> object:
    """What is measured of equal models."""
    return verify.verify(folder, folder)


@pytest.fixture(params=["unmeasured", pytest.param("measured", marks=pytest.mark.slow)])
def measurement(request: pytest.FixtureRequest, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether conversions compare what they wrote with what they read, which takes nine tenths of their time."""
    if request.param == "unmeasured":
        found = _agreement(tiny_folder)
        monkeypatch.setattr("mlxbert.folders.convert.verify", lambda source, result: found)
        monkeypatch.setattr("mlxbert.folders.layer_inputs.sample", lambda: sample()[:16])
