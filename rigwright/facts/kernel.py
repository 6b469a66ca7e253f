"""Installed kernels, their headers, and the modules that are loaded now or at the next boot."""

from __future__ import annotations

import datetime
import re

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, command, script
from rigwright.facts import Fact, Unreadable, whole
from rigwright.facts.installed import INSTALLED
from rigwright.facts.system import output


def headers(kernel: str) -> Fact[bool]:
    """Whether a kernel's headers are installed, which building a module needs."""
    return Fact(
        f"kernel.headers({kernel})",
        script('[ -e "/lib/modules/$1/build" ] && echo yes; :', kernel, reads=True, cache_key=INSTALLED),
        lambda result: bool(result.stdout),
    )


def _modinfo(result: Result) -> str:
    if result.code == 127:
        raise Unreadable(result.error_text)
    return result.text.strip() if result.code == 0 else ""


MODINFO = """
command -v modinfo >/dev/null || { echo 'modinfo is not there' >&2; exit 127; }
for name in "$2" "$2-current" "$2-current-open"; do modinfo -k "$1" -F "$3" -- "$name" 2>/dev/null && exit; done
for file in "/lib/modules/$1/updates/dkms/$2"-tesla-*.ko*; do modinfo -F "$3" -- "$file" 2>/dev/null && exit; done
exit 1
"""
"""A script with the arguments KERNEL MODULE FIELD. Debian names NVIDIA's module nvidia-current, nvidia-current-open or
nvidia-tesla-535; modprobe loads it for the name nvidia."""


def module_version(kernel: str, module: str) -> Fact[str]:
    """The version of the module that a kernel would load; "" without a module."""
    asks = script(MODINFO, kernel, module, "version", cache_key=INSTALLED)
    return Fact(f"kernel.module_version({kernel},{module})", asks, _modinfo)


def module_licence(kernel: str, module: str) -> Fact[str]:
    """The licence of the module that a kernel would load; "" without a module. It is `Dual MIT/GPL` for NVIDIA's open
    modules, `NVIDIA` for the proprietary ones (MODULE_LICENSE in their source)."""
    asks = script(MODINFO, kernel, module, "license", cache_key=INSTALLED)
    return Fact(f"kernel.module_licence({kernel},{module})", asks, _modinfo)


class Initramfs(Struct, frozen=True):
    """An initramfs: the NVIDIA and nouveau modules in it, and the modules that its modprobe.d blocks."""

    modules: frozenset[str]
    blocked: frozenset[str]


_INITRAMFS = """
command -v unmkinitramfs >/dev/null || { echo "unmkinitramfs is missing (initramfs-tools)" >&2; exit 1; }
d=$(mktemp -d -p /var/tmp rigwright-initrd.XXXXXX) || exit 1
trap 'rm -rf "$d"' EXIT
unmkinitramfs "$1" "$d" || exit 1
find "$d" -name '*.ko*' -printf 'module %f\\n'
find "$d" -path '*/modprobe.d/*.conf' -exec cat {} +
"""


def initramfs(path: str) -> Fact[Initramfs]:
    """The modules in an initramfs. Slow, because the initramfs is unpacked, so it is read only before a reboot."""

    def parse(result: Result) -> Initramfs:
        if result.code != 0:
            raise ValueError(result.error_text)
        lines = result.lines
        modules = frozenset(line[7:].split(".ko")[0].replace("-", "_") for line in lines if line.startswith("module "))
        return Initramfs(modules, blocked_modules(result.text))

    return Fact(f"kernel.initramfs({path})", script(_INITRAMFS, path, timeout_s=120), parse)


_INITRAMFS_SIZES = (
    'for image in /boot/initrd* /boot/initramfs*; do [ ! -f "$image" ] || stat -L -c %s -- "$image"; done; :'
)


