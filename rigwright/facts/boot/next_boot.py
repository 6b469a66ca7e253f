"""What a host needs to be reachable after a boot: ssh server and login, sudo, network, fstab and crypttab.

Each row of ROWS is one condition: a shell script, and a pure function that judges its output. Programs check their own
files where they can (`sshd -t`, `visudo -c`, `ifup --no-act`, `netplan generate`, `findmnt --verify`). Nothing is
changed. Files in a user's folder are read as that user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct

from rigwright.core import host_text, lazy_re
from rigwright.core.command import LOGIN, Result, script, state_of
from rigwright.core.control_characters import one_line
from rigwright.facts import Fact, Unavailable

State = Literal["fine", "fault", "unknown"]


class Condition(Struct, frozen=True):
    """Something that a boot needs. `found`: what is wrong or unknown, "" if fine. `fix`: what a person types."""

    subject: str
    state: State
    found: str = ""
    expected: str = ""
    fix: str = ""


_Found = tuple[State, str]


class _Row(Struct, frozen=True):
    """A condition. `ask`: shell text that prints what `judge` reads, nothing if the condition does not concern the
    host. `judge` returns what is wrong or unknown. `package`: has the program that `ask` runs."""

    subject: str
    ask: str
    judge: Callable[[Sequence[str]], Iterator[_Found]]
    expected: str
    fix: str
    package: str


_MOST_LINES, _MOST_CHARACTERS = 400, 200
_HEAD = f"""
[ "$(id -u)" = 0 ] || {{ echo 'not root'; exit 0; }}
user=${{SUDO_USER:-root}} login=${LOGIN}
case $PWD in /run/*|/dev/shm/*) scratch=$PWD;; *) scratch=/run;; esac
run() {{ [ -x "$1" ] || {{ echo "missing $1"; return; }}; timeout 10 "$@" 2>&1 </dev/null; printf '\\nexit %s\\n' $?; }}
units() {{ systemctl --root=/ list-unit-files --no-legend --no-pager --plain -- "$@" 2>/dev/null </dev/null |
  sed 's/^/unit /'; }}
row() {{ head -c 32768 | head -n {_MOST_LINES} | sed 's/^/ /'; }}
"""


def _by_program(lines: Sequence[str], name: str, harmless: str = r"(?!)") -> Iterator[_Found]:
    """The first message of a program that checks its files, without those that match `harmless`; later messages may
    quote a file with keys of the network."""
    ends = [line for line in lines if re.fullmatch(r"exit \d{1,3}|missing /[\w./-]{1,100}", line)]
    messages = [line.strip() for line in lines if line.strip() and line not in ends]
    end = ends[-1] if ends else ""
    if end.startswith("missing"):
        yield "unknown", f"{end.partition(' ')[2]} is not there"
    elif end in ("exit 124", "exit 137"):
        yield "unknown", f"{name} did not end within 10 s"
    elif not end and messages:
        yield "unknown", f"{name} says more than is read"
    elif end not in ("", "exit 0"):
        wrong = [line for line in messages if not re.search(harmless, line)]
        if wrong or not messages:
            yield "fault", f"{name}: {wrong[0] if wrong else end}"


def _states(lines: Sequence[str]) -> dict[str, str]:
    """Units with their state in the files: enabled, disabled, masked, static, ..."""
    words = (line.split() for line in lines if line.startswith("unit "))
    return {each[1]: each[2] for each in words if len(each) > 2}


_STARTS = ("enabled", "static", "alias", "generated", "indirect", "enabled-runtime", "masked-runtime")
"""States of a unit that starts at boot, or may start."""


def _listed(states: dict[str, str]) -> str:
    return ", ".join(f"{name} is {state}" for name, state in states.items())


_SSH_SERVER = """
[ "$login" ] || systemctl --root=/ is-enabled ssh.service ssh.socket 2>/dev/null </dev/null | grep -q '^enabled' ||
  exit 0
run /usr/sbin/sshd -t
"""


def _ssh_server(lines: Sequence[str]) -> Iterator[_Found]:
    # ssh.service makes the directory.
    harmless = r"Missing privilege separation directory|terminating, \d+ bad|Deprecated option"
    yield from _by_program(lines, "sshd -t", harmless)


_SSH_AT_BOOT = """
[ "$login" ] || exit 0
echo login; units ssh.service ssh.socket
"""


def _ssh_at_boot(lines: Sequence[str]) -> Iterator[_Found]:
    states = _states(lines)
    if not states:
        yield "unknown", "neither ssh.service nor ssh.socket is there"
    elif not any(state in _STARTS for state in states.values()):
        yield "fault", _listed(states)


_LOGIN = """
[ "$login" ] || exit 0
line=$(getent passwd -- "$user") || exit 0
IFS=: read -r _ _ uid gid _ home shell <<END
$line
END
echo "user $user"; echo "uid $uid"; echo "groups $(id -Gn -- "$user")"; echo "shell ${shell:-/bin/sh}"
[ -x "${shell:-/bin/sh}" ] || echo 'no shell'
getent shadow -- "$user" |
  awk -F: '{ print "locked " (substr($2, 1, 1) == "!" ? "yes" : "no"); if ($8 != "") print "expires " $8 }'
echo "today $(($(date +%s) / 86400))"
sed -n 's/^SSHD_OPTS=/options /p' /etc/default/ssh 2>/dev/null
grep -hiE '^[[:space:]]*match[[:space:]]' /etc/ssh/sshd_config /etc/ssh/sshd_config.d/*.conf 2>/dev/null |
  sed 's/^[[:space:]]*/match /'
