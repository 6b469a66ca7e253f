"""The results of the peer-to-peer test, and NCCL settings in files. docs/reference/nccl_p2p.md has every key."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct, field, to_builtins

from rigwright.core.command import Result, script
from rigwright.core.control_characters import visible
from rigwright.facts import Fact
from rigwright.facts.nccl.document import READ_DOCUMENT, Mistake, Versions, left_document, read_document

Outcome = Literal["ok", "wrong data", "hang", "error", "refused", "not run"]
Status = Literal["ok", "chipset", "gpu", "topology", "disabled by registry", "not supported", "unknown"]
Kind = Literal["P2P", "SHM", "NET", "mixed", "unknown"]


class CopyResult(Struct, frozen=True):
    """A copy from one GPU to another, or within one GPU. `ok` None: not tested; `outcome` and `error` have the reason.

    `gb_s`: in one direction while no other pair transfers, `round_gb_s`: while the other pairs of its round transfer
    too, both 10^9 bytes per second; None: not measured.
    """

    ok: bool | None
    outcome: Outcome
    gb_s: float | None = None
    latency_us: float | None = None
    error: str | None = None
    round_gb_s: float | None = None


class SendRecvResult(CopyResult, frozen=True):
    """NCCL's send and receive between two GPUs, and the transport in its log: `kind`, and the `words` of the log.
    `without_p2p`: with NCCL_P2P_DISABLE=1. `with_level_sys`: with NCCL_P2P_LEVEL=SYS; None: not tested."""

    gpus: tuple[int, ...] = ()
    transport: str | None = None
    kind: Kind | None = None
    words: tuple[str, ...] = ()
    without_p2p: SendRecvResult | None = None
    with_level_sys: SendRecvResult | None = None


class AllReduceResult(Struct, frozen=True):
    """NCCL's all-reduce over all GPUs. `busbw_gb_s`: bus bandwidth as defined by nccl-tests; None for one GPU."""

    ok: bool | None
    outcome: Outcome
    latency_us: float | None = None
    error: str | None = None
    busbw_gb_s: float | None = None
    gpus: tuple[int, ...] = ()
    transports: dict[str, str | None] = field(default_factory=dict)
    without_p2p: AllReduceResult | None = None


class Granted(Struct, frozen=True):
    """NVML's peer-to-peer status of two GPUs; None: unknown, because a GPU is lost."""

    read: Status | None
    write: Status | None
    nvlink: Status | None
    atomics: Status | None
    pci: Status | None


class Grant(Struct, frozen=True):
    """`cuda`: peer access (None: unknown). `distance`: PIX, PXB, PHB, NODE or SYS, as in `nvidia-smi topo -m`. `link`:
    NV2 (two NVLinks), otherwise the distance."""

    cuda: bool | None
    nvml: Granted | None
    distance: str | None
    link: str | None = None


class Pair(Struct, frozen=True):
    """Two GPUs, one direction. `bytes`: a copy with peer access; `staged`: through the host; `collective`: by NCCL."""

    start: int
    end: int
    grant: Grant
    bytes: CopyResult | None = None
    staged: CopyResult | None = None
    collective: SendRecvResult | None = None


class Gpu(Struct, frozen=True):
    """A GPU by nvidia-smi's index. `cuda_device` None: CUDA does not list it. Unknown values are None."""

    index: int
    cuda_device: int | None
    bus_id: str | None
    uuid: str | None
    name: str | None
    compute_capability: str | None
    compute_mode: str | None
    mig: bool | None
    processes: int | None
    own: CopyResult | None


class Row(Struct, frozen=True):
    """A synthetic training step on `gpus` GPUs: `speed_up` relative to one GPU; `efficiency` is speed_up / gpus."""

    gpus: int
    step_ms: float | None
    product_ms: float | None
    all_reduce_ms: float | None
    speed_up: float | None
    efficiency: float | None
    error: str | None


class SharedMemory(Struct, frozen=True):
    """/dev/shm."""

    size_mib: int
    free_mib: int
    enough: bool


class Setting(Struct, frozen=True):
    """A variable of NCCL or CUDA in a file or in the environment. `in_force`: it may have affected the test."""

    name: str
    value: str
    where: str
    in_force: bool = False

    @property
    def switches_off(self) -> bool:
        """Whether it disables a transport of NCCL."""
        return self.name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") and self.value not in ("", "0")


class Counts(Struct, frozen=True):
    """The numbers of GPUs that NVML and CUDA list."""

    nvml: int | None
    cuda: int | None


