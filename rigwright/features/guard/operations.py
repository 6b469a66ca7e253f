"""The guard of the GPUs: its programs, its configuration and its unit, on the host while the inventory asks for it."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator

from rigwright.core import features
from rigwright.core.change import Change, Note
from rigwright.core.command import command
from rigwright.core.errors import HostError
from rigwright.core.gpu_labels import place
from rigwright.core.schema import BusId
from rigwright.core.secrets import learn
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.core.templates.variables import Template
from rigwright.facts import Facts, Unavailable, Unreadable, files, footprint, systemd as units
from rigwright.facts.gpu import gpus as gpu
from rigwright.features.guard.variables import Guard, Metrics
from rigwright.operations import file, operation, systemd as services
from rigwright.operations.limits import PYNVML, pynvml

CONFIG = "/etc/rigwright/guard.json"
FOLDER = "/usr/local/lib/rigwright"
PROGRAM = f"{FOLDER}/guard.py"
_PARTS = ("acts", "gpus", "metrics", "notify", "sensors", "steps", "store")
NAMES = ("guard.py", *(f"guard_{part}.py" for part in _PARTS), "recorder.py")
"""The program and what it imports: files of host/, and the recorder's."""
METRICS = "/var/lib/prometheus/node-exporter"
"""The folder of the metrics where the inventory names none: that of Debian's node_exporter."""
UNIT, UNIT_FILE = units.GUARD_UNIT, f"/etc/systemd/system/{units.GUARD_UNIT}"
SENDMAIL = "/usr/sbin/sendmail"


@operation()
def installed(
    facts: Facts,
    *,
    guard: Guard | None = None,
    metrics: Metrics | None = None,
    slots: dict[BusId, str] | None = None,
    templates: Templates = SHIPPED,
) -> Iterator[Change | Note]:
    """gpu-guard.service runs with the thresholds and steps of `guard`. Without `guard` it is not on the host; its
    records stay. With `metrics` and without `guard` it only reads and writes the metrics: it makes no step.

    The plan warns of what would not work: a unit to stop that the host does not have, a mail program or command that is
    missing, a power limit outside a GPU's range. The address of a webhook is in no plan. Raises HostError for a secret
    webhook that is no address.
    """
    guard = guard or (Guard(steps=()) if metrics else None)
    if guard is None:
        yield from _removed(facts)
        return
    paths = [f"{FOLDER}/{name}" for name in NAMES]
    all_files = (*paths, PYNVML, CONFIG, UNIT_FILE)
    asked = [units.unit(name) for name in guard.stop]
    told = [files.file(path) for path in (SENDMAIL, guard.notify.command or SENDMAIL)]
    running, now, sendmail, program, *_ = facts.all(
        units.running(UNIT, all_files), units.unit(UNIT), *told, *asked, *map(files.file, all_files)
    )
    gpus = _gpus(facts) if guard.lower_limit_w else ()
    changes: list[Change] = []
    for name in NAMES:
        program_text = features.host_programs()[name].read_bytes()
        changes += file.differing(facts, f"{FOLDER}/{name}", program_text, "0755")
    changes += file.differing(facts, PYNVML, pynvml())
    changes += file.differing(facts, CONFIG, _config(guard, slots), "0600", secret=True)
    folder = posixpath.dirname(guard.textfile) if guard.textfile else METRICS
    values = {"program": PROGRAM, "config": CONFIG, "metrics": folder}
    unit_text = templates.render("systemd/gpu-guard.service.j2", values)
    fresh = list(services.unit(facts, name=UNIT, template=Template(unit_text)))
    for name in guard.stop:
        if facts(units.unit(name)).load == "not-found":
            yield Note(f"guard.stop: the host has no unit {name} now, so the step `stop` would not stop it", warn=True)
    if guard.notify.mail and sendmail is None:
        fix = "sudo apt-get install msmtp-mta (or postfix), or take mail out of guard.notify"
        yield Note(f"guard.notify.mail: the host has no {SENDMAIL}, so the guard cannot send mail; {fix}", warn=True)
    if guard.notify.command and program is None:
        yield Note(f"guard.notify.command: {guard.notify.command} is not on the host", warn=True)
    yield from _outside(guard, gpus, slots)
    yield from changes
    yield from fresh
    if now.enabled != "enabled":
        enable = (command("systemctl", "enable", UNIT),)
        yield Change("change", UNIT, now.at_boot, "enabled at boot", enable, units=(UNIT,))
    if now.active != "active":
        again = (command("systemctl", "reset-failed", UNIT),) if now.active == "failed" else ()
        start = command("systemctl", "restart", UNIT, timeout_s=120)
        yield Change("run", UNIT, now.active, "watches the GPUs", (*again, start), units=(UNIT,))
    elif changes or fresh or not running.current:
        restart = command("systemctl", "restart", UNIT, timeout_s=120)
        yield Change("run", UNIT, "runs with older files", "started again", (restart,), units=(UNIT,))


def _config(guard: Guard, slots: dict[BusId, str] | None) -> bytes:
    """guard.json, with the names of the GPUs' positions. Raises HostError for a webhook that is no address."""
    document = {**guard.document(), **({"positions": dict(slots)} if slots else {})}
    webhook = document["notify"].get("webhook", "")
    learn(webhook)
    if webhook and not re.fullmatch(r"https?://[^\s]{1,2000}", webhook):
        expected, fix = "https://... or http://..., in one word", "correct the source of the secret"
        raise HostError("guard.notify.webhook", "the secret is no address", expected, fix)
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _gpus(facts: Facts) -> tuple[gpu.Gpu, ...]:
    """The GPUs that nvidia-smi lists; none where it does not answer."""
    try:
        return facts(gpu.gpus)
    except (Unavailable, Unreadable):
        return ()


def _outside(guard: Guard, gpus: tuple[gpu.Gpu, ...], slots: dict[BusId, str] | None) -> Iterator[Note]:
    """A note for each GPU that cannot have `lower_limit_w`, or whose limit it does not lower."""
    watts = guard.lower_limit_w or 0
    for device in gpus:
        name = place(device.bus_id, slots)
        if device.power_min_w is not None and watts < device.power_min_w:
            problem = (
                f"guard.lower_limit_w {watts}: the lowest of {name} is {device.power_min_w:g} W, which it gets then"
            )
            yield Note(problem, warn=True)
        elif device.power_limit_w is not None and watts >= device.power_limit_w:
            problem = f"guard.lower_limit_w {watts}: {name} has {device.power_limit_w:g} W"
            yield Note(f"{problem}, so the step lower-limit changes nothing", warn=True)


def _removed(facts: Facts) -> Iterator[Change]:
    """The guard is not on the host; pynvml.py stays for the limits, and the records for their owner."""
    written = facts(files.file(UNIT_FILE))
    if written is None or PROGRAM not in written.text:
        return
    paths = [CONFIG, *(f"{FOLDER}/{name}" for name in NAMES)]
    now, *there = facts.all(units.unit(UNIT), *map(files.file, paths))
    stop = command("systemctl", "disable", "--now", "--", UNIT, timeout_s=120)
    after = (command("systemctl", "daemon-reload"), footprint.forget([UNIT_FILE]))
    commands = (stop, file.take_away(UNIT_FILE), *after)
    yield Change("remove", UNIT, f"{now.active}, {now.at_boot}", "", commands, units=(UNIT,))
    for path, found in zip(paths, there, strict=True):
        if found is not None:
            gone = (file.take_away(path), footprint.forget([path]))
            yield Change("remove", path, "written by rigwright", "", gone)
