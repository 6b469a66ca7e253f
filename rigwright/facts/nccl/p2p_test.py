"""The results of the peer-to-peer test, and NCCL settings in files. docs/reference/nccl_p2p.md has every key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct, field, to_builtins

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.core.control_characters import visible
from rigwright.core.errors import InputError
from rigwright.core.schema import convert
from rigwright.facts import Fact, Unavailable, Unreadable

T = TypeVar("T")

FOLDER = "/run/rigwright-p2p"
"""The folder on the host with the program, its log and its document during the test. It is removed afterwards."""

Outcome = Literal["ok", "wrong data", "hang", "error", "refused", "not run"]
Status = Literal["ok", "chipset", "gpu", "topology", "disabled by registry", "not supported", "unknown"]
Kind = Literal["P2P", "SHM", "NET", "mixed", "unknown"]


class CopyResult(Struct, frozen=True):
    """A copy from one GPU to another, or within one GPU. `ok` None: not tested; `outcome` and `error` have the reason.

    `gb_s`: in one direction, while no other pair of GPUs transfers, 10^9 bytes per second. None: not measured alone.
    `round_gb_s`: while the other pairs of its round transfer too. None: not measured in a round.
    """

    ok: bool | None
    outcome: Outcome
    gb_s: float | None = None
    latency_us: float | None = None
    error: str | None = None
    round_gb_s: float | None = None


class SendRecvResult(CopyResult, frozen=True):
    """NCCL's send and receive between two GPUs, and the transport in its log: `kind`, and the original `words` of the
    log.

    `without_p2p`: the same with NCCL_P2P_DISABLE=1. `with_level_sys`: with NCCL_P2P_LEVEL=SYS; None: not tested.
    """

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
    """`cuda`: peer access (None: unknown). `distance`: PIX, PXB, PHB, NODE or SYS, as in `nvidia-smi topo -m`.

    `link`: the kind of the link: NV2 (two NVLinks), else the distance.
    """

    cuda: bool | None
    nvml: Granted | None
    distance: str | None
    link: str | None = None


class Pair(Struct, frozen=True):
    """Two GPUs, one direction. `bytes`: a copy with peer access; `staged`: through the host; `collective` None: not
    requested."""

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
    """A variable of NCCL or CUDA that is set in a file or in the environment.

    `in_force`: it may have affected the test.
    """

    name: str
    value: str
    where: str
    in_force: bool = False

    @property
    def switches_off(self) -> bool:
        """Whether it disables a transport of NCCL."""
        return self.name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") and self.value not in ("", "0")


class Mistake(Struct, frozen=True):
    """An error and its place."""

    where: str
    what: str


class Versions(Struct, frozen=True):
    """Versions of the driver, of CUDA in the driver, of the CUDA runtime and of NCCL; None: unknown or not used."""

    driver: str | None
    cuda_driver: str | None
    cuda_runtime: str | None
    nccl: str | None


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


_RENAMED = {"from": "start", "to": "end"}
"""Keys of a pair that are keywords of Python."""


def read_document(text: str, document_type: type[T], name: str) -> T:
    """Parses the JSON document of a program of onhost/ as a type. Raises ValueError for an unknown or missing key, a
    value of another type, and another schema than 1."""
    try:
        given = host_text.json_value(text)
        if not isinstance(given, dict):
            raise ValueError("no JSON object")
        document: T = convert(_visible(given), document_type, f"the {name} document", "")
    except InputError as error:
        raise ValueError(
            f"{error.where}: {error.found}" + (f", not {error.expected}" if error.expected else "")
        ) from None
    except KeyError as key:
        raise ValueError(f"unknown key {key}") from None
    except RecursionError:
        raise ValueError("nested without end") from None
    if given["schema"] != 1:
        raise ValueError(f"schema {given['schema']}, not 1")
    return document


def _visible(value: Any) -> Any:
    """A value from JSON with its control characters replaced, and `from` and `to` of a pair renamed."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible(item) for item in value]
    if isinstance(value, Mapping):
        is_pair = "from" in value and "grant" in value
        return {(_RENAMED.get(key, key) if is_pair else str(key)): _visible(item) for key, item in value.items()}
    return value