largest_initramfs_mib = Fact(
    "kernel.largest_initramfs_mib",
    script(_INITRAMFS_SIZES, reads=True, cache_key=INSTALLED),
    lambda result: -(-max(map(host_text.integer, result.text.split()), default=0) // (1 << 20)),
)
"""The size of the largest initramfs in /boot, MiB, rounded up; 0 without one."""


_BLOCKS = {
    ("alias", "off"),
    *(("install", f"{folder}/{name}") for folder in ("/bin", "/usr/bin") for name in ("true", "false")),
}


def blocked_modules(modprobe_d: str) -> frozenset[str]:
    """The modules that modprobe.d text blacklists, aliases to off, or installs as true or false."""
    blocked: set[str] = set()
    for line in host_text.lines(modprobe_d):
        words = line.split("#")[0].split()
        listed = len(words) == 2 and words[0] == "blacklist"
        if listed or (len(words) > 2 and (words[0], words[2]) in _BLOCKS):
            blocked.add(words[1].replace("-", "_"))
    return frozenset(blocked)


def newer(path: str, than: str) -> Fact[bool]:
    """Whether a file is newer than another one, or the other one does not exist."""
    return Fact(
        f"kernel.newer({path},{than})",
        script('[ ! -e "$2" ] || [ "$1" -nt "$2" ] && echo yes; :', path, than, reads=True, cache_key=INSTALLED),
        lambda result: bool(result.stdout),
    )


_MODESET = "PATH=$PATH:/usr/sbin:/sbin; modprobe --showconfig 2>/dev/null | grep '^options nvidia[a-z0-9_]*_drm '; :"
_SWITCH = {"1": True, "y": True, "0": False, "n": False}


def _drm_modeset(result: Result) -> bool | None:
    values = re.findall(r"\bmodeset=(\S+)", result.text)
    return _SWITCH[values[-1].lower()] if values else None


drm_modeset = Fact("kernel.drm_modeset", script(_MODESET, reads=True, cache_key=INSTALLED), _drm_modeset)
"""The option `modeset` of nvidia-drm in modprobe.d and on the kernel command line; None if it is not set."""

drm_modeset_loaded: Fact[bool | None] = Fact(
    "kernel.drm_modeset_loaded",
    script("cat /sys/module/nvidia_drm/parameters/modeset 2>/dev/null; :", reads=True),
    lambda result: _SWITCH[result.text.strip().lower()] if result.text.strip() else None,
)
"""Whether nvidia-drm is loaded with modeset; None if it is not loaded."""


def _loaded(result: Result) -> frozenset[str]:
    if result.code != 0 or not result.text.startswith("Module"):
        raise ValueError(result.error_text or "no table of modules")
    return frozenset(line.split()[0] for line in result.lines[1:] if line.strip())


loaded_modules = Fact("kernel.loaded_modules", command("lsmod", reads=True), _loaded)

TRIAL_WORDS = lazy_re.compile(r" panic=60 rigwright\.trial=([\w.-]{1,64}) systemd\.wants=rigwright-trial\.service$")
"""The words that rigwright adds at the end of the command line of a boot that is tried once."""

command_line = Fact(
    "kernel.command_line",
    command("cat", "/proc/cmdline", reads=True),
    lambda result: TRIAL_WORDS.sub("", output(result)),
    kept=whole,
)
"""The kernel command line, without TRIAL_WORDS."""

_BUILD_LOG = """
for log in $(ls -t /var/lib/dkms/nvidia*/*/build/make.log /var/lib/dkms/nvidia*/*/"$1"/*/log/make.log 2>/dev/null); do
  tail -n 60 "$log"; exit; done; :
"""


def build_log(kernel: str) -> Fact[str]:
    """The end of DKMS' newest build log of NVIDIA's module; "" without a log."""
    return Fact(f"kernel.build_log({kernel})", script(_BUILD_LOG, kernel), lambda result: result.text)


def built(kernel: str) -> Fact[datetime.date | None]:
    """The build date of a kernel: the modification date of its image, which dpkg preserves; None without an image."""
    return Fact(
        f"kernel.built({kernel})",
        script('release=$1; [ -e "/boot/vmlinuz-$release" ] && date -u -r "/boot/vmlinuz-$release" +%F; :', kernel),
        lambda result: datetime.date.fromisoformat(result.text.strip()) if result.text.strip() else None,
    )


def _newest(result: Result) -> str:
    names = result.text.split()
    if result.code != 0 or any(not re.match(r"\d+\.\d+\.", name) for name in names):
        raise ValueError(result.error_text or "no release of a kernel")
    return names[-1] if names else ""


newest = Fact(
    "kernel.newest",
    script("ls /boot | sed -n 's/^vmlinuz-\\([0-9].*\\)/\\1/p' | sort -V", reads=True, cache_key=INSTALLED),
    _newest,
    kept=whole,
)
"""The newest kernel with an image in /boot; "" without one. DKMS builds for it, and GRUB's default entry starts it."""
