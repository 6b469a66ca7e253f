"""Hosts with their variables, and the inventory of them. host_patterns.py selects hosts by a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rigwright.core.desired import variable_names
from rigwright.core.errors import InputError, UsageError
from rigwright.core.machine_identity import MachineIdentity
from rigwright.core.secrets import SHORTEST, Secret, is_name
from rigwright.core.templates.variables import has_template, settled
from rigwright.core.yaml_source import Mapping as YamlMapping, Sequence as YamlSequence
from rigwright.inventory import endpoint
from rigwright.inventory.host_patterns import HostPatterns

_NAMES = {
    "ansible_host": ("ansible_ssh_host", "ansible_host"),
    "ansible_port": ("ansible_ssh_port", "ansible_port"),
    "ansible_user": ("ansible_ssh_user", "ansible_user"),
    "ansible_ssh_private_key_file": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
}
"""The names that Ansible accepts for a variable. The first name that is set is used, as in Ansible's ssh plugin."""


@dataclass(frozen=True)
class Host:
    """One machine: its name, its groups (highest precedence last), its variables, and where it was named (FILE:LINE).

    `origins` maps each variable to the place where it was set (FILE:LINE). `closed` is what to type when variables are
    in encrypted files without a password. `opened` returns the host with the variables of its encrypted files; None: it
    has them. `secret`: the connection variables whose values are secrets.
    """

    name: str
    groups: tuple[str, ...]
    variables: Mapping[str, Any] = field(compare=False, repr=False)
    where: str = ""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    closed: str = field(default="", compare=False, repr=False)
    opened: Callable[[], Host] | None = field(default=None, compare=False, repr=False)
    secret: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def origin(self, variable: str) -> str:
        """The place where a variable was set (FILE:LINE)."""
        return self.origins.get(self.called(variable), self.where)

    def connection(self, variable: str) -> Any:
        """The value of a connection variable under any of its names; None if it is not set."""
        return self.variables.get(self.called(variable))

    def called(self, variable: str) -> str:
        """The name under which a variable was set."""
        return next((name for name in _NAMES.get(variable, ()) if name in self.variables), variable)

    @property
    def address(self) -> str:
        """The name or address to connect to."""
        return str(self.connection("ansible_host") or self.name)

    @property
    def is_this_machine(self) -> bool:
        """Whether it is the machine that rigwright runs on (`ansible_connection: local`)."""
        kind = self.variables.get("ansible_connection")
        return isinstance(kind, str) and kind.removeprefix("ansible.builtin.") == "local"

    @property
    def login(self) -> str:
        """USER@ADDRESS, or ADDRESS if the inventory sets no user."""
        user = self.connection("ansible_user")
        return f"{user}@{self.address}" if user else self.address


class Inventory(HostPatterns, frozen=True):
    """Hosts and groups in file order. `groups`: all hosts of a group, `children`: child groups, `own`: direct hosts."""

    path: Path
    hosts: Mapping[str, Host]
    groups: Mapping[str, tuple[str, ...]]
    children: Mapping[str, tuple[str, ...]] = {}
    own: Mapping[str, tuple[str, ...]] = {}

    @property
    def rigs(self) -> Path:
        """The folder of the user's own rigs, `rigs/` next to the inventory. It may not exist."""
        return self.folder / "rigs"

    @property
    def templates(self) -> Path:
        """The folder of the owner's templates, `templates/` next to the inventory. It may not exist."""
        return self.folder / "templates"

    def select(self, pattern: str) -> list[Host]:
        """The hosts of a pattern, ready to connect. Raises UsageError as `names` does, and InputError."""
        return [_ready(self.hosts[name]) for name in self.names(pattern)]

    def only(self) -> Host:
        """The only host of the inventory. Raises UsageError if the inventory does not have exactly one host."""
        if len(self.hosts) != 1:
            problem = f"is missing, and {self.path} has {len(self.hosts)} hosts"
            raise UsageError("--host", problem, "which ones are meant", self.fix())
        return _ready(next(iter(self.hosts.values())))


_REFUSED = "ansible_ssh_common_args ansible_ssh_extra_args ansible_ssh_args ansible_password ansible_ssh_pass".split()


LOCAL_MACHINE = "local_machine"
"""The variable with the identifiers of the machine that a host with `ansible_connection: local` is."""

CONNECTION = (
    *(name for names in _NAMES.values() for name in names),
    "ansible_connection",
    LOCAL_MACHINE,
    "ssh_known_hosts",
    "ssh_legacy_algorithms",
)
"""The variables that a connection needs."""

_PASSWORDS = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")


def _ready(host: Host) -> Host:
    """The host with rendered templates and marked secrets; only the secrets that a connection begins with are read.

    Raises InputError for an unsupported variable, and when a vault file cannot be opened.
    """
    host = host.opened() if host.opened else host
    marked = {name: _with_secrets(value, name) for name, value in host.variables.items()}
    rendered = settled(marked, host.where, host.origins, host.closed)
    variables = {name: _with_secrets(value, name) for name, value in rendered.items()}
    secret = frozenset(name for name in CONNECTION if isinstance(variables.get(name), Secret))
    variables.update({name: variables[name].value for name in secret})
    host = replace(host, variables=variables, secret=secret)
    for name in _REFUSED:
        if name in variables:
            problem = f"{name}, which rigwright does not use"
            jump = re.search(r"(?:-J *|ProxyJump[ =])['\"]?([\w.@:,\[\]-]+)", str(variables[name]))
            line = (
                f"printf 'Host %s\\n  ProxyJump %s\\n' {host.address} {jump[1]} >> ~/.ssh/config; then " if jump else ""
            )
            fix = f"{line}take {name} out"
            raise InputError(host.origin(name), problem, "an ssh key; options in ~/.ssh/config, which is read", fix)
    for name in _PASSWORDS:
        if name in variables:
            variables["ansible_become_password"] = variables[name] = _password(variables[name], name, host.origin(name))
    _require_connection(host)
    _require_root(host)
    return host


