"""The NVIDIA driver: its version is chosen before the first change; then it is pinned, installed and held, and the pin
is proved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from rigwright import catalogue
from rigwright.catalogue import Rig
from rigwright.catalogue.compatibility import (
    card_of,
    check_branch,
    check_cuda,
    check_toolkit,
    common_branches,
    flavour_of,
)
from rigwright.catalogue.summary import choices, counted, counted_of, not_described, rig_branch, unknown_model
from rigwright.core.change import Change, Note
from rigwright.core.command import command, script
from rigwright.core.desired import Cuda, CudaSource, Driver, Limits
from rigwright.core.errors import HostError
from rigwright.core.gpu_labels import place
from rigwright.core.numbers import count
from rigwright.core.schema import AbsolutePath, BusId, FileName, Word
from rigwright.core.shortening import first_of
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.driver.apt_pin import NVIDIAS, PINNING, interferes, pin_path, read_pins
from rigwright.driver.kernel_ceiling import (
    CEILING,
    UPGRADE_WITHOUT,
    boots_older,
    ceiling_text,
    exceeds,
    forbidden_moves,
    newest_buildable,
    too_new,
)
from rigwright.driver.module_build import build_problem, depends_on_release
from rigwright.driver.package_sets import BESIDE, KERNELS, branch_of, holding, kernel_of, of_other_set, upstream
from rigwright.driver.resolve import ASKED, PIN, Resolution, block, cuda_distribution, pinned, repository, resolved
from rigwright.facts import Facts, Unavailable, driver as state, files, kernel as kernels, pci, system
from rigwright.facts.apt import archive as apt_archive, dpkg, history as apt_history, sources as apt_sources
from rigwright.facts.gpu import gpus as gpu
from rigwright.operations import apt, file, operation

_OTHER_GPUS = "is this another machine (address)? If its GPUs were changed: invoke init --host HOST --update"


@operation()
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

    Notes have differences from the rig, what the GPUs have in common, and what was chosen. Raises HostError with the
    GPUs that are not supported, or if there is no GPU.
    """
    gpus, switches, today = facts.all(pci.gpus, pci.nvswitches, system.today)
    if not gpus:
        raise pci.no_gpu("driver")
    cards = {place(device.bus_id, slots): card_of(device.device_id) for device in gpus}
    yield Note(f"GPUs: {counted(cards.values())}")
    for device in gpus:
        at, model = place(device.bus_id, slots), catalogue.model_of(device.device_id)
        if model is not None and not model.described:
            yield Note(f"{at}: {not_described(model)}")
        elif model is None:
            left = "only its branch and module are checked" if cards[at] else "nothing is checked for it"
            yield Note(f"{at}: {unknown_model(device.device_id)}; {left}", warn=True)
    if rig and counted(cards.values()) != counted_of(rig):
        yield Note(f"the rig {rig.key} has {counted_of(rig)}: {_OTHER_GPUS}", warn=True)
    for bus_id, position in (slots or {}).items():
        if bus_id not in [device.bus_id for device in gpus]:
            yield Note(f"{position} {bus_id}: no GPU", warn=True)
    known = {at: card for at, card in cards.items() if card}
    if known:
        check_branch(known, driver.branch)
        notes = tuple(choices(known, driver, len(switches), today))
        if cuda:
            for release in cuda.toolkits:
                check_cuda(known, release)
        yield from notes
    if rig:
        yield from rig_branch(rig, driver, today)
    until = catalogue.driver_table().application_clocks_until
    set_clocks = limits and any(each.application_clocks for each in (limits, *limits.gpus.values()))
    if set_clocks and int(driver.branch) > until:
        text = f"driver {driver.branch} has no application clocks any more, branch {until} is the last"
        instead = "they are left out; locked_graphics_mhz: [min, max] sets the clock on it"
        yield Note(f"{text}: {instead}", warn=True)
    for release in cuda.toolkits if cuda else ():
        if less := check_toolkit(driver, release):
            yield Note(less, warn=True)