class Document(Struct, frozen=True):
    """The results of one run of nccl_p2p.py."""

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
    all_reduce: AllReduceResult | None
    scaling: tuple[Row, ...]
    shared_memory: SharedMemory | None
    leftovers: tuple[Setting, ...]
    notes: tuple[str, ...]
    errors: tuple[Mistake, ...]
    left_behind: tuple[int, ...]
    tiers_s: dict[str, float] = field(default_factory=dict)
    rounds: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Rounds of ordered pairs that were tested at the same time; without rounds every pair was tested alone."""


def read(text: str) -> Document:
    """The document of the peer-to-peer test. Raises ValueError."""
    document = read_document(text, Document, "test's")
    known = {gpu.index for gpu in document.gpus}
    unknown = {index for pair in document.pairs for index in (pair.start, pair.end)} - known
    if unknown:
        raise ValueError(f"a pair with GPU {min(unknown)}, which is not among its GPUs")
    return document


def _tested(result: Result) -> Document:
    return read(left_document(result, "the peer-to-peer test has not run", "the peer-to-peer test left no document"))


class PairFigures(Struct, frozen=True):
    """GB/s (10^9 bytes) between two GPUs, by their UUIDs, of NCCL's send and receive and of copies, in the slower
    direction: alone, otherwise beside the other pairs of the round. 0: the data was wrong or none came; None: not
    tested. `driver`: the loaded version."""

    gpus: tuple[str, str]
    nccl_gb_s: float | None
    copy_gb_s: float | None
    driver: str = ""


def figures(document: Document) -> tuple[PairFigures, ...]:
    """The figures of each pair of a full test whose GPUs have UUIDs, in the order of its GPUs; () for a quick test,
    whose messages are small."""
    if document.quick:
        return ()
    uuids = {gpu.index: gpu.uuid for gpu in document.gpus}
    directions: dict[tuple[int, int], list[Pair]] = {}
    for pair in document.pairs:
        directions.setdefault((min(pair.start, pair.end), max(pair.start, pair.end)), []).append(pair)
    made = []
    for (low, high), pairs in sorted(directions.items()):
        if low != high and (a := uuids[low]) and (b := uuids[high]):
            nccl_gb_s = _slower([_gb_s(pair.collective) for pair in pairs])
            copy_gb_s = _slower([_gb_s(pair.bytes, pair.staged) for pair in pairs])
            made.append(PairFigures((a, b), nccl_gb_s, copy_gb_s, document.versions.driver or ""))
    return tuple(made)


def _gb_s(*results: CopyResult | None) -> float | None:
    """The speed of the first result that was tested."""
    for result in results:
        if result is not None and result.ok is not None:
            speed = result.gb_s if result.gb_s is not None else result.round_gb_s
            return speed if result.ok else 0.0
    return None


def _slower(speeds: list[float | None]) -> float | None:
    known = [speed for speed in speeds if speed is not None]
    return min(known) if known and len(known) == len(speeds) else None


tested = Fact("nccl.tested", READ_DOCUMENT, _tested, kept=lambda document: to_builtins(list(figures(document))))
"""The document of the test, which is on the host only right after it. The history keeps its PairFigures."""

_SETTINGS = r"""
home=$(getent passwd -- "${SUDO_USER:-root}" | cut -d: -f6)
set --
for file in /etc/environment /etc/profile /etc/profile.d/*.sh /etc/bash.bashrc /etc/zsh/zshrc \
  /etc/security/pam_env.conf /etc/environment.d/*.conf /etc/systemd/system.conf /etc/systemd/system.conf.d/*.conf \
  /etc/nccl.conf \
  /root/.nccl.conf /root/.profile /root/.bashrc /root/.bash_profile "$home/.nccl.conf" "$home/.profile" \
  "$home/.bashrc" \
  /home/*/.nccl.conf /home/*/.profile /home/*/.bashrc /home/*/.bash_profile /home/*/.zshrc \
  /home/*/.config/environment.d/*.conf; do
  [ $((n += 1)) -le 1000 ] || break  # a user may have made any number
  [ -f "$file" ] && set -- "$@" "$file"
done
[ $# = 0 ] && exit
lines='(^|[^A-Za-z0-9_#])NCCL_[A-Z0-9_]+ *='
find -L "$@" -maxdepth 0 -type f \( -size -262145c -exec grep -aHZE -m 20 "$lines" {} + -o -size +262144c -exec sh -c \
  'head -c 262144 "$2" | grep -aHZE -m 20 --label="$2" "$1"' sh "$lines" {} \; \) 2>/dev/null | tr '\0' '\t'; :
"""


def _settings(result: Result) -> tuple[Setting, ...]:
    settings = []
    for line in result.lines:
        path, _, text = line.partition("\t")
        uncommented = re.split(r"(?:^|\s)#", text)[0]
        for name, value in re.findall(r"\b(NCCL_[A-Z0-9_]+) *= *[\"']?([^\s\"';]*)", uncommented):
            settings.append(Setting(name, visible(value), visible(path)))
    return tuple(dict.fromkeys(settings))


settings = Fact("nccl.settings", script(_SETTINGS, reads=True), _settings)
"""NCCL's variables in the first thousand files that logins, services or NCCL read, those of the system first."""