_CONNECTIONS = ("ssh", "smart", "paramiko", "paramiko_ssh", "local")
"""The values of `ansible_connection`. All but `local` mean ssh."""


def _require_connection(host: Host) -> None:
    """Raises InputError for an address, a user, a port, a file or a kind of connection that cannot be used."""
    address = host.connection("ansible_host")
    given = host.name if address is None or address == "" else address
    endpoint.checked_address(given, host.called("ansible_host"), host.origin("ansible_host"))
    for variable, checked in (
        ("ansible_user", endpoint.checked_user),
        ("ansible_port", endpoint.checked_port),
        ("ansible_ssh_private_key_file", endpoint.checked_path),
        ("ssh_known_hosts", endpoint.checked_path),
    ):
        value = host.connection(variable)
        if value is not None and value != "":
            checked(value, host.called(variable), host.origin(variable))
    key = host.connection("ansible_ssh_private_key_file")
    if key is not None and not Path(str(key)).expanduser().is_file():
        problem = f"the ssh key {key} is not there"
        raise InputError(
            host.origin("ansible_ssh_private_key_file"), problem, "a private key file", "ssh-keygen makes one"
        )
    kind = host.variables.get("ansible_connection", "ssh")
    if not isinstance(kind, str) or kind.removeprefix("ansible.builtin.") not in _CONNECTIONS:
        raise InputError(host.origin("ansible_connection"), f"ansible_connection is {kind!r}", "ssh or local")
    recorded = host.variables.get(LOCAL_MACHINE)
    if recorded is not None and not MachineIdentity.of(recorded):
        expected = "an identifier of the machine: machine_id_hash, product_uuid or board_serial"
        fix = f"invoke init --local --host NEW_NAME writes it; or take {LOCAL_MACHINE} out"
        raise InputError(host.origin(LOCAL_MACHINE), f"{LOCAL_MACHINE} identifies no machine", expected, fix)


def _require_root(host: Host) -> None:
    """Raises InputError for variables that say how to become another user than root, or not to become root."""
    root = "changes hosts as root, with sudo where the login is another user"
    for name, accepted in _BECOME.items():
        if name not in host.variables:
            continue
        value = host.variables[name]
        words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        if name == "ansible_become" and str(host.connection("ansible_user")) == "root":
            continue
        if words.strip().lower() not in accepted:
            problem = f"{name} is {value!r}, and rigwright {root}"
            raise InputError(host.origin(name), problem, f"{name}: {accepted[0]}", f"take {name} out")


_BECOME = {
    "ansible_become": ("true", "yes", "on", "1"),
    "ansible_become_user": ("root",),
    "ansible_sudo_user": ("root",),
    "ansible_become_method": ("sudo", "ansible.builtin.sudo"),
    "ansible_become_exe": ("sudo", "/usr/bin/sudo"),
    "ansible_sudo_exe": ("sudo", "/usr/bin/sudo"),
    "ansible_become_flags": ("-h -s -n", "-h -s", "-n", ""),
    "ansible_sudo_flags": ("-h -s -n", "-h -s", "-n", ""),
}
"""The accepted values of Ansible's variables about root, in lower case. rigwright does nothing else."""

BECOME = (*_PASSWORDS, *_BECOME)
"""The variables about root, with its passwords."""

NOT_SECRET = frozenset((*variable_names(), *CONNECTION, *_BECOME))
"""Variables that are no secrets in a file that is encrypted as a whole: what rigwright does, and how it connects."""


def _password(value: Any, name: str, where: str) -> Secret:
    """The sudo password as a secret of one line, checked when it is read. Raises InputError."""

    def checked() -> str:
        text = value.value if isinstance(value, Secret) else value
        if not isinstance(text, str) or re.search(r"[\r\n\0]", text):
            raise InputError(where, f"{name} is no text of one line", "the password, in quotes")
        if len(text) < SHORTEST:
            problem = f"{name} has {len(text)} characters"
            expected = f"{SHORTEST} or more: a shorter one cannot be hidden in what is printed"
            raise InputError(where, problem, expected, f"take {name} out, and type the password when asked")
        return text

    return Secret(checked) if isinstance(value, Secret) and not value.known else Secret(checked())


def _with_secrets(value: Any, name: str) -> Any:
    """The value with each text as a secret if its name is one of a secret (`token`, `db_password`), at any depth."""
    if isinstance(value, YamlMapping):
        return value.with_values({key: _with_secrets(item, key) for key, item in value.items()})
    if isinstance(value, YamlSequence):
        return value.with_items(_with_secrets(item, name) for item in value)
    if isinstance(value, list):
        return [_with_secrets(item, name) for item in value]
    is_text = isinstance(value, str) and len(value) >= SHORTEST and not has_template(value)
    return Secret(value) if is_text and is_name(name) else value