@operation()
def buildable(facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Note]:
    """The module of the driver release builds for the running and the newest kernel, or is built already.

    Raises HostError with other drivers that build, and the boot entry of an older kernel, if no release of a branch of
    NVIDIA's repository builds, unless `modules` is dkms. Otherwise it is a note: a distribution can patch its own
    driver.
    """
    running, newest, gpus, today = facts.all(system.running_kernel, kernels.newest, pci.gpus, system.today)
    names = dict.fromkeys(name for name in (running, newest) if name)
    doubtful = [kernel for kernel in names if depends_on_release(driver, kernel)]
    resolution = resolved(facts, driver, cuda_repository) if doubtful else None
    if resolution is None or resolution.kernel:
        return
    cards = [card for gpu in gpus if (card := card_of(gpu.device_id))]
    for kernel in doubtful:
        problem = build_problem(driver, resolution.version, kernel, cards, today)
        if problem is None or facts(kernels.module_version(kernel, "nvidia")) == resolution.version:
            continue
        of_all = build_problem(driver, "", kernel, cards, today)
        if of_all is None:
            yield Note(f"{problem.error.found}, as NVIDIA ships it; {problem.error.expected}", warn=True)
        elif of_all.certain and resolution.from_nvidia and driver.modules == "auto":
            older, error = boots_older(facts, resolution.version, kernel), of_all.error
            fix = f"{error.fix}; or {older}" if older else error.fix
            raise HostError(error.where, error.found, error.expected, fix)


@operation()
def repository_present(
    facts: Facts,
    *,
    driver: Driver,
    cuda: Cuda | None = None,
    dcgm: bool = False,
    cuda_repository: CudaSource | None = None,
    templates: Templates = SHIPPED,
) -> Iterator[Change | Note]:
    """NVIDIA's repository is a source of the host, trusted by its own key only, if the driver, the CUDA toolkit or DCGM
    comes from it.

    A directory that the driver comes from is a source too. An existing source of the same URL is not changed; a source
    for another release gets a warning.
    """
    if driver.source.startswith("/"):
        yield from apt.directory(facts, path=AbsolutePath(driver.source), templates=templates)
    listed, keyring = apt.source_paths("cuda")
    needed = (files.file(listed), apt_sources.keyring(keyring), apt_sources.sources, files.file(keyring))
    now, keys, every, _, os_release, *_ = facts.all(*needed, *ASKED)
    yield from _of_other_releases(every, cuda_distribution(os_release))
    remote = repository(os_release, cuda_repository)
    same = [source for source in every if source.is_of(remote.url)]
    own = [source for source in same if source.ours and source.signed_by == (keyring,) and not source.trusted]
    if own and keys == (remote.fingerprint,):
        return
    if cuda is None and not dcgm and now is None and resolved(facts, driver, cuda_repository).source != "cuda":
        return
    if foreign := [source for source in same if not source.ours]:
        yield from apt.require_signed(facts, foreign, remote.fingerprint)
        return
    offered = facts(apt_archive.offered(("cuda-keyring",), remote))
    yield from apt.source(facts, name=FileName("cuda"), url=Word(remote.url), key=offered.key, templates=templates)


def _of_other_releases(sources: Iterable[apt_sources.Source], own: str) -> Iterator[Note]:
    """A note for each source of NVIDIA's repository for another release than `own`."""
    known = catalogue.cuda_table().repository
    for source in sources:
        match = re.search(r"/compute/cuda/repos/([a-z0-9]+)(?:/|$)", source.url)
        if match is None or match[1] == own or source.ours:
            continue
        distribution = match[1]
        key, right = known.key_of(distribution), known.key_of(own)
        text = f"{source.path} names NVIDIA's repository for {distribution}, and this host is {own}"
        if key != right:
            text += f": its key is {key.file}, that of {own} is {right.file} ({right.fingerprint})"
        if key == known.key and key != right:
            text += ", and apt here rejects the older one for its SHA-1 signature"
        yield Note(f"{text}; take that source out of the file", warn=True)


