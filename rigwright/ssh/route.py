"""The way to a host: the host and its gateways, each with address, user, port, keys and files, from the inventory and
ssh_config."""

from __future__ import annotations

import contextlib
import getpass
import glob
import os
import shlex
import time
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection
from msgspec import Struct

from rigwright.core.errors import InputError
from rigwright.core.once import once
from rigwright.inventory import endpoint
from rigwright.inventory.endpoint import Endpoint
from rigwright.inventory.model import Host
from rigwright.ssh import known_hosts
from rigwright.ssh.identities import Identities

_SSH_CONFIG = "ssh_config"
_CONFIG_FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
_MOST_HOPS = 16
"""The most gateways, and the most levels of Include in ssh_config (as OpenSSH's READCONF_MAX_DEPTH)."""
_DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")


class Hop(Struct, dict=True):
    """The host or a gateway. `connection`: of Fabric, not open yet, without ssh_config and keys.

    `known_as`: its name in known_hosts. `files`: of known hosts, in the order of precedence. `revoked`: the file of
    RevokedHostKeys, "" without one. `gateway`: the hop before it. `command`: the ProxyCommand, () without one.
    `is_last`: it is the host itself.
    """

    connection: Any
    known_as: str
    files: tuple[Path, ...]
    revoked: str
    identities: Identities
    gateway: Hop | None
    command: tuple[str, ...] = ()
    is_last: bool = False

    @property
    def all(self) -> list[Hop]:
        """The hops from the nearest gateway to this one."""
        return [*(self.gateway.all if self.gateway else ()), self]

    @cached_property
    def records(self) -> list[known_hosts.Record]:
        """The recorded keys of this hop, in the order of precedence, at the time of the first use."""
        return [record for file in self.files for record in known_hosts.records_of(file, self.known_as)]

    def why_revoked(self, key: paramiko.PKey) -> str:
        """The place that revokes a key for this hop; "" without one."""
        lines = (known_hosts.where_revoked(file, self.known_as, key) for file in self.files)
        return next(filter(None, lines), "") or (known_hosts.revoked_by(self.revoked, key) if self.revoked else "")

    def precedes_own(self, record: known_hosts.Record) -> bool:
        """Whether the file of a record precedes rigwright's own, so that `trust` does not replace the key."""
        return record.path in self.files[: self.files.index(known_hosts.OWN.expanduser())]


def to(host: Host) -> Hop:
    """The way to a host. Opens no connection. Raises InputError for a wrong value in the inventory or in ssh_config."""

    def value(variable: str, check: Callable[[Any, str, str], Any], default: str = "") -> Any:
        given = host.connection(variable)
        given = default if given in (None, "") else given
        return given if given == "" else check(given, host.called(variable), host.origin(variable))

    address = value("ansible_host", endpoint.checked_address, host.name)
    user, port = value("ansible_user", endpoint.checked_user), value("ansible_port", endpoint.checked_port) or 0
    key = value("ansible_ssh_private_key_file", endpoint.checked_path)
    known_hosts_file = value("ssh_known_hosts", endpoint.checked_path)
    files = [Path(name).expanduser() for name in _CONFIG_FILES]
    config = _read_ssh_config(tuple((file, _changed(file)) for file in files), int(time.monotonic()))
    last = _hop(Endpoint(address, user, port), config, (), key, known_hosts_file)
    last.is_last = True
    return last


