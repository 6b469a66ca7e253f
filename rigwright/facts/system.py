"""The machine and its operating system."""

from __future__ import annotations

import datetime

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, command, script
from rigwright.core.control_characters import one_line
from rigwright.core.machine_identity import MachineIdentity
from rigwright.facts import Fact, Unreadable, whole
from rigwright.facts.installed import INSTALLED


class OsRelease(Struct, frozen=True):
    """From /etc/os-release: `id` ubuntu or debian, `version_id` 22.04, `codename` jammy."""

    id: str
    version_id: str
    codename: str
    pretty_name: str


def _os_release(result: Result) -> OsRelease:
    if result.code != 0:
        reason = host_text.lines(result.error_text)[-1] if result.error_text else "it printed nothing, also no error"
        raise Unreadable(f"system.os_release: cat /etc/os-release failed (exit {result.code}): {reason[:200]}")
    values: dict[str, str] = {}
    for line in result.lines:
        key, equals, value = line.partition("=")
        if equals:
            values[key.strip()] = value.strip().strip("\"'")
    if "ID" not in values:
        raise ValueError("no ID= in os-release")
    name = values["ID"]
    return OsRelease(
        name, values.get("VERSION_ID", ""), values.get("VERSION_CODENAME", ""), values.get("PRETTY_NAME", name)
    )


def output(result: Result) -> str:
    """A command's output, stripped. Raises ValueError if the command failed or printed nothing."""
    word = result.text.strip()
    if result.code != 0 or not word:
        raise ValueError("no answer")
    return word


_OS_RELEASE = command("cat", "/etc/os-release", reads=True, cache_key=INSTALLED)
os_release = Fact("system.os_release", _OS_RELEASE, _os_release, durable=True, kept=whole)
architecture = Fact("system.architecture", command("uname", "-m", reads=True), output, durable=True, kept=whole)
running_kernel = Fact("system.running_kernel", command("uname", "-r", reads=True), output, kept=whole)
boot_id = Fact("system.boot_id", command("cat", "/proc/sys/kernel/random/boot_id", reads=True), output)

_LAB = script("cat /etc/rigwright-lab 2>/dev/null; :", reads=True)
simulated = Fact("system.simulated", _LAB, lambda result: result.text.strip(), durable=True)
"""The name that the lab gives a simulated host; "" for a real one."""

ROOM = ("/", "/boot", "/var", "/usr", "/run")
free_mib = Fact(
    "system.free_mib",
    command("df", "-Pm", *ROOM, reads=True),
    lambda result: {path: host_text.integer(row.split()[3]) for path, row in zip(ROOM, result.lines[1:], strict=True)},
)
"""The free space of the file system of each directory of ROOM, MiB."""

RUN_ROOM = "df -h /run; sudo du -xah /run | sort -h | tail shows what fills it; a reboot empties it"
"""The fix for a full /run: it is in memory, and no package manager cleans it."""


class User(Struct, frozen=True):
    """One line of the user database."""

    name: str
    home: str
    login_shell: str
    groups: tuple[str, ...]


def user(name: str) -> Fact[User | None]:
    """The user with that name, or None."""

    def parse(result: Result) -> User | None:
        if result.code == 2:
            return None
        fields, groups = result.lines[:2]
        words = fields.split(":")
        return User(words[0], words[5], words[6], tuple(sorted(groups.split())))

    return Fact(f"system.user({name})", script('getent passwd -- "$1" && id -nG -- "$1"', name, reads=True), parse)


def program(name: str) -> Fact[bool]:
    """Whether a program is on root's PATH."""
    text = 'PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; command -v -- "$1" >/dev/null && echo yes; :'
    return Fact(f"system.program({name})", script(text, name, reads=True), lambda result: result.text.strip() == "yes")


_DATE = command("date", "+%F", reads=True)
today = Fact("system.today", _DATE, lambda result: datetime.date.fromisoformat(output(result)))
"""The date of the host's clock, which may be wrong."""

clock_s = Fact("system.clock_s", command("date", "+%s", reads=True), lambda result: host_text.integer(output(result)))
"""The host's clock, seconds since 1970 in UTC."""


class Board(Struct, frozen=True):
    """The machine's names in its firmware; "" where the firmware has none (a virtual machine, a container)."""

    vendor: str
    product: str
    board: str

    def __str__(self) -> str:
        return " ".join(dict.fromkeys(word for word in (self.vendor, self.product, self.board) if word))