@operation()
def other_pins_removed(facts: Facts) -> Iterator[Change]:
    """No package nvidia-driver-pinning-* and no file nvidia-driver-pin of NVIDIA holds the driver at another version.

    apt reads that file before rigwright's, so it has precedence. The package is removed; a file without a package is
    renamed to nvidia-driver-pin.disabled, which apt does not read.
    """
    there, pin = facts.all(dpkg.matching(PINNING), files.file(NVIDIAS))
    for name, package in there.items():
        yield Change("remove", name, package.version, "", (apt.purge([name]),))
    if pin is not None and not there:
        versions = ", ".join(dict.fromkeys(each.pin for each in read_pins(pin.text))) or "no pin"
        moved = file.take_away(NVIDIAS, f"{NVIDIAS}.disabled")
        yield Change("remove", NVIDIAS, versions, f"renamed to {NVIDIAS}.disabled", (moved,))


_CONCERNED = (
    "dkms|build-essential|gcc(-\\d+)?|make|initramfs-tools|linux-(image|headers|modules|generic|virtual|lowlatency).*"
)
_OF_DRIVER = "(lib)?nvidia-.*|cuda-.*|libcuda1"


@operation()
def foreign_rules(facts: Facts) -> Iterator[Note]:
    """Reports the pins and holds of others that concern the driver, with the file of each. Changes nothing.

    A pin of priority 1000 or more permits another driver in spite of rigwright's pin; a negative one excludes the
    driver. Holds of rigwright are not reported.
    """
    texts, held, mine = facts.all(dpkg.preferences, dpkg.held, files.file(pin_path(PIN)))
    for path, text in texts.items():
        for pin in read_pins(text) if path != NVIDIAS else ():
            if not interferes(pin):
                continue
            does = "lets other drivers in" if pin.priority > 0 else "keeps drivers out"
            what = f"{' '.join(pin.packages)[:120]} ({pin.pin[:80]}) with priority {pin.priority}, which {does}"
            text = f"{path} pins {what}: take that stanza out of the file if it is not meant"
            yield Note(text, warn=True, foreign=True)
    kept = {name for pin in read_pins(mine.text) for name in pin.packages} if mine else set()
    concerned = _CONCERNED if mine else f"{_CONCERNED}|{_OF_DRIVER}"
    names = [name for name in held if re.fullmatch(concerned, name)]
    if any(kernel_of(name) for name in kept):
        names = [name for name in names if not name.startswith("linux-")]
    if names:
        stay = "they stay at their version, and sudo apt-mark unhold frees them"
        yield Note(f"held (apt-mark hold, in /var/lib/dpkg/status): {first_of(names, 6)}; {stay}", warn=True)


@operation()
def pinned_exactly(
    facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None, templates: Templates = SHIPPED
) -> Iterator[Change | Note]:
    """apt's preferences hold every package of the driver at its version and exclude every other branch. A driver that
    is pinned already keeps its kernel module, unless the inventory has the flavour. A prebuilt module can come with a
    newer kernel, so it removes the rule of `driver.kernel_ceiling`."""
    resolution = resolved(facts, driver, cuda_repository)
    cards = [card for device in facts(pci.gpus) if (card := card_of(device.device_id))]
    if not resolution.source and driver.flavour == "auto" and flavour_of(cards, driver) != resolution.flavour:
        other = "open" if resolution.flavour == "proprietary" else "proprietary"
        yield Note(f"the pinned driver keeps its {resolution.flavour} kernel module; flavour: {other} changes it")
    names = [Word(name) for name in sorted(resolution.closure) if resolution.of_release(name)]
    pin = apt.pin(
        facts,
        name=FileName(PIN),
        packages=names,
        version=Word(f"{resolution.version}*"),
        block=block(facts(system.os_release)),
        also=resolution.beside,
        not_from=resolution.not_from,
        templates=templates,
    )
    origin = f" from {resolution.source} ({resolution.reason})" if resolution.source else ""
    for change in pin:
        yield replace(change, before="", after=f"{resolution.version}{origin}, {len(resolution.closure)} packages")
    if resolution.kernel:
        yield from _without_ceiling(facts)


