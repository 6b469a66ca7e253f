"""What earlier repairs left behind in files that every program reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rigwright.facts import Fact
from rigwright.shell import Result, script


@dataclass(frozen=True)
class Setting:
    """A variable of NCCL that a file sets."""

    path: str
    name: str
    value: str


_SCRIPT = """
home=$(getent passwd -- "${SUDO_USER:-root}" | cut -d: -f6)
grep -HE '^[^#]*NCCL_[A-Z0-9_]+[[:space:]]*=' /etc/nccl.conf /etc/environment /etc/environment.d/* /etc/profile /etc/profile.d/* \
  /etc/bash.bashrc /etc/security/pam_env.conf /etc/systemd/system.conf /etc/systemd/system.conf.d/* \
  "$home/.nccl.conf" "$home/.profile" "$home/.bashrc" /root/.nccl.conf 2>/dev/null | sort -u; :
"""
_SETTING = re.compile(r"(NCCL_[A-Z0-9_]+)\s*=\s*[\"']?([^\"'\s;]*)")


def _nccl(result: Result) -> tuple[Setting, ...]:
    rows = (line.partition(":") for line in result.text.splitlines())
    return tuple(Setting(path, *found) for path, _, text in rows for found in _SETTING.findall(text))


nccl = Fact("environment.nccl", script(_SCRIPT), _nccl)
"""NCCL's variables that nccl.conf, the environment's files and the shells' start-up files set; () when none does."""
