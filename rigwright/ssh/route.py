"""The way to a host: the host and its gateways, each with address, user, port, keys and files, as inventory and
ssh_config say."""

from __future__ import annotations

import contextlib
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
_DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")


class Hop(Struct, dict=True):
    """The host or a gateway. `connection`: not open yet; Fabric knows nothing of ssh_config and of any key.

    `known_as`: its name in known_hosts. `files`: those of known hosts, the first that has a key counts. `revoked`: the
    file of RevokedHostKeys, "" without one. `gateway`: the hop before it. `command`: the ProxyCommand, "" without one.
    """

    connection: Any
    known_as: str
    files: tuple[Path, ...]
    revoked: str
    identities: Identities
    gateway: Hop | None
    command: tuple[str, ...] = ()
    is_last: bool = False
    """Whether it is the host itself."""

    @property
    def all(self) -> list[Hop]:
        """The hops from the nearest gateway to this one."""
        return [*(self.gateway.all if self.gateway else ()), self]

    @cached_property
    def records(self) -> list[known_hosts.Record]:
        """The keys on record for this hop, those that count first, as they were when they were first asked for."""
        return [record for file in self.files for record in known_hosts.recorded(file, self.known_as)]

    def why_revoked(self, key: paramiko.PKey) -> str:
        """The place that revokes a key for this hop; "" when none does."""
        lines = (known_hosts.revoked(file, self.known_as, key) for file in self.files)
        return next(filter(None, lines), "") or (known_hosts.revoked_by(self.revoked, key) if self.revoked else "")

    def precedes_own(self, record: known_hosts.Record) -> bool:
        """Whether the file of a record counts before rigwright's own, so that `trust` alone does not replace the
        key."""
        return record.path in self.files[: self.files.index(known_hosts.OWN.expanduser())]


def to(host: Host) -> Hop:
    """The way to a host. Opens no connection. Raises InputError for a wrong value in the inventory or in ssh_config."""
    address, user, port = (host.connection(f"ansible_{name}") for name in ("host", "user", "port"))
    key, extra = host.connection("ansible_ssh_private_key_file"), host.connection("ssh_known_hosts")

    def given(variable: str, check: Callable[[Any, str, str], Any], value: Any) -> Any:
        return check(value, host.called(variable), host.origin(variable))

    place = Endpoint(
        given("ansible_host", endpoint.checked_address, host.name if address in (None, "") else address),
        given("ansible_user", endpoint.checked_user, user) if user not in (None, "") else "",
        given("ansible_port", endpoint.checked_port, port) if port not in (None, "") else 0,
    )
    named = given("ansible_ssh_private_key_file", endpoint.checked_path, key) if key not in (None, "") else ""
    added = given("ssh_known_hosts", endpoint.checked_path, extra) if extra not in (None, "") else ""
    last = _hop(place, _ssh_config(), (), named, added)
    last.is_last = True
    return last


def _ssh_config() -> paramiko.SSHConfig:
    """The user's and the system's ssh_config, read at most once a second. Raises InputError."""
    files = [Path(name).expanduser() for name in _CONFIG_FILES]
    return _read_ssh_config(tuple((file, _changed(file)) for file in files), int(time.monotonic()))