def _without_ceiling(facts: Facts) -> Iterator[Change]:
    """The change that removes the preferences against newer kernels, if they are there."""
    path = pin_path(CEILING)
    if facts(files.file(path)) is not None:
        yield Change("remove", path, "newer kernels withheld", "", (file.take_away(path),))


@operation()
def patched(facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Note]:
    """The driver has the fixes of NVIDIA's security bulletins. If not, a warning has the bulletin, and the release or
    branch with the fixes; nothing is changed."""
    resolution = resolved(facts, driver, cuda_repository)
    cards = [card for device in facts(pci.gpus) if (card := card_of(device.device_id))]
    if lacking := catalogue.shortfall(resolution.version, common_branches(cards)):
        yield Note(f"{lacking.text}: {lacking.fix}", warn=True)


MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
"""The kernel modules of the driver."""


@operation(affects_p2p=True, affects_gpus=True, modules=MODULES)
def installed(facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Change | Note]:
    """Every package of the driver is installed at its exact version; a reboot loads it.

    A job downloads all packages before it unpacks the first, and continues without the controller. Packages of another
    driver or of the other kind of module (dkms or prebuilt) are removed. If the inventory has `display`, packages that
    only the other set has are removed. Packages added to a driver of the same release need no reboot.
    """
    resolution = resolved(facts, driver, cuda_repository)
    now, there = facts.all(dpkg.packages(*resolution.closure), dpkg.matching("*nvidia*", "cuda-drivers*"))
    closure, release = resolution.closure, resolution.version
    wrong = [name for name in closure if name not in now or not _is_right(name, now[name], resolution)]
    of_set: dict[str, str] = {}
    if driver.display is not None:
        beside = [name for name, package in there.items() if package.version and name not in closure]
        of_set = {name: there[name].version for name in of_other_set(beside, driver.display)}
    if wrong or of_set:
        conflicting = _conflicting(there, resolution)
        others = {**of_set, **conflicting}
        before = _before(now, wrong, resolution) + sorted(
            set(conflicting.values()) - {now[name].version for name in wrong if name in now}
        )
        freed = _freed(facts, others, resolution.kernel)
        for name, version in others.items():
            yield Change("remove", name, version, "")
        exact = [name for name in closure if resolution.source or not resolution.of_release(name)]
        words = [f"{name}={closure[name]}" if name in exact else name for name in closure]
        packages = f"driver {release} ({count(len(wrong), 'package')})"
        yield Change(
            "change" if before else "add" if wrong else "remove",
            packages if wrong else f"packages beside driver {release}",
            ", ".join(before),
            release if wrong else "",
            (
                *([command("apt-mark", "unhold", *others, *freed)] if others else []),
                apt.install([*words, *(f"{name}-" for name in others)]),
            ),
            leads_to="reboot" if before or any(re.search("kernel|dkms|linux-", name) for name in wrong) else "",
        )
        if any("dkms" in name for name in wrong):
            text = "DKMS compiles the driver's module on the host, for each kernel with headers"
            yield Note(f"{text}; apt prints nothing for the minutes that it takes")


def _before(now: dict[str, dpkg.Package], wrong: Iterable[str], resolution: Resolution) -> list[str]:
    """The present state of wrong packages: other versions, and packages of the right version that are not
    configured."""
    there = {name: now[name] for name in wrong if name in now and now[name].version}
    half = sorted(
        name for name, package in there.items() if _is_right(name, replace(package, installed=True), resolution)
    )
    versions = sorted({package.version for name, package in there.items() if name not in half})
    return [*versions, f"{first_of(half, 3)} not configured"] if half else versions


