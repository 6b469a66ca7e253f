"""Which changes require the peer-to-peer test on a host, until it passes. The host records them in /var/lib/rigwright.

A change is written there before it is made, together with it. A passed test removes what was written before it began,
and records what it tested: a GPU, a driver or a firmware that differs later requires the test again.

A host without GPUs needs no test. A host with a single GPU needs it after changes that affect that GPU by itself, such
as a driver, and not after those that only affect the way from one GPU to another, such as the kernel command line. The
record has all changes, and a host that has more GPUs later needs the test after all of them.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from rigwright.checks import Finding, declared
from rigwright.core.change import Change
from rigwright.core.command import Command, script
from rigwright.core.control_characters import one_line
from rigwright.core.host_folders import STATE
from rigwright.core.schema import bus_id
from rigwright.engine.host_run import HostRun
from rigwright.engine.playbook import BoundPlaybook
from rigwright.engine.report import FAILS
from rigwright.facts import Fact, Unavailable, Unreadable, driver, pci, system
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.nccl import p2p_record
from rigwright.facts.nccl.p2p_record import LOCK, PASSED, REQUIRED, Passed, Record, RequiredTest

FACTS: tuple[Fact[Any], ...] = (p2p_record.record, pci.gpus, system.firmware, gpu.gpus, driver.loaded_version)
"""The facts that say whether the test is required."""

SHOWN = 6
"""The number of changes that a warning names."""

_LOCKED = f"""umask 022
mkdir -p {STATE} && cd {STATE} && {{ umask 077; exec 9>{LOCK}; umask 022; }} && flock -w 10 9 || exit 1
"""
_REQUIRE = f"""
{{ head -c 60000 {REQUIRED} 2>/dev/null | head -n {p2p_record.MOST_LINES - 1}
  printf '%s\\n' "$1"; }} >{REQUIRED}.new &&
  sync {REQUIRED}.new && mv -T {REQUIRED}.new {REQUIRED} && sync .
