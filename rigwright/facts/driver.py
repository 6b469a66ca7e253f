"""The NVIDIA driver: loaded version, libraries, Secure Boot, kernel threads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import Result, script
from rigwright.facts import Fact, Unreadable, whole
from rigwright.facts.installed import INSTALLED

_VERSION = lazy_re.compile(r"\d{1,6}\.\d{1,6}(?:\.\d{1,6})?")


def _loaded(result: Result) -> str:
    marked = [line for line in result.lines if "Kernel Module" in line or "NVRM version:" in line]
    versions = (_VERSION.match(word) for line in marked for word in line.split())
    version = next((match[0] for match in versions if match), "")
    if not version and result.stdout.strip():
        raise ValueError("no version in /proc/driver/nvidia/version")
    return version


_LOADED = script("cat /proc/driver/nvidia/version 2>/dev/null; :", reads=True)
loaded_version = Fact("driver.loaded_version", _LOADED, _loaded, kept=whole)
"""The version of the loaded kernel module; "" without one."""


def _flavour(result: Result) -> str:
    return "open" if "Open Kernel Module" in result.text else "proprietary" if "Kernel Module" in result.text else ""


loaded_flavour = Fact("driver.loaded_flavour", _LOADED, _flavour, kept=whole)
"""The flavour of the loaded kernel module: open or proprietary; "" without one."""

_LIBRARY = """
path=$(ldconfig -p 2>/dev/null | awk '/libnvidia-ml.so.1/{print $NF; exit}')
[ -n "$path" ] && readlink -f -- "$path"; :
"""


def _library(result: Result) -> str:
    path = result.text.strip()
    version = path.rpartition("libnvidia-ml.so.")[2]
    if path and not re.fullmatch(r"\d+(\.\d+)+", version):
        raise Unreadable(f"{path} carries no version")
    return version


library_version = Fact(
    "driver.library_version", script(_LIBRARY, reads=True, cache_key=INSTALLED), _library, kept=whole
)

_SECURE_BOOT = """
for file in /sys/firmware/efi/efivars/SecureBoot-*; do [ -r "$file" ] && od -An -t u1 -j 4 -N 1 "$file"; done; :
"""


secure_boot = Fact(
    "driver.secure_boot", script(_SECURE_BOOT, reads=True), lambda result: result.text.strip() == "1", kept=whole
)
"""True when the firmware enforces Secure Boot; False without UEFI."""

_RUNFILE = (
    'for file in /usr/bin/nvidia-uninstall /usr/bin/nvidia-installer; do [ -e "$file" ] && '
    '! dpkg -S "$file" >/dev/null 2>&1 && { "$file" --version 2>/dev/null | grep -o "[0-9][0-9][0-9]\\.[0-9.]*" | '
    "head -1 || :; echo found; exit; }; done; :"
)


def _runfile(result: Result) -> str | None:
    lines = result.text.split()
    return (lines[0] if len(lines) > 1 else "") if "found" in lines else None


runfile_version = Fact("driver.runfile_version", script(_RUNFILE, cache_key=INSTALLED), _runfile)
"""The version of a driver installed with NVIDIA's .run installer; "" if unknown, None without such a driver."""


class BusyThread(Struct, frozen=True):
    """A kernel thread of the driver, and its share of a CPU during half a second."""

    pid: int
    name: str
    percent: int


_BUSY = """
threads() {
  for file in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$file" || continue
    case $line in *"(nv_queue"*|*"(irq/"*-nvidia*|*"(irq/"*-s-nvidia*) ;; *) continue;; esac
    name=${line#*\\(}; name=${name%\\)*}; set -- ${line##*\\) }
    echo "${line%% *} $((${12} + ${13})) $name"
  done
}
first=$(threads); [ -n "$first" ] || exit 0
sleep 0.5; echo "$(getconf CLK_TCK)"; echo "$first"; echo --; threads
"""


def _busy(result: Result) -> tuple[BusyThread, ...]:
    if not result.stdout.strip():
        return ()
    ticks_per_s, _, rest = result.text.partition("\n")
    first, _, second = rest.partition("--\n")
    before = {pid: ticks for pid, ticks, _ in _threads(first)}
    return tuple(
        BusyThread(pid, name, round(200 * (ticks - before[pid]) / host_text.integer(ticks_per_s)))
        for pid, ticks, name in _threads(second)
        if pid in before
    )


def _threads(text: str) -> Iterator[tuple[int, int, str]]:
    for line in host_text.lines(text):
        pid, ticks, name = line.split(" ", 2)
        yield host_text.integer(pid), host_text.integer(ticks), name


busy_threads = Fact("threads.busy", script(_BUSY, reads=True), _busy)
"""The driver's kernel threads (nv_queue, irq/N-nvidia) and their CPU use; () without any."""