_FIRST_LINES = """
for file; do
  line=
  { IFS= read -r line <"$file"; } 2>/dev/null
  printf '%s\\n' "$line"
done
"""
_DMI = "/sys/class/dmi/id"
_BLANKS = ("to be filled by o.e.m.", "system product name", "system manufacturer", "default string", "not specified")


def _three(text: str) -> list[str]:
    if text.count("\n") < 3:
        raise ValueError("not three lines")
    return [one_line(line) for line in text.split("\n")[:3]]


def _board(result: Result) -> Board:
    lines = _three(result.text)
    return Board(*("" if line.lower() in _BLANKS else line for line in lines))


_NAMES = script(_FIRST_LINES, f"{_DMI}/sys_vendor", f"{_DMI}/product_name", f"{_DMI}/board_name", reads=True)
board = Fact("system.board", _NAMES, _board, kept=whole)
"""The machine's names from DMI; placeholders of the manufacturer count as empty."""


class Firmware(Struct, frozen=True):
    """The machine's BIOS or UEFI; "" if unknown (a container). `date` in the manufacturer's format: 09/14/2021."""

    vendor: str
    version: str
    date: str


_BIOS = script(_FIRST_LINES, f"{_DMI}/bios_vendor", f"{_DMI}/bios_version", f"{_DMI}/bios_date", reads=True)
firmware = Fact("system.firmware", _BIOS, lambda result: Firmware(*_three(result.text)), kept=whole)

_IDENTITY = script(_FIRST_LINES, f"{_DMI}/product_uuid", f"{_DMI}/board_serial", "/etc/machine-id", reads=True)
identity = Fact(
    "system.identity",
    _IDENTITY,
    lambda result: MachineIdentity.read(*_three(result.text)),
    durable=True,
    kept=whole,
)
"""The identity of the machine. Without root only the machine-id is readable."""

_CPU = "grep -e '^model name' -e '^physical id' /proc/cpuinfo | sort -u; :"


def _cpu(result: Result) -> str:
    rows = [line.partition(":") for line in result.lines]
    names = [one_line(value) for key, _, value in rows if key.strip() == "model name"]
    sockets = sum(key.strip() == "physical id" for key, _, _ in rows)
    if not names:
        raise ValueError("no model name")
    return f"{sockets} x {names[0]}" if sockets > 1 else names[0]


cpu = Fact("system.cpu", script(_CPU, reads=True), _cpu, kept=whole)
"""The processors: `2 x Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz`."""

_CLOUD_INIT = (
    "command -v cloud-init >/dev/null && cloud-init status 2>/dev/null | sed -n 's/^status: *//p' | head -1; :"
)
cloud_init = Fact("system.cloud_init", script(_CLOUD_INIT, reads=True), lambda result: result.text.strip())
"""The status of cloud-init: running, done, error, disabled; "" if it is not installed."""


class LoginLimits(Struct, frozen=True):
    """Soft limits of a new session of the login user, and systemd's defaults for services; None: unlimited.
    `most_nofile`: fs.nr_open, the highest limit that the kernel accepts."""

    memlock_kib: int | None
    nofile: int | None
    service_memlock_kib: int | None
    service_nofile: int | None
    most_nofile: int


_LIMITS = """
user=${SUDO_USER:-$(id -un)}
if [ "$(id -u)" = 0 ]; then runuser -u "$user" -- sh -c 'ulimit -Sl; ulimit -Sn' 2>/dev/null </dev/null
else ulimit -Sl; ulimit -Sn; fi
for name in MEMLOCK NOFILE; do systemctl show -p "DefaultLimit${name}Soft" --value; done
cat /proc/sys/fs/nr_open
"""


_UNLIMITED = ("unlimited", "infinity", str((1 << 64) - 1))


def _login_limits(result: Result) -> LoginLimits:
    words = [line.strip() for line in result.lines if line.strip()]
    if len(words) != 5:
        raise ValueError(f"{len(words)} limits, not 5")
    limits = [None if word in _UNLIMITED else host_text.integer(word) for word in words[:4]]
    memlock_kib, nofile, service_memlock, service_nofile = limits
    service_kib = None if service_memlock is None else service_memlock >> 10
    return LoginLimits(memlock_kib, nofile, service_kib, service_nofile, host_text.integer(words[4]))


login_limits = Fact("system.login_limits", script(_LIMITS, reads=True), _login_limits)
"""The limits of a new session, which pam_limits sets, and of services."""