"""
_PASS = f"""
printf '%s\\n' "$1" >{PASSED}.new && sync {PASSED}.new && mv -T {PASSED}.new {PASSED} || exit 1
[ -e {REQUIRED} ] || exit 0
[ "$(sha256sum <{REQUIRED} | cut -c 1-64)" != "$2" ] || rm -f {REQUIRED}
sync .
"""


def concerns(play: BoundPlaybook) -> bool:
    """Whether a play has a step that affects the peer-to-peer test, or a check that judges it, or may have without its
    tags."""
    return (
        play.partial
        or any(step.declared.affects_p2p for step in play.steps)
        or any(check.declared.active for check in play.checks)
    )


def record_changes(run_id: str, changes: Sequence[Change], *, single: bool = True) -> Command:
    """The command that records on the host that the changes of a step require the test; only the last one is named.

    `single`: whether they affect a single GPU by itself.
    """
    last = changes[-1]
    after = one_line(f"{last.action} {last.subject}" if last.action == "remove" else last.subject)
    entry = asdict(RequiredTest(_now(), run_id, after[: p2p_record.MOST_CHARACTERS], single))
    return script(_LOCKED + _REQUIRE, json.dumps(entry), timeout_s=60)


def reasons(run: HostRun) -> tuple[str, ...]:
    """The changes after which the test is required on a host, the first one first; () if it is not required. Reads
    FACTS that are not known."""
    run.read_unknown(FACTS)
    record = _known_value(run, p2p_record.record)
    if gpu_count(run) == 0:
        return ()
    if not isinstance(record, Record):
        return (f"a record that cannot be read ({run.store.known[p2p_record.record]})",)
    texts = [entry.after for entry in _required_tests(run, record)]
    texts += [f"a record in {STATE} that is damaged"] if record.damaged else []
    return tuple(dict.fromkeys((*texts, *(_differences(run, record.passed) if record.passed else ()))))


def gpu_count(run: HostRun) -> int | None:
    """The number of the host's GPUs as read with FACTS: on the PCI bus, or more where the driver has more; None when it
    is not known."""
    gpus = _known_value(run, pci.gpus)
    return None if gpus is None else max(len(gpus), len(_known_value(run, gpu.gpus) or ()))


def _required_tests(run: HostRun, record: Record) -> list[RequiredTest]:
    """The entries of the record that require the test of this host."""
    single = gpu_count(run) == 1
    return [entry for entry in record.required if entry.single or not single]


def _differences(run: HostRun, passed: Passed) -> list[str]:
    """What differs from the machine of the last passed test. GPUs that are missing now are left to other checks."""
    texts = []
    loaded, firmware = _known_value(run, driver.loaded_version), _known_value(run, system.firmware)
    if passed.driver and loaded and loaded != passed.driver:
        texts.append(f"driver {loaded} in place of {passed.driver}")
    if firmware is not None and passed.firmware not in ("", _version(firmware)):
        texts.append(f"firmware {_version(firmware)} in place of {passed.firmware}")
    now = {f"{card.bus_id} {card.uuid}" for card in _known_value(run, gpu.gpus) or () if card.uuid and not card.lost}
    then = {place.partition(" ")[2]: place.partition(" ")[0] for place in passed.gpus}
    for place in sorted(now.difference(passed.gpus)):
        at, _, uuid = place.partition(" ")
        texts.append(f"a GPU moved from {then[uuid]} to {at}" if uuid in then else f"another GPU at {at}")
    return texts if passed.gpus else [text for text in texts if "GPU" not in text]


def findings(run: HostRun, cause: str = "") -> tuple[Finding, ...]:
    """The warning that the test is required; () if it is not, or if its play does not concern it. `cause`: as `settle`
    returns it."""
    if not concerns(run.bound) or not (after := reasons(run)):
        return ()
    from rigwright.checks import p2p

    record = _known_value(run, p2p_record.record)
    since = ""
    if isinstance(record, Record) and (tests := _required_tests(run, record)):
        since = f" since {_minute(tests[0].since)} by run {tests[0].run}"
    elif isinstance(record, Record) and record.passed:
        since = f", last passed {_minute(record.passed.at)} in run {record.passed.run}"
    more = f" and {len(after) - SHOWN} more" if len(after) > SHOWN else ""
    requirement = f"required{since}: after {', '.join(after[:SHOWN])}{more}"
    fix = "invoke provision, which runs it"
    if run.bound.desired.p2p_wheels == "none":
        fix = "invoke verify --tags p2p --wheels fetch, which runs it; p2p_wheels is none, so provision does not"
    elif run.bound.desired.mig and run.bound.desired.mig.splits:
        fix = "mig: off in the inventory, then invoke provision, which runs it"
        cause = cause or "the inventory splits GPUs, and instances of MIG have no peers to test"
    return (Finding(p2p.TEST, "warn", requirement, "a passed test after that", cause, fix, "host", check="p2p.ran"),)


def settle(run: HostRun, judged: Sequence[Finding]) -> str:
    """Records on the host that the full test passed, if the findings of this run say so. It is no longer required then,
    except by a change that another run made after this run read the record.

    Returns why the host could not write it, otherwise "".
    """
    from rigwright.facts.nccl import p2p_test as nccl

    document = _known_value(run, nccl.tested)
    record = _known_value(run, p2p_record.record)
    if document is None or document.quick or document.outcome == "could not run" or not _has_passed(judged):
        return ""
    firmware = _known_value(run, system.firmware)
    gpus = [f"{bus_id(card.bus_id)} {card.uuid}" for card in document.gpus if card.bus_id and card.uuid]
    version = _version(firmware) if firmware else ""
    driver_version = document.versions.driver or ""
    entry = asdict(Passed(_now(), run.options.run_id, driver_version, version, tuple(gpus[: p2p_record.MOST_LINES])))
    checksum = record.checksum if isinstance(record, Record) else ""
    written = run.transport.run([script(_LOCKED + _PASS, json.dumps(entry), checksum, timeout_s=60)])[0]
    run.read((p2p_record.record,))
    return (
        "" if written.code == 0 else one_line(f"it passed, and {STATE} cannot be written: {written.error_text}")[:300]
    )


def _has_passed(judged: Sequence[Finding]) -> bool:
    """Whether at least one check of the test passed, and none failed or is unknown."""
    verdicts = {finding.verdict for finding in judged if (check := declared(finding.check)) and check.active}
    return "pass" in verdicts and verdicts.isdisjoint(FAILS)


def _known_value(run: HostRun, fact: Fact[Any]) -> Any:
    """The value of a fact that was read; None when the host could not answer."""
    value = run.store.known.get(fact)
    return None if isinstance(value, (Unavailable, Unreadable)) else value


def _version(firmware: system.Firmware) -> str:
    return " ".join(word for word in (firmware.vendor, firmware.version, firmware.date) if word)[
        : p2p_record.MOST_CHARACTERS
    ]


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _minute(time: str) -> str:
    return f"{time[:10]} {time[11:16]} UTC"