def _conflicting(there: dict[str, dpkg.Package], resolution: Resolution) -> dict[str, str]:
    """The installed packages that conflict with this driver, with their versions: those of another branch, with another
    release in their name, or with the other kind of module (dkms or prebuilt, open or proprietary)."""
    version, own_branch = resolution.version, resolution.version.split(".")[0]
    kinds = "linux-(modules|objects|signatures)-nvidia-"
    kinds += r"|nvidia-dkms-|nvidia-headless-\d" if resolution.kernel else ""
    metapackages = r"nvidia-(driver|dkms|headless|headless-no-dkms|kernel-source)(-\d{3})?(-server)?"
    of_debian = any(name.endswith(("kernel-dkms", "kernel-open-dkms")) for name in resolution.closure)
    if resolution.flavour == "open":
        flavour = r"nvidia-(tesla-\d{3}-)?kernel-dkms" if of_debian else metapackages
    else:
        flavour = "nvidia-(open-kernel|kernel-open)-dkms" if of_debian else f"{metapackages}-open"

    def conflicts(name: str, branch: str) -> bool:
        if re.match(kinds, name) or re.fullmatch(flavour, name):
            return True
        other_release = re.search(r"\d{3}\.\d", name) and version not in name
        return bool(branch and (branch != own_branch or other_release))

    return {
        name: package.version
        for name, package in there.items()
        if package.version
        and name not in (*resolution.closure, *BESIDE)
        and conflicts(name, branch_of(package.version))
    }


def _freed(facts: Facts, others: Iterable[str], kernel: str) -> list[str]:
    """The held packages of kernels that were held only for a prebuilt module which `others` removes."""
    before = {kernel_of(name) for name in others} - {"", kernel}
    if not before:
        return []
    there = facts(dpkg.matching(*KERNELS))
    kept = {*others, *(holding(there, kernel) if kernel else ())}
    return sorted({name for release in before for name in holding(there, release) if there[name].held} - kept)


def _is_right(name: str, package: dpkg.Package, resolution: Resolution) -> bool:
    """Whether a package is installed at its version; for the driver's own packages, of the driver's release."""
    if not package.installed:
        return False
    if not resolution.of_release(name):
        return package.version == resolution.closure[name]
    return package.version.split(":")[-1].startswith(resolution.version)


