"""A boot that is tried once: what runs stays GRUB's default until the new boot was seen to be healthy.

Before the first change that leads to a reboot, custom.cfg gets an entry of what runs now, with a copy of its initramfs,
and makes it the default: a power cut in between boots what was. Before the reboot it gets a second entry, grub.cfg's
own default, which grubenv's next_entry chooses for one boot. A healthy boot is confirmed: the block is taken out, and
grub.cfg's default counts. Any other boot ends by itself: the kernel restarts after a panic, and rigwright-trial.service
reboots what nobody confirmed.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from rigwright.core.change import Change, Note
from rigwright.core.command import Command, script
from rigwright.core.control_characters import one_line
from rigwright.core.desired import Reboot
from rigwright.core.errors import HostError
from rigwright.core.host_folders import UNTIL_BOOT
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.driver.start_failure import silent_gpus
from rigwright.engine.boot.entries import block
from rigwright.engine.boot.obstacles import equal_words, obstacles, running_node
from rigwright.engine.boot.reasons import Reason, reason, worse
from rigwright.engine.host_run import HostRun
from rigwright.engine.plan import PlannedStep
from rigwright.engine.playbook import Step
from rigwright.facts import Fact, Unavailable, Unreadable, grub, kernel_log, pci, pstore
from rigwright.facts.boot import trial as facts
from rigwright.facts.gpu import gpus as gpu
from rigwright.operations.grub import DROP_IN, update_grub
from rigwright.operations.trial import BLOCK, CLEAR, taken_away

FACTS: tuple[Fact[Any], ...] = (facts.trial, facts.outcome)
"""The facts about earlier trials."""

_PUT = """
set -e; umask 022
path=$1 mode=$2; folder=${path%/*}
[ ! -L "$path" ] || { echo "$path is a link" >&2; exit 1; }
mkdir -p -m 755 "${folder%/*}"; mkdir -p -m "$3" "$folder"
cat >"$path.new"; chmod "$mode" "$path.new"; sync "$path.new"; mv -fT "$path.new" "$path"; sync "$folder"
"""
_KEEP = f"""
set -e; cd /boot
mkdir -p -m 700 {facts.FOLDER}
if [ -n "$2" ]; then :
elif [ -e {DROP_IN} ]; then cp -p {DROP_IN} {facts.FOLDER}/drop-in; rm -f {facts.FOLDER}/drop-in.none
else rm -f {facts.FOLDER}/drop-in; : >{facts.FOLDER}/drop-in.none; fi
rm -f {facts.FOLDER}/armed {facts.FOLDER}/confirmed {facts.FOLDER}/started {facts.FOLDER}/words
grub-editenv /boot/grub/grubenv unset next_entry
[ -n "$1" ] || exit 0
cp -- "$1" {facts.KEPT}.new && sync {facts.KEPT}.new || {{ rm -f {facts.KEPT}.new; exit 1; }}
mv -fT {facts.KEPT}.new {facts.KEPT}; sync /boot
"""
_NOTE = f"""
set -e; cd {facts.FOLDER}
sh {facts.WATCH} now >before.new; sync before.new; mv -f before.new before; sync .
"""
"""Writes down how the host is now; the trial is compared with it."""
_ARM = f"""
set -e; cd {facts.FOLDER}
rm -f started words
{pstore.LIST}
head -c {facts.ROOM} /dev/zero | tr '\\0' '\\n' >words; cp words started; sync words started
cp /proc/sys/kernel/random/boot_id armed.new; sync armed.new; mv -f armed.new armed; sync .
grub-editenv /boot/grub/grubenv set next_entry={grub.TRIAL}
sync
grub-editenv /boot/grub/grubenv list | grep -qx next_entry={grub.TRIAL}
"""
_IS_HEALTHY = f"""
grep -q "rigwright.trial=$1 " /proc/cmdline || {{ echo "this boot is not the trial of run $1" >&2; exit 1; }}
mkdir -p -m 755 {UNTIL_BOOT} && : >{UNTIL_BOOT}/trial-healthy || exit 1
[ "$(timeout 20 systemctl is-system-running)" != stopping ] || {{ echo "the host goes down already" >&2; exit 1; }}
: >{facts.FOLDER}/confirmed && sync {facts.FOLDER}/confirmed {facts.FOLDER}
"""
_UNDO = f"""
set -e; cd {facts.FOLDER}
if [ -e drop-in ]; then
  cmp -s drop-in {DROP_IN} || {{
    cp -p drop-in {DROP_IN}.new; sync {DROP_IN}.new; mv -fT {DROP_IN}.new {DROP_IN}; echo undone
  }}
elif [ -e drop-in.none ] && [ -e {DROP_IN} ]; then rm -f {DROP_IN}; echo undone; fi
rm -f armed confirmed started words
grub-editenv /boot/grub/grubenv unset next_entry
sync
"""
_SAME_IMAGE = f'[ ! -e /boot/{facts.KEPT} ] || cmp -s "/boot/$1" /boot/{facts.KEPT}'
_OUTCOME = (
    f"umask 077; cat >{facts.OUTCOME}.new && sync {facts.OUTCOME}.new && mv -fT {facts.OUTCOME}.new {facts.OUTCOME}"
)

Work = Callable[[Sequence[Command]], None]


def with_trial_notes(run: HostRun, reboot: Reboot | None, steps: tuple[PlannedStep, ...]) -> tuple[PlannedStep, ...]:
    """The planned steps; the reboot has notes that say whether the new boot is tried, or why not, and how an earlier
    trial ended.

    The reboot fails if the inventory demands a trial that the host cannot make.
    """
    place = next((n for n, step in enumerate(steps) if step.step.declared.reboots and step.status != "skipped"), None)
    if place is None:
        return steps
    leads = any(change.reboot or change.leads_to == "reboot" for step in steps for change in step.changes)
    return (*steps[:place], _with_notes(run, reboot or Reboot(), steps[place], leads), *steps[place + 1 :])


def _with_notes(run: HostRun, reboot: Reboot, step: PlannedStep, leads: bool) -> PlannedStep:
    """The reboot with its notes. `leads`: whether the plan leads to it."""
    notes = _past(run, leads)
    if leads or step.status == "unknown":
        why, warn = _why_not(run, reboot), False
        if why and reboot.trial:
            problem, fix = (
                f"a boot cannot be tried on this host: {why}",
                "correct the cause; or leave `trial: true` out, and the host is rebooted without a trial",
            )
            error = HostError(step.step.name, problem, "reboot: {trial: true}, as the inventory says", fix)
            return replace(step, status="failed", reason=error.found, error=error)
        if why is None:
            text = "the new boot is not tried: the inventory says reboot: {trial: false}"
        elif why:
            text, warn = (
                f"the new boot cannot be tried once: {why}. If it fails, somebody has to go to the console",
                True,
            )
        else:
            release = run.store(facts.boot).kernel.rpartition("vmlinuz-")[2]
            text = (
                "the new boot is tried once. It becomes permanent when systemd is up, this step has nothing left to do,"
                " and GPUs, services, addresses and routes are there as this run leaves them; otherwise the host goes"
                f" back by itself to what runs now ({release}), within {max(1, reboot.confirm_within_s // 60)} min of"
                " its start"
            )
        notes.append(Note(text, warn=warn))
    trial = run.store.known[facts.trial]
    is_open = isinstance(trial, facts.Trial) and (trial.stage != "prepared" or not _runs_fallback(run))
    if is_open and step.status == "ok":
        # Otherwise a trial that is not settled ends by itself, and what was kept stays the default.
        settled = Change("run", f"trial of run {trial.run or '?'}", _STAGES[trial.stage], "settled")
        step = replace(step, status="pending", changes=(settled,))
    return replace(step, notes=(*step.notes, *notes))


def _runs_fallback(run: HostRun) -> bool:
    """Whether the host runs what was kept; False where that is not known."""
    run.read_unknown((facts.boot,))
    boot = run.store.known[facts.boot]
    return isinstance(boot, facts.Boot) and boot.runs_fallback


_STAGES: dict[facts.Stage, str] = {
    "prepared": "not booted",
    "armed": "not booted",
    "running": "this boot, not confirmed",
    "permanent": "permanent, its files still there",
    "returned": "ended",
    "not tried": "not booted",
    "left": "without a record",
}


def _why_not(run: HostRun, reboot: Reboot) -> str | None:
    """Why a boot cannot be tried on the host, "" if it can, None if the inventory wants no trial."""
    if reboot.trial is False:
        return None
    run.read_unknown((facts.boot,))
    boot = run.store.known[facts.boot]
    if isinstance(boot, (Unavailable, Unreadable)):
        return str(boot)
    return "; ".join(map(str, obstacles(boot)))


def _past(run: HostRun, leads: bool) -> list[Note]:
    """What earlier trials left on the host; with `leads`, when a boot is going to be tried, also how the last one
    ended."""
    run.read_unknown(FACTS)
    trial, outcome = (run.store.known[fact] for fact in FACTS)
    notes = []
    if leads and isinstance(outcome, facts.Outcome):
        text = f"{outcome.tried} was tried in run {outcome.run}, {outcome.at}, and the host went back: {outcome.why}"
        notes.append(Note(text, warn=True))
    if isinstance(trial, (Unavailable, Unreadable)):
        notes.append(Note(f"the record of a trial cannot be read: {trial}", warn=True))
    elif isinstance(trial, facts.Trial):
        texts = {
            "prepared": "until a new boot is healthy the host boots what ran before run {run}: invoke provision",
            "armed": "the next boot is the trial of run {run}, which ended before it: invoke provision",
            "running": "this boot is the trial of run {run}, which nobody has confirmed; it ends by itself: invoke"
            " provision",
            "permanent": "the boot that run {run} tried is permanent; files of the trial are left: invoke provision,"
            " which removes them",
            "returned": "the host has come back from the trial of run {run}: invoke provision, which says why",
            "not tried": "GRUB started what ran before in place of the trial of run {run}: invoke provision",
            "left": f"{facts.CUSTOM} has rigwright's block, and its record is gone: invoke provision",
        }
        text = texts[trial.stage]
        if trial.stage == "prepared" and _runs_fallback(run):
            text = "what ran before run {run} runs and is the default, because its boot was not healthy"
            text += ": invoke rollback, or correct the inventory"
        notes.append(Note(text.format(run=trial.run or "?"), warn=True, foreign=True))
    return notes


class Trials:
    """The trials of one run on a host. `work` runs commands on the host while the run holds its lease."""

    def __init__(self, run: HostRun, reboot: Reboot | None, templates: Templates = SHIPPED) -> None:
        self.run, self.reboot, self.templates = run, reboot or Reboot(), templates
        self.kept = False
        """Whether what ran before this run's changes is kept on the host."""
        self.refused = ""

    def keep(self, modules: Sequence[str]) -> tuple[Command, ...]:
        """The commands that keep what runs now, and make it the default; () where a boot cannot be tried.

        `modules`: kernel modules that the run replaces. Raises HostError where the inventory demands a trial.
        """
        if self.kept or self.refused:
            return ()
        self.run.store.forget()
        why = _why_not(self.run, self.reboot)
        if why != "":
            self.refused = why or "the inventory says so"
            if why and self.reboot.trial:
                raise HostError("reboot", f"a boot cannot be tried on this host: {why}", "reboot: {trial: true}")
            return ()
        boot: facts.Boot = self.run.value(facts.boot)
        earlier = self.state()
        before = earlier.record if earlier else {}
        # What an earlier run kept is still what runs: it stays, and so do the files of before and the GPUs of before.
        again = bool(before) and (before.get("boot") == boot.boot_id or boot.runs_fallback)
        if again:
            modules = tuple(dict.fromkeys((*_modules(before), *modules)))
        node = running_node(boot)
        image = grub.entry_of(node).initrd_path.rpartition("/")[2] if node and grub.entry_of(node).initrd else ""
        stands = facts.KEPT in boot.images and again
        self.run.read_unknown((pci.gpus, gpu.gpus))
        record = {
            "run": self.run.options.run_id, "boot": boot.boot_id, "kernel": boot.kernel, "image": image,
            "modules": list(modules), "gpus": _count(self.run, pci.gpus), "answering": _answering(self.run),
        }  # fmt: skip
        if again:
            record |= {name: before[name] for name in ("gpus", "answering", "image") if name in before}
        watch = self.templates.render("trial/watch.sh.j2", {"folder": facts.FOLDER})
        values = {"program": facts.WATCH, "limit_s": self.reboot.confirm_within_s}
        unit = self.templates.render("systemd/rigwright-trial.service.j2", values)
        text = block(boot, self.templates, self.run.options.run_id, tuple(modules), with_trial=False)
        self.kept = True
        return (
            script(_KEEP, "" if stands else image, "again" if again else "", timeout_s=300),
            _put(f"{facts.FOLDER}/record.json", json.dumps(record), "600", "700"),
            _put(facts.WATCH, watch, "644", "755"),
            _put(facts.UNIT, unit, "644", "755"),
            *(() if again else (script(_NOTE),)),
            script(BLOCK, stdin=text.encode()),
        )

    def arm(self, gpus_after: int | None = None) -> tuple[Command, ...]:
        """The commands that make grub.cfg's default entry the next boot, for once; () without a trial.

        `gpus_after`: how many GPUs the new boot shall have that answer to the driver; None: as many as answered before.
        """
        if not self.kept:
            return ()
        self.run.store.forget()
        boot: facts.Boot = self.run.value(facts.boot)
        trial = self.run.value(facts.trial)
        record = trial.record if isinstance(trial, facts.Trial) else {}
        modules = _modules(record)
        text = block(boot, self.templates, self.run.options.run_id, modules, with_trial=True)
        self.run.store.forget()
        shall = _put(f"{facts.FOLDER}/record.json", json.dumps(_expecting(record, gpus_after)), "600", "700")
        return (shall, script(BLOCK, stdin=text.encode()), script(_ARM))

    @property
    def judged_within_s(self) -> float:
        """The seconds for the judgement of a boot: less than the time after which the host goes back by itself."""
        return self.reboot.confirm_within_s / 2

    def state(self) -> facts.Trial | None:
        """The trial that is on the host now."""
        self.run.store.forget()
        found = self.run.value(facts.trial)
        return found if isinstance(found, facts.Trial) else None

    def reasons(self, trial: facts.Trial, step: Step) -> tuple[str, ...]:
        """Why this boot, which is a trial, is not healthy; () if it is. `step`: the reboot, which must have nothing
        left to do."""
        now = facts.words_of_boot(self.run.transport.run([script(f"sh {facts.WATCH} now", timeout_s=120)])[0].text)
        found = [*worse(trial.before, now)] if trial.before else []
        state = " ".join(now.get("state", ()))
        if not found and state not in ("running", "degraded", *trial.before.get("state", ())):
            found.append(f"systemd is {state[:40] or 'not answering'}")
        self.run.store.forget()
        planned = self.run.planned([step])[0]
        if planned.status != "ok":
            found.append("; ".join(change.before for change in planned.changes) or planned.reason)
        self.run.read_unknown((pci.gpus, gpu.gpus))
        on_bus, before = _count(self.run, pci.gpus), trial.record.get("gpus")
        if isinstance(before, int) and (on_bus or 0) < before:
            found.append(f"{on_bus or 0} of {before} GPUs on the PCI bus")
        answering, answered = _answering(self.run), trial.record.get("answering")
        if isinstance(answered, int) and answered and (answering or 0) < answered:
            self.run.read_unknown((kernel_log.kernel,))
            silent = silent_gpus(self.run.store, _known(self.run, gpu.gpus), _known(self.run, pci.gpus))
            said = f" ({silent[0]})" if silent and silent[0].failure else ""
            found.append(f"{answering or 0} of {answered} GPUs answer{said}")
        elif on_bus and answering == 0 and answered is None:
            found.append("no GPU answers")
        return tuple(found)

    def confirm(self, trial: facts.Trial, work: Work) -> str:
        """Makes a healthy trial permanent. Returns a warning about what will boot next, "" for none."""
        boot: facts.Boot = self.run.value(facts.boot)
        panics = [word.partition("=")[2] for word in boot.words.split() if word.startswith("panic=")]
        work((script(_IS_HEALTHY, trial.run), script(BLOCK), script(CLEAR, "healthy", panics[-1] if panics else "0")))
        self.kept = False
        try:
            entry = grub.default_entry(boot.config, {**boot.variables, "next_entry": ""})
        except ValueError as error:
            return f"grub.cfg was changed during the trial: {error}; look at it before the next reboot"
        if entry.kernel != boot.kernel or not equal_words(entry.command_line, boot.words):
            return f"grub.cfg was changed during the trial: {entry.release} boots next, and was not tried"
        return ""

    def finish(self, work: Work) -> None:
        """Removes what an interrupted `confirm` left: the boot was healthy, and grub.cfg's own default boots."""
        work((script(CLEAR, "healthy", ""),))

    def give_up(self) -> Command:
        """The command that writes down what a person would look at in this trial, before the host goes back."""
        return script(f"sh {facts.WATCH} words", timeout_s=120)

    def close(self, trial: facts.Trial, why: Sequence[str], work: Work, sightings: Sequence[str] = ()) -> Reason:
        """After a trial that ended: the command line of before is in grub.cfg again, the outcome is written down.
        Returns the reason.

        `why`: why rigwright did not confirm it. `sightings`: what the controller saw while it waited for the host.
        What ran before stays the default as long as grub.cfg's own default is something else.
        """
        panic = None
        if trial.stage == "returned":
            self.run.read_unknown((pstore.records,))
            panic = self.run.store.known[pstore.records]
        ended = reason(trial, why, panic if isinstance(panic, pstore.Records) else None, sightings)
        boot: facts.Boot = self.run.value(facts.boot)
        tried = _tried(boot)
        undone = self.run.transport.run([script(_UNDO)])[0]
        if undone.code != 0:
            error = one_line(undone.error_text)[:200] or f"exit {undone.code}"
            problem = f"the host went back: {ended.text}; its kernel parameters of before cannot be put back ({error})"
            fix = "correct the cause; then run the same command again"
            raise HostError("reboot", problem, f"{DROP_IN} as before", fix)
        if undone.text.strip() == "undone":
            work((update_grub(),))
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        outcome = facts.Outcome(trial.run, now, tried, ended.text)
        work((script(_OUTCOME, stdin=json.dumps(asdict(outcome)).encode()),))
        self.run.store.forget()
        if self.is_as_before(trial):
            work(taken_away())
        self.kept = False
        return ended

    def is_needed(self, trial: facts.Trial) -> bool:
        """Whether the host runs what was kept, and grub.cfg's own default would start something else, which was not
        healthy."""
        boot: facts.Boot = self.run.value(facts.boot)
        return boot.runs_fallback and not self.is_as_before(trial)

    def is_as_before(self, trial: facts.Trial) -> bool:
        """Whether grub.cfg's default entry starts what the host runs, with the same initramfs and modules."""
        boot: facts.Boot = self.run.value(facts.boot)
        try:
            entry = grub.default_entry(boot.config, {**boot.variables, "next_entry": ""})
        except ValueError:
            return False
        same = entry.kernel == boot.kernel and equal_words(entry.command_line, boot.words)
        image = str(trial.record.get("image", ""))
        if not same or trial.record.get("modules"):
            return False
        return not image or self.run.transport.run([script(_SAME_IMAGE, image)])[0].code == 0


def _expecting(record: Mapping[str, Any], gpus_after: int | None) -> dict[str, Any]:
    """The record of a trial whose boot has at most that many GPUs that answer to the driver; a GPU that is silent now
    may stay so."""
    if gpus_after is None:
        return dict(record)
    known = [record[name] for name in ("gpus", "answering") if isinstance(record.get(name), int)]
    return {**record, "answering": min((gpus_after, *known))}


def _modules(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of modules in a record; those that are no names are left out."""
    listed = record.get("modules")
    return tuple(name for name in listed if re.fullmatch(r"\w{1,40}", str(name))) if isinstance(listed, list) else ()


def _put(path: str, text: str, mode: str, folder: str) -> Command:
    return script(_PUT, path, mode, folder, stdin=text.encode())


def _known(run: HostRun, fact: Fact[Any]) -> tuple[Any, ...]:
    value = run.store.known.get(fact)
    return value if isinstance(value, tuple) else ()


def _count(run: HostRun, fact: Fact[Any]) -> int | None:
    value = run.store.known.get(fact)
    return len(value) if isinstance(value, tuple) else None


def _answering(run: HostRun) -> int | None:
    """How many GPUs answer to NVML; None where no driver does."""
    value = run.store.known.get(gpu.gpus)
    return sum(not card.lost for card in value) if isinstance(value, tuple) else None


def _tried(boot: facts.Boot) -> str:
    """What grub.cfg's default entry starts."""
    try:
        entry = grub.default_entry(boot.config, {**boot.variables, "next_entry": ""})
    except ValueError:
        return "a boot"
    return f"{entry.release} with {entry.command_line}"[:300]
