"""The device that tests run on, the limits of fast tests, and models that many tests share."""

import contextlib
import fcntl
import functools
import gc
import importlib
import inspect
import os
import random
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # newer GPUs would round float32 products
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's workers would wait for each other's cores

import mlxbert
from mlxbert.cpu import cores
from mlxbert.machine import device
from mlxbert.rooms import ROOMS
from mlxbert.text.sample_texts import sample
from tests.helpers.cases import ALL
from tests.helpers.rooms import missing
from tests.helpers.st_folder import NORMALIZE, PROMPTS, pooling, save_st
from tests.helpers.tiny import save

device.use()  # MLXBERT_DEVICE=cpu keeps a Mac's tests from its GPU
_SLOW = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind")
_ALL_SLOW = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", re.MULTILINE)
_SAMPLED = 3
_FILES = 4096
_fast: list[str] = []  # the test that runs, unless it is marked slow


@pytest.fixture(scope="session", autouse=True)
def many_files() -> None:
    """Raises the limit of open files for tests with hundreds of clients: a Mac's shell allows 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


@pytest.fixture(scope="session", autouse=True)
def own_data(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Gives the tests a data folder of their own, so that they leave nothing in the user's folder."""
    os.environ["MLXBERT_DATA"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session", autouse=True)
def signals_arrive(pytestconfig: pytest.Config) -> None:
    """Lets processes that slow tests start receive SIGHUP and SIGINT, even if the tests run under nohup or with `&`."""
    if pytestconfig.option.markexpr == "not slow":
        return
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _guard(event: str, arguments: object) -> None:
    if _fast and event in _SLOW:
        pytest.fail(f"{_fast[0]} starts a process or a server ({event}): mark it slow")


sys.addaudithook(_guard)


def _leaves_out_slow(config: pytest.Config) -> bool:
    return config.option.markexpr in ("not slow", "not slow and uses_rooms")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files that contain only slow tests in runs without slow tests; some of these files import torch."""
    if not _leaves_out_slow(config) or collection_path.suffix != ".py":
        return None
    return True if _ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) else None


def _is_slow(thing: object) -> bool:
    return any(mark.name == "slow" for mark in getattr(thing, "pytestmark", getattr(thing, "marks", ())))


def _fast_cases(function: Callable[..., object]) -> bool:
    """Removes the slow cases from a test's parameters; returns whether any cases are left."""
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
    """Creates no slow tests in runs without slow tests; there are half as many slow tests as fast ones."""
    if not _leaves_out_slow(collector.config) or not name.startswith("test") or not inspect.isfunction(obj):
        return None
    return [] if _is_slow(obj) or not _fast_cases(obj) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects two thirds of the cases of sampled tests, and the slow cases of weekly ones.

    The rest of the sampled cases covers every family, head and dtype.
    """
    if ALL:
        return
    cases: dict[str, list[str]] = {}
    always: dict[str, tuple[str, ...]] = {}
    deselected = []
    for item in items:
        if item.get_closest_marker("weekly") and item.get_closest_marker("slow"):
            deselected.append(item)
        elif marker := item.get_closest_marker("sampled"):
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test if a room that it uses has been taken out (see `tests.helpers.rooms.needs`)."""
    if gone := missing(*(room for mark in item.iter_markers("uses_rooms") for room in mark.args)):
        pytest.skip(f"there is no mlxbert/{', '.join(gone)}")


def _compile_a_share(root: Path) -> None:
    """Imports the tests in each process, starting at a different file, so that each compiles a share for the others."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{name}", "gw0").strip("gw") for name in ("", "_COUNT"))
    files = [path for path in sorted(root.rglob("test_*.py")) if (path.parent / "__init__.py").is_file()]
    for path in files[len(files) * int(worker) // max(int(count), 1) :] if int(worker) else ():
        if not _ALL_SLOW.search(path.read_text(encoding="utf-8")):
            with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest will meet the same, and say it
                importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Exempts the objects that collecting creates from garbage collection; every collection would traverse them all."""
    gc.disable()
    _seed()  # for what files of tests draw when they are imported
    if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        _compile_a_share(Path(__file__).parent)
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tells `_guard` which test is running, so that a fast test fails if it starts a process or a server."""
    if not item.get_closest_marker("slow"):
        _fast.append(item.nodeid)
    try:
        return (yield)
    finally:
        _fast.clear()


def _seed() -> None:
    import mlx.core as mx  # after mlxbert.machine.device, which loads the BLAS

    random.seed(0)
    np.random.seed(0)
    mx.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seeds every generator that tests draw from; fixtures of a module or a session pass a seed of their own."""
    _seed()


@pytest.fixture(scope="session", autouse=True)
def unflushed() -> Iterator[None]:
    """Skips flushing files to the disk, which is slow; no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(fcntl, "F_FULLFSYNC", fcntl.F_GETFD, raising=False)
        yield


_all_cores = cores._cores


@pytest.fixture(scope="session", autouse=True)
def one_core(pytestconfig: pytest.Config) -> Iterator[None]:
    """Uses one core per process in fast tests; slow ones compare bits with those of programs that use all cores."""
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
    """Splits batches and training steps over all cores of the machine."""
    monkeypatch.setattr(cores, "_cores", _all_cores)


@pytest.fixture
def counted_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps scikit-learn from starting a process that counts the cores."""
    context = pytest.importorskip("joblib.externals.loky.backend.context")
    monkeypatch.setattr(context, "physical_cores_cache", 1)


@pytest.fixture
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `doctor` multiply small matrices: large ones take a second and more without a BLAS."""
    if "doctor" in ROOMS:
        from mlxbert.doctor import device_speed

        monkeypatch.setattr(device_speed, "measure_gflops", functools.partial(device_speed.measure_gflops, 64))


@pytest.fixture
def exact_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes batches as long as their longest text, even on a GPU, where lengths are padded to a fixed set."""
    monkeypatch.setattr("mlxbert.text.batch.on_gpu", lambda: False)


@pytest.fixture(scope="session")
def builtin() -> mlxbert.Model:
    return mlxbert.load("builtin", dtype="float32")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def tiny(tiny_folder: Path) -> mlxbert.Model:
    """A tiny random model with all heads, loaded anew for each test."""
    return mlxbert.load(str(tiny_folder), dtype="float32")


@pytest.fixture(scope="session")
def unit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sentence-transformers model with prompts, which are not part of the mean, and unit vectors."""
    return save_st(tmp_path_factory.mktemp("unit"), pooling("mean", include_prompt=False), NORMALIZE, settings=PROMPTS)


@pytest.fixture
def unit(unit_folder: Path) -> mlxbert.Model:
    return mlxbert.load(unit_folder, dtype="float32")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from tests.helpers.task_models import save_models

    return save_models(tmp_path_factory.mktemp("served"))


# For a test of what conversions measure, and for one that does not get as far.
MEASURED, UNMEASURED = (
    pytest.mark.parametrize("measurement", [how], indirect=True) for how in ("measured", "unmeasured")
)


@functools.cache
def agreement(folder: Path) -> object:
    return mlxbert.verify(folder, folder)


@pytest.fixture(params=["unmeasured", pytest.param("measured", marks=pytest.mark.slow)])
def measurement(request: pytest.FixtureRequest, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the comparison of a conversion with its source, nine tenths of its time; slow tests compare."""
    if "export" not in ROOMS:
        pytest.skip("there is no mlxbert/export")
    if request.param == "unmeasured":
        agreed = agreement(tiny_folder)
        monkeypatch.setattr("mlxbert.export.convert.verify", lambda source, result: agreed)
        monkeypatch.setattr("mlxbert.export.convert.sample", lambda: sample()[:16])
