"""The NVIDIA driver: resolved before anything changes, pinned, installed, held, and the pin proved."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.change import Change, Note
from rigwright.choices import choices, counted, counted_of, unknown_model
from rigwright.compatibility import card_of, check_branch, check_cuda, check_toolkit
from rigwright.errors import HostError
from rigwright.facts import Facts, Unavailable, archive, files, gpu, history, pci
from rigwright.facts import apt as dpkg
from rigwright.facts import driver as state
from rigwright.facts import kernel as kernels
from rigwright.facts import os as system
from rigwright.operations import apt
from rigwright.positions import place
from rigwright.preferences import pin_path
from rigwright.resolution import BESIDE, BLOCK, PIN, Resolution, branch_of, pinned, repository, resolved, upstream
from rigwright.shell import command, script
from rigwright.typed import AbsolutePath, BusId
from rigwright.wanted import Cuda, CudaSource, Driver, Limits


def supported(
    facts: Facts,
    *,
    driver: Driver,
    cuda: Cuda | None = None,
    rig: Rig | None = None,
    limits: Limits | None = None,
    slots: dict[BusId, str] | None = None,
) -> Iterator[Note]:
    """Every GPU on the bus runs on the branch and its kernel module, and the CUDA toolkit has code for it.

    Tells where the GPUs are not those of the rig, what they have in common and what was chosen. Raises HostError that
    names the GPUs that do not fit, or when there is none.
    """
    gpus, switches, today = facts.all(pci.gpus, pci.nvswitches, system.today)
    if not gpus:
        raise pci.no_gpu("driver")
    cards = {place(one.bus_id, slots): card_of(one.device_id) for one in gpus}
    yield Note(f"GPUs: {counted(cards.values())}")
    for one in gpus:
        if catalogue.model_of(one.device_id) is None:
            at = place(one.bus_id, slots)
            left = "only its branch and module are checked" if cards[at] else "nothing is checked for it"
            yield Note(f"{at}: {unknown_model(one.device_id)}; {left}", warn=True)
    if rig and counted(cards.values()) != counted_of(rig):
        yield Note(f"the rig {rig.key} has {counted_of(rig)}", warn=True)
    for bus_id, position in (slots or {}).items():
        if bus_id not in [one.bus_id for one in gpus]:
            yield Note(f"{position} {bus_id}: no GPU", warn=True)
    known = {at: card for at, card in cards.items() if card}
    if known:
        said = tuple(choices(known, driver, len(switches), today))
        check_branch(known, driver.branch)
        if cuda:
            check_cuda(known, cuda.toolkit)
        yield from said
    if limits and limits.application_clocks and int(driver.branch) > catalogue.application_clocks_until():
        raise HostError(
            "limits.application_clocks",
            f"driver {driver.branch} has no application clocks any more",
            f"a branch up to {catalogue.application_clocks_until()}",
            "leave application_clocks out",
        )
    if cuda and (less := check_toolkit(driver, cuda.toolkit)):
        yield Note(less, warn=True)


def repository_present(
    facts: Facts, *, driver: Driver, cuda: Cuda | None = None, cuda_repository: CudaSource | None = None
) -> Iterator[Change]:
    """NVIDIA's repository is a source of the host, by its own key only, when the driver or the CUDA toolkit comes from it;
    and so is the directory that the driver comes from. A source of that URL that stands already is left as it is."""
    if driver.source.startswith("/"):
        yield from apt.directory(facts, path=AbsolutePath(driver.source))
    listed, keyring = apt.source_paths("cuda")
    asked = (system.os_release, files.file(listed), files.file(keyring), files.file(pin_path(PIN)))
    os_release, now, key_now, *_ = facts.all(*asked, pci.gpus, pci.nvswitches)
    remote = repository(os_release, cuda_repository)
    if now is not None and key_now is not None and f" {remote.url} " in now.text:
        return
    if cuda is None and now is None and resolved(facts, driver, cuda_repository).source != "cuda":
        return
    offered, elsewhere = facts.all(archive.offered(("cuda-keyring",), remote), dpkg.sources_naming(remote.url))
    if not elsewhere:
        yield from apt.source(facts, name="cuda", url=remote.url, key=offered.key)


def pinned_exactly(facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Change]:
    """apt's preferences hold the whole closure at one version and keep every other branch out."""
    found = resolved(facts, driver, cuda_repository)
    for change in apt.pin(facts, name=PIN, packages=sorted(found.closure), version=f"{found.version}*", block=BLOCK):
        origin = f" from {found.source} ({found.reason})" if found.source else ""
        after = f"{found.version}{origin}, {len(found.closure)} packages"
        yield Change(change.action, change.subject, "", after, change.commands)


