"""What the peer-to-peer test of this host found, and the settings of NCCL that lie about. docs/nccl_p2p.md has every key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rigwright.errors import InputError
from rigwright.facts import Fact, Unavailable, Unreadable
from rigwright.shell import Result, script
from rigwright.typed import convert

FOLDER = "/run/rigwright-p2p"
"""Where the test stands on a host while it runs: the program, its log, its document. Gone afterwards."""

Outcome = Literal["ok", "wrong data", "hang", "error", "refused", "not run"]
Status = Literal["ok", "chipset", "gpu", "topology", "disabled by registry", "not supported", "unknown"]
Kind = Literal["P2P", "SHM", "NET", "mixed", "unknown"]


@dataclass(frozen=True)
class Copied:
    """A copy from one GPU to another (or a GPU's own memory). `ok` None: not tried, `outcome` and `error` say why.

    `gb_s`: one way, 10^9 bytes per second. None: not measured.
    """

    ok: bool | None
    outcome: Outcome
    gb_s: float | None = None
    latency_us: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Sent:
    """NCCL's send and receive between two GPUs, and the way that its log names: `kind`, in its own `words`.

    `without_p2p`: the same with NCCL_P2P_DISABLE=1. `with_level_sys`: with NCCL_P2P_LEVEL=SYS; None: not tried.
    """

    ok: bool | None
    outcome: Outcome
    gb_s: float | None = None
    latency_us: float | None = None
    error: str | None = None
    gpus: tuple[int, ...] = ()
    transport: str | None = None
    kind: Kind | None = None
    words: tuple[str, ...] = ()
    without_p2p: Sent | None = None
    with_level_sys: Sent | None = None


@dataclass(frozen=True)
class Summed:
    """NCCL's all-reduce over all GPUs. `busbw_gb_s` as nccl-tests counts it; None for one GPU."""

    ok: bool | None
    outcome: Outcome
    latency_us: float | None = None
    error: str | None = None
    busbw_gb_s: float | None = None
    gpus: tuple[int, ...] = ()
    transports: dict[str, str | None] = field(default_factory=dict)
    without_p2p: Summed | None = None


@dataclass(frozen=True)
class Granted:
    """What NVML grants one GPU of another's memory; None: a lost GPU does not say."""

    read: Status | None
    write: Status | None
    nvlink: Status | None
    atomics: Status | None
    pci: Status | None


@dataclass(frozen=True)
class Grant:
    """`cuda`: peer access (None: not known). `distance` on PCIe: PIX, PXB, PHB, NODE, SYS, as `topo -m` has them."""

    cuda: bool | None
    nvml: Granted | None
    distance: str | None


@dataclass(frozen=True)
class Pair:
    """Two GPUs, one way. `bytes`: a copy with peer access; `staged`: through the host; `collective` None: not asked for."""

    start: int
    end: int
    grant: Grant
    bytes: Copied | None = None
    staged: Copied | None = None
    collective: Sent | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU by nvidia-smi's number. `cuda_device` None: CUDA does not see it; what is not known is None."""

    index: int
    cuda_device: int | None
    bus_id: str | None
    uuid: str | None
    name: str | None
    compute_capability: str | None
    compute_mode: str | None
    mig: bool | None
    processes: int | None
    own: Copied | None


@dataclass(frozen=True)
class Row:
    """Scaling over so many GPUs: `speed_up` against one, `efficiency` that by GPUs. Synthetic."""

    gpus: int
    step_ms: float | None
    product_ms: float | None
    all_reduce_ms: float | None
    speed_up: float | None
    efficiency: float | None
    error: str | None


@dataclass(frozen=True)
class SharedMemory:
    """/dev/shm."""

    size_mib: int
    free_mib: int
    enough: bool


@dataclass(frozen=True)
class Setting:
    """A variable of NCCL's or CUDA's that somebody left: in a file, or in the environment.

    `in_force`, as the test knows: it may have stayed so while the test ran. It is no part of what the setting is.
    """

    name: str
    value: str
    where: str
    in_force: bool = field(default=False, compare=False)

    @property
    def switches_off(self) -> bool:
        """Whether it keeps NCCL from a way between GPUs."""
        return self.name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") and self.value not in ("", "0")


@dataclass(frozen=True)
class Mistake:
    """What went wrong, and where."""

    where: str
    what: str


@dataclass(frozen=True)
class Versions:
    """Driver, CUDA of the driver, of the runtime, NCCL; None: not known or not used."""

    driver: str | None
    cuda_driver: str | None
    cuda_runtime: str | None
    nccl: str | None


@dataclass(frozen=True)
class Counts:
    """How many GPUs NVML and CUDA have."""

    nvml: int | None
    cuda: int | None


@dataclass(frozen=True)
class Document:
    """All that one run of nccl_p2p.py found."""

    schema: int
    quick: bool
    outcome: Literal["ok", "failed", "could not run"]
    started: str
    seconds: float | None
    versions: Versions
    libraries: dict[str, str]
    counts: Counts
    gpus: tuple[Gpu, ...]
    pairs: tuple[Pair, ...]
    all_reduce: Summed | None
    scaling: tuple[Row, ...]
    shared_memory: SharedMemory | None
    leftovers: tuple[Setting, ...]
    notes: tuple[str, ...]
    errors: tuple[Mistake, ...]
    left_behind: tuple[int, ...]
    tiers_s: dict[str, float] = field(default_factory=dict)


_RENAMED = {"from": "start", "to": "end"}
"""Keys of a pair that Python keeps for itself."""


def read(text: str) -> Document:
    """The document of that JSON text, strict: a key more or less is refused. Raises ValueError."""
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("no JSON object")
        found: Document = convert(harmless(given), Document, "the test's document", "")
    except InputError as error:
        raise ValueError(str(error).replace("\n  wanted:", ", not")) from None
    except KeyError as key:
        raise ValueError(f"unknown key {key}") from None
    except RecursionError:
        raise ValueError("nested without end") from None
    if found.schema != 1:
        raise ValueError(f"schema {found.schema}, not 1")
    known = {gpu.index for gpu in found.gpus}
    strays = {index for pair in found.pairs for index in (pair.start, pair.end)} - known
    if strays:
        raise ValueError(f"a pair with GPU {min(strays)}, which is not among its GPUs")
    return found


def harmless(value: Any) -> Any:
    """A value from JSON with `from` and `to` renamed, and without a character that would steer a terminal."""
    if isinstance(value, str):
        return "".join(one if one.isprintable() or one == "\n" else "?" for one in value)
    if isinstance(value, list):
        return [harmless(item) for item in value]
    if isinstance(value, Mapping):
        pair = "from" in value and "grant" in value
        return {(_RENAMED.get(key, key) if pair else str(key)): harmless(item) for key, item in value.items()}
    return value


def _tested(result: Result) -> Document:
    if result.code == 1 and not result.stdout:
        raise Unavailable("the peer-to-peer test has not run")
    if not result.stdout.strip():
        raise Unreadable("the peer-to-peer test left no document")
    return read(result.text)


tested = Fact("p2p.tested", script('cat "$1/document" 2>/dev/null', FOLDER), _tested)
"""The document of the test, while it stands on the host: read once, right after the test."""

_SETTINGS = """
home=$(getent passwd -- "${SUDO_USER:-root}" | cut -d: -f6)
for file in /etc/environment /etc/profile /etc/profile.d/*.sh /etc/bash.bashrc /etc/zsh/zshrc /etc/security/pam_env.conf \\
  /etc/environment.d/*.conf /etc/systemd/system.conf /etc/systemd/system.conf.d/*.conf /etc/nccl.conf \\
  /root/.nccl.conf /root/.profile /root/.bashrc /root/.bash_profile "$home/.nccl.conf" "$home/.profile" "$home/.bashrc" \\
  /home/*/.nccl.conf /home/*/.profile /home/*/.bashrc /home/*/.bash_profile /home/*/.zshrc /home/*/.config/environment.d/*.conf; do
  [ -f "$file" ] && head -c 262144 "$file" 2>/dev/null | grep -aE '(^|[^A-Za-z0-9_#])NCCL_[A-Z0-9_]+ *=' | head -n 20 | while IFS= read -r line; do
    printf '%s\\t%s\\n' "$file" "$line"; done
done; :
"""


def _settings(result: Result) -> tuple[Setting, ...]:
    found = []
    for line in result.text.splitlines():
        path, _, text = line.partition("\t")
        said = re.split(r"(?:^|\s)#", text)[0]
        for name, value in re.findall(r"\b(NCCL_[A-Z0-9_]+) *= *[\"']?([^\s\"';]*)", said):
            found.append(Setting(name, harmless(value), harmless(path)))
    return tuple(dict.fromkeys(found))


settings = Fact("p2p.settings", script(_SETTINGS), _settings)
"""NCCL's variables in the files that every login, every service or NCCL itself reads."""