def _changed(file: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        state = file.stat()
        return state.st_mtime_ns, state.st_size, state.st_ino
    return None


@lru_cache(maxsize=1)
def _read_ssh_config(files: tuple[tuple[Path, object], ...], _second: int) -> paramiko.SSHConfig:
    config = paramiko.SSHConfig()
    for path, _ in files:
        try:
            if path.is_file():
                config.parse(["Host *", *_lines(path, path.parent, 0, True)])
        except (OSError, paramiko.SSHException, ValueError, KeyError) as error:
            raise InputError(str(path), f"cannot be used: {str(error)[:200]}", "an ssh_config", "ssh -G HOST") from None
    return config


def _lines(path: Path, folder: Path, level: int, for_all: bool) -> Iterator[str]:
    """The lines of an ssh_config with those of the files that it includes, which paramiko does not read.

    `folder`: what relative names begin at. Not `for_all`: the file is included for one host, so that its lines count up
    to its own Host or Match. Raises OSError, and ValueError for more than 16 levels.
    """
    if level > 16:
        raise ValueError(f"Include of {path}: more than 16 levels")
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


def _looked_up(config: paramiko.SSHConfig, address: str) -> dict[str, Any]:
    try:
        return dict(config.lookup(address))
    except (paramiko.SSHException, OSError, ValueError, KeyError, TypeError) as error:
        found = f"cannot be used for {address}: {str(error)[:200]}"
        raise InputError(_SSH_CONFIG, found, "options that OpenSSH accepts", f"ssh -G {address}") from None


def _hop(place: Endpoint, config: paramiko.SSHConfig, above: tuple[str, ...], key: str, extra: str) -> Hop:
    """The hop to a place. `above`: the addresses that lead here; `key`: the key file that the inventory names."""
    if place.address in above or len(above) >= _MOST_HOPS:
        found = f"the gateways {' > '.join((*above, place.address))} lead to each other"
        raise InputError(_SSH_CONFIG, found, "gateways without a cycle", "Host !GATEWAY * before ProxyJump")
    local_user = _local_user()
    options = _looked_up(_for(place, config), place.address)
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
    known_as = endpoint.checked_address(alias, "HostKeyAlias", where) if alias else _known_as(address, port)
    revoked = str(options.get("revokedhostkeys", "none"))
    return Hop(
        connection, known_as, _files(options, extra), "" if revoked == "none" else revoked,
        _identities(options, user, key), gateway, () if gateway else _command(options, where),
    )  # fmt: skip


class _Connection(Connection):  # type: ignore[misc]  # Fabric has no types
    """A connection of Fabric with attributes of its own. Fabric keeps some of them in its configuration, which all
    connections share here, and looks for each in it, which takes as long as the encryption of a login."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@once
def _configuration() -> Config:
    """Fabric's configuration, without any file and without ssh_config."""
    return Config(lazy=True, ssh_config=paramiko.SSHConfig())


def _for(place: Endpoint, config: paramiko.SSHConfig) -> paramiko.SSHConfig:
    """ssh_config with the user and the port of a place first, as OpenSSH takes those of its command line."""
    lines = [f"User {place.user}"] if place.user else []
    return _preceded([*lines, *([f"Port {place.port}"] if place.port else [])], config)


def _preceded(lines: list[str], config: paramiko.SSHConfig) -> paramiko.SSHConfig:
    first = paramiko.SSHConfig()
    first.parse(lines)
    first._config += config._config  # type: ignore[attr-defined]
    return first


def _command(options: dict[str, Any], where: str) -> tuple[str, ...]:
    """The words of the ProxyCommand, which no shell reads; () without one. Raises InputError."""
    line = str(options.get("proxycommand") or "")
    try:
        return tuple(shlex.split(line.removeprefix("exec ")))
    except ValueError as error:
        raise InputError(where, f"ProxyCommand: {error}", "a command with quotes in pairs") from None


def _known_as(address: str, port: int) -> str:
    return address if port == 22 else f"[{address}]:{port}"


def _local_user() -> str:
    """The name of the user of this process, which ssh_config's options and the login may need. Raises InputError."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        found = f"this process runs as a user without a name (uid {os.getuid()})"
        raise InputError(
            "ssh", found, "a user of this machine, or LOGNAME", "LOGNAME=NAME before the command"
        ) from None


def _gateway(
    options: dict[str, Any], above: tuple[str, ...], address: str, port: int, config: paramiko.SSHConfig, extra: str
) -> Hop | None:
    """The last gateway of ProxyJump, which is reached through the ones before it; None without any."""
    jumps = str(options.get("proxyjump") or "none")
    hop = None
    for text in jumps.split(",") if jumps.lower() != "none" else ():
        place = endpoint.parsed(text.strip().removeprefix("ssh://"))
        if place is None:
            raise InputError(f"{_SSH_CONFIG} for {above[-1]}", f"ProxyJump is {text[:80]!r}", endpoint.PLACE)
        if hop is None and (place.address == above[-1] or (place.address, place.port or 22) == (address, port)):
            return None  # `Host *` gives the gateway itself as its gateway
        hop = _hop(place, config, above, "", extra) if hop is None else _behind(hop, place, config, extra)
    return hop


def _behind(before: Hop, place: Endpoint, config: paramiko.SSHConfig, extra: str) -> Hop:
    """A gateway that is reached through another one, whatever ssh_config says of its own gateways."""
    hop = _hop(place, _preceded(["ProxyJump none", "ProxyCommand none"], config), (), "", extra)
    hop.connection.gateway, hop.gateway = before.connection, before
    return hop


def _files(options: dict[str, Any], extra: str) -> tuple[Path, ...]:
    """The files of known hosts: ssh_config's, the system's, rigwright's own, and that of the inventory."""
    user = str(options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")).split()
    system = str(options.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")).split()
    named = [name for name in (*user, *system) if name.lower() != "none"]
    home = os.environ.get("HOME", "")
    return tuple(_expanded(name, home) for name in [*named, str(known_hosts.OWN), *([extra] if extra else [])])


@lru_cache(maxsize=64)
def _expanded(name: str, _home: str) -> Path:
    """The path of a file whose name may begin with ~."""
    return Path(name).expanduser()


def _identities(options: dict[str, Any], user: str, key: str) -> Identities:
    """The keys of a login: that of the inventory and no other, or those of ssh_config, or the usual ones and the
    agent's."""
    if key:
        return Identities(user, (Path(key).expanduser(),), True, True, _agent(options))
    named = [Path(str(name)).expanduser() for name in options.get("identityfile", ()) if str(name).lower() != "none"]
    usual = [] if "identityfile" in options else [Path("~/.ssh", name).expanduser() for name in _DEFAULT_KEYS]
    only = str(options.get("identitiesonly", "no")).lower() == "yes"
    found = tuple(path for path in (*named, *usual) if path.exists() or path.with_name(f"{path.name}.pub").exists())
    return Identities(user, found, bool(named), only, _agent(options))


def _agent(options: dict[str, Any]) -> str:
    """The socket of the agent, as IdentityAgent says; "" for none."""
    name = str(options.get("identityagent", "SSH_AUTH_SOCK"))
    if name.lower() == "none":
        return ""
    if name == "SSH_AUTH_SOCK" or name.startswith("$"):
        return os.environ.get(name.strip("${}"), "")
    with contextlib.suppress(RuntimeError):
        return str(Path(name).expanduser())
    return ""