server=$(timeout 10 /usr/sbin/sshd -T -C "user=$user" 2>/dev/null </dev/null) || exit 0
printf '%s\\n' "$server" |
  grep -E -e '^(usepam|strictmodes|pubkeyauthentication|permitrootlogin) ' \\
    -e '^((allow|deny)(users|groups)|authorizedkeys(file|command)) ' |
  sed 's/^/sshd /'
key=${login#ssh}; key=${key# }; set -f
[ "$key" ] || exit 0
set -- $(printf '%s\\n' "$server" | sed -n 's/^authorizedkeysfile //p')
for file; do
  while case $file in *%h*) :;; *) ! :;; esac; do file=${file%%%h*}$home${file#*%h}; done
  while case $file in *%u*) :;; *) ! :;; esac; do file=${file%%%u*}$user${file#*%u}; done
  shift
  case $file in none) continue;; *%*) echo 'file ?'; continue;; /*) ;; *) file=$home/$file;; esac
  set -- "$@" "$file"
done
[ $# -gt 0 ] || exit 0
timeout 10 setpriv --reuid "$uid" --regid "$gid" --init-groups -- sh -c '
key=$1 home=$(realpath -- "$2"); shift 2
for file; do
  echo "file $file"
  [ -f "$file" ] && grep -v "^[[:space:]]*#" -- "$file" 2>/dev/null | grep -qF -- "$key" || continue
  echo "accepted $file"; at=$(realpath -- "$file")
  while stat -c "mode %a %u %g %n" -- "$at"; [ "$at" != "$home" ] && [ "$at" != / ]; do at=${at%/*}; at=${at:-/}; done
done' sh "$key" "$home" "$@" </dev/null 2>/dev/null | while read -r kind mode owner group rest; do
  echo "$kind $mode $owner $group $rest"
  case $kind$mode in mode*[2367]?)
    members=$(getent group "$group" | cut -d: -f4 | tr ',' ' ')
    echo "group $group $members $(getent passwd | awk -F: -v g="$group" '$4 == g { print $1 }' | tr '\\n' ' ')"
    echo "name $owner $(getent passwd "$owner" | cut -d: -f1)";; esac
done
"""


def _login(lines: Sequence[str]) -> Iterator[_Found]:
    values = _by_first_word(lines)
    if "user" not in values:
        return
    user, shell = values["user"][0], values.get("shell", [""])[0]
    if "no" in values or shell.rpartition("/")[2] in ("nologin", "false"):
        yield "fault", f"the login shell of {user} is {shell}"
    expires = values.get("expires", [""])[0]
    if expires and host_text.integer(expires) <= host_text.integer(values["today"][0]):
        yield "fault", f"the account {user} has expired"
    matches = (re.split(r"[\s=]+", criteria.strip().lower())[1:] for criteria in values.get("match", ()))
    if any(map(_NOT_BY_USER.intersection, matches)) or any(map(_OPTION.search, values.get("options", ()))):
        return  # the settings for this login are unknown
    server = _by_first_word(values.get("sshd", ()))
    if server.get("usepam") == ["no"] and values.get("locked") == ["yes"]:
        yield "fault", f"the account {user} is locked"
    if setting := _refusal(server, user, values.get("groups", [""])[0].split()):
        yield "fault", f"sshd lets {user} in no more: {setting}"
    elif values.get("file") and "?" not in values["file"] and server.get("authorizedkeyscommand", ["none"]) == ["none"]:
        yield from _key(lines, user, values, strict=server.get("strictmodes") != ["no"])


_NOT_BY_USER = {"address", "host", "localaddress", "localport", "rdomain", "exec"}
"""Criteria of a Match in sshd_config that depend on more than the user and the groups."""
_OPTION = lazy_re.compile("[^\"' ]")


def _by_first_word(lines: Sequence[str]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        values.setdefault(word, []).append(rest)
    return values


def _refusal(server: dict[str, list[str]], user: str, groups: Sequence[str]) -> str:
    """The setting of sshd that certainly refuses a login of the user with a key; "" without one."""
    if server.get("pubkeyauthentication") == ["no"]:
        return "PubkeyAuthentication no"
    if user == "root" and server.get("permitrootlogin", ["yes"])[0] in ("no", "forced-commands-only"):
        return f"PermitRootLogin {server['permitrootlogin'][0]}"
    for setting, names in (("Users", [user]), ("Groups", groups)):
        denied = [item for line in server.get(f"deny{setting.lower()}", ()) for item in line.split()]
        allowed = [item for line in server.get(f"allow{setting.lower()}", ()) for item in line.split()]
        if any(_fits(item, name) for item in denied if "@" not in item for name in names):
            return f"Deny{setting} {' '.join(denied)}"
        if allowed and not any(_fits(item.partition("@")[0], name) for item in allowed for name in names):
            return f"Allow{setting} {' '.join(allowed)}"
    return ""


def _fits(pattern: str, name: str) -> bool:
    """Whether a pattern of sshd, with * and ?, matches the name."""
    return fnmatchcase(name, pattern[:100].replace("[", "[[]"))  # a hostile pattern with `.*` would take hours


def _key(lines: Sequence[str], user: str, values: dict[str, list[str]], strict: bool) -> Iterator[_Found]:
    """What is wrong with the files that have the keys of the user."""
    if not values.get("accepted"):
        yield "fault", f"{' and '.join(values['file'])}: without the key that this login used"
        return
    wrong: list[list[str]] = []
    members = {each.split()[0]: set(each.split()[1:]) for each in values.get("group", ()) if each}
    names = {each.split()[0]: each.split()[-1] for each in values.get("name", ()) if each}
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        if kind == "accepted":
            wrong.append([])
        elif kind == "mode" and wrong and (reason := _unsafe(rest, values["uid"][0], members, names)):
            wrong[-1].append(reason)
    if strict and all(wrong):
        yield "fault", f"sshd takes no key of {user}: {wrong[0][0]}"


def _unsafe(line: str, uid: str, members: dict[str, set[str]], names: dict[str, str]) -> str:
    """Why StrictModes of Debian's and Ubuntu's sshd refuses a file or folder; "" if it does not."""
    mode, owner, group, path = line.split(" ", 3)
    bits = int(mode, 8)
    if owner not in ("0", uid):
        return f"{path} belongs to another user (uid {owner})"
    if bits & 0o002 or (bits & 0o020 and members.get(group, set()) != {names.get(owner, "")}):
        return f"others may write {path} (mode {mode})"
    return ""


_SUDO = r"""
[ -n "$SUDO_USER" ] || exit 0
run /usr/sbin/visudo -c
find -L /etc/sudoers /etc/sudoers.d -maxdepth 1 -type f ! -name '*.*' ! -name '*~' \( ! -uid 0 -o -perm /002 \
  -o -perm /020 ! -gid 0 \) -printf 'loose %p\n' 2>/dev/null
files=$(/usr/sbin/visudo -c 2>/dev/null </dev/null | sed -n 's/: parsed OK$//p')
set -f; set -- -w -e "$SUDO_USER" -e "#$SUDO_UID"
for group in $(id -Gn -- "$SUDO_USER"); do set -- "$@" -e "%$group"; done
IFS='
'
for file in $files; do
  grep -v '^[[:space:]]*#[^0-9]' -- "$file" 2>/dev/null | grep -qF "$@" || continue
  printf 'rule %s %s\n' "$(stat -f -c %T -- "$file")" "$file"
done
"""
_IN_MEMORY = ("tmpfs", "ramfs")


def _sudo(lines: Sequence[str]) -> Iterator[_Found]:
    rules = [line.split(" ", 2)[1:] for line in lines if line.startswith("rule ") and line.count(" ") > 1]
    loose = [line.partition(" ")[2] for line in lines if line.startswith("loose ")]
    rest = [line for line in lines if not line.startswith(("rule ", "loose "))]
    yield from _by_program(rest, "visudo -c", r"parsed OK|bad permissions|wrong owner|^[\^~ ]+$")
    yield from (("fault", f"{path} is not root's, or others may write it: sudo does not read it") for path in loose)
    if rules and all(kind in _IN_MEMORY for kind, _ in rules):
        yield "fault", f"the rule is in {rules[0][1]}, which is in memory: no boot keeps it"


_NETWORK = r"""
units networking.service systemd-networkd.service NetworkManager.service dhcpcd.service connman.service
cd /etc || exit 0
set -- netplan/*.yaml
if [ -e "$1" ]; then
  for program in /usr/libexec/netplan/generate /lib/netplan/generate; do [ -x "$program" ] && break; done
  d=$(mktemp -d -p "$scratch" rigwright.XXXXXX) || { echo 'netplan missing /run/rigwright'; exit 0; }
  mkdir -p "$d/etc" "$d/lib" "$d/run" && cp -R netplan "$d/etc" &&
    { [ ! -d /lib/netplan ] || cp -R /lib/netplan "$d/lib"; } &&
    run "$program" --root-dir "$d" | sed "s|$d||g; s/^/netplan /"
  rm -rf "$d"
fi
if [ -x /sbin/ifquery ] && cat network/interfaces network/interfaces.d/* 2>/dev/null |
  awk '$1 == "iface" && $2 != "lo" { n++ } END { exit !n }'; then
  run /sbin/ifquery --list --all | sed 's/^/ifquery /'
  grep -hsE '^[[:space:]]*(mapping|allow-hotplug)[[:space:]]' network/interfaces network/interfaces.d/* |
    sed 's/^[[:space:]]*/stanza /'
  grep -qsE '^[[:space:]]*mapping[[:space:]]' network/interfaces network/interfaces.d/* ||
    run /sbin/ifup --no-act --force --all | grep -e '^ifup: ' -e '^exit ' | sed 's/^/ifup /'
fi
for file in systemd/network/*.network systemd/network/*.netdev systemd/network/*.link systemd/network/*.d/*.conf; do
  [ -f "$file" ] || continue
  echo 'networkd files'
  awk -v name="/etc/$file" '
    more { more = /\\$/; next }
    /^[[:space:]]*([#;].*)?$/ { next }
    /^\[[A-Za-z0-9 -]+\][[:space:]]*$/ { section = 1; next }
    section && /^[[:space:]]*[A-Za-z0-9.-]+[[:space:]]*=/ { more = /\\$/; next }
    { print "networkd " name ":" NR ": no [SECTION], and no NAME=VALUE in a section"; exit }' "$file"
done
"""


def _network(lines: Sequence[str]) -> Iterator[_Found]:
    states = _states(lines)
    of = {name: [line.partition(" ")[2] for line in lines if line.startswith(f"{name} ")] for name in _MANAGERS}
    starts = {unit: states.get(unit) in _STARTS for unit in states}
    may_start = {unit for unit, state in states.items() if state != "masked"}
    hotplug = any(line.startswith("stanza allow-hotplug") for line in lines)
    used = []
    if of["netplan"] and may_start & {"systemd-networkd.service", "NetworkManager.service"}:
        used.append("netplan")
        yield from _by_program(of["netplan"], "netplan generate", r"too open|^\s*\^?\s*$")
    if of["ifquery"] and (starts.get("networking.service") or hotplug):
        used.append("ifupdown")
        wrong = list(_by_program(of["ifquery"], "ifquery", r"couldn't read interfaces|^\w+$"))
        harmless = r"missing required configuration|failed to bring up"
        yield from wrong or _by_program(of["ifup"], "ifup --no-act", harmless)
    if of["networkd"] and starts.get("systemd-networkd.service"):
        used.append("systemd-networkd")
        yield from (("fault", f"systemd-networkd: {line}") for line in of["networkd"] if line != "files")
    others = [unit for unit in starts if unit.startswith(("NetworkManager", "dhcpcd", "connman")) and starts[unit]]
    if not used and any(of.values()) and not others:
        off = {unit: state for unit, state in states.items() if not starts[unit]}
        yield "fault", f"nothing that configures the network starts at boot: {_listed(off)}"


_MANAGERS = ("netplan", "ifquery", "ifup", "networkd")

_FSTAB = r"""
[ -e /etc/fstab ] || exit 0
d=$(mktemp -d -p "$scratch" rigwright.XXXXXX) || { echo 'missing /run/rigwright'; exit 0; }
awk '{ line = $0; sub(/^[[:space:]]+/, "", line) }
  line == "" || line ~ /^#/ { print "#"; next }
  $3 == "swap" || $4 ~ /(^|,)(nofail|noauto|_netdev|x-systemd\.automount)(,|$)/ { print "#"; next }
  { print }' /etc/fstab >"$d/fstab"
run /usr/bin/findmnt --verify --tab-file "$d/fstab"
rm -rf "$d"
"""


def _fstab(lines: Sequence[str]) -> Iterator[_Found]:
    yield from (each for each in _by_program(lines, "findmnt", r"(?!)") if each[0] == "unknown")
    yield from (("unknown", line) for line in lines if "can't read" in line)
    target = ""
    for line in lines:
        if match := re.search(r"parse error at line (\d+)", line):
            yield "fault", f"line {match[1]} cannot be read"
        elif re.match(r"\[E\] (?!.*required target)|\[W\] unreachable source: /dev/", line):
            yield "fault", f"{target}: {line[3:].strip()}"
        elif not line.startswith("["):
            target = line.removeprefix("findmnt: ")


_CRYPTTAB = r"""
[ -e /etc/crypttab ] || exit 0
echo read
grep -vE '^[[:space:]]*(#|$)' /etc/crypttab | while read -r name source _ options _; do
  case ,$options, in *,nofail,*|*,noauto,*|*,_netdev,*) continue;; esac
  case $source in
    *=*) timeout 10 findfs "$(printf %s "$source" | tr -d \"\')" >/dev/null 2>&1 && continue;;
    /*) [ -e "$source" ] && continue;;
  esac
  echo "gone $name $source"
done
"""


def _crypttab(lines: Sequence[str]) -> Iterator[_Found]:
    gone = [line.split(" ", 2)[1:] for line in lines if line.startswith("gone ") and line.count(" ") > 1]
    yield from (("fault", f"{name}: its device {source} is not there") for name, source in gone)


ROWS = (
    _Row("ssh server", _SSH_SERVER, _ssh_server, "an sshd that accepts its configuration",
         "sudo /usr/sbin/sshd -t, until it says nothing", "openssh-server"),
    _Row("ssh at boot", _SSH_AT_BOOT, _ssh_at_boot, "a unit that starts sshd",
         "sudo systemctl unmask ssh.service; sudo systemctl enable ssh.service", "openssh-server"),
    _Row("ssh login", _LOGIN, _login, "an ssh user that the next sshd lets in with the same key",
         "correct it in a second login that stays open; sudo /usr/sbin/sshd -T -C user=NAME shows what sshd will do",
         "openssh-server"),
    _Row("sudo", _SUDO, _sudo, "rules that sudo reads, on a disk", "sudo visudo -c, until it finds no error", "sudo"),
    _Row("network", _NETWORK, _network, "a network configuration that can be read, and starts at boot",
         "correct the file, or sudo systemctl enable the unit; "
         "sudo netplan generate or sudo ifup --no-act -a says whether it can be read",
         "netplan.io"),
    _Row("/etc/fstab", _FSTAB, _fstab, "file systems that are there, or nofail",
         "correct /etc/fstab, or add nofail there; findmnt --verify says whether it is right", "util-linux"),
    _Row("/etc/crypttab", _CRYPTTAB, _crypttab, "devices that are there, or nofail",
         "correct /etc/crypttab, or add nofail there", "util-linux"),
)  # fmt: skip
_ELSEWHERE = r"""
{ grep -q "^$user:" /etc/passwd && [ -z "$(awk -F: -v u="$user" '$1 == u { print $8 }' /etc/shadow)" ]; } || exit 1
! grep -hsiE '^[[:space:]]*[#@]?(include|includedir|source|source-directory|authorizedkeysfile)[[:space:]]' \
  /etc/ssh/sshd_config /etc/ssh/sshd_config.d/* /etc/sudoers /etc/sudoers.d/* \
  /etc/network/interfaces /etc/network/interfaces.d/* |
  grep -v -E -e '^[[:space:]]*[#@]?[A-Za-z-]+[[:space:]]+(/etc/ssh/sshd_config.d/|/etc/sudoers.d$|#)' \
    -e '^[[:space:]]*[#@]?[A-Za-z-]+[[:space:]]+/?(etc/network/)?interfaces.d/' |
  grep -qv '^#Authorized'
"""
"""Fails if the answer depends on more than its cache key: on a date, a directory of users, or files elsewhere. Such an
answer is not kept."""

_KEY = (
    state_of(
        "/etc/ssh /etc/ssh/* /etc/ssh/*/* /etc/default/ssh /etc/passwd /etc/shadow /etc/group /etc/sudoers "
        "/etc/sudoers.d /etc/sudoers.d/*",
        "/etc/netplan /etc/netplan/* /lib/netplan /lib/netplan/* /etc/network /etc/network/interfaces.d "
        "/etc/network/interfaces.d/*",
        "/etc/network/interfaces /etc/systemd/network /etc/systemd/network/* /etc/systemd/network/*/*",
        "/etc/systemd/system /etc/systemd/system/* /etc/systemd/system/*/* /etc/fstab /etc/crypttab /dev/disk/by-*/* "
        "/dev/mapper/*",
        "/var/lib/dpkg/status /usr/sbin /usr/sbin/sshd /usr/sbin/visudo",
    )
    + f'; echo "$SUDO_USER ${LOGIN}"; h=/root; case $SUDO_USER in ""|*[!A-Za-z0-9._-]*) ;; '
    '*) eval "h=~$SUDO_USER";; esac; '
    'setpriv --reuid "${SUDO_UID:-0}" --regid "${SUDO_GID:-0}" --clear-groups '
    'stat -L -c "%n %d %i %s %u %g %a %y %z" "$h" "$h/.ssh" "$h/.ssh/authorized_keys" "$h/.ssh/authorized_keys2"'
)


