"""The algorithms of ssh that rigwright offers, and the old ones that a host of the inventory may allow by name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from hashlib import sha1
from typing import Any

import paramiko
from cryptography.hazmat.primitives import hashes
from paramiko.kex_group14 import KexGroup14SHA256

from rigwright.core.errors import InputError
from rigwright.core.yaml_source import misspelt
from rigwright.inventory.model import Host

VARIABLE = "ssh_legacy_algorithms"

_MODERN = {
    "kex": (
        "mlkem768x25519-sha256",
        "curve25519-sha256@libssh.org",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
        "diffie-hellman-group16-sha512",
        "diffie-hellman-group14-sha256",
    ),
    "ciphers": ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr"),
    "macs": (
        "hmac-sha2-256",
        "hmac-sha2-512",
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
    ),
    "keys": (
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "rsa-sha2-512",
        "rsa-sha2-256",
    ),
}
"""By kind, as paramiko names the kinds. OpenSSH 7.3 (2016) and newer have all but the first. Without group exchange,
in which the server chooses the size of the numbers. The first ciphers need no MAC, which takes paramiko longer than the
cipher."""


class _Group14Sha1(KexGroup14SHA256):
    name = "diffie-hellman-group14-sha1"
    hash_algo = sha1


class _Group1Sha1(_Group14Sha1):
    """RFC 2409, section 6.2: a prime of 1024 bits."""

    name = "diffie-hellman-group1-sha1"
    P = int(
        "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
        "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
        "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE65381FFFFFFFFFFFFFFFF",
        16,
    )


class _RsaSha1Key(paramiko.RSAKey):
    """An RSA key whose signatures may be made with SHA-1."""

    HASHES = {**paramiko.RSAKey.HASHES, "ssh-rsa": hashes.SHA1}  # type: ignore[misc]  # noqa: RUF012


_ADDED: dict[str, dict[str, Any]] = {
    "kex": {method.name: method for method in (_Group14Sha1, _Group1Sha1)},
    "keys": {"ssh-rsa": _RsaSha1Key},
}
"""The old algorithms that paramiko no longer has."""
_INFO = {"kex": "_kex_info", "ciphers": "_cipher_info", "macs": "_mac_info", "keys": "_key_info"}
"""The attributes of paramiko's Transport with the implementations of algorithms, by kind."""


def legacy() -> dict[str, str]:
    """The kind of each old algorithm that can be allowed."""
    return {
        name: kind
        for kind in _MODERN
        for name in (*getattr(paramiko.Transport, f"_preferred_{kind}"), *_ADDED.get(kind, ()))
        if name not in _MODERN[kind]
    }


def allowed_for(host: Host) -> tuple[str, ...]:
    """The old algorithms that a host and its gateways may use. Raises InputError for an unknown algorithm."""
    names = host.variables.get(VARIABLE, ())
    where = host.origin(VARIABLE)
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise InputError(where, f"{VARIABLE} is {str(names)[:80]!r}", "a list of names", f"{VARIABLE}: [hmac-sha1]")
    known = legacy()
    for name in names:
        if name not in known:
            raise misspelt(where, f"'{name[:80]}' is no old algorithm that can be allowed", name, sorted(known))
    return tuple(names)


def restrict(transport: Any, names: Collection[str], kinds: Collection[str] = ()) -> None:
    """Makes a transport that has not started offer the modern algorithms, and after them old ones with these names.

    `kinds`: the types of the recorded host keys; like OpenSSH, only these are requested, if any.
    """
    known = legacy()
    if "ssh-rsa" in kinds:
        kinds = {*kinds, "rsa-sha2-256", "rsa-sha2-512"}
    for kind, modern in _MODERN.items():
        implemented = {**getattr(paramiko.Transport, _INFO[kind]), **_ADDED.get(kind, {})}
        wanted = (*modern, *(name for name in names if known.get(name) == kind))
        offered = tuple(name for name in wanted if name in implemented)
        if kind == "kex":
            implemented = {name: partial(_begin_kex, name, method) for name, method in implemented.items()}
        if kind == "keys":
            offered = tuple(name for name in offered if name in kinds) or offered
        setattr(transport, _INFO[kind], implemented)
        setattr(transport, f"_preferred_{kind}", offered)


def _begin_kex(name: str, method: Callable[[Any], Any], transport: Any) -> Any:
    """Begins a key exchange, and stores its name, which paramiko does not keep."""
    transport.kex_in_use = name
    return method(transport)


def in_use(transport: Any) -> list[str]:
    """The old algorithms that an open connection uses."""
    names = ("kex_in_use", "host_key_type", "local_cipher", "remote_cipher", "local_mac", "remote_mac")
    return sorted({getattr(transport, name) for name in names} & set(legacy()))