_RELOAD = """
for unit in nvidia-persistenced nvidia-fabricmanager nvidia-dcgm gpu-guard; do
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


@operation(affects_p2p=True, affects_gpus=True)
def reloaded(
    facts: Facts, *, driver: Driver | None = None, cuda_repository: CudaSource | None = None
) -> Iterator[Change | Note]:
    """The loaded module is the installed one. After an upgrade of the packages it is reloaded without a reboot if no
    program uses the GPUs.

    If no driver is loaded, or a program uses the GPUs, the reboot loads the module. If the packages are not those of
    `driver`, there is only a note: they are replaced first.
    """
    running, loaded, bound = facts.all(system.running_kernel, state.loaded_version, pci.gpus)
    if not loaded or any(entry.driver not in ("nvidia", "") for entry in bound):
        return
    built = facts(kernels.module_version(running, "nvidia"))
    if not built or built == loaded:
        return
    users, moves = facts.all(gpu.holders, apt_history.moved)
    why = next((f"; {move}" for move in reversed(moves) if upstream(move.version) == built), "")
    if driver and resolved(facts, driver, cuda_repository).version != built:
        yield Note(f"{loaded} is loaded, the packages are at {built}{why}", warn=True)
        return
    if not any(entry.works for entry in users):
        reload = script(_RELOAD, timeout_s=300, long=True)
        yield Change("run", "driver module", f"{loaded} loaded{why}", f"{built} loaded", (reload,))


@operation()
def held(facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None) -> Iterator[Change | Note]:
    """Every package of the driver is held, and the kernel too if the driver's module is prebuilt for that kernel only.
    A note has the date of the held kernel."""
    resolution = resolved(facts, driver, cuda_repository)
    names = set(resolution.closure)
    if resolution.kernel:
        there, day = facts.all(dpkg.matching(*KERNELS), kernels.built(resolution.kernel))
        names |= set(holding(there, resolution.kernel))
        kept = f"kernel {resolution.kernel}{f' of {day}' if day else ''} is held with driver {resolution.version}"
        yield Note(f"{kept}: its module is built for no other; name a newer driver to move both", warn=True)
    yield from apt.hold(facts, names=sorted(names))


@operation()
def kernel_ceiling(
    facts: Facts, *, driver: Driver, cuda_repository: CudaSource | None = None, templates: Templates = SHIPPED
) -> Iterator[Change | Note]:
    """Where DKMS builds the driver's module, apt's preferences exclude every kernel that is newer than the newest for
    which the driver is known to build, and the metapackages that would bring it. Older kernels get their updates.

    Notes have what an upgrade would install without that, and a too new kernel that is installed already, with the boot
    entry of an older one. `kernel_ceiling: false` of the driver removes the rule; with a prebuilt module there is none.
    """
    path = pin_path(CEILING)
    needed = (files.file(path), kernels.newest, UPGRADE_WITHOUT, system.running_kernel)
    _, newest, upgrade, *_ = facts.all(*needed, *ASKED)
    resolution = resolved(facts, driver, cuda_repository)
    ceiling, version = newest_buildable(facts, driver, resolution), resolution.version
    if not ceiling and not resolution.kernel:
        yield from _without_ceiling(facts)
        if driver.kernel_ceiling:
            yield Note(f"the kernels for which {version} builds are not known: no kernel is withheld")
    if not ceiling:
        return
    for change in file.differing(facts, path, ceiling_text(ceiling, templates).encode()):
        yield replace(change, before="", after=f"kernels up to {ceiling}, for which {version} builds")
    if moves := too_new(upgrade, ceiling):
        named = first_of([f"{move.name} {move.version}" for move in moves], 3)
        yield Note(f"withheld from upgrades: {named}; {version} is known to build for kernels up to {ceiling}")
    if exceeds(newest, ceiling):
        text = f"{newest} is installed, and {version} is known to build for kernels up to {ceiling}"
        older = boots_older(facts, version, newest) or "no boot entry has an older one"
        yield Note(f"{text}: {older}", warn=True)


@operation()
def pin_proved(facts: Facts, *, driver: Driver) -> Iterator[Change]:
    """A full upgrade, simulated by apt, changes no package of the driver, of CUDA, or of a held kernel, and brings no
    kernel above the ceiling.

    It is simulated again only after a change of dpkg's status, apt's lists or its preferences. Raises HostError with
    the packages that would change.
    """
    resolution = pinned(facts, driver)
    if resolution is None:
        raise Unavailable("known when the driver is pinned")
    now, proof = facts.all(dpkg.packages(*resolution.closure), dpkg.pin_proof)
    if any(name not in now or not now[name].held for name in resolution.closure):
        raise Unavailable("known when the driver is installed and held")
    if proof.now == proof.proved:
        return
    if moving := forbidden_moves(facts, driver, resolution):
        shown = ", ".join(f"{move.name} {move.before} -> {move.version or 'removed'}" for move in moving[:4])
        texts = facts(dpkg.preferences).items()
        paths = [path for path, text in texts if any(interferes(pin) for pin in read_pins(text))]
        fix = "apt-cache policy of that package, on the host, shows which source and pin offer the other version"
        fix = f"take the pins of the driver's packages out of {' and '.join(paths)}" if paths else fix
        expected = f"no package of driver {resolution.version} to move"
        raise HostError("pin", f"an upgrade would still move {shown}", expected, fix)
    if not proof.proved:
        after, record = f"proved: leaves the {len(resolution.closure)} driver packages alone", script(dpkg.PROOF_WRITE)
        yield Change("run", "apt-get -s dist-upgrade", "not proved", after, (record,))
