"""Writes .lab/inventory: the hosts that are up, in Ansible's YAML format, for all rigwright commands."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import yaml

from lab.archive import server
from lab.base.paths import CACHE, CHECKOUT, INVENTORY, KNOWN_HOSTS, SSH_CONFIG, USER, write
from lab.hardware.rigfile import describe
from lab.host.disk import Host, known
from lab.power import switch
from lab.vm import machine
from lab.vm.distributions import DISTRIBUTIONS
from lab.vm.machine import Machine
from rigwright import catalogue
from rigwright.cli.init_draft import host_text

_HEADER = "# Written by lab.up and lab.down: the simulated hosts that are up. Edits are lost.\n"
_CHECKOUTS = CHECKOUT / "inventory"


def write_inventory() -> None:
    """Lists exactly the hosts that are up in .lab/inventory. Deletes it and the ssh files when the lab has no host."""
    light = [host for host in known() if switch.running(host.name)]
    virtual = [one for one in machine.known() if machine.running(one.name)]
    files = _files([*light, *virtual]) if light or virtual or known() else {}
    for path, text in files.items():
        write(path, text)
    for path in (*sorted(INVENTORY.rglob("*"), reverse=True), INVENTORY):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path not in files:
            path.unlink()
    if not files:
        for path in (KNOWN_HOSTS, SSH_CONFIG):
            path.unlink(missing_ok=True)


def _files(hosts: list[Host | Machine]) -> dict[Path, str]:
    """Returns every file of the inventory of these hosts, with its text."""
    groups = {
        group: {"hosts": {host.name: _variables(host) for host in hosts if (host.rig is not None) == (group == "gpu")}}
        for group in ("gpu", "plain")
    }
    files = {INVENTORY / "hosts.yml": _HEADER + yaml.safe_dump({"all": {"children": groups}}, sort_keys=False)}
    for host in hosts:
        if host.rig is not None and host.rig in catalogue.all_rigs():
            text = _expected(host.rig)
            if isinstance(host, Machine):
                text = _with_debians_driver(text, host.distro)
            files[INVENTORY / "host_vars" / f"{host.name}.yml"] = text
    return files | _group_vars()


def _expected(rig: str) -> str:
    """Returns the expected values for a host of that rig.

    They are the checkout's variables for it, or those of the catalogue's rig. The positions have the bus ids that the
    lab gave them.
    """
    slots = {gpu["bus_id"]: gpu["position"] for gpu in describe(rig)["gpus"]}
    path = _CHECKOUTS / "host_vars" / f"{rig}.yml"
    if not path.is_file():
        _, _, text = host_text(catalogue.rig(rig, f"lab/hardware/rigs/{rig}.yml"), slots, datetime.date.min).partition(
            "\n"
        )
        return _HEADER + text
    text = path.read_text()
    return text if re.search("^slots:", text, re.M) else text + yaml.safe_dump({"slots": slots}, sort_keys=False)


def _with_debians_driver(text: str, distro: str) -> str:
    """Returns the expected values with the driver that the Debian release itself has, and without a CUDA toolkit."""
    values = {key: value for key, value in yaml.safe_load(text).items() if key != "cuda"}
    values["driver"] = {"branch": DISTRIBUTIONS[distro].branch, "source": "distribution"}
    return _HEADER + yaml.safe_dump(values, sort_keys=False)


def _variables(host: Host | Machine) -> dict[str, object]:
    found: dict[str, object] = {
        "ansible_host": str(host.address),
        "ansible_user": USER,
        "ansible_ssh_private_key_file": str(host.key),
    }
    if isinstance(host, Machine):
        wheels = CACHE / "wheels"
        p2p_wheels = str(wheels) if wheels.is_dir() else "none"
        return found | {"ansible_port": host.port} | ({"p2p_wheels": p2p_wheels} if host.rig else {})
    if host.rig is not None:
        fingerprint = (CACHE / "archive" / "cuda-key-fingerprint").read_text().strip()
        url = f"{server.url()}cuda/{host.distro}/x86_64"
        found["cuda_repository"] = {"url": url, "fingerprint": fingerprint}
        fingerprint = (CACHE / "archive" / "toolkit-key-fingerprint").read_text().strip()
        url = f"{server.url()}toolkit"
        found["container_repository"] = {
            "url": f"{url}/stable/deb/amd64",
            "key": f"{url}/gpgkey",
            "fingerprint": fingerprint,
        }
        found["p2p_wheels"] = str(CACHE / "wheels")
    return found


def _group_vars() -> dict[Path, str]:
    """Returns the checkout's group variables; those of `all` also name the file with the hosts' keys."""
    given = {path.name: path.read_text() for path in sorted((_CHECKOUTS / "group_vars").glob("*.yml"))}
    ours = _HEADER + yaml.safe_dump({"ssh_known_hosts": str(KNOWN_HOSTS)})
    if "all.yml" in given:
        given = {("all/all.yml" if name == "all.yml" else name): text for name, text in given.items()}
        return {INVENTORY / "group_vars" / name: text for name, text in (given | {"all/lab.yml": ours}).items()}
    return {INVENTORY / "group_vars" / name: text for name, text in (given | {"all.yml": ours}).items()}
