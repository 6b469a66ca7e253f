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
        said = host_text.lines(result.error_text)[-1] if result.error_text else "it printed nothing, also no error"
        raise Unreadable(f"system.os_release: cat /etc/os-release failed (exit {result.code}): {said[:200]}")
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


def said(result: Result) -> str:
    """A command's output, stripped. Raises ValueError if the command failed or printed nothing."""
    word = result.text.strip()
    if result.code != 0 or not word:
        raise ValueError("no answer")
    return word


os_release = Fact(
    "system.os_release",
    command("cat", "/etc/os-release", reads=True, cache_key=INSTALLED),
    _os_release,
    durable=True,
    kept=whole,
)
architecture = Fact("system.architecture", command("uname", "-m", reads=True), said, durable=True, kept=whole)
running_kernel = Fact("system.running_kernel", command("uname", "-r", reads=True), said, kept=whole)
boot_id = Fact("system.boot_id", command("cat", "/proc/sys/kernel/random/boot_id", reads=True), said)


def _stripped(result: Result) -> str:
    return result.text.strip()


simulated = Fact(
    "system.simulated", script("cat /etc/rigwright-lab 2>/dev/null; :", reads=True), _stripped, durable=True
)


ROOM = ("/", "/boot", "/var", "/usr", "/run")
"""The directories whose free room is known."""


def _free(result: Result) -> dict[str, int]:
    return {path: host_text.integer(line.split()[3]) for path, line in zip(ROOM, result.lines[1:], strict=True)}


free_mib = Fact("system.free_mib", command("df", "-Pm", *ROOM, reads=True), _free)
"""The free room of ROOM, MiB."""

RUN_ROOM = "df -h /run; sudo du -xah /run | sort -h | tail shows what fills it; a reboot empties it"
"""What a person does about a full /run: it is in memory, and no package manager cleans it."""


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
    return Fact(
        f"system.program({name})",
        script(text, name, reads=True),
        lambda result: result.text.strip() == "yes",
    )


today = Fact(
    "system.today", command("date", "+%F", reads=True), lambda result: datetime.date.fromisoformat(said(result))
)
"""The date of the host's clock, which may be wrong."""

clock_s = Fact("system.clock_s", command("date", "+%s", reads=True), lambda result: host_text.integer(said(result)))
"""The host's clock, seconds since 1970 in UTC."""


class Board(Struct, frozen=True):
    """The machine's names in its firmware; empty texts if the firmware has none (a virtual machine, a container)."""

    vendor: str
    product: str
    board: str

    def __str__(self) -> str:
        return " ".join(dict.fromkeys(word for word in (self.vendor, self.product, self.board) if word))


_FIRST_LINES = """
for name; do
  line=
  { IFS= read -r line <"/sys/class/dmi/id/$name"; } 2>/dev/null
  printf '%s\n' "$line"
done
"""
_BLANKS = ("to be filled by o.e.m.", "system product name", "system manufacturer", "default string", "not specified")


def _three(text: str) -> list[str]:
    if text.count("\n") < 3:
        raise ValueError("not three lines")
    return [one_line(line) for line in text.split("\n")[:3]]


def _board(result: Result) -> Board:
    lines = _three(result.text)
    return Board(*("" if line.lower() in _BLANKS else line for line in lines))


board = Fact(
    "system.board", script(_FIRST_LINES, "sys_vendor", "product_name", "board_name", reads=True), _board, kept=whole
)
"""The machine's names from DMI; placeholders of the manufacturer count as empty."""


class Firmware(Struct, frozen=True):
    """The machine's BIOS or UEFI; empty texts if unknown (a container). `date` in the manufacturer's format:
    09/14/2021."""

    vendor: str
    version: str
    date: str


def _firmware(result: Result) -> Firmware:
    return Firmware(*_three(result.text))


firmware = Fact(
    "system.firmware",
    script(_FIRST_LINES, "bios_vendor", "bios_version", "bios_date", reads=True),
    _firmware,
    kept=whole,
)

_IDENTITY = """
for file in /sys/class/dmi/id/product_uuid /sys/class/dmi/id/board_serial /etc/machine-id; do
    line=
    { IFS= read -r line <"$file"; } 2>/dev/null
    printf '%s\\n' "$line"
done
"""


def _identity(result: Result) -> MachineIdentity:
    return MachineIdentity.read(*_three(result.text))


identity = Fact("system.identity", script(_IDENTITY, reads=True), _identity, durable=True, kept=whole)
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
cloud_init = Fact("system.cloud_init", script(_CLOUD_INIT, reads=True), _stripped)
"""The status of cloud-init: running, done, error, disabled; "" if it is not installed."""


class LoginLimits(Struct, frozen=True):
    """Soft limits; None: unlimited. `memlock_kib`, `nofile`: of a new session of the user who logs in.
    `service_memlock_kib`, `service_nofile`: systemd's defaults for services. `most_nofile`: fs.nr_open, above which the
    kernel refuses a limit."""

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


def _limit(word: str) -> int | None:
    return None if word in ("unlimited", "infinity", str((1 << 64) - 1)) else host_text.integer(word)


def _login_limits(result: Result) -> LoginLimits:
    words = [line.strip() for line in result.lines if line.strip()]
    if len(words) != 5:
        raise ValueError(f"{len(words)} limits, not 5")
    memlock, nofile, service_memlock, service_nofile = map(_limit, words[:4])
    service_kib = None if service_memlock is None else service_memlock >> 10
    return LoginLimits(memlock, nofile, service_kib, service_nofile, host_text.integer(words[4]))


login_limits = Fact("system.login_limits", script(_LIMITS, reads=True), _login_limits)
"""The limits of a new session, which pam_limits sets, and of services."""