def _conditions(result: Result) -> tuple[Condition, ...]:
    if result.text.startswith("not root"):
        raise Unavailable("only root can look at it")
    parts: dict[str, list[str]] = {}
    for line in result.lines:
        if line.startswith("== "):
            parts[line[3:]] = []
        elif line.startswith(" ") and parts:
            next(reversed(parts.values())).append(one_line(line.rstrip("\r")).strip()[:_MOST_CHARACTERS])
        elif line.strip():
            raise ValueError(f"{line[:80]!r} is no part of it")
    if list(parts) != [row.subject for row in ROWS]:
        raise ValueError("not every condition was asked for")
    conditions = []
    for row in ROWS:
        lines = parts[row.subject]
        findings = list(row.judge(lines)) if any(lines) else []
        if any(lines) and not findings:
            conditions.append(Condition(row.subject, "fine"))
        for state, found in findings:
            install = f"sudo apt-get install --reinstall {row.package}, if that is what is missing"
            fix = row.fix if state == "fault" else install
            conditions.append(Condition(row.subject, state, found[:300], row.expected, fix))
    return tuple(conditions)


_ASK_ALL = "\n".join(f"echo '== {row.subject}'\n( {row.ask} ) 2>/dev/null | row" for row in ROWS)
_SCRIPT = f"""{_HEAD}
all=$({_ASK_ALL}
)
printf '%s\\n' "$all"
case $all in *'exit 124'*|*'exit 137'*) exit 1;; esac
{_ELSEWHERE}"""

conditions = Fact("next_boot.conditions", script(_SCRIPT, timeout_s=60, cache_key=_KEY), _conditions)
"""What the next boot needs, in the order of ROWS, without rows that do not concern the host. A row may have several
faults."""