def _changed(file: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        state = file.stat()
        return state.st_mtime_ns, state.st_size, state.st_ino
    return None


@lru_cache(maxsize=1)
def _read_ssh_config(files: tuple[tuple[Path, object], ...], _second: int) -> paramiko.SSHConfig:
    """The user's and the system's ssh_config, read at most once a second. Raises InputError."""
    config = paramiko.SSHConfig()
    for path, _ in files:
        try:
            if path.is_file():
                config.parse(["Host *", *_lines(path, path.parent, 0, True)])
        except (OSError, paramiko.SSHException, ValueError, KeyError) as error:
            raise InputError(str(path), f"cannot be used: {str(error)[:200]}", "an ssh_config", "ssh -G HOST") from None
    return config


def _lines(path: Path, folder: Path, level: int, for_all: bool) -> Iterator[str]:
    """The lines of an ssh_config and of the files that it includes, which paramiko does not read.

    `folder`: of relative names. Not `for_all`: the file is included for one host, so that its lines count up to its own
    Host or Match. Raises OSError, and ValueError for too many levels.
    """
    if level > _MOST_HOPS:
        raise ValueError(f"Include of {path}: more than {_MOST_HOPS} levels")
    block, all_hosts = "Host *", for_all
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        key, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if key.lower() in ("host", "match"):
            if not for_all:
                return
            block, all_hosts = line, value.split() in (["*"], ["all"])
        if key.lower() != "include":
            yield line
            continue
        for pattern in shlex.split(value):
            for name in sorted(glob.glob(str(folder / Path(pattern).expanduser()))):
                yield from _lines(Path(name), folder, level + 1, all_hosts)
                if all_hosts:
                    yield block


def _hop(place: Endpoint, config: paramiko.SSHConfig, above: tuple[str, ...], key: str, extra: str) -> Hop:
    """The hop to a place. `above`: the addresses of the hops that are reached through it; `key`, `extra`: the key file
    and the file of known hosts in the inventory."""
    if place.address in above or len(above) >= _MOST_HOPS:
        problem = f"the gateways {' > '.join((*above, place.address))} lead to each other"
        raise InputError(_SSH_CONFIG, problem, "gateways without a cycle", "Host !GATEWAY * before ProxyJump")
    local_user = _local_user()
    # The user and the port of the inventory precede those of ssh_config, as OpenSSH's command line does.
    first = [f"User {place.user}"] if place.user else []
    first += [f"Port {place.port}"] if place.port else []
    try:
        options: dict[str, Any] = dict(_preceded(first, config).lookup(place.address))
    except (paramiko.SSHException, OSError, ValueError, KeyError, TypeError) as error:
        problem = f"cannot be used for {place.address}: {str(error)[:200]}"
        raise InputError(_SSH_CONFIG, problem, "options that OpenSSH accepts", f"ssh -G {place.address}") from None
    where = f"{_SSH_CONFIG} for {place.address}"
    address = endpoint.checked_address(options.get("hostname", place.address), "HostName", where)
    user = place.user or endpoint.checked_user(options.get("user") or local_user, "User", where)
    port = place.port or endpoint.checked_port(options.get("port", 22), "Port", where)
    gateway = _gateway(options, (*above, place.address), address, port, config, extra)
    connection = _Connection(
        address,
        user=user,
        port=port,
        gateway=gateway.connection if gateway else False,  # with None Fabric asks ssh_config
        forward_agent=False,
        config=_configuration(),
        connect_kwargs={"look_for_keys": False, "allow_agent": False},
    )
    alias = options.get("hostkeyalias")
    name = endpoint.checked_address(alias, "HostKeyAlias", where) if alias else known_as(address, port)
    revoked = str(options.get("revokedhostkeys", "none"))
    try:
        line = "" if gateway else str(options.get("proxycommand") or "")
        command = tuple(shlex.split(line.removeprefix("exec ")))  # no shell reads it
    except ValueError as error:
        fix = f"ssh -G {place.address} shows it; correct it in ~/.ssh/config"
        raise InputError(where, f"ProxyCommand: {error}", "a command with quotes in pairs", fix) from None
    identities = _identities(options, user, key)
    revoked = "" if revoked == "none" else revoked
    return Hop(connection, name, _files(options, extra), revoked, identities, gateway, command)


class _Connection(Connection):  # type: ignore[misc]  # Fabric has no types
    """A connection of Fabric with attributes of its own. Fabric stores some of them in its configuration, which all
    connections share here, and searches it for each attribute, which takes as long as the encryption of a login."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@once
def _configuration() -> Config:
    """Fabric's configuration, without any file and without ssh_config."""
    return Config(lazy=True, ssh_config=paramiko.SSHConfig())


def _preceded(lines: list[str], config: paramiko.SSHConfig) -> paramiko.SSHConfig:
    first = paramiko.SSHConfig()
    first.parse(lines)
    first._config += config._config  # type: ignore[attr-defined]
    return first


def known_as(address: str, port: int) -> str:
    """The name of an address in known_hosts."""
    return address if port == 22 else f"[{address}]:{port}"


def _local_user() -> str:
    """The name of the user of this process, which ssh_config's options and the login may need. Raises InputError."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        problem = f"this process runs as a user without a name (uid {os.getuid()})"
        expected, fix = "a user of this machine, or LOGNAME", "LOGNAME=NAME before the command"
        raise InputError("ssh", problem, expected, fix) from None


def _gateway(
    options: dict[str, Any], above: tuple[str, ...], address: str, port: int, config: paramiko.SSHConfig, extra: str
) -> Hop | None:
    """The last gateway of ProxyJump, which is reached through the ones before it; None without any."""
    jumps = str(options.get("proxyjump") or "none")
    hop: Hop | None = None
    for text in jumps.split(",") if jumps.lower() != "none" else ():
        place = endpoint.parse(text.strip().removeprefix("ssh://"))
        if place is None:
            fix = f"ssh -G {above[-1]} shows it; correct it in ~/.ssh/config"
            raise InputError(f"{_SSH_CONFIG} for {above[-1]}", f"ProxyJump is {text[:80]!r}", endpoint.PLACE, fix)
        if hop is None and (place.address == above[-1] or (place.address, place.port or 22) == (address, port)):
            return None  # `Host *` gives the gateway itself as its gateway
        before = hop
        if before is None:
            hop = _hop(place, config, above, "", extra)
        else:  # whatever ssh_config says of its own gateways
            hop = _hop(place, _preceded(["ProxyJump none", "ProxyCommand none"], config), (), "", extra)
            hop.connection.gateway, hop.gateway = before.connection, before
    return hop


def _files(options: dict[str, Any], extra: str) -> tuple[Path, ...]:
    """The files of known hosts: ssh_config's, the system's, rigwright's own, and that of the inventory."""
    user = str(options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")).split()
    system = str(options.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")).split()
    names = [name for name in (*user, *system) if name.lower() != "none"]
    return tuple(Path(name).expanduser() for name in (*names, str(known_hosts.OWN), extra) if name)


def _identities(options: dict[str, Any], user: str, key: str) -> Identities:
    """The keys of a login: that of the inventory and no other, or those of ssh_config, or the default keys and the
    agent's."""
    agent = str(options.get("identityagent", "SSH_AUTH_SOCK"))
    if agent.lower() == "none":
        agent = ""
    elif agent == "SSH_AUTH_SOCK" or agent.startswith("$"):
        agent = os.environ.get(agent.strip("${}"), "")
    else:
        agent = os.path.expanduser(agent)
    if key:
        return Identities(user, (Path(key).expanduser(),), True, True, agent)
    named = [Path(str(name)).expanduser() for name in options.get("identityfile", ()) if str(name).lower() != "none"]
    default = [] if "identityfile" in options else [Path("~/.ssh", name).expanduser() for name in _DEFAULT_KEYS]
    only = str(options.get("identitiesonly", "no")).lower() == "yes"
    files = tuple(path for path in (*named, *default) if path.exists() or path.with_name(f"{path.name}.pub").exists())
    return Identities(user, files, bool(named), only, agent)
