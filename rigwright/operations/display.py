"""Hosts with a graphical session or a screen on a GPU: the set of packages, and mode setting of the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from rigwright.core.change import Change, Note
from rigwright.core.command import command
from rigwright.core.desired import Driver
from rigwright.core.errors import HostError
from rigwright.core.templates.host_files import SHIPPED, Templates
from rigwright.driver.apt_pin import pin_path
from rigwright.driver.resolve import PIN, pinned
from rigwright.facts import Facts, Unavailable, display, driver as state, files, grub, kernel as kernels, system
from rigwright.facts.apt import dpkg
from rigwright.operations import file, operation

_LACKS = "NVIDIA's X driver and its OpenGL, EGL, Vulkan and video libraries"
_CHOICE = (
    f"driver: {{display: true}} in the host's file of host_vars/ installs the full set, with {_LACKS}; "
    "display: false installs the compute set, without them"
)


@operation()
def decided(facts: Facts, *, driver: Driver) -> Iterator[Note]:
    """On a host with a graphical session or a screen on a GPU, the inventory has `display`: which set of packages to
    install.

    Without it the compute set is installed, with a warning about the consequences. Raises HostError if somebody works
    in a graphical session, rigwright has not installed the driver yet, and the inventory has no `display`.
    """
    needed = (files.file(pin_path(PIN)), display.graphical, display.adapters, state.loaded_version)
    _, desk, adapters, loaded = facts.all(*needed)
    kept = pinned(facts, driver)
    installed = kept is not None and driver.display in (None, kept.display) and loaded == kept.version
    if desk.sessions and not installed:
        problem = f"a graphical session runs: {', '.join(desk.sessions)}"
        ends = "installing a driver can freeze a running session, and the reboot ends it: unsaved work is lost"
        if driver.display is None and kept is None:
            expected = f"`display` in the inventory, and nobody at work; {ends}"
            raise HostError("driver.display", problem, expected, f"log out; {_CHOICE}; then the same command again")
        yield Note(f"{problem}; {ends}. Log out first", warn=True)
    if driver.display is not None or (kept and kept.display):
        return
    if desk.manager or desk.sessions:
        what = f"{desk.manager} starts a graphical session" if desk.manager else "a graphical session runs"
        slow = "on the GPUs X and Wayland run without acceleration, or not at all"
        yield Note(f"{what}, and the compute set has no {_LACKS}: {slow}. {_CHOICE}", warn=True)
    elif gpu := display.screen_gpu(adapters):
        console = "with the compute set, and nouveau kept out, a text console stays at the firmware's resolution"
        slow = "X and Wayland run without acceleration, or not at all"
        yield Note(f"the screen is on the NVIDIA GPU at {gpu}: {console}, and {slow}. {_CHOICE}", warn=True)


@operation()
def modeset(facts: Facts, *, driver: Driver, templates: Templates = SHIPPED) -> Iterator[Change | Note]:
    """With the full set the kernel module nvidia-drm is loaded with modeset=1, which Wayland needs.

    If a file of the host sets the option already, as Ubuntu's packages do, nothing is changed; modeset=0 gets a
    warning. Otherwise rigwright writes /etc/modprobe.d/rigwright-display.conf and rebuilds the initramfs; `display:
    false` removes that file.
    """
    path = "/etc/modprobe.d/rigwright-display.conf"
    needed = (kernels.drm_modeset, grub.grub, system.program("update-initramfs"))
    _, mine, given, boot, there = facts.all(files.file(pin_path(PIN)), files.file(path), *needed)
    kept = pinned(facts, driver)
    if driver.display is False and mine is not None:
        yield Change("remove", path, "modeset=1", "", (file.take_away(path),))
    if driver.display is False or not (driver.display or (kept and kept.display)):
        return
    if kept is None:
        raise Unavailable("known when the driver is pinned")
    now, newer = facts.all(dpkg.packages(*kept.closure), kernels.newer(boot.entry.initrd_path, path))
    if any(name not in now or not now[name].installed for name in kept.closure):
        raise Unavailable("known when the driver is installed")
    if mine is None and given is not None:
        if not given:
            text = "a file in /etc/modprobe.d or the kernel command line sets nvidia-drm modeset=0"
            yield Note(f"{text}: it is left as it is; Wayland does not run on the GPUs", warn=True)
        return
    content = templates.render("modprobe/display.conf.j2", {}).encode()
    changes = list(file.differing(facts, path, content, leads_to="reboot"))
    yield from changes
    if (changes or not newer) and there:
        rebuild = command("update-initramfs", "-u", "-k", boot.entry.release, timeout_s=900, long=True)
        yield Change("run", f"initramfs of {boot.entry.release}", "without modeset=1", "with it", (rebuild,))