def read(text: str) -> Document:
    """The document of the peer-to-peer test. Raises ValueError."""
    document = read_document(text, Document, "test's")
    known = {gpu.index for gpu in document.gpus}
    unknown = {index for pair in document.pairs for index in (pair.start, pair.end)} - known
    if unknown:
        raise ValueError(f"a pair with GPU {min(unknown)}, which is not among its GPUs")
    return document


READ_DOCUMENT = script('cat "$1/document" 2>/dev/null', FOLDER)


def left_document(result: Result, not_run: str, empty: str) -> str:
    """The output of READ_DOCUMENT. Raises Unavailable(`not_run`) without a document, Unreadable(`empty`) if it is
    empty."""
    if result.code == 1 and not result.stdout:
        raise Unavailable(not_run)
    if not result.stdout.strip():
        raise Unreadable(empty)
    return result.text


def _tested(result: Result) -> Document:
    return read(left_document(result, "the peer-to-peer test has not run", "the peer-to-peer test left no document"))


class PairFigures(Struct, frozen=True):
    """What a test measured between two GPUs, by their UUIDs: GB/s (10^9 bytes) of NCCL's send and receive and of
    copies, the slower direction.

    Measured alone, or beside the other pairs of its round where the test measured no pair of its kind slower. 0: the
    data was wrong, or nothing came; None: not tested. `driver`: the version that was loaded.
    """

    gpus: tuple[str, str]
    nccl_gb_s: float | None
    copy_gb_s: float | None
    driver: str = ""


def figures(found: Document) -> tuple[PairFigures, ...]:
    """The figures of each pair of a full test whose GPUs have UUIDs, in the order of its GPUs; () of a quick one, whose
    messages are small."""
    if found.quick:
        return ()
    uuids = {gpu.index: gpu.uuid for gpu in found.gpus}
    directions: dict[tuple[int, int], list[Pair]] = {}
    for pair in found.pairs:
        directions.setdefault((min(pair.start, pair.end), max(pair.start, pair.end)), []).append(pair)
    return tuple(
        PairFigures(
            (a, b),
            _slower([_gb_s(pair.collective) for pair in pairs]),
            _slower([_gb_s(pair.bytes, pair.staged) for pair in pairs]),
            found.versions.driver or "",
        )
        for (low, high), pairs in sorted(directions.items())
        if low != high and (a := uuids[low]) and (b := uuids[high])
    )


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


def _kept(found: Document) -> list[dict[str, Any]]:
    return [to_builtins(one) for one in figures(found)]


tested = Fact("nccl.tested", READ_DOCUMENT, _tested, kept=_kept)
"""The document of the test; it exists on the host only right after the test. The history keeps a few figures of it
(PairFigures)."""

_SETTINGS = r"""
home=$(getent passwd -- "${SUDO_USER:-root}" | cut -d: -f6)
set --
for file in /etc/environment /etc/profile /etc/profile.d/*.sh /etc/bash.bashrc /etc/zsh/zshrc /etc/security/pam_env.conf \
  /etc/environment.d/*.conf /etc/systemd/system.conf /etc/systemd/system.conf.d/*.conf /etc/nccl.conf \
  /root/.nccl.conf /root/.profile /root/.bashrc /root/.bash_profile "$home/.nccl.conf" "$home/.profile" "$home/.bashrc" \
  /home/*/.nccl.conf /home/*/.profile /home/*/.bashrc /home/*/.bash_profile /home/*/.zshrc /home/*/.config/environment.d/*.conf; do
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
"""NCCL's variables in the first thousand files that logins, services or NCCL read, those of the system and of root
first."""
