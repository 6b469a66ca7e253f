"""Why a GPU on the bus does not answer a loaded driver, by the driver's messages in the kernel log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct

from rigwright import catalogue
from rigwright.core import lazy_re
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId, bus_id
from rigwright.driver.load_failure import LONGEST, complaints
from rigwright.facts import Facts, Unavailable, Unreadable, kernel_log, pci
from rigwright.facts.gpu.gpus import Gpu
from rigwright.facts.gpu.nvidia_smi import NoGpus
from rigwright.facts.pci import PciGpu

_LOOK = "sudo dmesg | grep NVRM, and invoke explain with its first line"


class StartFailure(Struct, frozen=True):
    """`said`: the driver's messages about one GPU. `symptom`: a key of the catalogue, or ""."""

    said: str
    symptom: str

    @property
    def fix(self) -> str:
        """What a person does about it."""
        if not self.symptom:
            return _LOOK
        return f"{catalogue.all_symptoms()[self.symptom].fix}; invoke explain {self.symptom}"


_OF_GPU = lazy_re.compile(r"GPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]): *(.*)")
_FAILED = "RmInitAdapter failed"
_ECHO = "rm_init_adapter failed"
"""With these words the kernel part of the driver repeats that RmInitAdapter failed."""
_FALLS_BACK = "; falling back to "
"""In a message about a GPU that starts in another way, as without MSI."""
_BEFORE = 6
"""Messages without a bus id that belong to the failure after them."""
_SHOWN = 4
"""Messages of a failure that are shown."""
_OFF_BUS = 79
"""The Xid of a GPU that fell off the bus."""
_KINDS = ("driver", "boot", "hardware", "power")


class StartFailures:
    """The failures in a kernel log, for GPUs that do not answer: a GPU that failed may have started later. Failures
    of a GPU that fell off the bus do not count: they are a consequence."""

    def __init__(self, log: Sequence[str]) -> None:
        texts: dict[str, list[str]] = {}
        before: list[str] = []
        for text in complaints(log):
            match = _OF_GPU.match(text)
            at, words = (bus_id(match[1]), match[2]) if match else ("", text)
            if _ECHO in words or _FALLS_BACK in words:
                continue
            if _FAILED in words:
                texts.setdefault(at, []).extend([*before, words])
                before = []
            elif at:
                texts.setdefault(at, []).append(words)
            else:
                before = [*before, words][-_BEFORE:]
        fallen = {error.bus_id for error in kernel_log.xids(tuple(log)) if error.code == _OFF_BUS}
        self._failures = {at: _failure(tuple(dict.fromkeys(words))) for at, words in texts.items() if at not in fallen}

    def of(self, at: str) -> StartFailure | None:
        """The failure of a GPU. Messages of older drivers name no GPU and count for each."""
        return self._failures.get(at) or self._failures.get("")


def _failure(texts: Sequence[str]) -> StartFailure:
    known = (each.key for each in catalogue.symptoms_in("\n".join(texts)) if each.kind in _KINDS)
    shown = [*texts[: _SHOWN - 1], *texts[_SHOWN - 1 :][-1:]]
    return StartFailure("; ".join(text.rstrip(".") for text in shown)[:LONGEST], next(known, ""))


def start_failures(facts: Facts) -> StartFailures:
    """The failures in the kernel log of the host; empty if the log cannot be read."""
    try:
        log = facts(kernel_log.kernel)
    except (Unavailable, Unreadable):
        log = ()
    return StartFailures(log)


class SilentGpu(Struct, frozen=True):
    """A GPU on the bus that the driver does not list. `failure`: its failed start, if the kernel log has one."""

    place: str
    failure: StartFailure | None

    def __str__(self) -> str:
        said = f", which could not start it: {self.failure.said}" if self.failure else ""
        return f"{self.place} does not answer the driver{said}"

    @property
    def fix(self) -> str:
        """What a person does about it."""
        return self.failure.fix if self.failure else _LOOK


def silent_gpus(
    facts: Facts, listed: Sequence[Gpu] | None, bus: Sequence[PciGpu], slots: Mapping[BusId, str] | None = None
) -> tuple[SilentGpu, ...]:
    """The GPUs on the bus that are bound to the driver and not listed by it; () if it lists nothing (None)."""
    answering = {device.bus_id for device in listed or ()}
    silent = [device.bus_id for device in bus if device.driver == "nvidia" and device.bus_id not in answering]
    if listed is None or not silent:
        return ()
    failures = start_failures(facts)
    return tuple(SilentGpu(place(at, slots), failures.of(at)) for at in silent)


@contextmanager
def quoted(facts: Facts, slots: Mapping[BusId, str] | None = None) -> Iterator[None]:
    """Adds the driver's messages to NoGpus, which says only that nvidia-smi lists no GPU."""
    try:
        yield
    except NoGpus as reason:
        bus = facts(pci.gpus)
        failures = start_failures(facts)
        failed = [(device.bus_id, failure) for device in bus if (failure := failures.of(device.bus_id))]
        if not failed:
            raise
        at, first = failed[0]
        others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        problem = f"{reason}; the driver could not start {place(at, slots)}{others}: {first.said}"
        raise Unavailable(problem, first.fix) from None