def installed(facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Change]:
    """Every package of the driver is installed at the resolved version; a reboot loads it.

    The packages are all downloaded before the first is unpacked, in a job that outlives the controller.
    """
    found = resolved(facts, driver, cuda_repository)
    now, there = facts.all(dpkg.packages(*found.closure), dpkg.matching("*nvidia*", "cuda-drivers*"))
    wrong = [name for name in found.closure if not _right(now.get(name), found)]
    if wrong:
        others = _others(there, found)
        before = sorted({now[name].version for name in wrong if name in now} | set(others.values()))
        for name, version in others.items():
            yield Change("remove", name, version, "")
        words = [f"{name}={found.closure[name]}" if found.source else name for name in found.closure]
        yield Change(
            "change" if before else "add",
            f"driver {found.version} ({len(wrong)} packages)",
            ", ".join(before),
            found.version,
            (
                *([command("apt-mark", "unhold", *others)] if others else []),
                apt.install([*words, *(f"{name}-" for name in others)]),
            ),
            leads_to="reboot",
        )


def _others(there: dict[str, dpkg.Package], found: Resolution) -> dict[str, str]:
    """What is installed of another driver, and in the way of this one: another branch's, or named after another release."""
    own = found.version.split(".")[0]
    return {
        name: package.version
        for name, package in there.items()
        if name not in (*found.closure, *BESIDE)
        and branch_of(package.version)
        and (branch_of(package.version) != own or (re.search(r"\d{3}\.\d", name) and found.version not in name))
    }


def _right(package: dpkg.Package | None, found: Resolution) -> bool:
    return package is not None and package.installed and package.version.split(":")[-1].startswith(found.version)


_RELOAD = """
for unit in nvidia-persistenced nvidia-fabricmanager nvidia-dcgm; do
  systemctl is-active -q "$unit" && { systemctl stop "$unit"; again="$again $unit"; }
done
for module in nvidia_peermem nvidia_drm nvidia_modeset nvidia_uvm nvidia; do
  [ -d "/sys/module/$module" ] && { modprobe -r "$module" || failed=1; }
done
modprobe nvidia && modprobe nvidia-uvm; code=$?
for unit in $again; do systemctl start "$unit"; done
[ -z "$failed" ] && exit $code
echo 'the old module does not unload: sudo reboot'; exit 1
"""


def reloaded(
    facts: Facts, *, driver: Driver | None = None, cuda_repository: CudaSource | None = None
) -> Iterator[Change | Note]:
    """The loaded module is the installed one, without a reboot: where the packages moved under it and nobody uses the GPUs.

    Where no driver is loaded, or something holds the GPUs, nothing is done here: the reboot has it. Where the packages are
    not those of the wanted `driver`, only what moved is told: they go first.
    """
    running, loaded, bound = facts.all(system.running_kernel, state.loaded_version, pci.gpus)
    if not loaded or any(one.driver not in ("nvidia", "") for one in bound):
        return
    built = facts(kernels.module_version(running, "nvidia"))
    if not built or built == loaded:
        return
    users, moves = facts.all(gpu.holders, history.moved)
    why = next((f"; {move}" for move in reversed(moves) if upstream(move.version) == built), "")
    if driver and resolved(facts, driver, cuda_repository).version != built:
        yield Note(f"{loaded} is loaded, the packages are at {built}{why}", warn=True)
        return
    if [one for one in users if not one.name.startswith(_OURS)]:
        return
    yield Change(
        "run", "driver module", f"{loaded} loaded{why}", f"{built} loaded", (script(_RELOAD, timeout_s=300, long=True),)
    )


_OURS = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine")
"""Programs that hold the GPUs for the driver itself, as /proc/PID/comm cuts their names; they are stopped and started."""


def held(facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Change]:
    """Every package of the driver is held."""
    yield from apt.hold(facts, names=sorted(resolved(facts, driver, cuda_repository).closure))


def pin_proved(facts: Facts, *, driver: Driver) -> Iterator[Change]:
    """apt itself, asked to upgrade everything, would move no package of the driver.

    Asked again only when dpkg's status, the lists or the preferences have moved. Raises HostError that names what would move.
    """
    found = pinned(facts, driver)
    if found is None:
        raise Unavailable("known when the driver is pinned")
    now, proof = facts.all(dpkg.packages(*found.closure), dpkg.pin_proof)
    if any(name not in now or not now[name].held for name in found.closure):
        raise Unavailable("known when the driver is installed and held")
    if proof.now == proof.proved:
        return
    moving = [
        move for move in facts(dpkg.next_upgrade) if move.name in found.closure or move.name.startswith("cuda-drivers")
    ]
    if moving:
        shown = ", ".join(f"{move.name} {move.before} -> {move.version or 'removed'}" for move in moving[:4])
        raise HostError(
            "pin",
            f"an upgrade would still move {shown}",
            f"no package of driver {found.version} to move",
            "look for other files in preferences.d",
        )
    if not proof.proved:
        record = script(dpkg.PROOF_WRITE)
        yield Change(
            "run",
            "apt-get -s dist-upgrade",
            "not proved",
            f"proved: leaves the {len(found.closure)} driver packages alone",
            (record,),
        )
