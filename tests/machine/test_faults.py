"""Errors of the device become DeviceErrors with a hint; other ones stay."""

import weakref

import pytest

from mlxbert.errors import DeviceError, OutOfMemoryError
from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import DEFAULT_HINT, StoppedError, device_errors, errors_seen
from tests.helpers import faults
from tests.helpers.cases import together
from tests.helpers.faults import DISPLAY, MEMORY, STOPPED, VICTIM, LateDevice

ADVICE = {  # a part of the hint that the other hints do not have
    **dict.fromkeys([*MEMORY, *faults.TOO_LONG], "batch_tokens"),
    DISPLAY: "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1",
    VICTIM: "start it again",
    faults.REFUSED: "start the command again",
    **dict.fromkeys(faults.OTHER, "mlxbert doctor --check"),
}


@together("sentence", ADVICE)
def test_an_error_of_the_device(sentence: str) -> None:
    with pytest.raises(DeviceError) as found, device_errors("a smaller batch_tokens="):
        raise RuntimeError(sentence)
    assert isinstance(found.value, OutOfMemoryError) == (sentence in MEMORY)
    assert isinstance(found.value, StoppedError) == (sentence in STOPPED)
    assert "\n" not in found.value.message and " ".join(sentence.split()) in found.value.message
    assert {part for part in ADVICE.values() if part in str(found.value.hint)} == {ADVICE[sentence]}


@together("sentence", faults.NO_FAULTS)
def test_another_error_stays_what_it_is(sentence: str) -> None:
    problem = RuntimeError(sentence)
    with pytest.raises(RuntimeError) as found, device_errors():
        raise problem
    assert found.value is problem


def test_what_failed_gives_up_its_arrays() -> None:
    class Large: ...

    kept: list[weakref.ref[Large]] = []

    def fail() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise RuntimeError(MEMORY[0])

    with pytest.raises(OutOfMemoryError) as found, device_errors():
        fail()
    assert found.value.hint == DEFAULT_HINT and kept[0]() is None


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("other", [None, ValueError("not finite")])
def test_an_error_that_comes_late_is_that_of_what_was_done(
    wait: bool, other: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    LateDevice(monkeypatch, lambda arrays: arrays[0].size == 3)
    seen = errors_seen()
    with pytest.raises(OutOfMemoryError), device_errors(wait=wait):
        mx.eval(mx.zeros(3))
        if other is not None:
            raise other
    assert errors_seen() == seen + 1
    with device_errors(wait=wait):
        pass


def test_work_that_is_discarded_after_an_error_hides_neither_it_nor_an_error_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = LateDevice(monkeypatch, sentence=VICTIM)
    with pytest.raises(StoppedError, match="ImpactingInteractivity"), device_errors(), device_errors():
        device.fail()
        raise RuntimeError(DISPLAY)
    with pytest.raises(ValueError, match="one"), device_errors():
        raise ValueError("one")
